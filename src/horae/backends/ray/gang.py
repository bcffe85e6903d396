"""Runs the pieces of one attempt inside a Ray cluster. Shipped on the shared folder; needs `ray` and nothing of Horae.

    python3 gang.py drive GANG                         the driver of a Ray job: one placement group, one actor a piece
    python3 -I -S gang.py guard PARENT FOLDER NODE GPUS PROGRAM...   between an actor and the runner of its piece

The driver waits for its pieces, and the Ray job ends with them. It decides nothing: the runners hear of a stop by
files. If an actor is lost without a last word of its runner, the other pieces are asked to save and end: a gang with
a piece missing would wait for ever.

The guard exists because Ray kills the children of an actor that ends. If the guard dies, for whatever reason, the
runner gets SIGTERM: its job has its stop signal and its grace period, even if the driver, the actor or the raylet was
killed. Until then Ray may take the GPUs for free. So each GPU has a lock on its machine, which the job's processes
hold until the last of them is gone; the next piece there waits for it. A file `kill` ends the piece at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Exit codes of the driver: no GPUs in time, no `ray` to import, a piece was lost, GPUs still used by others, GPUs that
#: cannot be locked. The guard of a piece that began ends with 0.
NO_GPUS, NO_RAY, LOST_PIECE, STILL_USED, NO_LOCKS = 70, 69, 71, 72, 73
#: Files in the folder of a piece; `stop` and `exit.json` are the runner's.
KILL, STOP, EXIT = "kill", "stop", "exit.json"
#: Variable with the name of the node that a piece runs on.
_NODE = "HORAE_NODE"
#: Seconds between two looks; for a GPU's lock; for pieces to be killed, less than the 3 s that Ray gives a driver; for
#: the last word of a runner whose actor is gone.
_LOOK_EVERY_S, _LOCK_S, _KILL_S, _LAST_WORD_S = 0.1, 600.0, 2.0, 2.0
#: Constants of <sys/prctl.h>.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


# ------------------------------------------------------------- the driver, on Ray's head


class PieceActor:
    """Runs the guard of one piece on its node, with the GPUs that Ray gave the actor."""

    def run(self, program: str, folder: str, node: str, command: list[str]) -> int:
        """Run the piece to its end, and return the guard's exit code."""
        import ray

        gpus = ",".join(str(number) for number in ray.get_gpu_ids())
        words = [sys.executable, "-I", "-S", program, "guard", str(os.getpid()), folder, node, gpus, *command]
        return subprocess.call(words, env={**os.environ, _NODE: node}, start_new_session=True)


class Gang:
    """The pieces of an attempt, as actors of one placement group."""

    def __init__(self, gang: dict[str, Any]) -> None:
        self.pieces: list[dict[str, Any]] = gang["pieces"]
        self.command: list[str] = gang["command"]
        self.patience_s: float = gang["patience_s"]
        self.stopping = False
        #: The piece of each call that has not returned.
        self.calls: dict[Any, dict[str, Any]] = {}
        self.code = 0

    def run(self) -> int:
        """Run all pieces, and return the driver's exit code."""
        import ray
        from ray.util.placement_group import placement_group

        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        signal.signal(signal.SIGTERM, self._note_stop)
        group = placement_group([piece["resources"] for piece in self.pieces], strategy="SPREAD")
        if not self._is_ready(group):
            return NO_GPUS
        for number, piece in enumerate(self.pieces):
            self.calls[self._start(group, number, piece)] = piece
        while self.calls and not self.stopping:
            self._wait(1.0)
        self._wait_for_killed()
        return self.code

    def _note_stop(self, *_: object) -> None:
        self.stopping = True

    def _is_ready(self, group: Any) -> bool:
        """Wait for the GPUs of all pieces; no piece begins before."""
        end_s = time.monotonic() + self.patience_s
        while not self.stopping and time.monotonic() < end_s:
            if group.wait(1):
                return True
        return False

    def _start(self, group: Any, number: int, piece: dict[str, Any]) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resources = piece["resources"]
        actor = (
            ray.remote(PieceActor)
            .options(
                num_gpus=resources["GPU"],
                num_cpus=resources["CPU"],
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
            )
            .remote()
        )
        piece["actor"] = actor  # an actor ends when nobody refers to it
        return actor.run.remote(os.path.abspath(__file__), piece["folder"], piece["node"], self.command)

    def _wait(self, limit_s: float) -> None:
        """Wait for the end of a piece."""
        import ray

        done, _ = ray.wait(list(self.calls), timeout=limit_s)
        for call in done:
            piece = self.calls.pop(call)
            try:
                self._note_end(int(ray.get(call)))
            except ray.exceptions.RayError as why:
                sys.stderr.write(f"horae: the piece on {piece['node']} was lost: {type(why).__name__}\n")
                self._lose(piece)

    def _note_end(self, code: int) -> None:
        """Note the end of a piece. With one that never began the driver ends: others would wait for it."""
        if code and not self.code:
            self.code, self.stopping = code, True

    def _lose(self, lost: dict[str, Any]) -> None:
        """End the gang after the loss of a piece. A runner that had its SIGTERM tells its end itself."""
        self.code = LOST_PIECE
        end_s = time.monotonic() + _LAST_WORD_S
        while time.monotonic() < end_s:
            if os.path.exists(os.path.join(lost["folder"], EXIT)):
                return
            time.sleep(_LOOK_EVERY_S)
        for piece in self.calls.values():
            _ask_to_stop(piece["folder"])

    def _wait_for_killed(self) -> None:
        """Give pieces that are being killed their moment: after the driver's end only SIGTERM reaches them."""
        end_s = time.monotonic() + _KILL_S
        while time.monotonic() < end_s and any(_exists(piece, KILL) for piece in self.calls.values()):
            self._wait(_LOOK_EVERY_S)


