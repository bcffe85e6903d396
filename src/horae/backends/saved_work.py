"""Work that a job has saved, by its own `saved.json`: anything may be in it, and its folder may never answer.

The checkpoint folder is where the user wants it, perhaps on a file server that is dead: then an open or a read waits
for ever. So it is read in a thread that is left behind when its time is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from horae.backends.local import runner
from horae.backends.local.runner_order import checkpoint_folder
from horae.backends.task import Task

#: Seconds for which a read may take; while other reads hang, so short that many of them do not add up.
READ_S, READ_IN_HASTE_S = 5.0, 0.5
#: Most reads that hang. While there are as many, nothing is read.
MOST_HANGING = 32

_Answer = TypeVar("_Answer")


class TimedReads:
    """Reads that are given up after a while. From any thread but the daemon's loop, which must not wait."""

    def __init__(self, limit_s: float = READ_S, haste_s: float = READ_IN_HASTE_S, most: int = MOST_HANGING) -> None:
        self._limit_s, self._haste_s, self._most = limit_s, haste_s, most
        self._lock, self.hanging = threading.Lock(), 0

    def read(self, read: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        """What `read` returns; `otherwise` if it raises, takes too long, or too many others hang."""
        if self.hanging >= self._most:
            return otherwise
        answers: list[_Answer] = []
        done = threading.Event()

        def work() -> None:
            try:
                answers.append(read())
            except Exception:  # whatever a job's file makes of it: there is nothing to be read
                pass
            finally:
                with self._lock:
                    done.set()
                    self.hanging -= 1 if given_up else 0

        given_up: list[bool] = []
        threading.Thread(target=work, name="horae-read", daemon=True).start()
        done.wait(self._haste_s if self.hanging else self._limit_s)
        with self._lock:
            if not done.is_set():
                given_up.append(True)
                self.hanging += 1
        return answers[0] if answers else otherwise


#: The reads of this process.
READS = TimedReads()


def work_saved(task: Task, folder: Path, reads: TimedReads | None = None, sure: bool = False) -> float:
    """Work in the checkpoint of a task whose attempt has this folder; 0 if there is none that can be read in time.

    With `sure`, raises OSError if it may be readable a moment later.
    """
    path = str(checkpoint_folder(task, folder) / "saved.json")

    def read() -> dict[str, Any] | OSError | None:
        try:
            return runner.read_object(path, sure=sure)
        except OSError as why:
            return why

    nothing: dict[str, Any] | OSError | None = None
    found = (reads or READS).read(read, nothing)
    if isinstance(found, OSError):
        raise found
    return work_in(task, found)


def work_in(task: Task, saved: Mapping[str, Any] | None) -> float:
    """Work in the checkpoint of a task whose `saved.json` has this content; 0 if it makes no sense."""
    if not saved:
        return 0.0
    try:
        return task.work_done(float(saved["step"]), float(saved["total"]) if saved.get("total") else None)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return 0.0
