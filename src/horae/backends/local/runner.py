"""The runner: a program that runs one attempt of a job, from its order to its exit, with or without a daemon.

    python -I -S runner.py FOLDER                       one attempt on this machine
    HORAE_NODE=v1 python -I -S runner.py FOLDER piece   the part of an attempt on one node; its files are in FOLDER/v1

1. Take the lock in FOLDER, so that an attempt has at most one runner, ever. Read `order.json`.
2. Write `runner.json`: process id, start time, boot.
3. Run the setup, then the job's processes, in a process group of their own.
4. Write `exit.json` when the last process is gone.

What the job prints goes through a pipe into `log.txt`, and from there on into parts of which the oldest are dropped.

On SIGTERM: send the stop signal to the group, after the grace period SIGTERM, then SIGKILL. If a file `stop`
exists before the start, the job is not started.

A piece lives on a folder that machines share, where locks and signals do not reach. It links the file `claim` instead
of taking the lock, looks for the file `stop` five times a second, and touches the file `beat` every second. If it could
not do that for `beat_limit_s`, it kills its job: others may believe by then that the job is gone.

The processes are the runner's own children, or, if the order names an `account`, those of a root process, the warden,
which starts them under that account and obeys the runner over the socket `CONTROL`. With a `sandbox` in the order, each
is started through bubblewrap, which shows it a part of the file system only.

The runner has few imports, because every start of a job waits for them. The backend uses functions of this
module; the runner uses nothing of the backend. Stored: change by addition.

It runs with the Python of a node, 3.9 or newer. An older one, from 3.6 on, reads this file far enough to write a
sentence into the job's log: that is why annotations that it could not evaluate are in quotes.
"""

