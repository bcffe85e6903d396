"""Runs one attempt of a job, from its order to its exit, whether the daemon lives or not.

    python -I -S runner.py FOLDER

The folder holds `order.json`. The runner takes the lock in it, so that an attempt has at most
one runner, ever; writes `runner.json` (who it is), then starts the setup and after it the
job's processes in a process group of their own; and writes `exit.json` when the last process
is gone. SIGTERM, or a file `stop` that is there before the start, means: stop signal to the
group, after the grace SIGTERM, then SIGKILL.

It is a program of its own with few imports, since every start of a job waits for it; the
backend borrows its small functions, never the other way round.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module itself would cost milliseconds
    from typing import Any, NoReturn

ORDER, RUNNER, EXIT, LOCK, STOP, LOG = "order.json", "runner.json", "exit.json", "lock", "stop", "log.txt"

#: The job said "run me again" (EX_TEMPFAIL).
_RUN_AGAIN = 75
#: As shells have it: the program was not found, or it cannot be run as asked.
_NOT_FOUND, _CANNOT_RUN = 127, 126
#: From SIGTERM to SIGKILL, and from one SIGKILL to the next.
_FINAL_S, _KILL_EVERY_S = 5.0, 0.1
#: How long a full disk may take to have room for the exit.
_DISK_TRIES = 120
#: From <sys/prctl.h>.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Blocked all along and fetched when we wait, so that none comes at a bad moment.
SIGNALS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP)


def write_whole(folder: str, name: str, content: object, once: bool = False, lasting: bool = True) -> bool:
    """Write a JSON file so that it is there whole or not at all.

    `once` leaves one that exists, and answers False. `lasting` waits until it would survive a power cut.
    """
    path, draft = os.path.join(folder, name), os.path.join(folder, f".{name}.{os.getpid()}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "w", encoding="utf-8") as out:
            json.dump(content, out)
            out.flush()
            if lasting:
                os.fsync(out.fileno())
        if once:
            os.link(draft, path)
        else:
            os.rename(draft, path)
    except FileExistsError:
        return False
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
    if lasting:
        _sync_folder(folder)
    return True


def _sync_folder(folder: str) -> None:
    """Make the names in a folder last."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take_lock(folder: str) -> int | None:
    """The lock of an attempt as an open file, or None if someone holds it; it goes when the file is closed."""
    handle = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: state, parent, group, session ...; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> int:
    """When a process began, in ticks since boot; 0 if it is gone. A zombie counts as gone."""
    fields = stat_of(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else 0


def boot_id() -> str:
    """What tells this boot of the machine, or of the container, from others; process numbers mean nothing beyond it."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}-{start_time(1)}"


def _children() -> list[int]:
    """Processes whose parent we are: those we started, and orphans of theirs."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without that file
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if stat_of(pid)[1:2] == [str(me)]]


def _say(text: str) -> None:
    """Put a line of our own into the job's log."""
    os.write(2, f"horae: {text}\n".encode(errors="replace"))


class CannotStart(Exception):
    """The attempt cannot run as it was ordered; the text goes to its log."""


