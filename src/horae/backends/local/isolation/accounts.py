"""Isolation by accounts: every job runs under the account of the user who submitted it, in a control group.

The service has no rights of its own: the root helper (`account_helper.py`), started before the service gave up root's
rights, starts the processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from horae.backends.local.isolation import account_helper
from horae.backends.local.isolation.account_helper import (
    Account,
    HelperSettings,
    RequestRefused,
    check_account,
    find_account,
)
from horae.backends.local.isolation.modes import ACCOUNT, CannotIsolate, DeviceFiles, nvidia_devices, processes_in
from horae.backends.local.machine_room import with_machine_room
from horae.backends.protocol import Start
from horae.core.cluster import Node
from horae.core.errors import UserError

#: Group of the accounts under which jobs run, by default.
JOB_GROUP = "horae-jobs"
#: Folder in a user's home for working folders and checkpoints of jobs.
JOBS_IN_HOME = "horae-jobs"
#: Seconds for which the helper may take to answer.
_ANSWER_S = 20.0
#: Processes and threads that a job may have, for each GPU.
_TASKS_PER_GPU = 4096


class JobRefused(UserError):
    """A job that cannot be started under an account."""


class AccountHelper:
    """The service's side of the root helper. Used by several threads."""

    def __init__(self, channel: socket.socket, settings: HelperSettings) -> None:
        self._channel, self.settings = channel, settings
        self._channel.settimeout(_ANSWER_S)
        self._reader = channel.makefile("rb")
        self._lock = threading.Lock()
        #: Why the helper cannot be asked any more; empty while it can.
        self.trouble = ""
        first = self._answer()
        if "refused" in first:
            raise CannotIsolate(f"Jobs cannot run under accounts of their own here: {first['refused']}.")

    def open(self, account: str, attempt: str, limits: Mapping[str, Any]) -> int:
        """Start the warden of an attempt; returns the runner's end of the socket to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._ask({"open": {"account": account, "attempt": attempt, "limits": dict(limits)}}, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        return ours.detach()

    def kill(self, name: str) -> None:
        """Kill what is left in a control group of this service."""
        self._ask({"kill": name})

    def is_there(self) -> bool:
        """Whether the helper still runs."""
        with self._lock, suppress(BlockingIOError, TimeoutError):
            self._channel.settimeout(0.0)
            try:
                if self._channel.recv(1, socket.MSG_PEEK) == b"":
                    self.trouble = "The root helper has ended: start the service again."
            except ConnectionError:
                self.trouble = "The root helper has ended: start the service again."
            finally:
                self._channel.settimeout(_ANSWER_S)
        return not self.trouble

    def close(self) -> None:
        """End the helper. Wardens go on."""
        self._reader.close()
        self._channel.close()

    def _ask(self, request: dict[str, Any], *handles: int) -> dict[str, Any]:
        text = json.dumps(request).encode() + b"\n"
        with self._lock:
            try:
                sent = socket.send_fds(self._channel, [text], handles) if handles else self._channel.send(text)
                self._channel.sendall(text[sent:])
                answer = self._answer()
            except OSError:
                self.trouble = "The root helper has ended: start the service again."
                raise JobRefused(self.trouble) from None
        if "refused" in answer:
            raise JobRefused(f"The root helper refused to start the job: {answer['refused']}.")
        return answer

    def _answer(self) -> dict[str, Any]:
        line = self._reader.readline(65536)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the helper has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


class AccountIsolation:
    """Jobs run under the accounts of their users, with limits on memory, processors, processes and devices."""

    mode = ACCOUNT
    honours = frozenset({"cpus_per_gpu", "memory_per_gpu"})

    def __init__(
        self,
        helper: AccountHelper,
        nodes: Sequence[Node],
        names: Mapping[str, str] | None = None,
        devices: DeviceFiles = nvidia_devices,
        find: Callable[[str], Account] = find_account,
    ) -> None:
        """`names`: account by user, where they differ."""
        self._helper, self._names, self._devices, self._find = helper, dict(names or {}), devices, find
        counted = nodes if all(node.memory_mb for node in nodes) else with_machine_room(nodes)
        #: MiB of memory that go with a GPU, by node: what a job that asks for nothing is counted with.
        self._memory_share_mb = {node.name: node.memory_mb // node.gpus for node in counted}

    @property
    def trouble(self) -> str:
        """Why no job can be started."""
        return self._helper.trouble

    def account(self, user: str) -> Account:
        """The account of a user; refused with a sentence if jobs cannot run under it."""
        group = self._helper.settings.job_group
        name = self._names.get(user, user)
        try:
            account = self._find(name)
            check_account(account, self._helper.settings)
        except RequestRefused as why:
            raise JobRefused(
                f"Jobs of {user} cannot run here: {why}. Ask the operator for an account in the group {group} "
                f"(useradd -m {name}; usermod -a -G {group} {name})."
            ) from None
        return account

    def refusal(self, user: str) -> str:
        """Why jobs of a user cannot run."""
        try:
            self.account(user)
        except JobRefused as why:
            return str(why)
        return ""

    def job_folder(self, start: Start) -> Path | None:
        """A folder in the user's home."""
        home = Path(self.account(start.task.user).home)
        return home / JOBS_IN_HOME / self._helper.settings.service / start.job

    @property
    def job_folders(self) -> str:
        """How paths to the folders of jobs go on before a job's name."""
        return f"/{JOBS_IN_HOME}/{self._helper.settings.service}"

    def adapt(self, order: dict[str, Any], start: Start, gpus: Sequence[int]) -> dict[str, Any]:
        """The order with the account, its environment and the limits."""
        account, task = self.account(start.task.user), start.task
        env = {name: value for name, value in order["env"].items() if name != "TMPDIR" or name in task.env}
        own = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
        work = [] if task.workdir else [order["workdir"]]
        return {
            **order,
            "account": account.name,
            "env": {**env, **{name: value for name, value in own.items() if name not in task.env}},
            "make": [order["checkpoint_dir"], *work],
            "limits": self.limits(start, gpus),
        }

    def limits(self, start: Start, gpus: Sequence[int]) -> dict[str, Any]:
        """What a job may use: what it asked for, or its GPUs' share of their nodes.

        Processors that nobody uses are for everybody, unless a job asked for a number of them.
        """
        count, task = sum(len(place.gpus) for place in start.places), start.task
        share_mb = sum(self._memory_share_mb[place.node] * len(place.gpus) for place in start.places)
        return {
            "memory_mb": task.memory_mb_per_gpu * count if task.memory_mb_per_gpu else share_mb or None,
            "cpus": task.cpus_per_gpu * count if task.cpus_per_gpu else None,
            "cpu_weight": 100 * count,
            "tasks": _TASKS_PER_GPU * count,
            "devices": self._devices(gpus),
        }

    def open(self, order: Mapping[str, Any]) -> int | None:
        """Have a warden started; returns the runner's end of the socket to it."""
        if not order.get("account"):
            raise JobRefused("The job was ordered without an account, by a service with another --isolation.")
        return self._helper.open(order["account"], f"{order['job']}.{order['attempt']}", order["limits"])

    def left(self, control_group: str) -> list[int]:
        """Processes that are left of an attempt. Its warden kills them; the helper does, in case the warden died."""
        found = processes_in(control_group)
        if Path(control_group).exists():
            with suppress(JobRefused):
                self._helper.kill(Path(control_group).name)
        return found

    def remove(self, order: Mapping[str, Any]) -> None:
        """Delete the folder of a job in its user's home, as that user."""
        folder = Path(order.get("job_folder", ""))
        if order.get("account") and folder.parts[-3:-1] == (JOBS_IN_HOME, self._helper.settings.service):
            with suppress(JobRefused, OSError):
                self._run(str(order["account"]), f"{order['job']}.rm", "rm", "-rf", "--", str(folder))

    def _run(self, account: str, name: str, *argv: str) -> None:
        """Run a command under an account, and wait for its end."""
        limits = {"memory_mb": 256, "tasks": 16, "devices": []}
        with socket.socket(fileno=self._helper.open(account, name, limits)) as channel, channel.makefile("rb") as news:
            channel.settimeout(600.0)
            request = {"start": {"argv": argv, "env": {"PATH": os.defpath}, "cwd": "/"}}
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            try:
                socket.send_fds(channel, [json.dumps(request).encode() + b"\n"], [null] * 3)
            finally:
                os.close(null)
            for line in news:
                if "exit" in json.loads(line):
                    return


