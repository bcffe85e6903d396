"""Jobs under the accounts of their users, with real processes; needs root and control groups.

Tests backends/local/isolation/accounts.py, backends/local/isolation/account_helper.py and
backends/local/isolation/modes.py.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from horae.backends.local.backend import LocalBackend
from horae.backends.local.isolation.account_helper import ControlGroups, Refused
from horae.backends.local.isolation.accounts import AccountHelper, AccountIsolation
from horae.backends.protocol import Place
from horae.core.events import JobFailed, JobFinished, JobStopped, LaunchFailed
from tests.backends.job_accounts import FIRST_UID, MadeUpAccounts, forked_helper, groups_left, open_folder, why_not
from tests.backends.real import NODES, bash, folder, next_events, opened, python, start, text_of, until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"accounts: {why_not()}")


class Machine:
    """A state folder, accounts and a helper; backends are opened on them."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.state = root, root / "state"
        self.accounts = MadeUpAccounts(root)
        self.stack = stack
        self.helper, self.helper_pid = stack.enter_context(forked_helper(self.accounts, device_prefix=str(root)))
        self.given: dict[int, str] = {}
        self.backend = self.opened()

    def opened(self) -> LocalBackend:
        return self.stack.enter_context(opened(self.state, isolation=self.isolation()))

    def isolation(self) -> AccountIsolation:
        files: Callable[[Any], list[str]] = lambda numbers: [self.given[n] for n in numbers if n in self.given]  # noqa: E731
        return AccountIsolation(self.helper, NODES, devices=files, find=self.accounts.find)

    def run(self, *run: str, job: str = "a-1", **more: Any) -> str:
        """Run a job to its end; returns its log."""
        self.backend.start(start(run, job=job, **more))
        self.end = next_events(self.backend)[0]
        return self.log(job)

    def log(self, job: str = "a-1", attempt: int = 1) -> str:
        return text_of(self.backend.log(job, attempt))


@pytest.fixture
def machine() -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(stack.enter_context(open_folder()), stack)


def test_a_job_runs_as_its_user_in_folders_of_its_own(machine: Machine) -> None:
    log = machine.run(*bash("id -u; id -G; pwd; echo $HOME $USER; touch x; stat -c %u:%a . $HORAE_CHECKPOINT_DIR"))
    home = machine.accounts.find("ann").home
    jobs = f"{home}/horae-jobs/test-{os.getpid()}/a-1"
    owned = f"{FIRST_UID}:700"
    assert log.splitlines() == [str(FIRST_UID), f"{FIRST_UID} 100", f"{jobs}/1", f"{home} ann", owned, owned]
    assert isinstance(machine.end, JobFinished)
