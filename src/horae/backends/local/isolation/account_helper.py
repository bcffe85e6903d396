"""The root helper: starts, signals and reaps processes of jobs under the accounts of their users, and nothing else.

    python -I -S account_helper.py FD SETTINGS          started by `horae serve --isolation account`, as root

The service, which has no rights, sends requests over a socket pair: one JSON line each.
- `open`, with one descriptor: fork a **warden** for an attempt, and hand it that end of a socket pair. The runner of
  the attempt holds the other end.
- `kill`: kill what is left in the control group of an attempt whose warden has died.

A warden makes the control group of its attempt, starts processes in it under the user's account when the runner says
so, sends them signals, and tells the runner how they end. When the runner's end is closed it kills the whole group. It
outlives the service and the helper.

Both take nothing on trust, since the service may have been taken over: the account must be in the group of job
accounts, must not be root's or a system account, and processes run with no more rights than the account has
(`no_new_privs`). This file imports the standard library only: everything in it runs as root.
"""

import contextlib
import ctypes
import glob
import grp
import json
import os
import pwd
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

#: Bytes of a request to the helper, and to a warden: an environment may be large.
_LARGEST_REQUEST, _LARGEST_START = 65536, 8 << 20
#: Exit codes as in shells.
_NOT_FOUND, _CANNOT_RUN = 127, 126
#: Seconds between two looks at a group that is being killed.
_KILL_EVERY_S = 0.02
#: Constants of <sys/prctl.h>.
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 15, 36, 38
#: Shells that say: nobody works under this account.
_NO_SHELLS = ("nologin", "false")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
#: Character devices that every job may use: null, zero, full, random, urandom, tty, ptmx and pseudo-terminals.
_COMMON_DEVICES = ("1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:2", "136:*")
#: Constants of <sched.h> and <sys/mount.h>.
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_SLAVE = 0x20000, 0x1000, 0x4000, 0x80000
#: Length of a period of the processor limit in microseconds.
_PERIOD_US = 100_000


class RequestRefused(Exception):
    """A request that the helper does not carry out; the text says why."""


# -------------------------------------------------------------------- accounts


@dataclass(frozen=True)
class Account:
    """An account of this machine under which jobs run."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


@dataclass(frozen=True)
class HelperSettings:
    """What root says when it starts the helper. The service cannot change it."""

    #: Account of the service: no job runs under it.
    service_uid: int
    #: Group of the accounts under which jobs may run.
    job_group: str = "horae-jobs"
    #: The smallest user id that is not a system account's.
    least_uid: int = 1000
    #: Part of the names of control groups, so that services do not meet.
    service: str = "service"
    #: How paths of devices begin that a job may be given.
    device_prefix: str = "/dev/nvidia"


def find_account(name: str) -> Account:
    """The account of a name, as the system knows it."""
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):  # a name with a null, or one that cannot be encoded, is nobody's
        raise RequestRefused(f"this machine has no account {name!r}") from None
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return Account(name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell)


def check_account(account: Account, settings: HelperSettings) -> None:
    """Refuse an account under which no job may run."""
    if account.uid == 0 or account.gid == 0 or 0 in account.groups:
        raise RequestRefused(f"jobs never run with root's rights, and {account.name!r} has some of them")
    if account.uid < settings.least_uid:
        raise RequestRefused(f"{account.name!r} is a system account (its user id is below {settings.least_uid})")
    if account.uid == settings.service_uid:
        raise RequestRefused(f"{account.name!r} is the account of the service itself")
    if os.path.basename(account.shell) in _NO_SHELLS:
        raise RequestRefused(f"nobody may work under the account {account.name!r} (its shell is {account.shell})")
    try:
        allowed = grp.getgrnam(settings.job_group).gr_gid
    except KeyError:
        raise RequestRefused(f"this machine has no group {settings.job_group!r} of accounts for jobs") from None
    if allowed not in account.groups:
        raise RequestRefused(f"the account {account.name!r} is not in the group {settings.job_group!r}")


def least_user_id(path: str = "/etc/login.defs") -> int:
    """The smallest user id that is not a system account's (UID_MIN); at least 1000 if nobody says."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.search(r"^\s*UID_MIN\s+(\d+)", file.read(), re.MULTILINE)
    except OSError:
        found = None
    return max(int(found[1]), 1) if found else 1000