# ------------------------------------------------------------- start, as root


def service_name(state: Path) -> str:
    """Name of a service in paths: eight characters that stand for its state folder."""
    return hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:8]


def become_service(user: str, job_group: str, state: Path | None = None) -> AccountHelper:
    """Start the root helper, then give up root's rights for good: from now on this process runs under `user`."""
    entry = service_account(user)
    for path in (Path(account_helper.__file__), Path(sys.executable)):
        check_only_root_writes(path)
    home = Path(entry.pw_dir)
    settings = HelperSettings(
        service_uid=entry.pw_uid,
        job_group=job_group,
        least_uid=account_helper.least_user_id(),
        service=service_name(state or home / ".local" / "state" / "horae"),
    )
    helper = start_helper(settings)
    os.initgroups(entry.pw_name, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "SUDO_USER", "MAIL"):
        os.environ.pop(name, None)
    os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name, SHELL=entry.pw_shell)
    if not os.access(sys.executable, os.X_OK) or not os.access(account_helper.__file__, os.R_OK):
        raise CannotIsolate(
            f"The account {user} cannot run {sys.executable}: install Horae where that account can read it, such as "
            "/opt/horae."
        )
    return helper


def service_account(user: str) -> pwd.struct_passwd:
    """The account of the service; refused if this process is not root's, or the account is unsuitable."""
    if os.geteuid() != 0:
        raise CannotIsolate(
            "--isolation account needs root at the start, to run jobs under the accounts of their users: "
            f"`sudo horae serve --isolation account --user {user or 'horae'}`. The service itself runs as that user."
        )
    if not user:
        raise CannotIsolate("--isolation account needs the account of the service itself: --user horae.")
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise CannotIsolate(f"This machine has no account {user!r}: make one (`useradd --system -m {user}`).") from None
    if entry.pw_uid == 0:
        raise CannotIsolate("The service must not run as root: make an account for it, and name it with --user.")
    return entry


def check_only_root_writes(path: Path) -> None:
    """Refuse a program that somebody else than root can change: the helper runs it as root."""
    for part in (path.absolute(), path.resolve()):
        for step in (part, *part.parents):
            found = step.lstat()
            loose = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
            if found.st_uid != 0 or (loose and not stat.S_ISLNK(found.st_mode)):
                raise CannotIsolate(
                    f"Others than root can change {step}, and it runs as root with --isolation account: install Horae "
                    "as root, such as in /opt/horae."
                )


def start_helper(settings: HelperSettings) -> AccountHelper:
    """Start the root helper as a process of its own; returns the service's end."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", account_helper.__file__),
                *(str(theirs.fileno()), json.dumps(asdict(settings))),
            ],
            pass_fds=(theirs.fileno(),),
            env={"PATH": os.defpath + ":/usr/sbin:/sbin"},
            cwd="/",
            # Wardens outlive the service and must not hold its output open.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return AccountHelper(ours, settings)
