"""Where a service may die, and a store that fails: every call across an interface is a point, before and after it."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from horae.backends.task import Task
from horae.service.store.connection import StoreTrouble
from horae.service.store.store import Record
from horae.service.store.stored_records import Act
from tests.world.model_store import Disk, ModelStore

#: Calls of the store that the daemon makes.
_WRITES = ("save_checkpoint", "compact", "try_writing")
_READS = ("last_seq", "newest_checkpoint", "tasks", "tail")
_FILES = ("create", "read", "write", "sync", "stat", "mkdir", "link", "rename", "unlink", "touch", "list")
_DRIVER = ("look", "submit", "kill", "forget", "last_line")

#: Every point at which a service may die. The mark of the journal is written between a commit and its answer.
POINTS = (
    "store.mark:before",
    *(
        f"{call}:{when}"
        for call in (
            *(f"store.{name}" for name in ("append", *_WRITES, *_READS)),
            *(f"file.{name}" for name in _FILES),
            *(f"driver.{name}" for name in _DRIVER),
            "answer",
        )
        for when in ("before", "after")
    ),
)


class Crash(BaseException):
    """The service dies here. Nothing that it still tries has any effect."""


@dataclass
class CrashPoints:
    """Counts the calls of a service, and kills it at the one that was chosen."""

    #: How often a service died at each point.
    deaths: Counter[str] = field(default_factory=Counter)
    dead: bool = False
    #: Die at this point, if it is given, the n-th time from now on; without one, after n points.
    armed: tuple[str, int] | None = None
    #: What happens there; without it, the service dies.
    instead: Callable[[], None] | None = None

    def arm(self, point: str, count: int, instead: Callable[[], None] | None = None) -> None:
        self.armed, self.instead = (point, count), instead

    def before(self, call: str) -> None:
        """A call begins."""
        if self.dead:
            raise Crash
        if self.armed is not None:
            self._reach(f"{call}:before")

    def after(self, call: str) -> None:
        """A call was made."""
        if self.dead:
            raise Crash
        if self.armed is not None:
            self._reach(f"{call}:after")

    def _reach(self, point: str) -> None:
        assert self.armed
        wanted, count = self.armed
        if wanted and wanted != point:
            return
        self.armed = (wanted, count - 1)
        if count > 1:
            return
        self.armed, instead = None, self.instead
        if instead:
            instead()
        else:
            self.die(point)

    def die(self, point: str) -> None:
        self.armed, self.dead = None, True
        self.deaths[point] += 1
        raise Crash


@dataclass
class StoreFaults:
    """How the database fails: for a while, or at its next write."""

    #: "full": nothing can be written; "away": nothing can be read either.
    lasting: str = ""
    #: The next write fails: "before" it is done, or "after", so that its outcome is unknown.
    once: str = ""

    def check(self, writes: bool) -> None:
        if self.lasting == "away" or (self.lasting == "full" and writes):
            raise StoreTrouble("The journal cannot be used now.")
        if writes and self.once == "before":
            self.once = ""
            raise StoreTrouble("The journal could not be written.")

    def check_outcome(self) -> None:
        if self.once == "after":
            self.once = ""
            raise StoreTrouble("The connection was lost before the answer came.")


class FaultyStore(ModelStore):
    """The model store with points and faults. Tells of each record that is durable, and when the mark says so, too."""

    def __init__(
        self,
        disk: Disk,
        points: CrashPoints,
        faults: StoreFaults,
        written: Callable[[int, Record], None],
        confirmed: Callable[[], None],
    ) -> None:
        self._points, self._faults, self._written, self._confirmed = points, faults, written, confirmed
        faults.check(writes=True)
        super().__init__(disk, own=True)

    def append(
        self,
        records: Sequence[Record],
        tasks: Sequence[Task] = (),
        acts: Sequence[Act] = (),
        after: int | None = None,
    ) -> int:
        self._points.before("store.append")
        self._faults.check(writes=True)
        last = super().append(records, tasks, acts, after)
        self._faults.check_outcome()
        self._points.after("store.append")
        return last

    def _committed(self, records: Sequence[Record]) -> None:
        for seq, record in enumerate(records, self._disk.last - len(records) + 1):
            self._written(seq, record)
        self._points.before("store.mark")

    def _write_mark(self) -> None:
        super()._write_mark()
        if self._mark:
            self._confirmed()

    def _advance_mark(self, job: int, attempt: int) -> None:
        super()._advance_mark(job, attempt)
        if self._mark:
            self._confirmed()

    def tail(self, after: int = 0, upto: int | None = None, whole: bool = False) -> Iterator[tuple[int, Record]]:
        self._points.before("store.tail")
        self._faults.check(writes=False)
        found = list(super().tail(after, upto, whole))
        self._points.after("store.tail")
        return iter(found)


def _with_points(name: str, writes: bool) -> Callable[..., Any]:
    real = getattr(ModelStore, name)

    def call(self: FaultyStore, *words: Any, **named: Any) -> Any:
        self._points.before(f"store.{name}")
        self._faults.check(writes)
        answer = real(self, *words, **named)
        if writes:
            self._faults.check_outcome()
        self._points.after(f"store.{name}")
        return answer

    return call


for _name in (*_WRITES, *(name for name in _READS if name != "tail")):
    setattr(FaultyStore, _name, _with_points(_name, _name in _WRITES))


class Answer(Future[Any]):
    """What a caller waits for. The service may die before or after it answers."""

    def __init__(self, points: CrashPoints) -> None:
        super().__init__()
        self._points = points

    def set_result(self, result: Any) -> None:
        self._points.before("answer")
        super().set_result(result)
        self._points.after("answer")

    def set_exception(self, exception: BaseException | None) -> None:
        # A dead service answers nobody.
        if not self._points.dead:
            super().set_exception(exception)


@dataclass
class FileFaults:
    """How the shared folder fails for the service: always for a while, or once in so many calls."""

    error: int = 0
    #: Which calls fail: all of them, or each n-th.
    every: int = 1
    calls: int = 0

    def check(self, call: str, path: str) -> None:
        if not self.error:
            return
        self.calls += 1
        if self.calls % self.every:
            return
        if self.error == errno.ENOSPC and call not in ("file.create", "file.write", "file.mkdir", "file.link"):
            return
        if self.error == errno.EMFILE and call not in ("file.create", "file.read", "file.list"):
            return
        raise OSError(self.error, os.strerror(self.error), path)
