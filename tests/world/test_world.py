"""Worlds from seeds: whatever goes wrong, nothing acknowledged is lost, and nothing runs twice.

`make soak` runs ten thousand of them (soak.py). Tests backends/looking_backend.py, backends/reconcile.py,
backends/attempt_round.py and service/daemon.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from horae.backends.local import runner
from horae.service.daemon import Daemon, _merged
from horae.service.store.connection import StoreTrouble
from tests.world import world as world_module
from tests.world.faults import POINTS
from tests.world.invariants import Broken
from tests.world.world import FAULTS, STEPS, run_seed

#: Seeds of a test, and how many tests there are.
CHUNK, CHUNKS = 20, 4


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_everything_goes_wrong_and_no_promise_is_broken(chunk: int) -> None:
    deaths: Counter[str] = Counter()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        world = run_seed(seed, deaths)
        assert world.steps >= STEPS
        assert world.faults.total() >= FAULTS
    assert deaths.keys() <= set(POINTS)
    assert len(deaths) > len(POINTS) / 4, "services die at many points"


def test_the_same_seed_is_the_same_world_also_in_another_process() -> None:
    here = run_seed(7).digest.hexdigest()
    assert run_seed(7).digest.hexdigest() == here
    assert run_seed(8).digest.hexdigest() != here
    ran = subprocess.run(
        [sys.executable, "-m", "tests.world.world", "7"],
        env={**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert here in ran.stdout, ran.stdout


# ----------------------------------------------------------------- planted bugs


def answer_before_write(self: Daemon, requests: Sequence[Any], now_s: float) -> bool:
    """A daemon that answers before the journal has what it answers."""
    changes = []
    for request in requests:
        try:
            change, answer = request.prepare(self.engine, now_s)
        except Exception as error:
            request.answer.set_exception(error)
            continue
        request.answer.set_result(answer)
        changes.append(change)
    try:
        self._record(_merged(changes))
    except StoreTrouble as trouble:
        self._note_trouble(trouble)
        return False
    self._publish()
    return bool(changes)


def claim_anyway(folder: str, by: str) -> bool:
    """Runners and services that do not look whose a piece is."""
    runner.write_atomically(folder, runner.CLAIM, {"by": by}, once=True)
    return True


PLANTED: dict[str, tuple[object, str, Any]] = {
    "answers before it writes": (Daemon, "_answer_requests", answer_before_write),
    "checks no claim": (runner, "claim", claim_anyway),
}


def seeds_until_found(limit: int) -> int:
    """How many seeds it takes until an invariant is broken."""
    for seed in range(limit):
        try:
            run_seed(seed)
        except Broken:
            return seed + 1
    raise AssertionError(f"not found in {limit} seeds")


@pytest.mark.long
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, mutant = PLANTED[planted]
    monkeypatch.setattr(owner, name, mutant)
    monkeypatch.setattr(world_module, "PATIENCE_S", 1500.0)
    found = seeds_until_found(1000)
    print(f"{planted}: found after {found} seeds")  # noqa: T201
