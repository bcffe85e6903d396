"""A model of the store: the same calls and answers, in memory, with a durable part that survives a crash.

`test_model_store.py` holds it against the real store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from horae.backends.task import Task
from horae.core.codec import decode, encode
from horae.core.commands import Decided
from horae.core.events import JobProgressed, NodeDraining, NodeJoined, NodeLost, SettingsChanged
from horae.service.store.connection import StoreTrouble
from horae.service.store.journal_compaction import MAX_KEPT_REPORTS, superseded_reports
from horae.service.store.record_rows import Record, names_of
from horae.service.store.store_lock import StoreInUse
from horae.service.store.stored_records import Act, TokenRecord, decode_task, encode_task

_ALWAYS_KEPT = frozenset(kind.__name__ for kind in (NodeJoined, NodeLost, NodeDraining, SettingsChanged))
_JSON = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class _Row:
    at_s: float
    kind: str
    body: str
    names: frozenset[str]


@dataclass
class Disk:
    """What is durable: all that a store leaves to the next one on the same database."""

    epoch: float = 0.0
    journal: dict[int, _Row] = field(default_factory=dict)
    last: int = 0
    #: The number of the last record ever confirmed, kept apart from the journal: a restored journal may have less.
    high_water: int = 0
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, TokenRecord] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    #: The store that may append, if one does.
    owner: ModelStore | None = None

    def backup(self) -> Disk:
        """A copy of the database, without what is kept apart from it."""
        parts = {name: type(value)(value) for name, value in vars(self).items() if isinstance(value, dict | list)}
        return replace(self, **parts, owner=None)

    def restore(self, copy: Disk) -> None:
        """Put an older database in the place of this one."""
        kept = self.high_water
        vars(self).update(vars(copy.backup()))
        self.high_water = kept


class LessThanConfirmed(StoreTrouble):
    """The journal has less than was confirmed: it was restored from an older copy."""


class ModelStore:
    """The public interface of `service/store/store.py`."""

    #: No record is ever damaged here.
    damage = ""

    def __init__(self, disk: Disk, own: bool = False) -> None:
        self._disk, self._compacted = disk, 0
        if own:
            if disk.owner is not None:
                raise StoreInUse("Another service uses the journal: stop it first, or use another one.")
            if disk.last < disk.high_water:
                raise LessThanConfirmed(
                    f"The journal ends with record {disk.last}, and record {disk.high_water} was confirmed."
                )
            disk.owner = self
        self.epoch = disk.epoch

    def close(self) -> None:
        if self._disk.owner is self:
            self._disk.owner = None

    # --- settings

    def ensure_initial_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return dict(json.loads(self._disk.facts.setdefault("beginning", _JSON.encode(settings))))

    def initial_settings(self) -> dict[str, Any] | None:
        stored = self._disk.facts.get("beginning")
        return json.loads(stored) if stored else None

    def serve_options(self) -> dict[str, Any]:
        return dict(json.loads(self._disk.facts.get("served", "{}")))

    def save_serve_options(self, how: Mapping[str, Any]) -> None:
        self._disk.facts["served"] = _JSON.encode(how)

    # --- the journal

    def append(
        self,
        records: Sequence[Record],
        tasks: Sequence[Task] = (),
        acts: Sequence[Act] = (),
        after: int | None = None,
    ) -> int:
        disk = self._disk
        if disk.owner is not None and disk.owner is not self:
            raise StoreInUse("Another service uses the journal: stop it first, or use another one.")
        if after is not None and disk.last != after:
            raise StoreTrouble("Another service has written to the journal meanwhile: try again in a moment.")
        texts = {task.job: encode_task(task) for task in tasks}
        assert not texts.keys() & disk.tasks.keys(), "a task is written once"
        for record in records:
            body = encode(record)
            disk.last += 1
            row = _Row(record.at_s, body["kind"], _JSON.encode(body), frozenset(names_of(record)))
            disk.journal[disk.last] = row
        disk.tasks.update(texts)
        disk.acts += acts
        disk.high_water = disk.last
        return disk.last

    def tail(self, after: int = 0, upto: int | None = None, whole: bool = False) -> Iterator[tuple[int, Record]]:
        numbers = [seq for seq in self._disk.journal if seq > after and (upto is None or seq <= upto)]
        return self._read(numbers, whole)

    def job_records(self, job: str, app: str | None = None) -> Iterator[tuple[int, Record]]:
        names = {job} if app is None else {job, f"app:{app}"}
        return self._read([seq for seq, row in self._disk.journal.items() if row.names & names])

    def _read(self, numbers: Iterable[int], whole: bool = False) -> Iterator[tuple[int, Record]]:
        for seq in sorted(numbers):
            record = decode(json.loads(self._disk.journal[seq].body))
            yield seq, replace(record, memory=()) if isinstance(record, Decided) and not whole else record

    def last_seq(self) -> int:
        return self._disk.last

    def try_writing(self) -> int:
        return self._disk.last

    def is_complete(self) -> bool:
        return len(self._disk.journal) == self._disk.last

    # --- checkpoints

    def save_checkpoint(self, seq: int, body: bytes) -> None:
        checkpoints = self._disk.checkpoints
        checkpoints[seq] = body
        for old in sorted(checkpoints)[:-2]:
            del checkpoints[old]

    def covered_seq(self) -> int:
        return min(self._disk.checkpoints, default=0)

    def newest_checkpoint(self, before: int | None = None) -> tuple[int, bytes] | None:
        numbers = [seq for seq in self._disk.checkpoints if before is None or seq < before]
        return (max(numbers), self._disk.checkpoints[max(numbers)]) if numbers else None

    def compact(self, before_seq: int, keep_since_s: float, jobs: Iterable[str] = ()) -> int:
        disk, spared = self._disk, frozenset(jobs)
        end = min(before_seq, min(disk.checkpoints, default=0) + 1, disk.last)
        first_kept = min((seq for seq, row in disk.journal.items() if row.at_s >= keep_since_s), default=end)
        dropped = [
            seq
            for seq, row in disk.journal.items()
            if seq < min(end, first_kept) and row.kind not in _ALWAYS_KEPT and not row.names & spared
        ]
        for seq in dropped:
            del disk.journal[seq]
        reports = [seq for seq in superseded_reports(self._many_reports(end)) if seq < end]
        for seq in reports:
            del disk.journal[seq]
        self._compacted = max(self._compacted, end)
        return len(dropped) + len(reports)

    def _many_reports(self, end: int) -> list[tuple[int, JobProgressed]]:
        """Reports of jobs that have many before `end`, one of them new."""
        kind = JobProgressed.__name__
        by_job: dict[str, list[int]] = {}
        for seq, row in self._disk.journal.items():
            if row.kind == kind:
                by_job.setdefault(next(iter(row.names)), []).append(seq)
        found: list[int] = []
        for numbers in by_job.values():
            old = [seq for seq in numbers if seq < end]
            if len(old) > MAX_KEPT_REPORTS and any(seq >= self._compacted for seq in old):
                found += numbers
        return [(seq, record) for seq, record in self._read(found) if isinstance(record, JobProgressed)]

    # --- tasks, tokens, acts

    def tasks(self, jobs: Iterable[str] | None = None) -> dict[str, Task]:
        tasks = self._disk.tasks
        wanted = sorted(tasks) if jobs is None else sorted(set(jobs) & tasks.keys())
        return {job: decode_task(tasks[job]) for job in wanted}

    def drop_tasks(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            self._disk.tasks.pop(job, None)

    def add_token(self, token: TokenRecord) -> None:
        self._disk.tokens[token.id] = token

    def tokens(self) -> list[TokenRecord]:
        return sorted(self._disk.tokens.values(), key=lambda token: (token.created_s, token.id))

    def revoke(self, token: str) -> int:
        found = self._disk.tokens.get(token)
        if found is None or found.revoked:
            return 0
        self._disk.tokens[token] = replace(found, revoked=True)
        return 1

    def acts(self, limit: int = 100) -> list[Act]:
        return self._disk.acts[::-1][:limit]