# -------------------------------------------------------------- control groups


@dataclass(frozen=True)
class GroupLimits:
    """What an attempt may use. None: no limit."""

    memory_mb: int | None = None
    #: Processors that it may use at most.
    cpus: float | None = None
    #: Its weight among jobs that want more processor time than there is; 100 is usual.
    cpu_weight: int = 100
    tasks: int = 8192
    #: Paths of devices beside `_COMMON_DEVICES`. None: all.
    devices: tuple[str, ...] | None = None


def read_limits(given: Any, device_prefix: str) -> GroupLimits:
    """Limits as a request names them, checked."""
    if not isinstance(given, dict):
        raise RequestRefused("limits are an object")
    numbers = {name: given.get(name) for name in ("memory_mb", "cpus", "cpu_weight", "tasks")}
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9):
            raise RequestRefused(f"{name} is no number between 0 and 1e9")
    devices = given.get("devices")
    if devices is not None and not (isinstance(devices, list) and all(isinstance(path, str) for path in devices)):
        raise RequestRefused("devices are a list of paths")
    for path in devices or ():
        if not path.startswith(device_prefix) or "/.." in path:
            raise RequestRefused(f"{path!r} is no GPU: jobs get devices that begin with {device_prefix}")
    return GroupLimits(
        None if numbers["memory_mb"] is None else int(numbers["memory_mb"]),
        None if numbers["cpus"] is None else float(numbers["cpus"]),
        int(numbers["cpu_weight"] or 100),
        int(numbers["tasks"] or 8192),
        None if devices is None else tuple(devices),
    )