class Runner:
    """The life of one attempt."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(os.path.join(folder, ORDER), encoding="utf-8") as file:
            self.order: dict[str, Any] = json.load(file)
        self.task: dict[str, Any] = self.order["task"]
        self.libc = ctypes.CDLL(None, use_errno=True)
        #: Exit code of each process we started, None while it lives. The dead stay zombies until
        #: we end, so that neither their numbers nor their group's can come to mean someone else.
        self.codes: dict[int, int | None] = {}
        self.group = 0
        #: The first exit code that is not 0, which is the attempt's, and the signal behind it.
        self.code = self.signal = 0
        self.stopped = False
        #: When the first process came up, by a clock that all processes share and nobody sets.
        self.up_at: float | None = None
        #: Signals still to send, each with the seconds until the next; empty while all is well.
        self.pressure: list[tuple[int, float]] = []
        self.due_s = 0.0

    def run(self) -> None:
        """Live."""
        # Orphans of the job become our children, so that none outlives the attempt.
        self.libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._tell_who()
        if os.path.exists(os.path.join(self.folder, STOP)):
            self.stopped, self.code = True, _RUN_AGAIN
        else:
            self._run_stages()
        self._clear()
        self._write_exit()

    def _run_stages(self) -> None:
        """Setup, if any, and the job."""
        try:
            self._prepare()
            if self.task["setup"]:
                self._finish([["bash", "-e", "-c", self.task["setup"]]])
                self._judge_setup()
            if not self.code:
                self._finish([self.task["run"]] * len(self.order["ranks"]))
        except CannotStart as why:
            _say(str(why))
            self.code = self.code or _CANNOT_RUN

    def _judge_setup(self) -> None:
        """Only the job itself can ask to be run again; an attempt stopped before it has not finished."""
        if self.stopped:
            self.code = _RUN_AGAIN
        elif self.code:
            _say(f"setup failed with exit code {self.code}; the job was not started")
            self.code = 1 if self.code == _RUN_AGAIN else self.code

    def _prepare(self) -> None:
        """The folders, and the secrets, which are on disk nowhere but in their own files."""
        try:
            os.makedirs(self.order["checkpoint_dir"], mode=0o700, exist_ok=True)
        except OSError as why:
            raise CannotStart(f"the folder for checkpoints cannot be made: {why}") from None
        if not os.path.isdir(self.order["workdir"]):
            raise CannotStart(f"the working folder {self.order['workdir']!r} does not exist on this machine")
        for name, path in self.order["secrets"].items():
            try:
                with open(path, encoding="utf-8") as file:
                    self.order["env"][name] = file.read().rstrip("\r\n")
            except (OSError, UnicodeDecodeError):
                raise CannotStart(f"the secret {name} cannot be read; ask the operator to add it") from None

    def _finish(self, programs: list[list[str]]) -> None:
        """Start programs in one new group, and wait until each has ended."""
        self.group = 0
        try:
            for program, rank in zip(programs, self.order["ranks"], strict=False):
                self._start(program, self.order["env"] | rank)
        except OSError as why:  # no more processes to be had
            _say(f"a process could not be started: {why}")
            self._failed(_CANNOT_RUN)
        self._tell_up()
        while None in self.codes.values():
            self._wait()

    def _start(self, argv: list[str], env: dict[str, str]) -> None:
        me, pid = os.getpid(), os.fork()
        if pid == 0:
            self._become(argv, env, me)
        self.codes[pid] = None
        self.group = self.group or pid
        try:
            os.setpgid(pid, self.group)
        except OSError:
            pass  # it was faster, and is in the group already

    def _become(self, argv: list[str], env: dict[str, str], runner: int) -> NoReturn:
        """In the new process: turn into the program, or say why not and exit."""
        code = _CANNOT_RUN
        try:
            os.setpgid(0, self.group)
            self.libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != runner:  # it died before it could take us along
                os._exit(128 + signal.SIGKILL)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, programs do not expect it
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.chdir(self.order["workdir"])
            os.execvpe(argv[0], argv, env)
        except FileNotFoundError:
            code = _NOT_FOUND
            _say(f"{argv[0]!r} was not found; give its full path, or set PATH")
        except BaseException as why:
            _say(f"{argv[0]!r} cannot be run: {why}")
        finally:
            os._exit(code)

    def _wait(self) -> None:
        """Sleep until a process ends, a signal comes, or the next one is to be sent; then see to it."""
        left_s = self.due_s - time.monotonic() if self.pressure else 3600.0
        came = signal.sigtimedwait(SIGNALS, max(left_s, 0.0))
        if came and came.si_signo == signal.SIGTERM and not self.pressure:
            self.stopped = True
            self._press((self.order["stop_signal"], self.task["grace_s"]), (signal.SIGTERM, _FINAL_S))
        self._collect()
        if self.pressure and time.monotonic() >= self.due_s:
            self._send_next()

    def _collect(self) -> None:
        """See which processes have ended. Orphans are reaped; of our own the exit code is noted."""
        for pid in [pid for pid, code in self.codes.items() if code is None]:
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end:
                number = end.si_status if end.si_code != os.CLD_EXITED else 0
                self.codes[pid] = 128 + number if number else end.si_status
                if end.si_status:
                    self._failed(self.codes[pid] or 0, number)
        for pid in self._strays():
            os.waitpid(pid, os.WNOHANG)

    def _failed(self, code: int, number: int = 0) -> None:
        """One process is lost, and the others with it. After "run me again" they are saving: they get the grace."""
        if not self.code:
            self.code, self.signal = code, number
        if not self.pressure and None in self.codes.values():
            grace = ((0, self.task["grace_s"]),) if code == _RUN_AGAIN else ()
            self._press(*grace, (signal.SIGTERM, _FINAL_S))

    def _clear(self) -> None:
        """Wait until nothing is left of the attempt. What outlives the job's own processes must go.

        It keeps the grace of a stop if the job died of the notice: a shell does so at once, while
        the training script, its child, is saving.
        """
        if self._strays() and not (self.stopped and self.signal):
            self._press((signal.SIGTERM, _FINAL_S))
        while self._strays():
            self._wait()

    def _strays(self) -> list[int]:
        return [pid for pid in _children() if pid not in self.codes]

    def _press(self, *steps: tuple[int, float]) -> None:
        """Send these signals one after the other, and then SIGKILL until all are gone."""
        self.pressure = [*steps, (signal.SIGKILL, _KILL_EVERY_S)]
        self._send_next()

    def _send_next(self) -> None:
        number, wait_s = self.pressure[0]
        self.pressure = self.pressure[1:] or self.pressure
        self.due_s = time.monotonic() + wait_s
        if number:
            self._send(number)

    def _send(self, number: int) -> None:
        """Signal the group; a last word or a kill goes to those who left it, too."""
        if self.group:
            os.killpg(self.group, number)  # it exists: its first process is ours to reap, and we have not
        if number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._strays():
                if stat_of(pid)[2:3] != [str(self.group)]:
                    os.kill(pid, number)

    def _tell_who(self) -> None:
        me = {"pid": os.getpid(), "start_time": start_time(os.getpid()), "boot_id": boot_id()}
        # A power cut that takes this takes us along: no need to wait for the disk.
        write_whole(self.folder, RUNNER, {**me, "group": self.group, "up_at": self.up_at}, lasting=False)

    def _tell_up(self) -> None:
        """Add to what is known of us that setup or job is up, since when the GPUs are in use, and its group.

        A disk that is full is no reason to end it.
        """
        self.up_at = self.up_at or time.monotonic()
        try:
            self._tell_who()
        except OSError as why:
            _say(f"that the job is up could not be noted: {why}")

    def _write_exit(self) -> None:
        """Write how it ended; a full disk is given time, since a lost exit would be a job run for nothing."""
        end = {"code": self.code, "signal": self.signal, "stopped": self.stopped, "at": time.time()}
        for _ in range(_DISK_TRIES):
            try:
                write_whole(self.folder, EXIT, end)
                return
            except OSError:
                time.sleep(0.5)


def begun(folder: str) -> bool:
    """Whether an attempt was ever begun, or called off before."""
    return any(os.path.exists(os.path.join(folder, name)) for name in (RUNNER, EXIT))


def main(folder: str) -> int:
    """Run the attempt in a folder, unless it has or had a runner."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    lock = take_lock(folder)  # held until we are gone
    if lock is None or begun(folder):
        return 0
    Runner(folder).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
