"""Backends in worlds where jobs can be made to behave: real processes here, or pieces of a fake cluster."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from horae.backends.attempt_round import ReconcilerSettings
from horae.backends.local.backend import LocalBackend
from horae.backends.local.isolation.accounts import AccountIsolation
from horae.backends.local.isolation.sandbox import SandboxIsolation
from horae.backends.protocol import Place, Start
from horae.backends.reconcile import Reconciler
from horae.core.events import Event
from horae.testing.backend_contract import NODES
from tests.backends.fake_cluster import FakeCluster
from tests.backends.job_accounts import MadeUpAccounts, forked_helper, open_folder
from tests.backends.real import bash, end_all, task, text_of, until

_SAVE = """cd $HORAE_CHECKPOINT_DIR; echo begun >> begun; echo '{"step": 40, "total": 100}' > saved.json"""
SCRIPTS = {
    "runs": "trap 'exit 75' USR1; echo up; sleep 300 & wait",
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
        until(lambda: "up" in text_of(self.backend.log(job, attempt)), "for a job to come up")

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


class SandboxRig(LocalRig):
    """The same jobs, in bubblewrap."""

    def _open(self) -> None:
        self.backend = LocalBackend(self.state, NODES, ready_s=0.0, isolation=SandboxIsolation((self.state,)))


class AccountRig(LocalRig):
    """The same jobs, under an account of their own."""

    def __init__(self, state: Path) -> None:
        self.stack = ExitStack()
        self.accounts = MadeUpAccounts(self.stack.enter_context(open_folder()))
        self.helper, _ = self.stack.enter_context(forked_helper(self.accounts))
        super().__init__(state)

    def _open(self) -> None:
        isolation = AccountIsolation(self.helper, NODES, find=self.accounts.find)
        self.backend = LocalBackend(self.state, NODES, ready_s=0.0, isolation=isolation)

    def begun(self, job: str = "a-1") -> int:
        jobs = Path(self.accounts.find("ann").home) / "horae-jobs" / self.helper.settings.service
        return text_of(jobs / job / "checkpoint" / "begun").count("begun")

    def close(self) -> None:
        super().close()
        self.stack.close()


class ReconcilerRig(LocalRig):
    """The same jobs, as pieces of a cluster manager that is fake."""

    backend: Reconciler  # type: ignore[assignment]

    def __init__(self, state: Path) -> None:
        self.cluster = FakeCluster(NODES)
        super().__init__(state)

    def _open(self) -> None:
        settings = ReconcilerSettings(look_every_s=0.05, ready_s=0.0)
        self.backend = Reconciler(self.cluster, self.state, settings=settings)