def _exists(piece: dict[str, Any], name: str) -> bool:
    return os.path.exists(os.path.join(piece["folder"], name))


def _ask_to_stop(folder: str) -> None:
    """Write the file `stop` of a piece, all at once. An existing file is kept."""
    path = os.path.join(folder, STOP)
    draft = os.path.join(folder, f".stop.gang.{os.getpid()}")
    with open(draft, "w", encoding="utf-8"):
        pass
    if os.path.exists(path):
        os.unlink(draft)
    else:
        os.rename(draft, path)


def drive(gang: str) -> int:
    """Run the driver of a gang, given as JSON."""
    try:
        import ray  # noqa: F401, whether it can be imported is the question
    except ImportError as why:
        sys.stderr.write(f"horae: {sys.executable} cannot import ray: {why}\n")
        return NO_RAY
    return Gang(json.loads(gang)).run()


# ---------------------------------------------------------------- the guard, on a node


def guard(parent: int, folder: str, node: str, gpus: list[str], command: list[str]) -> int:
    """Run the runner of a piece until it ends or the file `kill` appears. Dies with the actor, at once."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:  # the actor died before PDEATHSIG was set
        return LOST_PIECE
    try:
        if not _take_gpus(folder, node, gpus):
            return STILL_USED
    except OSError as why:
        sys.stderr.write(f"horae: the GPUs of {node} cannot be locked: {why}\n")
        return NO_LOCKS
    me, child = os.getpid(), os.fork()
    if child == 0:
        try:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
            if os.getppid() == me:
                os.execvp(command[0], command)
        except OSError as why:
            os.write(2, f"horae: {command[0]} cannot be run: {why}\n".encode())
        finally:
            os._exit(126)
    runs = True
    while True:
        ended = _reap()
        if ended is None:
            return 0
        runs = runs and child not in ended
        if not runs or os.path.exists(os.path.join(folder, KILL)):
            _kill_children(child)
        time.sleep(_LOOK_EVERY_S)


def _take_gpus(folder: str, node: str, gpus: list[str]) -> bool:
    """Lock the GPUs of this machine, for as long as a process of the piece lives. False if others keep them."""
    end_s = time.monotonic() + _LOCK_S
    for gpu in gpus:
        handle = _open_lock(node, gpu)
        while not _lock(handle):
            ended = any(os.path.exists(os.path.join(folder, name)) for name in (KILL, STOP))
            if ended or time.monotonic() > end_s:
                return False
            time.sleep(_LOOK_EVERY_S)
    return True


def _open_lock(node: str, gpu: str) -> int:
    """The lock file of a GPU, which stays open in all processes to come."""
    import tempfile

    place = os.path.join(tempfile.gettempdir(), f"horae-gpus-{os.getuid()}")
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        _check_own(place)
    path = os.path.join(place, f"{node}-{gpu}".replace("/", "-"))
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.set_inheritable(handle, True)
    return handle


def _check_own(place: str) -> None:
    """Raise unless a folder is this account's alone: who can open a lock file can keep it locked."""
    import stat

    found = os.lstat(place)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{place} is not a folder that only this account may use. Remove it.")


def _lock(handle: int) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _reap() -> set[int] | None:
    """Processes that have ended; None if no child is left. Orphans of the job become children of the guard."""
    ended: set[int] = set()
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(pid)
    except ChildProcessError:
        return None
    return ended


def _kill_children(child: int) -> None:
    """Kill the runner, and what it has left behind."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without that file
        pids = [child]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended


def main(words: list[str]) -> int:
    """Run the driver or the guard."""
    if words[0] == "drive":
        return drive(words[1])
    parent, folder, node, gpus, *command = words[1:]
    return guard(int(parent), folder, node, [gpu for gpu in gpus.split(",") if gpu], command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
