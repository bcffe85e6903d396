"""What every backend promises, checked on the fake one and on real processes.

Tests backends/fake.py, backends/protocol.py and backends/task.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from horae.backends.fake import FakeBackend, FakeWorld
from horae.backends.local.backend import LocalBackend
from horae.backends.protocol import Place, Start
from horae.core.events import Event
from horae.testing import BACKEND_CHECKS, FakeRig, Rig, check_backend
from horae.testing.backend_contract import NODES
from tests.backends.real import bash, end_all, task, text_of, until

_SAVE = """cd $HORAE_CHECKPOINT_DIR; echo begun >> begun; echo '{"step": 40, "total": 100}' > saved.json"""
SCRIPTS = {
    "runs": "trap 'exit 75' USR1; echo up; sleep 60 & wait",
    "finishes": "exit 0",
    "finishes late": "trap 'exit 0' USR1; echo up; sleep 60 & wait",
    "fails": "exit 3",
    "asks to run again": "exit 75",
    "asks in vain": "exit 75",
    "cannot launch": "exit 0",
}


class LocalRig:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.backend: LocalBackend
        self._open()

    def _open(self) -> None:
        self.backend = LocalBackend(self.state, NODES, ready_s=0.0)

    def start(self, behaviour: str, job: str = "a-1", attempt: int = 1, node: str = "v100") -> None:
        signal = "SIGNONE" if behaviour == "cannot launch" else "SIGUSR1"
        what = task(bash(f"{_SAVE}; {SCRIPTS[behaviour]}"), job, stop_signal=signal)
        self.backend.start(Start(job, attempt, what, node, (Place(node, (0,)),)))

    def up(self, job: str = "a-1", attempt: int = 1) -> None:
        until(lambda: "up" in text_of(self.backend.log_path(job, attempt)), "for a job to come up")

    def events(self) -> list[Event]:
        found: list[Event] = until(lambda: self.backend.watch(7.0), "for an event")
        return found

    def quiet(self) -> bool:
        try:
            until(lambda: self.backend.watch(7.0), patience_s=0.3)
        except AssertionError:
            return True
        return False

    def begun(self, job: str = "a-1") -> int:
        return text_of(self.state / "jobs" / job / "checkpoint" / "begun").count("begun")

    def reopen(self) -> None:
        self.backend.close()
        self._open()

    def close(self) -> None:
        self.backend.close()
        end_all(self.state)


@pytest.fixture(params=["fake", "local"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made: Rig = FakeRig() if request.param == "fake" else LocalRig(tmp_path / "state")
    yield made
    made.close()


@pytest.mark.parametrize("check", BACKEND_CHECKS.values(), ids=BACKEND_CHECKS)
def test_every_backend_keeps_every_promise(rig: Rig, check: Callable[[Rig], None]) -> None:
    check(rig)


def test_a_backend_that_breaks_a_promise_is_told_which() -> None:
    class Forgetful(FakeRig):
        def reopen(self) -> None:
            self.world = FakeWorld()
            self.backend = FakeBackend(NODES, self.world)

    with pytest.raises(AssertionError, match="an attempt that is over never starts again"):
        check_backend(Forgetful)


def test_all_checks_run_one_after_the_other() -> None:
    check_backend(FakeRig)
