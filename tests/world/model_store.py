"""A model of the store: the same calls and answers, in memory, with a durable part that survives a crash.

`test_model_store.py` holds it against the real store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from horae.backends.task import Task
from horae.core.events import JobProgressed, NodeDraining, NodeJoined, NodeLost, NumbersRaised, SettingsChanged
from horae.service.store.chain import JournalDamaged, JournalLost
from horae.service.store.connection import StoreInUse, StoreTrouble
from horae.service.store.high_water_mark import HighWaterMark, Mark
from horae.service.store.journal_compaction import MAX_KEPT_REPORTS, superseded_reports
from horae.service.store.record_rows import (
    NUMBERING,
    Record,
    highest_numbers,
    job_number,
    names_of,
    numbers_in,
    record_of,
    row_of,
    whole_record_of,
)
from horae.service.store.stored_records import Act, TokenRecord, decode_task, encode_task

_ALWAYS_KEPT = frozenset(kind.__name__ for kind in (NodeJoined, NodeLost, NodeDraining, SettingsChanged, NumbersRaised))
_JSON = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class _Row:
    at_s: float
    kind: str
    body: str
    names: frozenset[str]


@dataclass
class Disk:
    """What is durable: all that a store leaves to the next one on the same database. The mark is kept apart from it."""

    epoch: float = 0.0
    identity: str = "world"
    #: Number of the last owner.
    term: int = 0
    journal: dict[int, _Row] = field(default_factory=dict)
    #: Policy memory of decisions, until checkpoints cover it.
    memories: dict[int, bytes] = field(default_factory=dict)
    last: int = 0
    #: Head of the chain after each record, the empty journal's first.
    heads: list[str] = field(default_factory=lambda: [""])
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, TokenRecord] = field(default_factory=dict)
    #: How often tokens were made or revoked.
    token_changes: int = 0
    acts: list[Act] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    #: The store that holds the lock, if one does.
    owner: ModelStore | None = None

    def backup(self) -> Disk:
        """A copy of the database."""
        parts = {name: type(value)(value) for name, value in vars(self).items() if isinstance(value, dict | list)}
        return replace(self, **parts, owner=None)

    def restore(self, copy: Disk) -> None:
        """Put an older database in the place of this one."""
        vars(self).update(vars(copy.backup()))


class ModelStore:
    """The public interface of `service/store/store.py`, with a database that another service can take over."""

    #: No record is ever damaged here.
    damage = ""
    can_be_taken_over = True
    recent_facts: Mapping[str, str] = {}

    def __init__(self, disk: Disk, own: bool = False) -> None:
        self._disk, self._compacted, self.term = disk, 0, 0
        self._mark: HighWaterMark | None = None
        self.epoch, self.identity = disk.epoch, disk.identity
        if own and not self.try_to_own():
            raise StoreInUse("Another service uses the journal: stop it first, or use another one.")

    def try_to_own(self) -> bool:
        if self._disk.owner is not None:
            return False
        self._disk.owner = self
        self.raise_term(0)
        return True

    def raise_term(self, above: int) -> None:
        if self.term <= above:
            self.term = self._disk.term = max(self._disk.term, above) + 1

    def confirm_owner(self) -> None:
        if self._disk.term > self.term > 0:
            raise StoreInUse(f"Another service has taken over (term {self._disk.term}).")

    def close(self) -> None:
        if self._disk.owner is self:
            self._disk.owner = None
        if self._mark:
            self._mark.close()

    # --- verification and the high-water mark

    def verify(self, mark: Mark | None = None) -> None:
        disk = self._disk
        if mark and (disk.last < mark.seq or mark.head != disk.heads[mark.seq]):
            raise JournalLost(f"The journal ends with record {disk.last}, and record {mark.seq} was confirmed.")

    def verify_bodies(self, upto: int) -> None:
        pass

    def keep_mark(self, mark: HighWaterMark) -> None:
        self._mark = mark
        self._write_mark()

    def highest_numbers(self, after: int = 0) -> tuple[int, int]:
        rows = {seq: row for seq, row in self._disk.journal.items() if seq > after}
        named = [job_number(name) for row in rows.values() for name in row.names]
        raised, attempt = numbers_in((seq, row.body) for seq, row in rows.items() if row.kind in NUMBERING)
        return max([*named, raised]), attempt

    def _write_mark(self) -> None:
        if self._mark:
            disk = self._disk
            covered, counts = self._mark.covered_seq(disk.identity, disk.last), (len(disk.acts), disk.token_changes)
            numbers = self.highest_numbers(covered) if covered < disk.last else (0, 0)
            self._mark.write(Mark(disk.identity, disk.last, disk.heads[-1], *numbers, *counts))

    def _advance_mark(self, job: int, attempt: int) -> None:
        if self._mark:
            disk = self._disk
            counts = (len(disk.acts), disk.token_changes)
            self._mark.write(Mark(disk.identity, disk.last, disk.heads[-1], job, attempt, *counts))

    # --- settings

    def ensure_initial_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return dict(json.loads(self._disk.facts.setdefault("beginning", _JSON.encode(settings))))

    def initial_settings(self) -> dict[str, Any] | None:
        stored = self._disk.facts.get("beginning")
        return json.loads(stored) if stored else None

    def serve_options(self) -> dict[str, Any]:
        return self.fact("served")

    def save_serve_options(self, how: Mapping[str, Any]) -> None:
        self.save_fact("served", how)

    def fact(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self._disk.facts.get(name, "{}")))

    def save_fact(self, name: str, value: Mapping[str, Any]) -> None:
        self.confirm_owner()
        self._disk.facts[name] = _JSON.encode(value)

    # --- the journal

    def append(
        self,
        records: Sequence[Record],
        tasks: Sequence[Task] = (),
        acts: Sequence[Act] = (),
        after: int | None = None,
    ) -> int:
        disk = self._disk
        self.confirm_owner()
        if after is not None and disk.last != after:
            raise StoreTrouble("Another service has written to the journal meanwhile: try again in a moment.")
        texts = {task.job: encode_task(task) for task in tasks}
        assert not texts.keys() & disk.tasks.keys(), "a task is written once"
        for record in records:
            row = row_of(record)
            disk.last += 1
            disk.journal[disk.last] = _Row(row.at_s, row.record_kind, row.body, frozenset(names_of(record)))
            disk.heads.append(sha256(f"{disk.heads[-1]} {row.body}".encode()).hexdigest())
            if row.memory is not None:
                disk.memories[disk.last] = row.memory
        disk.tasks.update(texts)
        disk.acts += acts
        self._committed(records)
        self._advance_mark(*highest_numbers(records))
        return disk.last

    def _committed(self, records: Sequence[Record]) -> None:
        """Records are durable; the mark does not say so yet."""

    def tail(self, after: int = 0, upto: int | None = None, whole: bool = False) -> Iterator[tuple[int, Record]]:
        if whole:
            return self._whole_tail(after, upto)
        return self._read([seq for seq in self._disk.journal if seq > after and (upto is None or seq <= upto)])

    def _whole_tail(self, after: int, upto: int | None) -> Iterator[tuple[int, Record]]:
        disk, covered = self._disk, self.covered_seq()
        for seq in range(after + 1, (disk.last if upto is None else min(upto, disk.last)) + 1):
            if seq not in disk.journal:
                raise JournalDamaged(f"The journal is damaged: record {seq} is not what was written.")
            yield seq, whole_record_of(seq, disk.journal[seq].body, disk.memories.get(seq), seq <= covered)

    def job_records(self, job: str, app: str | None = None) -> Iterator[tuple[int, Record]]:
        names = {job} if app is None else {job, f"app:{app}"}
        return self._read([seq for seq, row in self._disk.journal.items() if row.names & names])

    def _read(self, numbers: Iterable[int]) -> Iterator[tuple[int, Record]]:
        return ((seq, record_of(seq, self._disk.journal[seq].body)) for seq in sorted(numbers))

    def last_seq(self) -> int:
        return self._disk.last

    def try_writing(self) -> int:
        self.confirm_owner()
        self._write_mark()
        return self._disk.last

    def is_complete(self) -> bool:
        return len(self._disk.journal) == self._disk.last

    # --- checkpoints

    def save_checkpoint(self, seq: int, body: bytes) -> None:
        self.confirm_owner()
        checkpoints, memories = self._disk.checkpoints, self._disk.memories
        checkpoints[seq] = body
        for old in sorted(checkpoints)[:-2]:
            del checkpoints[old]
        if len(checkpoints) == 2:
            for covered in [each for each in memories if each <= min(checkpoints)]:
                del memories[covered]

    def covered_seq(self) -> int:
        return min(self._disk.checkpoints, default=0)

    def newest_checkpoint(self, before: int | None = None) -> tuple[int, bytes] | None:
        numbers = [seq for seq in self._disk.checkpoints if before is None or seq < before]
        return (max(numbers), self._disk.checkpoints[max(numbers)]) if numbers else None

    def compact(self, before_seq: int, keep_since_s: float, jobs: Iterable[str] = ()) -> int:
        self.confirm_owner()
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
        self.confirm_owner()
        for job in jobs:
            self._disk.tasks.pop(job, None)

    def add_token(self, token: TokenRecord) -> None:
        self._disk.tokens[token.id] = token
        self._disk.token_changes += 1
        self._write_mark()

    def tokens(self) -> list[TokenRecord]:
        return sorted(self._disk.tokens.values(), key=lambda token: (token.created_s, token.id))

    def revoke(self, token: str) -> int:
        found = self._disk.tokens.get(token)
        if found is None or found.revoked:
            return 0
        self._disk.tokens[token] = replace(found, revoked=True)
        self._disk.token_changes += 1
        self._write_mark()
        return 1

    def acts(self, limit: int = 100) -> list[Act]:
        return self._disk.acts[::-1][:limit]
