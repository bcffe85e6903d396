"""When the operator is told what is wrong (`service/health.py`)."""

from __future__ import annotations

import threading
from pathlib import Path

from horae.service.health import OVER, STEADY_S, HealthNotes
from horae.service.server import ServeOptions, Server
from tests.backends.real import until


def told(*seen: tuple[float, str]) -> list[str]:
    """What is told if these things are wrong at these seconds."""
    notes = HealthNotes()
    return [note for at_s, wrong in seen if (note := notes.note(wrong, at_s))]


def test_what_lasts_is_told_once_and_its_end_once() -> None:
    away = [(float(second), "Slurm is away.") for second in range(10)]
    well = [(float(second), "") for second in range(10, 20)]
    assert told(*away, *well) == ["Slurm is away.", OVER]


def test_a_hiccup_is_no_news() -> None:
    assert told((0.0, ""), (1.0, "away"), (1.0 + STEADY_S / 2, "away"), (1.0 + STEADY_S, ""), (9.0, "")) == []


def test_another_reason_is_told_if_it_lasts_and_one_that_changes_all_the_time_is_told_once() -> None:
    assert told((0.0, "a"), (3.0, "a"), (4.0, "b"), (8.0, "b")) == ["a", "b"]
    assert told(*((second, f"stuck for {second} s") for second in range(60))) == ["stuck for 3 s"]


def test_a_service_without_its_cluster_says_so(tmp_path: Path) -> None:
    options = ServeOptions(
        tmp_path / "state", port=0, backend="ray", address="http://127.0.0.1:9", shared=tmp_path / "shared"
    )
    server, stop, notes = Server(options), threading.Event(), list[str]()
    waiting = threading.Thread(target=server.wait, args=(stop, notes.append))
    waiting.start()
    try:
        until(lambda: notes, "for a note")
    finally:
        stop.set()
        waiting.join()
        server.close()
    assert "out of sight" in notes[0]
    assert "Ray's dashboard does not answer" in notes[0]
