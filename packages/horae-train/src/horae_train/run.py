"""The training loop: it can be stopped after any step, and continues from there."""

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

from .checkpoint import Checkpoints, JobAttempt, SavedCheckpoint, Superseded
from .reports import ReportAddress, Reporter, RunProgress
from .stop_notice import StopNotice

#: Exit code of a job that stopped on a stop notice and is to be run again (EX_TEMPFAIL of sysexits.h).
STOPPED = 75


class Number(Protocol):
    """A float, or a value that converts to float, such as a tensor with a single element."""

    def __float__(self) -> float: ...


class Run:
    """The steps of a run: `for step in run` is `for step in range(total)` that survives preemption.

    If there is a checkpoint, the loop begins with `load(path)` and continues after the saved step. It
    saves every `every_s` seconds and at the end. On a stop notice (the stop signal, SIGTERM, or the
    service's answer to a report) it ends the step, saves, and exits with code 75. `save(path)` writes
    a single file or folder at `path`; `load(path)` reads it. It also exits with code 75, and saves
    nothing, once a newer attempt of the job has begun: this one was cut off, and given up.

    With several processes (RANK, WORLD_SIZE) only rank 0 saves and reports. `agree(flag)` tells
    every process whether any process raised the flag, so that all stop after the same step; every
    process calls `gather()` before rank 0 saves. The `Run` of the `torch` adapter provides both.

    Outside Horae there are no reports, and checkpoints only if `folder` is given.
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
        # `total` may be a NumPy integer, which JSON cannot encode.
        self.total = int(total)
        #: Steps done.
        self.done = 0
        self._save, self._load, self._every_s = save, load, every_s
        self._agree, self._gather = agree or bool, gather
        self._is_rank_0 = (int(os.environ.get("RANK") or 0) if rank is None else rank) == 0
        self._checkpoints = _checkpoints(folder, os.environ) if save else None
        self._reporter = _reporter(os.environ) if self._is_rank_0 else None
        self._report_steps = _report_steps(os.environ)
        self._loss: Number | None = None
        self._saved: SavedCheckpoint | None = None
        self._next_save_s = math.inf
        self._started = False
        self._notice = StopNotice(os.environ)
        self._listen()

    @property
    def stopping(self) -> bool:
        """Whether this process was asked to stop; the loop stops after the current step."""
        return self._notice.received or (self._reporter is not None and self._reporter.stop)

    def report(self, loss: Number) -> None:
        """Set the loss of this step. Cheap enough for every step: about one loss a second is read and sent."""
        # A tensor that is not detached keeps its whole computation graph in memory.
        detach = getattr(loss, "detach", None)
        self._loss = loss if detach is None else detach()

    def __iter__(self) -> Iterator[int]:
        self._listen()
        try:
            self._start()
            while self.done < self.total:
                yield self.done
                self.done += 1
                self._after_step()
            self._finish()
        except Superseded as why:
            sys.stderr.write(f"horae: {why}; it ends with exit code {STOPPED}\n")
            _exit()
        finally:
            self._notice.stop_listening()

    def _listen(self) -> None:
        if self._checkpoints or "HORAE_JOB_ID" in os.environ:
            self._notice.listen()

    def _start(self) -> None:
        """Load the checkpoint, send the first report, and wait for the other processes."""
        if self._started:
            return
        self._started = True
        self._restore()
        if self._reporter:
            self._reporter.offer(self._progress())
        self._schedule_save()
        if self._agree(self.stopping):
            _exit()

    def _restore(self) -> None:
        if not self._checkpoints or not self._load:
            return
        if self._is_rank_0:
            self._checkpoints.take_over()
        else:
            self._checkpoints.check_attempt()
        self._saved = self._checkpoints.newest()
        if self._saved:
            self._checkpoints.read(self._load, self._saved)
            self.done, self._loss = self._saved.step, self._saved.loss
        if self._is_rank_0:
            self._checkpoints.tidy(self._saved)
        if self._is_rank_0 and self.done < self.total:
            self._checkpoints.check()

    def _after_step(self) -> None:
        if self.done >= self.total:
            return
        if self._reporter:
            self._send_progress(self._reporter)
        save_now = time.monotonic() >= self._next_save_s
        # Processes agree once for each step. What the flag means is asked only when a process raised it.
        if self._agree(self.stopping or save_now):
            stop = self._agree(self.stopping)
            self._save_progress()
            if stop:
                self._exit_together()

    def _send_progress(self, reporter: Reporter) -> None:
        if self._report_steps and self.done >= self._report_steps[0]:
            while self._report_steps and self.done >= self._report_steps[0]:
                self._report_steps.popleft()
            reporter.require(self._progress())
        elif reporter.due:
            reporter.offer(self._progress())

    def _save_progress(self) -> None:
        """Save, unless this step is saved already; every process calls this after the same step."""
        if not self._checkpoints or not self._save or (self._saved and self._saved.step == self.done):
            return
        if self._gather:
            self._gather()
        self._saved = SavedCheckpoint(self.done, self.total, _number(self._loss))
        if self._is_rank_0:
            self._saved = self._checkpoints.write(self._save, self._saved)
        self._schedule_save()

    def _schedule_save(self) -> None:
        """Count `every_s` from the end of the last save, so that slow saves leave time for training. Rank 0 decides."""
        if self._checkpoints and self._is_rank_0:
            self._next_save_s = time.monotonic() + self._every_s

    def _exit_together(self) -> NoReturn:
        # A launcher may end all processes as soon as any process exits: wait until rank 0 has saved.
        self._agree(True)
        _exit()

    def _finish(self) -> None:
        self._save_progress()
        if self._reporter:
            self._reporter.require(self._progress())

    def _progress(self) -> RunProgress:
        return RunProgress(self.done, self.total, _number(self._loss))


def _exit() -> NoReturn:
    """Exit with the code that asks Horae to run the job again."""
    if threading.current_thread() is not threading.main_thread():
        # SystemExit would end only this thread, and the process would exit with code 0.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STOPPED)
    raise SystemExit(STOPPED)


def _checkpoints(folder: Path | str | None, env: Mapping[str, str]) -> Checkpoints | None:
    path = folder or env.get("HORAE_CHECKPOINT_DIR")
    return Checkpoints(Path(path), JobAttempt.from_environment(env)) if path else None


def _reporter(env: Mapping[str, str]) -> Reporter | None:
    return Reporter(ReportAddress(env)) if env.get("HORAE_JOB_ID") and env.get("HORAE_URL") else None


def _report_steps(env: Mapping[str, str]) -> deque[float]:
    """The steps at which the service requires a report."""
    return deque(sorted(float(word) for word in env.get("HORAE_REPORT_AT", "").split(",") if word.strip()))


def _number(loss: Number | None) -> float | None:
    """The loss as a finite float; None if it is not finite or not a number."""
    try:
        value = math.nan if loss is None else float(loss)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return value if math.isfinite(value) else None