def _device_number(path: str) -> str | None:
    """Major and minor number of a character device; None if there is no such device."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if stat.S_ISCHR(found.st_mode) else None


class ControlGroups:
    """Where control groups of attempts are made: `ROOT[/CONTROLLER]/horae/SERVICE/ATTEMPT`."""

    def __init__(self, parents: dict[str, str], version: int) -> None:
        #: Folder in which groups are made, by controller; in version 2 all are in one, with the name "".
        self.parents, self.version = parents, version

    @property
    def limits_devices(self) -> bool:
        """Whether the kernel keeps jobs from devices by their control group; version 2 needs systemd for that."""
        return "devices" in self.parents

    @classmethod
    def find(cls, service: str, root: str = "/sys/fs/cgroup") -> "ControlGroups":
        """The control groups of this machine, made ready for attempts; refused if processes cannot be limited there."""
        if os.path.exists(f"{root}/cgroup.controllers"):
            found = cls({"": f"{root}/horae/{service}"}, 2)
        else:
            names = [name for name in ("pids", "memory", "cpu", "devices") if os.path.isdir(f"{root}/{name}")]
            found = cls({name: f"{root}/{name}/horae/{service}" for name in names}, 1)
            if not {"pids", "memory"} <= set(names):
                raise RequestRefused("this machine has no control groups for processes and memory")
        try:
            for folder in found.parents.values():
                os.makedirs(folder, mode=0o755, exist_ok=True)
            if found.version == 2:
                for folder in (root, f"{root}/horae", f"{root}/horae/{service}"):
                    _write(folder, "cgroup.subtree_control", "+memory +pids +cpu")
        except OSError as why:
            raise RequestRefused(f"control groups cannot be made here: {why}") from None
        return found

    def make(self, name: str, limits: GroupLimits) -> "ControlGroup":
        """A new control group with limits."""
        group = ControlGroup([os.path.join(folder, name) for folder in self.parents.values()])
        try:
            for controller, path in zip(self.parents, group.folders, strict=True):
                os.mkdir(path, 0o755)
                (_limit_v2 if self.version == 2 else _limit_v1)(controller, path, limits)
        except OSError as why:
            group.remove()
            raise RequestRefused(f"the control group of the attempt cannot be made: {why}") from None
        return group

    def existing(self, name: str) -> "ControlGroup":
        """The control group of an attempt that this service has, or had."""
        return ControlGroup([os.path.join(folder, name) for folder in self.parents.values()])


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="ascii") as file:
        file.write(text)


def _limit_v1(controller: str, path: str, limits: GroupLimits) -> None:
    if controller == "pids":
        _write(path, "pids.max", str(limits.tasks))
    elif controller == "memory" and limits.memory_mb is not None:
        _write(path, "memory.limit_in_bytes", str(limits.memory_mb << 20))
        with contextlib.suppress(OSError):  # swap is not counted on every machine
            _write(path, "memory.memsw.limit_in_bytes", str(limits.memory_mb << 20))
    elif controller == "cpu":
        _write(path, "cpu.shares", str(max(limits.cpu_weight * 1024 // 100, 2)))
        if limits.cpus is not None:
            _write(path, "cpu.cfs_period_us", str(_PERIOD_US))
            _write(path, "cpu.cfs_quota_us", str(max(int(limits.cpus * _PERIOD_US), 1000)))
    elif controller == "devices" and limits.devices is not None:
        _write(path, "devices.deny", "a")
        for number in (*_COMMON_DEVICES, *filter(None, map(_device_number, limits.devices))):
            _write(path, "devices.allow", f"c {number} rw")


def _limit_v2(controller: str, path: str, limits: GroupLimits) -> None:
    _write(path, "pids.max", str(limits.tasks))
    _write(path, "cpu.weight", str(min(max(limits.cpu_weight, 1), 10_000)))
    if limits.cpus is not None:
        _write(path, "cpu.max", f"{max(int(limits.cpus * _PERIOD_US), 1000)} {_PERIOD_US}")
    if limits.memory_mb is not None:
        _write(path, "memory.max", str(limits.memory_mb << 20))
        _write(path, "memory.oom.group", "1")
        with contextlib.suppress(OSError):  # a kernel without swap
            _write(path, "memory.swap.max", "0")


class ControlGroup:
    """The control group of one attempt: a folder for each controller."""

    def __init__(self, folders: list[str]) -> None:
        self.folders = folders

    def enter(self) -> None:
        """Put this process into the group."""
        for folder in self.folders:
            _write(folder, "cgroup.procs", "0")

    def processes(self) -> list[int]:
        """Ids of the processes in the group; nothing once the group is gone."""
        try:
            with open(os.path.join(self.folders[0], "cgroup.procs"), encoding="ascii") as file:
                return [int(line) for line in file.read().split()]
        except OSError:
            return []

    def send(self, number: int, process_group: int | None = None) -> None:
        """Send a signal to all processes in the group, or to those of one process group."""
        if number == signal.SIGKILL:
            with contextlib.suppress(OSError):  # nothing new is started while the others are killed
                _write(self.folders[0], "pids.max", "0")
        for pid in self.processes():
            self._send_to(pid, number, process_group)

    def _send_to(self, pid: int, number: int, process_group: int | None) -> None:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return
        try:
            # The id may have been given to a new process since it was read; the handle stays with the process.
            if pid in self.processes() and process_group in (None, os.getpgid(pid)):
                signal.pidfd_send_signal(handle, number)
        except OSError:
            pass  # it has ended
        finally:
            os.close(handle)

    def memory_kills(self) -> int:
        """How many processes the kernel killed because the group wanted more memory than it may have."""
        texts = ("memory.oom_control", "memory.events")
        for path in (os.path.join(folder, name) for folder in self.folders for name in texts):
            try:
                with open(path, encoding="ascii") as file:
                    found = re.search(r"^oom_kill (\d+)", file.read(), re.MULTILINE)
            except OSError:
                continue
            if found:
                return int(found[1])
        return 0

    def remove(self) -> bool:
        """Remove the group; returns whether it is gone."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return not any(os.path.exists(folder) for folder in self.folders)


