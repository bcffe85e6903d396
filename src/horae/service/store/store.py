"""The store: journal of events and decisions, checkpoints, tasks, tokens and audit trail. Stored: change by addition.

Each call is one transaction, on disk when it returns. Records are numbered from 1 without gaps, in the order
in which the engine applied them. A checkpoint of the engine covers the records up to its number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, delete, func, select, update

from horae.backends.task import Task
from horae.core.codec import decode, encode
from horae.core.commands import Decided
from horae.core.events import (
    AgentChanged,
    BidReceived,
    Event,
    JobProgressed,
    JobsRetired,
    JobSubmitted,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    SettingsChanged,
)
from horae.service.store import schema
from horae.service.store.connection import TIMEOUT_S, StoreTrouble, connect, read_url, reading, writing
from horae.service.store.journal_compaction import MAX_KEPT_REPORTS, superseded_reports
from horae.service.store.store_lock import lock_store
from horae.service.store.stored_records import Act, TokenRecord, decode_task, encode_task, without_memory

Record = Event | Decided
Name = TypeVar("Name", str, int)

#: One encoder for all calls: `json.dumps` with separators would make a new encoder each time.
_JSON = json.JSONEncoder(separators=(",", ":"))
#: Records per page. No transaction is open between two pages, so that a slow reader blocks nobody.
_PAGE = 2000
#: Names or numbers in one statement; databases limit this.
_NAMES = 500
#: Rows in one statement of SQLite: as many as possible of these, in this order.
_ROWS = (64, 8, 1)
#: Record kinds that are never dropped, since later records depend on them: GPU numbering, which nodes there are and
#: take jobs, and policy settings.
_ALWAYS_KEPT = tuple(record.__name__ for record in (NodeJoined, NodeLost, NodeDraining, SettingsChanged))


class Store:
    """Journal, checkpoints, tasks, tokens and audit trail in one database, SQLite or PostgreSQL.

    With `own`, only this process may append, and a second daemon is refused. Without it, the store can be read,
    and tokens managed, while a daemon runs. Thread-safe.
    """

    def __init__(self, url: str, own: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        self._engine = connect(read_url(url), timeout_s)
        self._append_lock = Lock()
        #: Progress reports before this record number were compacted already.
        self._compacted = 0
        self._store_lock = lock_store(self._engine) if own else None
        try:
            #: Unix time of second 0 of this store.
            self.epoch = self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> float:
        """Create the tables of a new store, or migrate those of an older one; returns the epoch."""
        with reading(self._engine) as connection:
            if schema.read_version(connection) == schema.SCHEMA:
                return schema.read_epoch(connection)
        with writing(self._engine) as connection:
            # Another process may have created them meanwhile.
            version = schema.read_version(connection)
            if version is None:
                schema.create(connection, time.time())
            elif version < schema.SCHEMA and self._store_lock:
                schema.migrate(connection, version)
            elif version < schema.SCHEMA:
                raise schema.WrongSchema(
                    f"This journal has tables of version {version}, and this release of Horae uses version "
                    f"{schema.SCHEMA}: start the service once with this release, which migrates them."
                )
            return schema.read_epoch(connection)

    def ensure_initial_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Store the settings with which the service first started, once; returns the stored settings."""
        facts = schema.facts
        with writing(self._engine) as connection:
            stored = connection.scalar(select(facts.c.value).where(facts.c.name == "beginning"))
            if stored is None:
                stored = _JSON.encode(settings)
                connection.execute(facts.insert(), {"name": "beginning", "value": stored})
        first: dict[str, Any] = json.loads(stored)
        return first

    def initial_settings(self) -> dict[str, Any] | None:
        """The settings with which the service first started; None before its first start."""
        with reading(self._engine) as connection:
            stored = connection.scalar(select(schema.facts.c.value).where(schema.facts.c.name == "beginning"))
        return json.loads(stored) if stored else None

    def serve_options(self) -> dict[str, Any]:
        """Options of the last `horae serve`, as saved by `save_serve_options`; empty before the first."""
        with reading(self._engine) as connection:
            stored = connection.scalar(select(schema.facts.c.value).where(schema.facts.c.name == "served"))
        return json.loads(stored) if stored else {}

    def save_serve_options(self, how: Mapping[str, Any]) -> None:
        """Save the options of this `horae serve` for the next start."""
        facts = schema.facts
        with writing(self._engine) as connection:
            connection.execute(delete(facts).where(facts.c.name == "served"))
            connection.execute(facts.insert(), {"name": "served", "value": _JSON.encode(how)})

    def close(self) -> None:
        """Close the database and release the store lock."""
        if self._store_lock:
            self._store_lock.release()
            self._store_lock = None
        self._engine.dispose()

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
        rows = [_row(record) for record in records]
        texts = [{"job": task.job, "body": encode_task(task)} for task in tasks]
        with self._append_lock:
            if self._store_lock:
                self._store_lock.confirm()
            with writing(self._engine) as connection:
                last = _last(connection, schema.journal.c.seq)
                if after is not None and last != after:
                    raise StoreTrouble("Another service has written to the journal meanwhile: try again in a moment.")
                numbered = list(enumerate(records, last + 1))
                _insert(connection, schema.journal, [{**row, "seq": last + k} for k, row in enumerate(rows, 1)])
                named = [{"job": name, "seq": seq} for seq, record in numbered for name in _names(record)]
                _insert(connection, schema.journal_jobs, named)
                _insert(connection, schema.tasks, texts)
                _append_acts(connection, acts)
        return last + len(records)

    def tail(self, after: int = 0, upto: int | None = None, with_memory: bool = True) -> Iterator[tuple[int, Record]]:
        """Numbers and records after record `after`, up to record `upto` if given, in order.

        Without `with_memory`, the policy memory of decisions, which may be megabytes, is not decoded.
        """
        seq = schema.journal.c.seq
        query = select(seq, schema.journal.c.body)
        return self._pages(query if upto is None else query.where(seq <= upto), seq, after, with_memory)

    def job_records(self, job: str, app: str | None = None) -> Iterator[tuple[int, Record]]:
        """Records that name a job: its submission, reports about it, decisions that stop, place or launch it.

        With `app`, also the records of the app's own agent: registration, offers, bids. Decisions lack policy memory.
        """
        named, seq = schema.journal_jobs, schema.journal.c.seq
        names = [job] if app is None else [job, _app_name(app)]
        wanted = select(named.c.seq).where(named.c.job.in_(names))
        return self._pages(select(seq, schema.journal.c.body).where(seq.in_(wanted)), seq, 0, False)

    def last_seq(self) -> int:
        """Number of the last record; 0 if the journal is empty."""
        with reading(self._engine) as connection:
            return _last(connection, schema.journal.c.seq)

    def try_writing(self) -> int:
        """Test whether the store can be written, without changing it; returns the number of the last record."""
        facts = schema.facts
        with writing(self._engine) as connection:
            connection.execute(update(facts).where(facts.c.name == "epoch").values(value=repr(self.epoch)))
            return _last(connection, schema.journal.c.seq)

    def is_complete(self) -> bool:
        """Whether no record was ever dropped."""
        with reading(self._engine) as connection:
            number = schema.journal.c.seq
            return (connection.scalar(select(func.count(number))) or 0) == _last(connection, number)

    def _pages(
        self, query: Select[int, str], seq: ColumnElement[int], after: int, with_memory: bool
    ) -> Iterator[tuple[int, Record]]:
        while True:
            with reading(self._engine) as connection:
                page = connection.execute(query.where(seq > after).order_by(seq).limit(_PAGE)).all()
            for number, body in page:
                yield number, decode(json.loads(body if with_memory else without_memory(body)))
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    # ----------------------------------------------------------- checkpoints

    def save_checkpoint(self, seq: int, body: bytes) -> None:
        """Store a checkpoint of the engine after record `seq`. The newest two checkpoints stay."""
        table = schema.checkpoints
        with writing(self._engine) as connection:
            connection.execute(delete(table).where(table.c.seq == seq))
            connection.execute(table.insert(), {"seq": seq, "body": body})
            newest = connection.scalars(select(table.c.seq).order_by(table.c.seq.desc()).limit(2)).all()
            connection.execute(delete(table).where(table.c.seq < newest[-1]))

    def newest_checkpoint(self, before: int | None = None) -> tuple[int, bytes] | None:
        """Record number and body of the newest checkpoint; with `before`, of the newest one before that record."""
        table = schema.checkpoints
        query = select(table.c.seq, table.c.body).order_by(table.c.seq.desc()).limit(1)
        with reading(self._engine) as connection:
            row = connection.execute(query if before is None else query.where(table.c.seq < before)).first()
        return (row.seq, bytes(row.body)) if row else None

    def compact(self, before_seq: int, keep_since_s: float, jobs: Iterable[str] = ()) -> int:
        """Drop records before `before_seq` that recovery does not need; returns how many.

        1. Records after the older of the two checkpoints always stay: recovery may start there.
        2. Records older than `keep_since_s` go, except nodes and settings (`_ALWAYS_KEPT`) and records that name one
           of `jobs` (jobs older than `keep_since_s` that have not left).
        3. Progress reports that later reports supersede go, whatever their age.
        """
        journal = schema.journal
        with writing(self._engine) as connection:
            covered = connection.scalar(select(func.min(schema.checkpoints.c.seq))) or 0
            # The last record always stays: the next record's number follows it.
            end = min(before_seq, covered + 1, _last(connection, journal.c.seq))
            first_kept = select(journal.c.seq).where(journal.c.at_s >= keep_since_s).order_by(journal.c.seq).limit(1)
            old = journal.c.seq < min(end, connection.scalar(first_kept) or end)
            spared = _records_naming(connection, jobs)
            old_seqs = connection.scalars(select(journal.c.seq).where(old & journal.c.kind.not_in(_ALWAYS_KEPT))).all()
            dropped = 0
            for numbers in _chunks([seq for seq in old_seqs if seq not in spared]):
                dropped += _drop(connection, journal.c.seq.in_(numbers))
            reports = _progress_reports(connection, self._compacted, end)
            for numbers in _chunks([seq for seq in superseded_reports(reports) if seq < end]):
                dropped += _drop(connection, journal.c.seq.in_(numbers))
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
                    for names in _chunks(sorted(set(jobs)))
                    for body in connection.scalars(
                        select(rows.c.body).where(rows.c.job.in_(names)).order_by(rows.c.job)
                    )
                ]
        return {task.job: task for task in map(decode_task, bodies)}

    def drop_tasks(self, jobs: Iterable[str]) -> None:
        """Delete the tasks of jobs that left the service."""
        with writing(self._engine) as connection:
            for names in _chunks(sorted(set(jobs))):
                connection.execute(delete(schema.tasks).where(schema.tasks.c.job.in_(names)))

    # ---------------------------------------------------------------- tokens

    def add_token(self, token: TokenRecord) -> None:
        """Store a new token."""
        with writing(self._engine) as connection:
            connection.execute(schema.tokens.insert(), asdict(token))

    def tokens(self) -> list[TokenRecord]:
        """All tokens, oldest first, including revoked and expired tokens."""
        columns = schema.tokens.c
        with reading(self._engine) as connection:
            rows = connection.execute(select(schema.tokens).order_by(columns.created_s, columns.id))
            return [TokenRecord(**row) for row in rows.mappings()]

    def revoke(self, token: str) -> int:
        """Revoke the token with this id; returns the number of tokens revoked (0 or 1)."""
        columns = schema.tokens.c
        with writing(self._engine) as connection:
            return connection.execute(
                update(schema.tokens).where(columns.id == token, columns.revoked.is_(False)).values(revoked=True)
            ).rowcount

    # ----------------------------------------------------------- audit trail

    def acts(self, limit: int = 100) -> list[Act]:
        """The last acts of the audit trail, newest first."""
        rows = schema.acts
        query = select(rows.c.at_s, rows.c.actor, rows.c.action, rows.c.target, rows.c.detail)
        with reading(self._engine) as connection:
            return [Act(*row) for row in connection.execute(query.order_by(rows.c.number.desc()).limit(limit))]


