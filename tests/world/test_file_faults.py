"""What seeded worlds found, one by one: a file server that loses power, fails for a moment, or whose clock is set.

Tests backends/shared_folder.py, backends/piece_files.py, backends/attempt_round.py and
backends/local/attempt_folders.py.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from horae.backends.attempt_round import AttemptRound, FollowedAttempt, ReconcilerSettings
from horae.backends.driver import Look, SeenNode
from horae.backends.local import runner
from horae.backends.local.attempt_folders import AttemptFolder
from horae.backends.protocol import Place, Start
from horae.backends.shared_folder import SharedFolder
from horae.backends.task import Task
from horae.core.events import JobStopped
from tests.world.faults import FileFaults
from tests.world.memory_files import ROOT, MemoryFiles, mounted

TASK = Task("a-1", "ann", "a", ("train",), 100.0)
START = Start("a-1", 1, TASK, "v100", (Place("n1", (0,)),))
NODE = SeenNode("n1", "10.0.0.1", "v100", 2, 8, 8000)


@dataclass
class Server:
    """A file server in memory, with a clock that a test sets."""

    files: MemoryFiles
    faults: FileFaults
    clock_s: float = 1000.0

    def open(self) -> SharedFolder:
        return SharedFolder(Path(ROOT) / "shared", None)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(MemoryFiles(lambda: made.clock_s), FileFaults())
    made.files.before = made.faults.check
    with mounted(made.files):
        yield made


def claimed(folder: SharedFolder) -> FollowedAttempt:
    """An attempt whose runner has claimed its piece, and says nothing more."""
    folder.order(START)
    ordered = folder.attempt(("a-1", 1))
    folder.write_piece_orders(ordered, {"n1": NODE}, beat_limit_s=60.0)
    assert runner.claim(str(ordered.piece("n1").path), "n1 1")
    return FollowedAttempt(ordered, stopping=False)


def see_to(followed: FollowedAttempt, folder: SharedFolder, now_s: float) -> mock.Mock:
    """A round in which the cluster manager does not know the piece; returns what the round asked for."""
    hands = mock.Mock()
    hands.is_hopeless.return_value = False
    AttemptRound(followed, folder, Look({"n1": NODE}, {}, {}), ReconcilerSettings(), hands, now_s).see_to()
    return hands


def test_an_order_survives_a_power_cut_of_the_file_server(server: Server) -> None:
    server.open().order(START)
    server.files.cut_power(lambda changes: 0)
    assert server.open().attempt(("a-1", 1)).order, "a running attempt would count as never begun"


def test_a_service_outlives_a_power_cut_of_its_file_server(server: Server) -> None:
    folder = server.open()
    server.files.cut_power(lambda changes: 0)
    assert folder.clock_s() == server.clock_s


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_neither_kills_the_living_nor_keeps_the_dead(server: Server, jump_s: float) -> None:
    folder = server.open()
    followed = claimed(folder)
    assert not see_to(followed, folder, now_s=0.0).conclude.called
    server.clock_s += jump_s
    assert not see_to(followed, folder, now_s=80.0).conclude.called, "its runner may be alive"
    hands = see_to(followed, folder, now_s=95.0)
    assert isinstance(hands.conclude.call_args.args[1], JobStopped)


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_beats_count_after_the_clock_was_set(server: Server, jump_s: float) -> None:
    folder = server.open()
    followed = claimed(folder)
    server.clock_s += jump_s
    for second in range(0, 200, 20):
        server.clock_s += 20.0
        (followed.ordered.piece("n1").path / runner.BEAT).touch()
        assert not see_to(followed, folder, now_s=float(second)).conclude.called, "its runner is alive"


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE, errno.ESTALE])
def test_work_that_cannot_be_read_now_is_not_taken_for_none(server: Server, error: int) -> None:
    folder = server.open()
    followed = claimed(folder)
    checkpoint = followed.ordered.path.parent / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "saved.json").write_text(json.dumps({"step": 40, "total": 100}))
    server.faults.error = error
    with pytest.raises(OSError, match=os.strerror(error)):
        folder.work_done(followed.ordered)
    with pytest.raises(OSError, match=os.strerror(error)):
        followed.ordered.piece("n1").beat_limit_s()
    server.faults.error = 0
    assert folder.work_done(followed.ordered) == 40.0


def test_a_checkpoint_that_is_a_folder_is_no_work_and_no_trouble(server: Server) -> None:
    folder = server.open()
    followed = claimed(folder)
    (followed.ordered.path.parent / "checkpoint" / "saved.json").mkdir(parents=True)
    assert folder.work_done(followed.ordered) == 0.0


def test_a_service_that_dies_before_it_made_the_folder_leaves_no_marker(server: Server) -> None:
    folder = server.open()
    with mock.patch.object(AttemptFolder, "make", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        folder.order(START)
    assert not folder.tracked(), "a marker has a folder"
    assert folder.order(START)


def test_a_marker_without_a_folder_is_stopped(server: Server) -> None:
    """Services before this one made the marker first."""
    folder = server.open()
    (folder.path / "attempts" / "a-1@1").touch()
    [ordered] = folder.tracked()
    assert folder.request_stop(("a-1", 1), followed=True)
    assert folder.work_done(ordered) == 0.0


def test_an_attempt_that_was_given_up_is_not_started_by_an_order_that_comes_late(server: Server) -> None:
    """A service that was replaced between the marker and the order of an attempt goes on, and writes the order."""
    folder, late = server.open(), server.open()
    write_order = AttemptFolder.write_order

    def replaced_meanwhile(self: AttemptFolder, *words: object) -> None:
        followed = FollowedAttempt(folder.attempt(("a-1", 1)), stopping=False)
        end = see_to(followed, folder, 0.0).conclude.call_args.args[1]
        assert isinstance(end, JobStopped)
        write_order(self, *words)  # type: ignore[arg-type]

    with mock.patch.object(AttemptFolder, "write_order", replaced_meanwhile):
        assert late.order(START)
    (found,) = server.open().tracked()
    assert found.order is None