def scope_command(unit: str, limits: GroupLimits) -> list[str]:
    """The command that puts a program into a scope of systemd with these limits, where systemd owns all groups.

    The scope is delegated: the program may make groups below it.
    """
    devices = limits.devices if limits.devices is not None else ()
    properties = [
        "Delegate=yes",
        f"TasksMax={limits.tasks + 1}",
        f"CPUWeight={min(max(limits.cpu_weight, 1), 10_000)}",
        *([f"CPUQuota={max(round(limits.cpus * 100), 1)}%"] if limits.cpus is not None else ()),
        *([f"MemoryMax={limits.memory_mb}M", "MemorySwapMax=0"] if limits.memory_mb is not None else ()),
        *(["DevicePolicy=closed"] if limits.devices is not None else ()),
        *(f"DeviceAllow={path} rw" for path in devices),
    ]
    command = ["systemd-run", "--scope", "--quiet", "--collect", f"--unit={unit}"]
    return [*command, *(word for text in properties for word in ("--property", text)), "--"]


class ScopeGroups:
    """Control groups where systemd owns them: each warden runs in a scope of its own, and makes one group below it."""

    limits_devices = True

    def __init__(self, service: str) -> None:
        self.service = service

    def unit(self, name: str) -> str:
        """Name of the scope of an attempt."""
        return f"horae-{self.service}-{name}.scope"