def _row(record: Record) -> dict[str, Any]:
    """A record as a row of the journal, without its number."""
    body = encode(record)
    return {"at_s": record.at_s, "kind": body["kind"], "body": _JSON.encode(body)}


def _names(record: Record) -> Iterable[str]:
    """Names under which a record is found: its jobs, and its apps that bid for themselves. Each once."""
    match record:
        case JobSubmitted():
            return (record.spec.id,)
        case Decided():
            stopped = (name for stop in record.stops for name in (stop.job, stop.by) if name)
            started = (*(placed.job for placed in record.placed), *(launch.job for launch in record.launches))
            # Every decision repeats the offers that are still open.
            asked = (ask.app for ask in record.asks if ask.asked_s == record.at_s)
            apps = map(_app_name, (*asked, *record.unanswered))
            given_up = (trial.job for trial in record.given_up)
            return dict.fromkeys((*given_up, *stopped, *record.withdrawn, *started, *apps))
        case NodeJoined() | NodeLost() | NodeDraining() | NodeObserved() | SettingsChanged() | JobsRetired():
            return ()
        case AgentChanged():
            return (_app_name(record.app),)
        case BidReceived():
            return (_app_name(record.answer.app),)
        case _:
            return (record.job,)


def _app_name(app: str) -> str:
    """Name of an app in `journal_jobs`. No job id has a colon."""
    return f"app:{app}"


