"""The loop of a training script that may be stopped at any step, and goes on from there."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn, Protocol

from horae.train.checkpoint import Checkpoints, Saved
from horae.train.notice import Notice
from horae.train.reports import Address, Report, Reporter

#: Exit code of a job that stopped on notice and wants to be run again (EX_TEMPFAIL of sysexits.h).
STOPPED = 75


class Number(Protocol):
    """A float, or what turns into one, such as a tensor with one element."""

    def __float__(self) -> float: ...


class Run:
    """The steps of a run: `for step in run` is `for step in range(total)` that survives preemption.

    The loop begins with `load(path)` if there is a checkpoint, and goes on after its last step. It
    saves every `every_s` seconds and at the end. On notice (a signal from Horae, SIGTERM, or a word
    from the service) it ends the step, saves, and leaves with exit code 75. Both functions get a
    path at which to write, or find, one file or one folder.

    With several processes (RANK, WORLD_SIZE) only rank 0 saves and reports. `agree(flag)` tells
    every process whether any of them raised the flag, so that all stop after the same step; all of
    them call `gather()` before rank 0 saves. `horae.train.torch` has both.

    Outside Horae there are no reports, and checkpoints only in a `folder` that is named.
    """

    def __init__(
        self,
        total: int,
        save: Callable[[Path], object] | None = None,
        load: Callable[[Path], object] | None = None,
        *,
        every_s: float = 60.0,
        folder: Path | str | None = None,
        agree: Callable[[bool], bool] | None = None,
        gather: Callable[[], object] | None = None,
        rank: int | None = None,
    ) -> None:
        if not (0 <= total < math.inf and total == int(total) and every_s > 0):
            raise ValueError(
                f"a run has a whole number of steps and saves after a positive time, not {total} and {every_s}"
            )
        if (save is None) != (load is None):
            raise ValueError("save and load go together: give both, or neither")
        # What counts in NumPy's numbers is welcome, and JSON knows only Python's.
        self.total = int(total)
        #: Steps that are done.
        self.done = 0
        self._save, self._load, self._every_s = save, load, every_s
        self._agree, self._gather = agree or bool, gather
        self._first = (int(os.environ.get("RANK") or 0) if rank is None else rank) == 0
        self._checkpoints = _checkpoints(folder, os.environ) if save else None
        self._reporter = _reporter(os.environ) if self._first else None
        self._rungs = _rungs(os.environ)
        self._loss: Number | None = None
        self._saved: Saved | None = None
        self._save_at = math.inf
        self._began = False
        self._notice = Notice(os.environ)
        self._listen()

    @property
    def stopping(self) -> bool:
        """Whether this process was asked to stop; the loop sees to it after the step."""
        return self._notice.given or (self._reporter is not None and self._reporter.stop)

    def report(self, loss: Number) -> None:
        """Tell the loss of this step. It costs next to nothing: about one a second is looked at and sent."""
        # A tensor would keep alive all it was computed from.
        detach = getattr(loss, "detach", None)
        self._loss = loss if detach is None else detach()

    def __iter__(self) -> Iterator[int]:
        self._listen()
        try:
            self._begin()
            while self.done < self.total:
                yield self.done
                self.done += 1
                self._after_step()
            self._finish()
        finally:
            self._notice.rest()

    def _listen(self) -> None:
        if self._checkpoints or "HORAE_JOB_ID" in os.environ:
            self._notice.listen()

    def _begin(self) -> None:
        """Restore, say that the run is ready, and wait until all processes are."""
        if self._began:
            return
        self._began = True
        self._restore()
        if self._reporter:
            self._reporter.offer(self._report())
        self._save_later()
        if self._agree(self.stopping):
            _exit()

    def _restore(self) -> None:
        if not self._checkpoints or not self._load:
            return
        self._saved = self._checkpoints.newest()
        if self._saved:
            self._checkpoints.read(self._load, self._saved)
            self.done, self._loss = self._saved.step, self._saved.loss
        if self._first:
            self._checkpoints.tidy(self._saved)
        if self._first and self.done < self.total:
            self._checkpoints.check()

    def _after_step(self) -> None:
        if self.done >= self.total:
            return
        if self._reporter:
            self._tell(self._reporter)
        save_now = time.monotonic() >= self._save_at
        # One question for each step; what is meant, only if there is something.
        if self._agree(self.stopping or save_now):
            leave = self._agree(self.stopping)
            self._store()
            if leave:
                self._leave()

    def _tell(self, reporter: Reporter) -> None:
        if self._rungs and self.done >= self._rungs[0]:
            while self._rungs and self.done >= self._rungs[0]:
                self._rungs.popleft()
            reporter.insist(self._report())
        elif reporter.due:
            reporter.offer(self._report())

    def _store(self) -> None:
        """Save what there is since the last checkpoint; every process comes here after the same step."""
        if not self._checkpoints or not self._save or (self._saved and self._saved.step == self.done):
            return
        if self._gather:
            self._gather()
        self._saved = Saved(self.done, self.total, _number(self._loss))
        if self._first:
            self._checkpoints.write(self._save, self._saved)
        self._save_later()

    def _save_later(self) -> None:
        """Time begins when the last save is over, so that training always gets its share. Rank 0 keeps it for all."""
        if self._checkpoints and self._first:
            self._save_at = time.monotonic() + self._every_s

    def _leave(self) -> NoReturn:
        # A launcher may take the others down as soon as one process has left: wait until rank 0 has saved.
        self._agree(True)
        _exit()

    def _finish(self) -> None:
        self._store()
        if self._reporter:
            self._reporter.insist(self._report())

    def _report(self) -> Report:
        return Report(self.done, self.total, _number(self._loss))


def _exit() -> NoReturn:
    """Ask to be run again."""
    if threading.current_thread() is not threading.main_thread():
        # An exception would end this thread alone, and the process would say that all is done.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STOPPED)
    raise SystemExit(STOPPED)


def _checkpoints(folder: Path | str | None, env: Mapping[str, str]) -> Checkpoints | None:
    chosen = folder or env.get("HORAE_CHECKPOINT_DIR")
    return Checkpoints(Path(chosen)) if chosen else None


def _reporter(env: Mapping[str, str]) -> Reporter | None:
    return Reporter(Address(env)) if env.get("HORAE_JOB_ID") and env.get("HORAE_URL") else None


def _rungs(env: Mapping[str, str]) -> deque[float]:
    """The steps at which the service wants to hear from the run at once."""
    return deque(sorted(float(word) for word in env.get("HORAE_REPORT_AT", "").split(",") if word.strip()))


def _number(loss: Number | None) -> float | None:
    """A loss as JSON can say it: not what is infinite, and not what is no number at all."""
    try:
        value = math.nan if loss is None else float(loss)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return value if math.isfinite(value) else None
