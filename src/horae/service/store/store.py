"""The store: journal of events and decisions, checkpoints, tasks, tokens and audit trail. Stored: change by addition.

Each call is one transaction, on disk when it returns. Records are numbered from 1 without gaps, in the order
in which the engine applied them. A checkpoint of the engine covers the records up to its number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from threading import Lock
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Select, delete, func, select, update

from horae.backends.task import Task
from horae.core.events import JobSubmitted
from horae.service.store import journal_compaction, schema
from horae.service.store.background_call import BackgroundCall
from horae.service.store.chain import JournalDamaged, JournalLost, Link, linked, text_digest
from horae.service.store.chain_migration import link_row
from horae.service.store.connection import (
    TIMEOUT_S,
    StoreTrouble,
    connect,
    keep_copy,
    read_url,
    reading,
    unhurried,
    writing,
)
from horae.service.store.facts import read_fact, write_fact
from horae.service.store.high_water_mark import HighWaterMark, Mark
from horae.service.store.record_rows import (
    JSON,
    NUMBERING,
    Record,
    RecordRow,
    app_name,
    highest_numbers,
    job_number,
    names_of,
    numbers_in,
    record_of,
    row_of,
    whole_record_of,
)
from horae.service.store.rows import chunks, insert, last_number
from horae.service.store.store_lock import lock_store, take_term, try_lock
from horae.service.store.stored_records import Act, TokenRecord, decode_task, encode_task
from horae.service.store.verification import (
    check_bodies,
    check_body,
    check_chain,
    check_counts,
    check_pages,
    check_tasks,
    check_tokens,
    checkpoint_digest,
    counts,
    seal_tokens,
    telling_damage,
    tip,
)

#: Records per page. No transaction is open between two pages, so that a slow reader blocks nobody.
_PAGE = 2000
#: Seconds for one statement of a compaction, which reads much of the journal.
_COMPACT_S = 30.0


class Store:
    """Journal, checkpoints, tasks, tokens and audit trail in one database, SQLite or PostgreSQL.

    With `own`, only this process may append, and a second daemon is refused. Without it, the store can be read,
    and tokens managed, while a daemon runs. Thread-safe.
    """

    def __init__(self, url: str, own: bool = False, timeout_s: float = TIMEOUT_S, may_create: bool = True) -> None:
        """Open a store; without `may_create`, only one that exists."""
        self._engine = connect(read_url(url), timeout_s)
        self._append_lock = Lock()
        #: Progress reports before this record number were compacted already.
        self._compacted = 0
        self._mark: HighWaterMark | None = None
        #: What the check of older records found, in a sentence; empty if nothing.
        self.damage = ""
        self._store_lock = lock_store(self._engine) if own else None
        #: A database of its own process may hang: then a call in another thread tells when it can be written again.
        self._writing_again = BackgroundCall(self._write_nothing) if self.can_be_taken_over else None
        #: Number of this owner of the store, higher than that of all owners before it; 0 for others.
        self.term = 0
        try:
            #: Unix time of second 0 of this store, and the identity of its journal.
            self.epoch, self.identity = self._open(may_create)
            self.term = take_term(self._engine) if own else 0
        except BaseException:
            self.close()
            raise

    def try_to_own(self) -> bool:
        """Own a store in PostgreSQL from now on if nobody does, under the next term; returns whether."""
        assert self._store_lock is None, "the store is owned already"
        self._store_lock = try_lock(self._engine)
        if self._store_lock:
            try:
                self.epoch, self.identity = self._open(may_create=False)
                self.term = take_term(self._engine)
            except BaseException:
                self._store_lock.release()
                self._store_lock = None
                raise
        return self._store_lock is not None

    @property
    def can_be_taken_over(self) -> bool:
        """Whether another service may own the store while this process lives, since a server decides who does."""
        return self._engine.dialect.name != "sqlite"

    def raise_term(self, above: int) -> None:
        """Have a term above one that is known from elsewhere: this store may have been restored from a backup."""
        if self.term <= above:
            self.term = take_term(self._engine, above)

    def confirm_owner(self) -> None:
        """Raise `StoreInUse` if another service has taken the store over. Does not wait."""
        if self._store_lock:
            self._store_lock.confirm()

    @property
    def recent_facts(self) -> Mapping[str, str]:
        """Facts that another service may have written a moment ago; empty unless this one owns the store."""
        return self._store_lock.facts if self._store_lock else {}

    def _open(self, may_create: bool) -> tuple[float, str]:
        """Create the tables of a new store, or migrate those of an older one; returns epoch and identity."""
        with reading(self._engine) as connection:
            version = schema.read_version(connection)
        if version is not None and version < schema.SCHEMA and self._store_lock:
            check_pages(self._engine)
            keep_copy(self._engine.url, version)
        if version != schema.SCHEMA:
            with writing(self._engine) as connection, unhurried(connection):
                self._make_tables(connection, may_create)
        with telling_damage(), reading(self._engine) as connection:
            epoch, identity = read_fact(connection, "epoch"), read_fact(connection, "identity")
            if not epoch or not identity:
                raise JournalDamaged("The journal is damaged: its epoch or its identity is missing.")
            return float(epoch), identity

    def _make_tables(self, connection: Connection, may_create: bool) -> None:
        # Another process may have created them meanwhile.
        version = schema.read_version(connection)
        if version is None and not may_create:
            raise JournalLost("The journal is gone: its database has no tables.")
        if version is None:
            schema.create(connection)
            write_fact(connection, "epoch", repr(time.time()))
            write_fact(connection, "identity", str(uuid4()))
        elif version < schema.SCHEMA and self._store_lock:
            with telling_damage():
                schema.migrate(connection, version)
        elif version < schema.SCHEMA:
            raise schema.WrongSchema(
                f"This journal has tables of version {version}, and this release of Horae uses version "
                f"{schema.SCHEMA}: start the service once with this release, which migrates them."
            )

    def ensure_initial_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Store the settings with which the service first started, once; returns the stored settings."""
        with writing(self._engine) as connection:
            stored = read_fact(connection, "beginning")
            if stored is None:
                stored = JSON.encode(settings)
                write_fact(connection, "beginning", stored)
        first: dict[str, Any] = json.loads(stored)
        return first

    def initial_settings(self) -> dict[str, Any] | None:
        """The settings with which the service first started; None before its first start."""
        with telling_damage(), reading(self._engine) as connection:
            stored = read_fact(connection, "beginning")
            return json.loads(stored) if stored else None

    def serve_options(self) -> dict[str, Any]:
        """Options of the last `horae serve`, as saved by `save_serve_options`; empty before the first."""
        return self.fact("served")

    def fact(self, name: str) -> dict[str, Any]:
        """A fact that services write for each other; empty if there is none."""
        with telling_damage(), reading(self._engine) as connection:
            stored = read_fact(connection, name)
            return json.loads(stored) if stored else {}

    def save_fact(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a fact for other services."""
        with writing(self._engine) as connection:
            write_fact(connection, name, JSON.encode(value))

    def save_serve_options(self, how: Mapping[str, Any]) -> None:
        """Save the options of this `horae serve` for the next start."""
        self.save_fact("served", how)

    def close(self) -> None:
        """Close the database and release the store lock."""
        if self._store_lock:
            self._store_lock.release()
            self._store_lock = None
        if self._mark:
            self._mark.close()
        self._engine.dispose()

    # ---------------------------------------------------------- verification

    def verify(self, mark: Mark | None = None) -> None:
        """Raise `JournalDamaged` if the journal is damaged, or behind the mark. Bodies of records are not read."""
        check_pages(self._engine)
        check_chain(self._engine, self.identity, mark)
        if mark:
            check_counts(self._engine, mark)
        check_tasks(self._engine, self.last_seq())
        with telling_damage():
            self.initial_settings()
            self.serve_options()
            self.tokens()

    def verify_bodies(self, upto: int) -> None:
        """Raise `JournalDamaged` if a record up to number `upto` is not what was written."""
        check_bodies(self._engine, upto)

    def keep_mark(self, mark: HighWaterMark) -> None:
        """Write the high-water mark now, and from now on after each commit."""
        with self._append_lock:
            self._mark = mark
            self._write_mark()

    def highest_numbers(self, after: int = 0) -> tuple[int, int]:
        """The highest job and attempt numbers in the records after record `after` that compaction has left."""
        journal, named = schema.journal, schema.journal_jobs
        with reading(self._engine) as connection:
            jobs = connection.scalars(select(named.c.job).where(named.c.seq > after).distinct())
            highest = max(map(job_number, jobs), default=0)
            query = select(journal.c.seq, journal.c.body).where(journal.c.kind.in_(NUMBERING), journal.c.seq > after)
            raised, attempt = numbers_in(connection.execute(query))
        return max(highest, raised), attempt

    def _write_mark(self) -> None:
        """Bring the mark up to what is stored. Records that were committed without it may have given numbers."""
        if self._mark is None:
            return
        with reading(self._engine) as connection:
            last = tip(connection, self.identity)
            acts, tokens = counts(connection)
        covered = self._mark.covered_seq(self.identity, last.seq)
        numbers = self.highest_numbers(covered) if covered < last.seq else (0, 0)
        self._mark.write(Mark(self.identity, last.seq, last.head.hex(), *numbers, acts, tokens))

    def _advance_mark(self, last: Link, job: int, attempt: int, acts: int) -> None:
        """Write the mark after an append: the last link, the highest numbers given, and the number of new acts."""
        if self._mark is None or (before := self._mark.mark) is None:
            return
        self._mark.write(
            replace(
                before, seq=last.seq, head=last.head.hex(), job_number=job, attempt=attempt, acts=before.acts + acts
            )
        )

    # --------------------------------------------------------------- journal

    def append(
        self,
        records: Sequence[Record],
        tasks: Sequence[Task] = (),
        acts: Sequence[Act] = (),
        after: int | None = None,
    ) -> int:
        """Write everything or nothing, durably; returns the number of the last record.

        With `after`, writes only if `after` is the number of the last record: a decision made from an old journal is
        refused.
        """
        rows, texts = [row_of(record) for record in records], [(task.job, encode_task(task)) for task in tasks]
        digests = {job: text_digest(body) for job, body in texts}
        parts = [
            (row.at_s, row.record_kind, row.body, digests.get(_submitted(record)))
            for row, record in zip(rows, records, strict=True)
        ]
        with self._append_lock:
            if self._store_lock:
                self._store_lock.confirm()
            with writing(self._engine) as connection:
                last = tip(connection, self.identity)
                if after is not None and last.seq != after:
                    raise StoreTrouble("Another service has written to the journal meanwhile: try again in a moment.")
                links = list(linked(last.seq, last.head, parts))
                insert(connection, schema.journal, [_journal_row(last.seq + k, row) for k, row in enumerate(rows, 1)])
                insert(connection, schema.digests, [link_row(link) for link in links])
                numbered = enumerate(records, last.seq + 1)
                named = [{"job": name, "seq": seq} for seq, record in numbered for name in names_of(record)]
                insert(connection, schema.journal_jobs, named)
                memories = [(last.seq + k, row.memory) for k, row in enumerate(rows, 1) if row.memory is not None]
                insert(connection, schema.memories, [{"seq": seq, "body": memory} for seq, memory in memories])
                insert(connection, schema.tasks, [{"job": job, "body": body} for job, body in texts])
                _append_acts(connection, acts)
            self._advance_mark(links[-1] if links else last, *highest_numbers(records), len(acts))
        return last.seq + len(records)

    def tail(self, after: int = 0, upto: int | None = None, whole: bool = False) -> Iterator[tuple[int, Record]]:
        """Numbers and records after record `after`, up to record `upto` if given, in order.

        With `whole`, as recovery needs them: with policy memory, each compared with its digest, none missing. Without,
        decisions have no policy memory (it is large, and dropped once a checkpoint covers it).
        """
        if whole:
            return self._whole_tail(after, upto)
        seq = schema.journal.c.seq
        query = select(seq, schema.journal.c.body)
        return self._pages(query if upto is None else query.where(seq <= upto), seq, after)

    def _whole_tail(self, after: int, upto: int | None) -> Iterator[tuple[int, Record]]:
        journal, digests, memories = schema.journal, schema.digests, schema.memories
        joined = digests.outerjoin(journal, journal.c.seq == digests.c.seq)
        joined = joined.outerjoin(memories, memories.c.seq == digests.c.seq)
        columns = (digests.c.seq, journal.c.at_s, journal.c.kind, journal.c.body, digests.c.digest, digests.c.task)
        query = select(*columns, memories.c.body).select_from(joined).order_by(digests.c.seq).limit(_PAGE)
        query = query if upto is None else query.where(digests.c.seq <= upto)
        covered = self.covered_seq()
        while True:
            with telling_damage(), reading(self._engine) as connection:
                page = connection.execute(query.where(digests.c.seq > after)).all()
            for seq, at_s, record_kind, body, digest, task, memory in page:
                check_body(seq, at_s, record_kind, body, digest, task)
                yield seq, whole_record_of(seq, body, bytes(memory) if memory is not None else None, seq <= covered)
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def job_records(self, job: str, app: str | None = None) -> Iterator[tuple[int, Record]]:
        """Records that name a job: its submission, reports about it, decisions that stop, place or launch it.

        With `app`, also the records of the app's own agent: registration, offers, bids.
        """
        named, seq = schema.journal_jobs, schema.journal.c.seq
        names = [job] if app is None else [job, app_name(app)]
        wanted = select(named.c.seq).where(named.c.job.in_(names))
        return self._pages(select(seq, schema.journal.c.body).where(seq.in_(wanted)), seq, 0)

    def last_seq(self) -> int:
        """Number of the last record; 0 if the journal is empty."""
        with reading(self._engine) as connection:
            return last_number(connection, schema.journal.c.seq)

    def try_writing(self) -> int:
        """Test whether the store can be written, without changing it; returns the number of the last record.

        A database that hangs is not waited for: `StoreTrouble` is raised meanwhile.
        """
        return self._writing_again.answer() if self._writing_again else self._write_nothing()

    def _write_nothing(self) -> int:
        facts = schema.facts
        with self._append_lock:
            with writing(self._engine) as connection:
                connection.execute(update(facts).where(facts.c.name == "epoch").values(value=repr(self.epoch)))
                last = last_number(connection, schema.journal.c.seq)
            self._write_mark()
        return last

    def is_complete(self) -> bool:
        """Whether no record was ever dropped."""
        with reading(self._engine) as connection:
            number = schema.journal.c.seq
            return (connection.scalar(select(func.count(number))) or 0) == last_number(connection, number)

    def _pages(self, query: Select[int, str], seq: ColumnElement[int], after: int) -> Iterator[tuple[int, Record]]:
        while True:
            with reading(self._engine) as connection:
                page = connection.execute(query.where(seq > after).order_by(seq).limit(_PAGE)).all()
            yield from ((number, record_of(number, body)) for number, body in page)
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    # ----------------------------------------------------------- checkpoints

    def save_checkpoint(self, seq: int, body: bytes) -> None:
        """Store a checkpoint of the engine after record `seq`. The newest two checkpoints stay."""
        table = schema.checkpoints
        with writing(self._engine) as connection:
            connection.execute(delete(table).where(table.c.seq == seq))
            connection.execute(table.insert(), {"seq": seq, "body": body, "digest": checkpoint_digest(seq, body)})
            newest = connection.scalars(select(table.c.seq).order_by(table.c.seq.desc()).limit(2)).all()
            connection.execute(delete(table).where(table.c.seq < newest[-1]))
            if len(newest) == 2:
                # Recovery may start from the older checkpoint, and then needs what came after it.
                connection.execute(delete(schema.memories).where(schema.memories.c.seq <= newest[-1]))

    def covered_seq(self) -> int:
        """Number of the last record that all checkpoints cover; 0 without one. What it and those before hold may go."""
        with reading(self._engine) as connection:
            return connection.scalar(select(func.min(schema.checkpoints.c.seq))) or 0

    def newest_checkpoint(self, before: int | None = None) -> tuple[int, bytes] | None:
        """Record number and body of the newest checkpoint; with `before`, of the newest one before that record.

        The body is empty if it is not what was written.
        """
        table = schema.checkpoints
        query = select(table.c.seq, table.c.body, table.c.digest).order_by(table.c.seq.desc()).limit(1)
        with telling_damage(), reading(self._engine) as connection:
            row = connection.execute(query if before is None else query.where(table.c.seq < before)).first()
            if row is None:
                return None
            body = bytes(row.body)
            return row.seq, body if checkpoint_digest(row.seq, body) == bytes(row.digest or b"") else b""

    def compact(self, before_seq: int, keep_since_s: float, jobs: Iterable[str] = ()) -> int:
        """Drop records before `before_seq` that recovery does not need; returns how many.

        Records since `keep_since_s` stay, but for progress reports that later reports supersede, and so do records
        that name one of `jobs` (jobs older than `keep_since_s` that have not left). Digests stay.
        """
        with writing(self._engine) as connection, unhurried(connection, _COMPACT_S):
            dropped, end = journal_compaction.compact(connection, before_seq, keep_since_s, jobs, self._compacted)
        self._compacted = max(self._compacted, end)
        return dropped

    # ----------------------------------------------------------------- tasks

    def tasks(self, jobs: Iterable[str] | None = None) -> dict[str, Task]:
        """Tasks by job id: of all jobs, or of those in `jobs` that exist."""
        rows = schema.tasks
        with reading(self._engine) as connection:
            if jobs is None:
                bodies = list(connection.scalars(select(rows.c.body).order_by(rows.c.job)))
            else:
                bodies = [
                    body
                    for names in chunks(sorted(set(jobs)))
                    for body in connection.scalars(
                        select(rows.c.body).where(rows.c.job.in_(names)).order_by(rows.c.job)
                    )
                ]
        with telling_damage():
            return {task.job: task for task in map(decode_task, bodies)}

    def drop_tasks(self, jobs: Iterable[str]) -> None:
        """Delete the tasks of jobs that left the service."""
        with writing(self._engine) as connection:
            for names in chunks(sorted(set(jobs))):
                connection.execute(delete(schema.tasks).where(schema.tasks.c.job.in_(names)))

    # ---------------------------------------------------------------- tokens

    def add_token(self, token: TokenRecord) -> None:
        """Store a new token."""
        with self._append_lock:
            with writing(self._engine) as connection:
                connection.execute(schema.tokens.insert(), asdict(token))
                seal_tokens(connection)
            self._write_mark()

    def tokens(self) -> list[TokenRecord]:
        """All tokens, oldest first, including revoked and expired tokens."""
        columns = schema.tokens.c
        with telling_damage(), reading(self._engine) as connection:
            check_tokens(connection)
            rows = connection.execute(select(schema.tokens).order_by(columns.created_s, columns.id))
            return [TokenRecord(**row) for row in rows.mappings()]

    def revoke(self, token: str) -> int:
        """Revoke the token with this id; returns the number of tokens revoked (0 or 1)."""
        columns = schema.tokens.c
        change = update(schema.tokens).where(columns.id == token, columns.revoked.is_(False)).values(revoked=True)
        with self._append_lock:
            with writing(self._engine) as connection:
                revoked = connection.execute(change).rowcount
                seal_tokens(connection)
            self._write_mark()
        return revoked

    # ----------------------------------------------------------- audit trail

    def acts(self, limit: int = 100) -> list[Act]:
        """The last acts of the audit trail, newest first."""
        rows = schema.acts
        query = select(rows.c.at_s, rows.c.actor, rows.c.action, rows.c.target, rows.c.detail)
        with reading(self._engine) as connection:
            return [Act(*row) for row in connection.execute(query.order_by(rows.c.number.desc()).limit(limit))]


def _submitted(record: Record) -> str:
    """The job that a record submits; empty if it submits none."""
    return record.spec.id if isinstance(record, JobSubmitted) else ""


def _journal_row(seq: int, row: RecordRow) -> dict[str, Any]:
    return {"seq": seq, "at_s": row.at_s, "kind": row.record_kind, "body": row.body}


def _append_acts(connection: Connection, acts: Sequence[Act]) -> None:
    first = last_number(connection, schema.acts.c.number) + 1 if acts else 0
    insert(connection, schema.acts, [{"number": number, **asdict(act)} for number, act in enumerate(acts, first)])