import ctypes
import errno
import fcntl
import json
import os
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` would cost milliseconds
    from typing import Any, NoReturn

#: The oldest Python that runs a job.
OLDEST_PYTHON = (3, 9)

ORDER, RUNNER, EXIT, LOCK, STOP, LOG = "order.json", "runner.json", "exit.json", "lock", "stop", "log.txt"
#: Most bytes of output that are kept of an attempt, unless its order says something else (`max_log_bytes`).
LARGEST_LOG = 100_000_000
#: Files of a piece: who began it, once and for all, and its sign of life.
CLAIM, BEAT = "claim", "beat"
#: The argument that says "run a piece", and the variable with the name of its node.
PIECE, NODE = "piece", "HORAE_NODE"
#: What a file `stop` may hold: nothing (stop signal, grace period), grace period without a signal, SIGTERM at once.
STOP_NOTICE, STOP_GRACE, STOP_NOW = "", "grace", "now"

#: Exit code "run me again" (EX_TEMPFAIL); `RUN_AGAIN` of the backend protocol.
_RUN_AGAIN = 75
#: Exit codes as in shells: the program was not found, or cannot be run.
_NOT_FOUND, _CANNOT_RUN = 127, 126
#: Seconds from SIGTERM to SIGKILL, and from one SIGKILL to the next.
_TERM_TO_KILL_S, _KILL_EVERY_S = 5.0, 0.1
#: Seconds for which to try to write the exit to a full disk, and between two tries. A piece tries for as long as the
#: shared folder may be away.
_DISK_S, _DISK_AGAIN_S = 60.0, 0.5
#: Errors of a read that say nothing of the file: a moment later it may be read.
_PASSING = (
    errno.EIO,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EINTR,
    errno.EAGAIN,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
)
#: Most bytes that are read of a file that a job can write; of `order.json`, which holds the whole task.
LARGEST_FILE, LARGEST_ORDER = 64 * 1024, 32 * 1024 * 1024
#: Seconds for which to wait for `saved.json`: the checkpoint folder may be on a file server that is dead.
_SAVED_S = 10.0
#: Bytes that are read of a job's output at a time, and that its pipe holds: a job that prints much does not wait.
_BLOCK, _PIPE_BYTES = 1 << 20, 1 << 20
#: Seconds for which to wait for the last output once all processes are gone: the disk may hang. And for what there is
#: of it when the runner gives up while they live.
_DRAIN_S, _LEAVE_S = 10.0, 0.5
#: Constant of <linux/fcntl.h>.
_F_SETPIPE_SZ = 1031
#: Seconds between two looks for `stop`, and between two beats.
_LOOK_EVERY_S, _BEAT_EVERY_S = 0.2, 1.0
#: Constants of <sys/prctl.h>.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: The descriptor of the socket to the warden, and seconds for which an answer may be awaited.
CONTROL, _ANSWER_S = 3, 30.0
#: Seconds for which the folders of a job may take to be made under its user's account: the service waits a minute.
_FOLDERS_S = 30.0
#: What is left to send once a job is being killed.
_KILL = [(signal.SIGKILL, _KILL_EVERY_S)]
#: Signals that are always blocked and only received in `_wait`.
SIGNALS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGIO)


def _running_s() -> float:
    """Seconds of a clock that goes on while the machine is suspended: others count this time, too."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def write_atomically(folder: str, name: str, content: object, once: bool = False, durable: bool = True) -> bool:
    """Write a JSON file completely or not at all; returns whether it was written.

    `once` keeps an existing file. `durable` waits until the file would survive a power cut.
    """
    path = os.path.join(folder, name)
    draft = os.path.join(folder, f".{name}.{os.uname().nodename}.{os.getpid()}")
    file = create(draft)
    try:
        with os.fdopen(file, "w", encoding="utf-8") as out:
            out.write(json.dumps(content))
            out.flush()
            if durable:
                os.fsync(out.fileno())
        if once:
            _link(draft, path)
        else:
            put_in_place(draft, path)
    except FileExistsError:
        return False
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
    if durable:
        _sync_folder(folder)
    return True


def create(path: str) -> int:
    """Create a file and open it for writing. What is there is removed: a job may have put a link there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        put_away(path)
        return os.open(path, flags, 0o600)


def put_away(path: str) -> None:
    """Remove what a job has put in the place of a file. A folder, which may be full, gets another name."""
    try:
        os.unlink(path)
    except (IsADirectoryError, PermissionError):
        os.rename(path, f"{path}.away.{os.urandom(4).hex()}")


def put_in_place(draft: str, path: str) -> None:
    """Put a file in the place of another, or of a folder that a job has put there."""
    try:
        os.rename(draft, path)
    except IsADirectoryError:
        put_away(path)
        os.rename(draft, path)


def open_plain(path: str) -> int:
    """Open a plain file for reading. Never waits for the other end of a pipe; raises OSError if it is no plain file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a plain file")
    return handle


def read_object(path: str, most: int = LARGEST_FILE, sure: bool = False) -> "dict[str, Any] | None":
    """The object in a JSON file that a job can write; None if the file is missing, or anything is wrong with it.

    With `sure`, raises OSError if the file may be readable a moment later: a file server is away, or too many files
    are open.
    """
    try:
        handle = open_plain(path)
        try:
            size = os.fstat(handle).st_size
            found = json.loads(os.read(handle, size)) if size <= most else None
        finally:
            os.close(handle)
    except OSError as why:
        if sure and why.errno in _PASSING:
            raise
        return None
    except (ValueError, RecursionError, MemoryError):
        return None
    return found if isinstance(found, dict) else None


def _link(draft: str, path: str) -> None:
    """Give a file a second name. A file server may lose its answer, and say at the second try that the name exists."""
    try:
        os.link(draft, path)
    except FileExistsError:
        if os.stat(draft).st_nlink < 2:
            raise


def _sync_folder(folder: str) -> None:
    """Make changes of file names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take_lock(folder: str) -> "int | None":
    """Take the lock of an attempt: an open file, closed to release it. None if another process holds the lock."""
    path, flags = os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o600)
    except OSError:
        if not os.path.lexists(path):
            raise
        put_away(path)  # no runner takes a lock that is not a file
        handle = os.open(path, flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def claim(folder: str, by: str) -> bool:
    """Take a piece, once and for all; False if it was taken before. Only who takes it may run it, or write its end."""
    return write_atomically(folder, CLAIM, {"by": by}, once=True)


def stat_of(pid: int) -> "list[str]":
    """Fields of /proc/PID/stat from the third on: state, parent, group, session ...; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> int:
    """Start time of a process in ticks since boot; 0 if the process is gone or a zombie."""
    fields = stat_of(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else 0


def boot_id() -> str:
    """Identifier of this boot of the machine or container. Process ids are only comparable within one boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}-{start_time(1)}"


def _children() -> "list[int]":
    """Child processes: those the runner started, and orphans of these."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without that file
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if stat_of(pid)[1:2] == [str(me)]]


#: Where lines of Horae's own go: into the log itself or, while a job runs, into the pipe, behind what the job printed.
_notes = [2]


def _log_line(text: str) -> None:
    """Write a line of Horae's own into the job's log. A pipe that is full, since the disk hangs, is passed by."""
    line = f"horae: {text}\n".encode(errors="replace")
    try:
        os.write(_notes[0], line)
    except OSError:
        os.write(2, line)


class JobOutput:
    """The job's output on its way into the log, of which a limited number of bytes is kept.

    log.txt            the first half of these bytes
    log.txt.OFFSET     a part of what came later, by the number of bytes that were printed before it

    Of the later parts the newest four are kept. A full disk leaves bytes out, too, and stops no job.
    """

    PARTS = 4

    def __init__(self, folder: str, most: int) -> None:
        self.folder, self.part_bytes = folder, max(most // (2 * self.PARTS), 1)
        self.reading, self.writing = os.pipe()
        try:
            fcntl.fcntl(self.writing, _F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            pass  # the user has too many large pipes: a small one is slower
        #: Bytes that were printed, the open file, and the bytes that go into it.
        self.printed = os.fstat(1).st_size
        self.file, self.room = os.dup(1), max(most // 2 - self.printed, 0)
        self.parts: list[str] = []
        # Not blocking, without making the job's end of the pipe so.
        _notes[0] = os.open(f"/proc/self/fd/{self.writing}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        import _thread

        self.over = _thread.allocate_lock()
        self.over.acquire()
        _thread.start_new_thread(self._copy, ())

    def give_to_job(self) -> None:
        """In a new process: make the pipe its standard output and error."""
        os.dup2(self.writing, 1)
        os.dup2(self.writing, 2)

    def let_others_open(self) -> None:
        """Let processes of another account that have the pipe open it once more, by /dev/stdout or /dev/stderr."""
        os.fchmod(self.writing, 0o622)

    def finish(self, wait_s: float) -> None:
        """Wait for the last output. A process that escaped, and has the pipe open, does not keep the runner waiting."""
        os.close(_notes[0])
        _notes[0] = 2
        os.close(self.writing)
        self.over.acquire(timeout=wait_s)

    def _copy(self) -> None:
        while True:
            block = os.read(self.reading, _BLOCK)
            if not block:
                break
            try:
                self._keep(memoryview(block))
            except OSError:
                self.room = 0  # the disk is full: the rest is left out, and what comes next is another part
                self.printed = self.end
        self.over.release()

    def _keep(self, block: "memoryview") -> None:
        self.end = self.printed + len(block)
        while block:
            if not self.room:
                self._begin_part()
            written = os.write(self.file, block[: self.room])
            self.printed, self.room, block = self.printed + written, self.room - written, block[written:]
        while len(self.parts) > self.PARTS:
            _remove(self.parts.pop(0))

    def _begin_part(self) -> None:
        if self.parts and not os.fstat(self.file).st_size:
            _remove(self.parts.pop())  # nothing could be written into it
        name = os.path.join(self.folder, f"{LOG}.{self.printed}")
        file = create(name)
        self.parts.append(name)
        os.dup2(file, self.file, inheritable=False)
        os.close(file)
        self.room = self.part_bytes


def _remove(path: str) -> None:
    """Remove a file, unless the job has done so."""
    try:
        os.unlink(path)
    except OSError:
        pass


def _saved_work(found: "Any") -> "dict[str, Any] | None":
    """What counts of a job's `saved.json`, in few bytes: the file with the exit must stay readable."""
    if not isinstance(found, dict):
        return None
    values = {name: found.get(name) for name in ("step", "total")}
    return {name: value for name, value in values.items() if isinstance(value, (int, float)) and abs(value) < 1e300}


class CannotStart(Exception):
    """The attempt cannot be started; the text goes to its log."""


class WardenLost(Exception):
    """Nobody is left who can end the job: the service has that done when it finds no runner."""


class OwnProcesses:
    """Processes that the runner starts itself: its children, and the orphans of these."""

    def __init__(self, order: "dict[str, Any]") -> None:
        self.order = order
        self.libc = ctypes.CDLL(None, use_errno=True)
        #: Whether each started process has ended. Dead processes stay zombies until the runner ends, so that the
        #: system cannot reuse their ids or the id of their group.
        self.has_ended: dict[int, bool] = {}
        self.group = 0
        #: Control group of the processes; empty if they have none.
        self.control_group = ""
        self.sandbox = Sandbox(order) if order.get("sandbox") else None
        # Orphans of the job become children of the runner, so that none outlives the attempt.
        self.libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def make_folders(self) -> None:
        """Check the folders, and create that of the checkpoints."""
        try:
            if self.sandbox:
                self.sandbox.make_folder(self.order["checkpoint_dir"])
            else:
                os.makedirs(self.order["checkpoint_dir"], mode=0o700, exist_ok=True)
        except OSError as why:
            raise CannotStart(f"the checkpoint folder cannot be created: {why}") from None
        if not os.path.isdir(self.order["workdir"]):
            raise CannotStart(f"the working folder {self.order['workdir']!r} does not exist on this machine")
        if self.sandbox:
            self.sandbox.open_folders()

    def saved(self) -> "Any":
        """What the job of a piece says that its checkpoint holds; None if it says nothing that can be read in time.

        On one machine the backend reads it.
        """
        if self.order.get("beat_limit_s") is None:
            return None
        import _thread

        found: list[Any] = []
        read = _thread.allocate_lock()
        read.acquire()

        def read_saved() -> None:
            found.append(_saved_work(read_object(os.path.join(self.order["checkpoint_dir"], "saved.json"))))
            read.release()

        # In a thread: a file server that is dead must not keep the runner from saying its last word.
        _thread.start_new_thread(read_saved, ())
        return found[0] if read.acquire(timeout=_SAVED_S) else None

    def new_group(self) -> None:
        """Put processes that are started from now on into a new process group."""
        self.group = 0

    def start(self, argv: "list[str]", env: "dict[str, str]", output: "JobOutput | None") -> int:
        """Start a process; returns its id."""
        me, pid = os.getpid(), os.fork()
        if pid == 0:
            self._exec(argv, env, me, output)
        self.has_ended[pid] = False
        self.group = self.group or pid
        try:
            os.setpgid(pid, self.group)
        except OSError:
            pass  # the new process has joined the group already
        return pid

    def _exec(self, argv: "list[str]", env: "dict[str, str]", runner: int, output: "JobOutput | None") -> "NoReturn":
        """In the new process: execute the program, or log why that fails and exit."""
        code = _CANNOT_RUN
        try:
            os.setpgid(0, self.group)
            self.libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != runner:  # the runner died before PDEATHSIG was set
                os._exit(128 + signal.SIGKILL)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals; restore the default
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if output:
                output.give_to_job()
            if self.sandbox:
                argv, env = self.sandbox.wrap(argv, env), {}
            else:
                os.chdir(self.order["workdir"])
            os.execvpe(argv[0], argv, env)
        except FileNotFoundError:
            code = _NOT_FOUND
            _log_line(f"the program {argv[0]!r} was not found; give its full path, or set PATH")
        except BaseException as why:
            _log_line(f"the program {argv[0]!r} cannot be run: {why}")
        finally:
            os._exit(code)

    def ended(self) -> "list[tuple[int, int, int]]":
        """Started processes that have ended since the last call: id, exit code and signal. Reaps orphans."""
        found = []
        for pid in [pid for pid, has_ended in self.has_ended.items() if not has_ended]:
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end:
                number = end.si_status if end.si_code != os.CLD_EXITED else 0
                if self.sandbox and not number and end.si_status > 128:
                    number = end.si_status - 128  # bubblewrap tells a signal by its exit code
                self.has_ended[pid] = True
                found.append((pid, 128 + number if number else end.si_status, number))
        for pid in self.strays():
            os.waitpid(pid, os.WNOHANG)
        return found

    def strays(self) -> "list[int]":
        """Processes that are left of the job, but for the started ones."""
        return [pid for pid in _children() if pid not in self.has_ended]

    def send(self, number: int) -> None:
        """Send a signal to the group. SIGTERM and SIGKILL also go to processes that left the group."""
        if self.group:
            os.killpg(self.group, number)  # the group exists: its first process is not reaped yet
        if number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.strays():
                if stat_of(pid)[2:3] != [str(self.group)]:
                    os.kill(pid, number)


#: The first program inside a sandbox: it runs the job's, whose words and environment it reads from a descriptor.
_FIRST_INSIDE = """
import json, os, signal, sys
handle = int(sys.argv[1])
os.lseek(handle, 0, os.SEEK_SET)
with open(handle, "rb") as file:
    argv, env = json.loads(file.read())
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2:
        try:
            os.close(int(name))
        except OSError:
            pass
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):
        pass
try:
    os.execvpe(argv[0], argv, env)
except OSError as why:
    found = not isinstance(why, FileNotFoundError)
    told = f"cannot be run: {why}" if found else "was not found; give its full path, or set PATH"
    os.write(2, f"horae: the program {argv[0]!r} {told}\\n".encode())
    sys.exit(126 if found else 127)
"""


class Sandbox:
    """What bubblewrap shows to the processes of an attempt, as the order says.

    The file system is read-only but for the job's folders, and the service's folders are out of sight. Process ids,
    /dev, /run and /tmp are the job's own.
    """

    def __init__(self, order: "dict[str, Any]") -> None:
        self.order, self.rules = order, order["sandbox"]
        #: Open folders that the job may write, by their real path. A path could be made a link to elsewhere meanwhile.
        self.folders: dict[str, int] = {}

    def make_folder(self, path: str) -> None:
        """Create a folder, and those above it; refuse one of the service, or of another job.

        From a folder that is open, without following a link: its path could be made another one meanwhile.
        """
        real, missing = os.path.realpath(path), []
        while not os.path.isdir(real):
            real, name = os.path.split(real)
            missing.append(name)
        handle = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            here = os.readlink(f"/proc/self/fd/{handle}")
            self._check_is_not_hidden(os.path.join(here, *reversed(missing)), path)
            for name in reversed(missing):
                try:
                    os.mkdir(name, 0o700, dir_fd=handle)
                except FileExistsError:
                    pass
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
                os.close(handle)
                handle = below
        finally:
            os.close(handle)

    def open_folders(self) -> None:
        """Open the folders that the job may write; refuse those of the service, and of other jobs."""
        own = [os.path.realpath(path) for path in self.rules["own"]]
        home = self.rules["home"]
        kept = [*self.rules["keep"], *self.rules["hide"], home]
        for path in dict.fromkeys((self.order["workdir"], self.order["checkpoint_dir"])):
            handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            real = os.readlink(f"/proc/self/fd/{handle}")
            self._check_is_not_hidden(real, path)
            # Who may write a folder above one of the service's can put another in its place; folders with a dot in the
            # home are settings and caches, from which programs of the service's account load code.
            installed = any(_within(real, each) for each in self.rules["keep"])
            settings = _within(real, home) and os.path.relpath(real, home).startswith(".")
            if real in own or not (installed or settings or any(_within(each, real) for each in kept)):
                self.folders[real] = handle
            else:
                _log_line(
                    f"the folder {path!r} is in the service's home, or has a folder of the service: it is read-only"
                )

    def _check_is_not_hidden(self, real: str, path: str) -> None:
        own = [os.path.realpath(each) for each in self.rules["own"]]
        if real not in own and any(_within(real, hidden) for hidden in self.rules["hide"]):
            raise CannotStart(f"the folder {path!r} belongs to the service, or to another job: name another one")

    def wrap(self, argv: "list[str]", env: "dict[str, str]") -> "list[str]":
        """The command that runs a program in the sandbox; in the new process.

        Bubblewrap itself is outside the sandbox, so it gets neither the job's environment, which could make it load a
        library of the job, nor its words. A first program inside gets both, and closes what is open from outside.
        """
        program = os.memfd_create("program", 0)
        with open(program, "wb", closefd=False) as file:
            file.write(json.dumps([argv, env]).encode())
        for number in {signal.SIGTERM, self.order["stop_signal"]} - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
            # The signals that the group gets are for the job: bubblewrap, in the same group, must live on.
            signal.signal(number, signal.SIG_IGN)
        own = [os.path.realpath(path) for path in self.rules["own"]]
        outside = [real for real in self.folders if real not in own]
        kept = [path for path in self.rules["keep"] if any(_within(path, real) for real in outside)]
        devices, shown = _binds("--dev-bind", self.rules["devices"]), _binds("--ro-bind", self.rules["show"])
        hidden = [word for path in self.rules["hide"] for word in _hide(path)]
        workdir = os.path.realpath(self.order["workdir"])
        return [
            *(self.rules["program"], "--unshare-user", "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL"),
            *("--ro-bind", "/", "/"),
            *("--dev", "/dev", *devices, "--proc", "/proc"),
            *"--tmpfs /tmp --tmpfs /var/tmp --tmpfs /run".split(),
            *shown,
            *(word for real in outside for word in self._bind(real)),
            *_binds("--ro-bind", kept),
            *hidden,
            *(word for real in self.folders if real in own for word in self._bind(real)),
            *("--chdir", workdir, "--", sys.executable, "-I", "-S", "-c", _FIRST_INSIDE, str(program)),
        ]

    def _bind(self, real: str) -> "list[str]":
        handle = self.folders[real]
        os.set_inheritable(handle, True)
        return ["--bind", f"/proc/self/fd/{handle}", real]


def _binds(option: str, paths: "list[str]") -> "list[str]":
    """Options of bubblewrap that show these paths, as far as they exist."""
    return [word for path in paths if os.path.exists(path) for word in (option, path, path)]


def _hide(path: str) -> "list[str]":
    """Options of bubblewrap that hide a folder or a file."""
    if os.path.isdir(path):
        return ["--tmpfs", path]
    return ["--ro-bind", "/dev/null", path] if os.path.exists(path) else []


def _within(path: str, folder: str) -> bool:
    """Whether a path is a folder, or in it."""
    return os.path.commonpath((path, folder)) == folder


class WardedProcesses:
    """Processes that the warden of the attempt starts, under the account of the job's user."""

    def __init__(self, order: "dict[str, Any]") -> None:
        import socket

        self.order, self.group = order, 0
        self.socket = socket
        self.channel = socket.socket(fileno=CONTROL)
        self.text = b""
        self.started: set[int] = set()
        self.ends: list[tuple[int, int, int]] = []
        self.over_memory = False
        #: Whether the warden has died.
        self.is_lost = False
        self.control_group = str(self._next("cgroup")["cgroup"])
        # News from the warden arrive as a signal, for which `Runner._wait` waits.
        fcntl.fcntl(CONTROL, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(CONTROL, fcntl.F_SETFL, fcntl.fcntl(CONTROL, fcntl.F_GETFL) | os.O_ASYNC)

    def make_folders(self) -> None:
        """Create the folders of the job as its user, who owns them."""
        own_only = 'umask 077 && exec mkdir -p -- "$@"'
        code, text = self._run_command(_FOLDERS_S, "sh", "-c", own_only, "sh", *self.order["make"])
        if code:
            why = text.decode(errors="replace").strip()
            raise CannotStart(f"the account {self.order['account']} cannot make the folders of the job: {why}")

    def saved(self) -> "Any":
        """What the job says that its checkpoint holds, read as its user; None if that cannot be read in time."""
        path = os.path.join(self.order["checkpoint_dir"], "saved.json")
        # With these flags `dd` waits for no other process, and follows no link.
        flags = ("iflag=nonblock,nofollow,fullblock", f"bs={LARGEST_FILE}", "count=1", "status=none")
        try:
            code, text = self._run_command(_SAVED_S, "dd", f"if={path}", *flags)
            return None if code else _saved_work(json.loads(text))
        except (CannotStart, ValueError, RecursionError, MemoryError):
            return None

    def _run_command(self, limit_s: float, *argv: str) -> "tuple[int, bytes]":
        """Run a command of the runner's own as the user, before or after the job; returns its exit code and output."""
        ours, theirs = os.pipe()
        try:
            self.new_group()
            pid = self._start(list(argv), {"PATH": os.defpath, "LC_ALL": "C"}, "/", theirs, theirs)
        finally:
            os.close(theirs)
        try:
            return self._result(pid, ours, time.monotonic() + limit_s)
        finally:
            os.close(ours)
            self.started.discard(pid)
            self.new_group()

    def _result(self, pid: int, output: int, end_s: float) -> "tuple[int, bytes]":
        import select

        text = b""
        while len(text) < 2 * LARGEST_FILE:
            ready, _, _ = select.select([output], [], [], max(end_s - time.monotonic(), 0.0))
            part = os.read(output, LARGEST_FILE) if ready else b""
            text += part
            if not part:
                break
        while not self.is_lost and pid not in [end[0] for end in self.ends]:
            if time.monotonic() >= end_s:  # for example a file server that hangs
                self.send(signal.SIGKILL)
                return _CANNOT_RUN, b"it took too long"
            self._receive(max(end_s - time.monotonic(), 0.0))
        codes = [code for ended, code, _ in self.ends if ended == pid]
        self.ends = [end for end in self.ends if end[0] != pid]
        return (codes or [_CANNOT_RUN])[0], text

    def new_group(self) -> None:
        """Put processes that are started from now on into a new process group."""
        self.group = 0
        self._tell({"new_group": True})

    def start(self, argv: "list[str]", env: "dict[str, str]", output: "JobOutput | None") -> int:
        """Have the warden start a process; returns its id."""
        if output:
            output.let_others_open()
        out, errors = (output.writing, output.writing) if output else (1, 2)
        return self._start(argv, env, self.order["workdir"], out, errors)

    def _start(self, argv: "list[str]", env: "dict[str, str]", cwd: str, out: int, errors: int) -> int:
        self._tell({"start": {"argv": argv, "env": env, "cwd": cwd}}, (0, out, errors))
        pid = int(self._next("pid")["pid"])
        self.started.add(pid)
        self.group = self.group or pid
        return pid

    def ended(self) -> "list[tuple[int, int, int]]":
        """Started processes that have ended since the last call: id, exit code and signal."""
        self._receive(0.0)
        found, self.ends = [end for end in self.ends if end[0] in self.started], []
        self.started -= {pid for pid, _, _ in found}
        if self.is_lost:
            raise WardenLost("the process that started the job under its user's account was killed")
        if self.over_memory:
            self.over_memory = False
            _log_line(f"killed: the job used more than {self.order['limits']['memory_mb']} MiB of memory")
        return found

    def strays(self) -> "list[int]":
        """Processes that are left of the job, but for the started ones."""
        try:
            with open(os.path.join(self.control_group, "cgroup.procs"), encoding="ascii") as file:
                return [pid for pid in map(int, file.read().split()) if pid not in self.started]
        except OSError:
            return []

    def send(self, number: int) -> None:
        """Send a signal to the group; SIGTERM and SIGKILL to all processes of the attempt."""
        self._tell({"signal": int(number), "all": number in (signal.SIGTERM, signal.SIGKILL)})

    def _tell(self, content: "dict[str, Any]", handles: "tuple[int, ...]" = ()) -> None:
        text = json.dumps(content).encode() + b"\n"
        rights = b"".join(handle.to_bytes(4, sys.byteorder) for handle in handles)
        extra = [(self.socket.SOL_SOCKET, self.socket.SCM_RIGHTS, rights)] if handles else []
        try:
            self.channel.settimeout(_ANSWER_S)
            sent = self.channel.sendmsg([text], extra)
            self.channel.sendall(text[sent:])
        except OSError:
            self.is_lost = True

    def _next(self, key: str) -> "dict[str, Any]":
        """The warden's next answer. Ends of processes that come before it are kept."""
        end_s = time.monotonic() + _ANSWER_S
        while not self.is_lost and time.monotonic() < end_s:
            answers = self._receive(_ANSWER_S)
            if answers and key in answers[0]:
                return answers[0]
        raise CannotStart("the process that starts jobs under the users' accounts has ended; its log is the system's")

    def _receive(self, wait_s: float) -> "list[dict[str, Any]]":
        """Take in what the warden has sent; returns its answers."""
        answers: list[dict[str, Any]] = []
        try:
            self.channel.settimeout(wait_s)
            while not self.is_lost:
                part = self.channel.recv(65536)
                self.is_lost = not part
                *lines, self.text = (self.text + part).split(b"\n")
                for news in map(json.loads, lines):
                    if "exit" not in news:
                        answers.append(news)
                        continue
                    self.ends.append((news["exit"], news["code"], news["signal"]))
                    self.over_memory = self.over_memory or news["over_memory"]
                self.channel.settimeout(0.0)
        except (BlockingIOError, TimeoutError, self.socket.timeout):
            pass
        except OSError:
            self.is_lost = True
        return answers


class Runner:
    """Runs one attempt: setup, job, stop and exit."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(os.path.join(folder, ORDER), encoding="utf-8") as file:
            self.order: dict[str, Any] = json.load(file)
        self.task: dict[str, Any] = self.order["task"]
        self.processes: OwnProcesses | WardedProcesses = (
            WardedProcesses(self.order) if self.order.get("account") else OwnProcesses(self.order)
        )
        #: Exit code of each started process, None while it is alive.
        self.codes: dict[int, int | None] = {}
        #: The first exit code other than 0, which is the attempt's exit code, and the signal that caused it.
        self.code = self.signal = 0
        self.stopped = False
        #: When the first process came up, in seconds of the monotonic clock, which all processes share.
        self.up_at: float | None = None
        #: Signals still to send, each with the seconds until the next one; empty unless the attempt is being stopped.
        self.signals_to_send: list[tuple[int, float]] = []
        self.next_signal_s = 0.0
        #: Seconds without a beat after which a piece kills its job; None if this is no piece.
        self.beat_limit_s: float | None = self.order.get("beat_limit_s")
        self.saved_before: Any = None
        self.last_beat_s = _running_s()
        self.output: JobOutput | None = None
        #: Whether the service has written the end of this piece: it was out of sight for too long.
        self.given_up = False
        #: Content of the file `stop`.
        self.stop_wish = STOP_NOTICE

    def run(self) -> None:
        """Run the attempt from start to `exit.json`."""
        self._write_identity()
        self.saved_before = self.processes.saved()
        if self.beat_limit_s is not None:
            self._start_beating()
        if self.beat_limit_s is not None and os.path.exists(os.path.join(self.folder, EXIT)):
            return  # given up while this process was frozen
        if os.path.exists(os.path.join(self.folder, STOP)):
            self.stopped, self.code = True, _RUN_AGAIN
        else:
            self._run_to_last_process()
        self._write_exit()

    def _run_to_last_process(self) -> None:
        wait_s = _LEAVE_S
        try:
            self._run_stages()
            self._wait_for_strays()
            wait_s = _DRAIN_S
        finally:
            if self.output:
                self.output.finish(wait_s)

    def _run_stages(self) -> None:
        """Run the setup, if any, and then the job."""
        try:
            self.output = self._open_output()
            self._prepare()
            if self.task["setup"]:
                self._run_to_end([["bash", "-e", "-c", self.task["setup"]]])
                self._check_setup_exit()
            if not self.code:
                self._run_to_end([self.task["run"]] * len(self.order["ranks"]))
        except CannotStart as why:
            _log_line(str(why))
            self.code = self.code or _CANNOT_RUN

    def _open_output(self) -> "JobOutput | None":
        """The way of the job's output into its log; None if there is none, and the job must write the log itself."""
        try:
            return JobOutput(self.folder, int(self.order.get("max_log_bytes", LARGEST_LOG)))
        except OSError as why:
            _log_line(f"the size of this log is not limited: {why}")
            return None

    def _check_setup_exit(self) -> None:
        """Set the exit code after the setup. Only the job itself may exit with "run me again"."""
        if self.stopped:
            self.code = _RUN_AGAIN
        elif self.code:
            _log_line(f"setup failed with exit code {self.code}; the job was not started")
            self.code = 1 if self.code == _RUN_AGAIN else self.code

    def _prepare(self) -> None:
        """Check the folders and read the secrets into the environment; they are written to no other file."""
        self.processes.make_folders()
        for name, path in self.order["secrets"].items():
            try:
                with open(path, encoding="utf-8") as file:
                    self.order["env"][name] = file.read().rstrip("\r\n")
            except (OSError, UnicodeDecodeError):
                raise CannotStart(f"the secret {name} cannot be read; ask the operator to add it") from None

    def _run_to_end(self, programs: "list[list[str]]") -> None:
        """Start programs in one new process group, and wait until each has ended."""
        self.processes.new_group()
        try:
            for program, rank in zip(programs, self.order["ranks"]):
                self.codes[self.processes.start(program, self.order["env"] | rank, self.output)] = None
        except OSError as why:  # the limit of processes is reached
            _log_line(f"a process could not be started: {why}")
            self._note_failure(_CANNOT_RUN)
        self._note_job_up()
        while None in self.codes.values():
            self._wait()

    def _wait(self) -> None:
        """Wait until a process ends, a signal arrives, or the next signal is due; then handle it."""
        left_s = self.next_signal_s - time.monotonic() if self.signals_to_send else 3600.0
        left_s = left_s if self.beat_limit_s is None else min(left_s, _BEAT_EVERY_S)
        received = signal.sigtimedwait(SIGNALS, max(left_s, 0.0))
        if received and received.si_signo == signal.SIGTERM and not self.signals_to_send:
            self._obey_stop()
        self._check_beat()
        self._collect()
        if self.signals_to_send and time.monotonic() >= self.next_signal_s:
            self._send_next()

    def _obey_stop(self) -> None:
        """Stop the job as the file `stop` says: by its stop signal, or because another piece has ended."""
        grace_s, how = self.task["grace_s"], self.stop_wish
        self.stopped = how == STOP_NOTICE
        first = {STOP_GRACE: [(0, grace_s)], STOP_NOW: []}.get(how, [(self.order["stop_signal"], grace_s)])
        self._stop_with(*first, (signal.SIGTERM, _TERM_TO_KILL_S))

    def _check_beat(self) -> None:
        """Kill the job if nobody can have seen a beat for too long. It counts as stopped: it is not the job's fault."""
        silent_s = _running_s() - self.last_beat_s
        if self.beat_limit_s is None or self.signals_to_send[:1] == _KILL:
            return
        if silent_s < self.beat_limit_s and not self.given_up:
            return
        self.stopped = True
        self._stop_with()
        # Only now: the log is on the shared folder, and may hang with it.
        why = f"the shared folder could not be written for {silent_s:.0f} s"
        _log_line(f"{'the service took the job for dead' if self.given_up else why}; the job is killed")

    def _start_beating(self) -> None:
        """Beat and look for `stop` in a thread: a file server that hangs must not keep the runner from killing."""
        import _thread

        _thread.start_new_thread(self._beat_forever, ())

    def _beat_forever(self) -> None:
        stopping, next_beat_s = False, 0.0
        while True:
            try:
                if _running_s() >= next_beat_s:
                    self.given_up = self.given_up or os.path.exists(os.path.join(self.folder, EXIT))
                    self._beat()
                    next_beat_s = self.last_beat_s + _BEAT_EVERY_S
                if not stopping:
                    stopping = self._look_for_stop()
            except OSError:
                pass  # tried again; `_check_beat` counts the seconds
            time.sleep(_LOOK_EVERY_S)

    def _beat(self) -> None:
        """Set the time of `beat` by the file server's clock. A beat that comes too late is not given at all."""
        begun_s = _running_s()
        if self.beat_limit_s is not None and begun_s - self.last_beat_s >= self.beat_limit_s:
            return  # a runner that was frozen: others believe that the job is gone, and `_check_beat` kills it
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(os.path.join(self.folder, BEAT), flags, 0o600)
        try:
            os.utime(handle)
        finally:
            os.close(handle)
        self.last_beat_s = begun_s

    def _look_for_stop(self) -> bool:
        """Send this process a SIGTERM if a stop is wished for."""
        try:
            handle = open_plain(os.path.join(self.folder, STOP))
        except FileNotFoundError:
            return False
        try:
            self.stop_wish = os.read(handle, LARGEST_FILE).decode(errors="replace")
        finally:
            os.close(handle)
        os.kill(os.getpid(), signal.SIGTERM)
        return True

    def _collect(self) -> None:
        """Note the exit codes of started processes that have ended."""
        for pid, code, number in self.processes.ended():
            self.codes[pid] = code
            if code:
                self._note_failure(code, number)

    def _note_failure(self, code: int, number: int = 0) -> None:
        """Stop all processes after one has failed. After "run me again" the others get the grace period, to save."""
        if not self.code:
            self.code, self.signal = code, number
        if not self.signals_to_send and None in self.codes.values():
            grace = ((0, self.task["grace_s"]),) if code == _RUN_AGAIN else ()
            self._stop_with(*grace, (signal.SIGTERM, _TERM_TO_KILL_S))

    def _wait_for_strays(self) -> None:
        """Wait until no process of the attempt is left; stop processes that outlive the started ones.

        After a stop, stray processes keep the grace period if the job died from the stop signal: a shell dies at
        once, while the training script, its child, is still saving.
        """
        if self.processes.strays() and not (self.stopped and self.signal):
            self._stop_with((signal.SIGTERM, _TERM_TO_KILL_S))
        while self.processes.strays():
            self._wait()

    def _stop_with(self, *steps: "tuple[int, float]") -> None:
        """Send these (signal, seconds to wait) in turn, and then SIGKILL until all processes are gone."""
        self.signals_to_send = [*steps, *_KILL]
        self._send_next()

    def _send_next(self) -> None:
        number, wait_s = self.signals_to_send[0]
        self.signals_to_send = self.signals_to_send[1:] or self.signals_to_send
        self.next_signal_s = time.monotonic() + wait_s
        if number:
            self.processes.send(number)

    def _write_identity(self) -> None:
        me = {"pid": os.getpid(), "start_time": start_time(os.getpid()), "boot_id": boot_id()}
        job = {"group": self.processes.group, "control_group": self.processes.control_group}
        # Need not be durable: a power cut ends the runner, too.
        write_atomically(self.folder, RUNNER, {**me, **job, "up_at": self.up_at}, durable=False)

    def _note_job_up(self) -> None:
        """Record in `runner.json` that the processes are up, since when, and their group. A full disk is no failure."""
        self.up_at = self.up_at or time.monotonic()
        try:
            self._write_identity()
        except OSError as why:
            _log_line(f"the start of the job could not be recorded: {why}")

    def _write_exit(self) -> None:
        """Write `exit.json`. On a full disk, try for a while: without the exit the job would run again."""
        if self.code and signal.SIGTERM in signal.sigpending():
            self.stopped = True  # the job got the same signal, and was faster
        end = {
            "code": self.code,
            "signal": self.signal,
            "stopped": self.stopped,
            "at": time.time(),
            # A duration, since clocks of machines differ; None if no process came up.
            "up_s": None if self.up_at is None else time.monotonic() - self.up_at,
            "saved_before": self.saved_before,
            "saved_after": self.processes.saved(),
        }
        end_s = time.monotonic() + max(_DISK_S, self.beat_limit_s or 0.0)
        while True:
            try:
                # The service has written the end of a piece that it has given up.
                write_atomically(self.folder, EXIT, end, once=self.beat_limit_s is not None)
                return
            except OSError:
                if time.monotonic() >= end_s:
                    return
                time.sleep(_DISK_AGAIN_S)


def was_begun(folder: str) -> bool:
    """Whether an attempt was ever started, or was cancelled before its start."""
    return any(os.path.exists(os.path.join(folder, name)) for name in (RUNNER, EXIT))


def _refuse_old_python(folder: str) -> bool:
    """End the attempt with a sentence if this Python is too old for the runner."""
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return False
    have, need = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST_PYTHON))
    why = f"Python {have} of {os.uname().nodename} is too old to run jobs: install Python {need} or newer there"
    _log_line(why)
    end = {"code": _CANNOT_RUN, "signal": 0, "stopped": False, "at": time.time(), "up_s": None, "why": f"{why}."}
    write_atomically(folder, EXIT, end)
    return True


def _close_inherited() -> None:
    """Close what whoever started the service had open: it is not for jobs."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != CONTROL:
            try:
                os.close(int(name))
            except OSError:
                pass  # of the list itself


def main(folder: str) -> int:
    """Run the attempt of a folder, unless it has or had a runner."""
    _close_inherited()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    lock = take_lock(folder)  # held until this process ends
    if lock is None or was_begun(folder) or _refuse_old_python(folder):
        return 0
    try:
        Runner(folder).run()
    except (CannotStart, WardenLost) as why:
        _log_line(str(why))
    return 0


def main_of_piece(attempt_folder: str) -> int:
    """Run the piece of this node, unless it was begun before, wherever that was."""
    folder, begun_s = os.path.join(attempt_folder, os.environ[NODE]), _running_s()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if not claim(folder, f"{os.uname().nodename} {os.getpid()}"):
        return 0
    log = os.open(os.path.join(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if _refuse_old_python(folder):
        return 0
    runner = Runner(folder)
    runner.last_beat_s = begun_s  # a process that was frozen since its claim is too late, too
    # The cluster manager chooses the GPUs.
    runner.order["env"].update({name: os.environ[name] for name in runner.order["take_over"] if name in os.environ})
    runner.run()
    return 0


if __name__ == "__main__":
    sys.exit(main_of_piece(sys.argv[1]) if sys.argv[2:] == [PIECE] else main(sys.argv[1]))