def own_group(root: str = "/sys/fs/cgroup") -> ControlGroup:
    """The group for a job's processes below the scope of this process (control groups of version 2)."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        found = re.search(r"^0::(.*)$", file.read(), re.MULTILINE)
    if not found:
        raise RequestRefused("this process is in no control group")
    path = f"{root}{found[1].rstrip('/')}/job"
    os.makedirs(path, mode=0o755, exist_ok=True)
    return ControlGroup([path])


def systemd_owns_groups(root: str = "/sys/fs/cgroup", run: str = "/run/systemd/system") -> bool:
    """Whether systemd manages this machine, with control groups of version 2."""
    return os.path.isdir(run) and os.path.exists(f"{root}/cgroup.controllers")


# -------------------------------------------------------------------- requests


class Requests:
    """JSON lines that arrive over a socket, and descriptors, which requests take in the order in which they came."""

    def __init__(self, channel: socket.socket, largest: int, descriptors: int) -> None:
        self.channel, self._largest, self._descriptors = channel, largest, descriptors
        self._text = b""
        self._handles: list[int] = []

    def receive(self) -> bool:
        """Receive what has come; False if the other side has closed. Refuses too much, and too many descriptors."""
        room = socket.CMSG_SPACE(4 * self._descriptors)
        text, extra, flags, _ = self.channel.recvmsg(65536, room, socket.MSG_CMSG_CLOEXEC)
        for level, message, data in extra:
            if level == socket.SOL_SOCKET and message == socket.SCM_RIGHTS:
                whole = len(data) - len(data) % 4
                self._handles += [int.from_bytes(data[k : k + 4], sys.byteorder) for k in range(0, whole, 4)]
        self._text += text
        if flags & socket.MSG_CTRUNC or len(self._handles) > self._descriptors:
            raise RequestRefused("too many descriptors")
        if len(self._text) > self._largest:
            raise RequestRefused("the request is too long")
        return bool(text)

    def lines(self) -> Iterator[Any]:
        """Complete requests. Descriptors that none of them took are closed."""
        while b"\n" in self._text:
            line, _, self._text = self._text.partition(b"\n")
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                yield None
            if not self._text:
                self.drop()

    @contextlib.contextmanager
    def taken(self, count: int) -> Iterator[list[int]]:
        """The next descriptors, closed afterwards; refused if fewer have come."""
        taken, self._handles = self._handles[:count], self._handles[count:]
        try:
            if len(taken) < count:
                raise RequestRefused(f"{count} descriptors are needed")
            yield taken
        finally:
            close_all(taken)

    def drop(self) -> None:
        """Forget what has come, and close the descriptors that came with it."""
        close_all(self._handles)
        self._text, self._handles = b"", []

    def answer(self, content: dict[str, Any]) -> None:
        """Send one line. A reader that takes nothing for 10 s has gone."""
        self.channel.settimeout(10.0)
        self.channel.sendall(json.dumps(content).encode() + b"\n")
        self.channel.settimeout(None)


def close_all(handles: list[int]) -> None:
    """Close descriptors."""
    for handle in handles:
        with contextlib.suppress(OSError):
            os.close(handle)


# ---------------------------------------------------------------------- warden


class Warden:
    """Starts the processes of one attempt, passes on signals, tells how they end, and leaves none behind."""

    def __init__(
        self, channel: socket.socket, account: Account, group: ControlGroup, hidden_devices: tuple[str, ...] = ()
    ) -> None:
        self._requests = Requests(channel, _LARGEST_START, descriptors=3)
        self._account, self._group, self._hidden_devices = account, group, hidden_devices
        self._process_group = 0
        self._memory_kills = 0
        self._libc = ctypes.CDLL(None, use_errno=True)

    def run(self) -> None:
        """Serve the runner until its end of the socket closes; then kill what is left."""
        # Orphans of the job become children of the warden.
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._libc.prctl(_PR_SET_NAME, b"horae-warden")
        alarm, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            self._requests.answer({"cgroup": self._group.folders[0]})
            self._serve(alarm)
        except (OSError, RequestRefused):
            pass  # the runner has gone, or speaks nonsense: its job ends
        finally:
            self._end()

    def _serve(self, alarm: int) -> None:
        channel = self._requests.channel
        while True:
            ready = select.select([channel.fileno(), alarm], [], [])[0]
            if alarm in ready:
                os.read(alarm, 4096)
            self._report_ends()
            if channel.fileno() in ready:
                if not self._requests.receive():
                    return
                for request in self._requests.lines():
                    self._obey(request)

    def _obey(self, request: Any) -> None:
        match request:
            case {"start": {"argv": [*argv], "env": dict(env), "cwd": str(cwd)}}:
                texts = [*argv, *env, *env.values()]
                if not argv or not all(isinstance(text, str) and "\0" not in text for text in texts):
                    raise RequestRefused("a command is a list of texts")
                with self._requests.taken(3) as handles:
                    self._requests.answer({"pid": self._start(argv, env, cwd, handles)})
            case {"signal": int(number), "all": bool(to_all)} if 0 < number < signal.NSIG:
                self._group.send(number, None if to_all else self._process_group)
            case {"new_group": True}:
                self._process_group = 0
            case _:
                raise RequestRefused("no such request")

    def _start(self, argv: list[str], env: dict[str, str], cwd: str, handles: list[int]) -> int:
        """Start a process under the account, in the control group and the process group; returns its id."""
        if self._process_group and self._is_over(self._process_group):
            self._process_group = 0
        warden, pid = os.getpid(), os.fork()
        if pid == 0:
            self._exec(argv, env, cwd, handles, warden)
        self._process_group = self._process_group or pid
        with contextlib.suppress(OSError):  # the new process has joined the group already
            os.setpgid(pid, self._process_group)
        return pid

    @staticmethod
    def _is_over(process_group: int) -> bool:
        """Whether all processes of a group have ended: nothing can join it then."""
        try:
            os.killpg(process_group, 0)
        except OSError:
            return True
        return False

    def _exec(self, argv: list[str], env: dict[str, str], cwd: str, handles: list[int], warden: int) -> NoReturn:
        """In the new process: give up all rights but the account's, and execute the program."""
        code = _CANNOT_RUN
        try:
            signal.set_wakeup_fd(-1)
            # First: what fails from here on is told in the job's log. Descriptors 0 to 2 are taken by /dev/null, so
            # that these are higher.
            for place, handle in enumerate(handles):
                os.dup2(handle, place)
            try:
                os.setpgid(0, self._process_group)
            except PermissionError:  # the last process of the group has ended just now
                os.setpgid(0, 0)
            self._group.enter()
            _write("/proc/self", "oom_score_adj", "0")
            os.closerange(3, 65536)
            self._hide_devices()
            self.become_user(warden)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.umask(0o022)
            try:
                os.chdir(cwd)
            except OSError as why:
                _tell(f"the working folder {cwd!r} cannot be used by {self._account.name}: {why.strerror}")
                os._exit(code)
            os.execvpe(argv[0], argv, env)
        except FileNotFoundError:
            code = _NOT_FOUND
            _tell(f"the program {argv[0]!r} was not found; give its full path, or set PATH")
        except BaseException as why:
            _tell(f"the program {argv[0]!r} cannot be run: {why}")
        finally:
            os._exit(code)

    def _hide_devices(self) -> None:
        """Put /dev/null over devices that the job was not given, where no control group keeps it from them.

        The mounts are the job's own, and only root could take them away.
        """
        if not self._hidden_devices:
            return
        mounts = [(b"none", b"/", _MS_REC | _MS_SLAVE)]
        mounts += [(b"/dev/null", os.fsencode(path), _MS_BIND) for path in self._hidden_devices]
        if self._libc.unshare(_CLONE_NEWNS) or any(
            self._libc.mount(source, target, None, ctypes.c_ulong(flags), None) for source, target, flags in mounts
        ):
            raise RequestRefused(f"devices cannot be hidden: {os.strerror(ctypes.get_errno())}")

    def become_user(self, warden: int) -> None:
        """Give up root's rights for good, and die with the warden."""
        account = self._account
        if self._libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise RequestRefused("the kernel does not know no_new_privs")
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
        if 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()):
            raise RequestRefused("root's rights were not given up")
        # Only now: the kernel forgets it when the user changes.
        self._libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != warden:
            os._exit(128 + signal.SIGKILL)

    def _report_ends(self) -> None:
        """Reap all processes that have ended, orphans too, and tell how they ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            kills = self._group.memory_kills()
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            code = 128 + number if number else os.WEXITSTATUS(status)
            over = kills > self._memory_kills
            self._memory_kills = kills
            self._requests.answer({"exit": pid, "code": code, "signal": number, "over_memory": over})

    def _end(self) -> None:
        """Kill everything in the group until it is empty, and remove it."""
        self._requests.drop()
        self._requests.channel.close()
        while True:
            self._group.send(signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not self._group.processes() and self._group.remove():
                return
            time.sleep(_KILL_EVERY_S)


def _tell(text: str) -> None:
    """Write a line of Horae's own into the job's log."""
    os.write(2, f"horae: {text}\n".encode(errors="replace"))


# ---------------------------------------------------------------------- helper


class Helper:
    """Serves one service until that closes its end. Wardens go on."""

    def __init__(
        self,
        channel: socket.socket,
        settings: HelperSettings,
        find: Callable[[str], Account] = find_account,
        groups: ControlGroups | ScopeGroups | None = None,
    ) -> None:
        self._requests = Requests(channel, _LARGEST_REQUEST, descriptors=1)
        self._settings, self._find = settings, find
        if groups is None and systemd_owns_groups():
            groups = ScopeGroups(settings.service)
        self._groups = groups or ControlGroups.find(settings.service)
        #: Wardens so far: the names of two control groups are never the same.
        self._count = 0

    def run(self) -> None:
        """Serve requests."""
        # Wardens are reaped by the kernel.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            self._requests.answer({"ready": True})
            while self._receive():
                for request in self._requests.lines():
                    self._requests.answer(self._answer(request))
        except OSError:
            pass  # the service has gone

    def _receive(self) -> bool:
        try:
            return self._requests.receive()
        except RequestRefused as why:
            self._requests.drop()
            self._requests.answer({"refused": str(why)})
            return True

    def _answer(self, request: Any) -> dict[str, Any]:
        try:
            match request:
                case {"open": {"account": str(name), "attempt": str(attempt), "limits": limits}}:
                    with self._requests.taken(1) as (handle,):
                        return {"cgroup": self._open(name, attempt, limits, handle)}
                case {"kill": str(name)}:
                    return {"left": self._kill(name)}
                case _:
                    raise RequestRefused("no such request")
        except RequestRefused as why:
            return {"refused": str(why)}
        except OSError as why:
            return {"refused": f"the system says: {why}"}

    def _open(self, name: str, attempt: str, given: Any, handle: int) -> str:
        """Fork a warden for an attempt; returns the name of its control group."""
        if not _NAME.fullmatch(attempt):
            raise RequestRefused("that is no name of an attempt")
        if not stat.S_ISSOCK(os.fstat(handle).st_mode):
            raise RequestRefused("the descriptor is no socket")
        account = self._find(name)
        check_account(account, self._settings)
        limits = read_limits(given, self._settings.device_prefix)
        self._count += 1
        group_name = f"{attempt}.{os.getpid()}.{self._count}"
        if isinstance(self._groups, ScopeGroups):
            self._fork_in_scope(self._groups.unit(group_name), account, limits, handle)
        else:
            self._fork(account, self._groups.make(group_name, limits), self._hidden_devices(limits), handle)
        return group_name

    def _hidden_devices(self, limits: GroupLimits) -> tuple[str, ...]:
        """Numbered devices that must be hidden from a job, because no control group keeps it from them."""
        if limits.devices is None or self._groups.limits_devices:
            return ()
        found = glob.glob(f"{glob.escape(self._settings.device_prefix)}[0-9]*")
        return tuple(path for path in sorted(found) if path not in limits.devices and _device_number(path))

    def _fork(self, account: Account, group: ControlGroup, hidden_devices: tuple[str, ...], handle: int) -> None:
        try:
            pid = os.fork()
        except OSError:
            group.remove()
            raise
        if pid:
            return
        try:
            self._requests.channel.close()
            run_warden(os.dup(handle), account, group, hidden_devices)
        finally:
            os._exit(0)

    def _fork_in_scope(self, unit: str, account: Account, limits: GroupLimits, handle: int) -> None:
        """Start a warden in a scope of systemd. If that fails, the runner's end of the socket closes."""
        own = [sys.executable, "-I", "-S", os.path.abspath(__file__), "warden", str(handle), json.dumps(vars(account))]
        subprocess.Popen([*scope_command(unit, limits), *own], pass_fds=(handle,), stdin=subprocess.DEVNULL)

    def _kill(self, name: str) -> int:
        """Kill what is left of an attempt; returns the number of processes that are still there."""
        if not _NAME.fullmatch(name) or isinstance(self._groups, ScopeGroups):
            raise RequestRefused("that is no name of a control group")
        group = self._groups.existing(name)
        group.send(signal.SIGKILL)
        left = len(group.processes())
        if not left:
            group.remove()
        return left


def run_warden(handle: int, account: Account, group: ControlGroup, hidden_devices: tuple[str, ...] = ()) -> None:
    """Be the warden of an attempt, from now on until it has ended."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError):  # the kernel kills the job for want of memory, not its warden
        _write("/proc/self", "oom_score_adj", "-900")
    Warden(socket.socket(fileno=handle), account, group, hidden_devices).run()


def main(argv: list[str]) -> int:
    """Run the helper, or the warden of a scope; see the top of this file."""
    # Who ends the service at a terminal does not end the helper before it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if argv[0] == "warden":
        values = json.loads(argv[2])
        account = Account(**{**values, "groups": tuple(values["groups"])})
        run_warden(int(argv[1]), account, own_group())
        return 0
    channel = socket.socket(fileno=int(argv[0]))
    try:
        Helper(channel, HelperSettings(**json.loads(argv[1]))).run()
    except RequestRefused as why:
        with contextlib.suppress(OSError):
            channel.sendall(json.dumps({"refused": str(why)}).encode() + b"\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
