"""What tests of isolation need: whether this machine has it, and made-up accounts without an entry in /etc/passwd."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from horae.backends.local.isolation.account_helper import Account, ControlGroups, Helper, HelperSettings, RequestRefused
from horae.backends.local.isolation.accounts import AccountHelper
from horae.backends.local.isolation.modes import CannotIsolate
from horae.backends.local.isolation.sandbox import find_bubblewrap
from tests.backends.real import until

#: A group of this machine that stands for the group of job accounts.
GROUP, GROUP_ID = "users", 100
#: User ids that nobody has.
FIRST_UID = 54321


def why_not() -> str:
    """Why jobs cannot run under accounts here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root"
    if not all(os.access(f"/sys/fs/cgroup/{name}", os.W_OK) for name in ("pids", "memory", "devices", "cpu")):
        return "needs control groups (version 1) that root can write"
    return ""


def why_no_sandbox() -> str:
    """Why bubblewrap cannot be used here; empty if it can."""
    try:
        find_bubblewrap()
    except CannotIsolate as why:
        return str(why)
    return ""


needs_root = pytest.mark.skipif(bool(why_not()), reason=f"jobs under accounts: {why_not()}")
needs_bubblewrap = pytest.mark.skipif(bool(why_no_sandbox()), reason=why_no_sandbox())


class MadeUpAccounts:
    """Accounts ann and bob with homes, and others that the helper must refuse."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.accounts = {
            name: Account(
                name, FIRST_UID + k, FIRST_UID + k, (FIRST_UID + k, GROUP_ID), str(folder / name), "/bin/bash"
            )
            for k, name in enumerate(("ann", "bob"))
        }
        for account in self.accounts.values():
            Path(account.home).mkdir(mode=0o755)
            os.chown(account.home, account.uid, account.gid)

    def add(self, name: str, uid: int, groups: tuple[int, ...] = (GROUP_ID,), shell: str = "/bin/sh") -> None:
        self.accounts[name] = Account(name, uid, groups[0], groups, str(self.folder), shell)

    def find(self, name: str) -> Account:
        if name not in self.accounts:
            raise RequestRefused(f"this machine has no account {name!r}")
        return self.accounts[name]


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every account can reach; those of pytest are the tester's alone."""
    folder = Path(tempfile.mkdtemp(prefix="horae-accounts-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def forked_helper(accounts: MadeUpAccounts, without: str = "", **more: object) -> Iterator[tuple[AccountHelper, int]]:
    """A root helper that knows made-up accounts, and its process id; `without` one controller of control groups."""
    settings = HelperSettings(**{"service_uid": 1, "job_group": GROUP, "service": f"test-{os.getpid()}", **more})  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            groups = ControlGroups.find(settings.service)
            groups.parents.pop(without, None)
            Helper(theirs, settings, accounts.find, groups).run()
        finally:
            os._exit(0)
    theirs.close()
    helper = AccountHelper(ours, settings)
    try:
        yield helper, pid
    finally:
        helper.close()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        until(lambda: not groups_left(), "for control groups to be removed", patience_s=10.0)
        for parent in Path("/sys/fs/cgroup").glob(f"*/horae/test-{os.getpid()}"):
            parent.rmdir()


def groups_left() -> list[Path]:
    """Control groups that this test process has made and that are still there."""
    return [path for path in Path("/sys/fs/cgroup").glob(f"*/horae/test-{os.getpid()}/*") if path.is_dir()]