def _last(connection: Connection, number: ColumnElement[int]) -> int:
    """The largest number in a column; 0 if it is empty."""
    return connection.scalar(select(func.max(number))) or 0


def _drop(connection: Connection, which: ColumnElement[bool]) -> int:
    """Delete records and their names; returns the number of records."""
    journal, named = schema.journal, schema.journal_jobs
    connection.execute(delete(named).where(named.c.seq.in_(select(journal.c.seq).where(which))))
    return connection.execute(delete(journal).where(which)).rowcount


def _records_naming(connection: Connection, jobs: Iterable[str]) -> set[int]:
    """Numbers of the records that name one of these jobs."""
    named = schema.journal_jobs
    return {
        seq
        for names in _chunks(sorted(set(jobs)))
        for seq in connection.scalars(select(named.c.seq).where(named.c.job.in_(names)))
    }


def _progress_reports(connection: Connection, since: int, end: int) -> Iterator[tuple[int, JobProgressed]]:
    """All progress reports of jobs with more than `MAX_KEPT_REPORTS`, one of them in [since, end)."""
    journal, named = schema.journal, schema.journal_jobs
    is_report = journal.c.kind == JobProgressed.__name__
    joined = named.join(journal, journal.c.seq == named.c.seq)
    new = select(named.c.job).select_from(joined).where(is_report, journal.c.seq >= since, journal.c.seq < end)
    query = select(journal.c.seq, journal.c.body).select_from(joined).where(is_report)
    for jobs in _chunks(list(connection.scalars(new.distinct()))):
        counted = select(named.c.job).select_from(joined).where(is_report, named.c.job.in_(jobs), journal.c.seq < end)
        many = counted.group_by(named.c.job).having(func.count() > MAX_KEPT_REPORTS)
        for seq, body in connection.execute(query.where(named.c.job.in_(many)).order_by(journal.c.seq)):
            record = decode(json.loads(body))
            assert isinstance(record, JobProgressed)
            yield seq, record


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows. SQLite gets many in a statement: for each statement, other threads may take the interpreter."""
    if rows and connection.dialect.name != "sqlite":
        connection.execute(table.insert(), rows)
        return
    names = table.columns.keys()
    for some in _batches(rows):
        values = tuple([row[name] for row in some for name in names])
        connection.exec_driver_sql(_insert_statement(table, len(some)), values)


def _batches(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Split rows into batches of 64, 8 and 1, so that there are few statements to prepare."""
    start = 0
    for size in _ROWS:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@cache
def _insert_statement(table: Table, rows: int) -> str:
    row = f"({', '.join('?' * len(table.columns))})"
    names = ", ".join(f'"{name}"' for name in table.columns.keys())  # noqa: SIM118, not a dict
    return f'INSERT INTO "{table.name}" ({names}) VALUES {", ".join([row] * rows)}'


def _append_acts(connection: Connection, acts: Sequence[Act]) -> None:
    first = _last(connection, schema.acts.c.number) + 1 if acts else 0
    _insert(connection, schema.acts, [{"number": number, **asdict(act)} for number, act in enumerate(acts, first)])


def _chunks(names: list[Name]) -> Iterator[list[Name]]:
    """Split names or numbers into pieces that fit one statement."""
    return (names[start : start + _NAMES] for start in range(0, len(names), _NAMES))
