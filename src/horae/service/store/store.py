"""The journal: every event and decision, durable before anything follows from it; and what belongs beside it.

One transaction for each call. Records are numbered from 1 without gaps, in the order in which they
were folded; a checkpoint of the engine covers those up to its number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
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
from horae.service.store.connection import PATIENCE_S, StoreTrouble, connect, read_url, reading, writing
from horae.service.store.journal_compaction import MOST_KEPT, superseded
from horae.service.store.store_lock import own as take
from horae.service.store.stored_records import Act, TokenRecord, decode_task, encode_task

Record = Event | Decided
Name = TypeVar("Name", str, int)

#: Made once: a call that asks for other separators makes one each time.
_JSON = json.JSONEncoder(separators=(",", ":"))
#: Records read at a time. Between two pages no transaction is open, so that a slow reader is in nobody's way.
_PAGE = 2000
#: Names asked for at a time; databases limit how many a statement may hold.
_NAMES = 500
#: Records without which later ones cannot be understood: which GPUs a number means, and what decided.
_NEVER_OLD = (NodeJoined.__name__, SettingsChanged.__name__)


class Store:
    """Journal, checkpoints, tasks, tokens and audit trail in one database, SQLite or PostgreSQL.

    With `own` it is this process's alone to append to: a second daemon is refused. Without, it can
    be looked into, and tokens can be managed, beside a daemon. May be used from several threads.
    """

    def __init__(self, url: str, own: bool = False, patience_s: float = PATIENCE_S) -> None:
        self._engine = connect(read_url(url), patience_s)
        self._appending = Lock()
        #: Before this record only what is old is left to be dropped.
        self._compacted = 0
        self._ownership = take(self._engine) if own else None
        try:
            #: Unix time from which all seconds here are counted.
            self.epoch = self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> float:
        """Make the tables of a new store; gives its epoch."""
        with reading(self._engine) as connection:
            epoch = schema.read_epoch(connection)
        if epoch is not None:
            return epoch
        with writing(self._engine) as connection:
            # Somebody else may have made them meanwhile.
            epoch = schema.read_epoch(connection)
            if epoch is None:
                epoch = time.time()
                schema.create(connection, epoch)
        return epoch

    def begin(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """How the service began: what it says now on its first day, what it said then on every other."""
        facts = schema.facts
        with writing(self._engine) as connection:
            known = connection.scalar(select(facts.c.value).where(facts.c.name == "beginning"))
            if known is None:
                known = _JSON.encode(said)
                connection.execute(facts.insert(), {"name": "beginning", "value": known})
        first: dict[str, Any] = json.loads(known)
        return first

    def began(self) -> dict[str, Any] | None:
        """How the service began; None before its first day."""
        with reading(self._engine) as connection:
            known = connection.scalar(select(schema.facts.c.value).where(schema.facts.c.name == "beginning"))
        return json.loads(known) if known else None

    def served(self) -> dict[str, Any]:
        """How the service was served last, as `serve` noted it; empty before."""
        with reading(self._engine) as connection:
            known = connection.scalar(select(schema.facts.c.value).where(schema.facts.c.name == "served"))
        return json.loads(known) if known else {}

    def serve(self, how: Mapping[str, Any]) -> None:
        """Note how the service is served, for the next time."""
        facts = schema.facts
        with writing(self._engine) as connection:
            connection.execute(delete(facts).where(facts.c.name == "served"))
            connection.execute(facts.insert(), {"name": "served", "value": _JSON.encode(how)})

    def close(self) -> None:
        """Let go of the database, and of the right to append."""
        if self._ownership:
            self._ownership.release()
            self._ownership = None
        self._engine.dispose()

    # --------------------------------------------------------------- journal

    def append(
        self,
        records: Sequence[Record],
        tasks: Sequence[Task] = (),
        acts: Sequence[Act] = (),
        after: int | None = None,
    ) -> int:
        """Write all of it or nothing; it is on disk when this returns the number of the last record there is.

        With `after`, only if that is the last record now: what follows from an old journal is not written.
        """
        rows = [_row(record) for record in records]
        texts = [{"job": task.job, "body": encode_task(task)} for task in tasks]
        with self._appending:
            if self._ownership:
                self._ownership.confirm()
            with writing(self._engine) as connection:
                last = _last(connection, schema.journal.c.seq)
                if after is not None and last != after:
                    raise StoreTrouble("Another daemon has written to the journal meanwhile: try again in a moment.")
                numbered = list(enumerate(records, last + 1))
                _insert(connection, schema.journal, [{**row, "seq": last + k} for k, row in enumerate(rows, 1)])
                named = [{"job": name, "seq": seq} for seq, record in numbered for name in _names(record)]
                _insert(connection, schema.journal_jobs, named)
                _insert(connection, schema.tasks, texts)
                _append_acts(connection, acts)
        return last + len(records)

    def tail(self, after: int = 0, upto: int | None = None) -> Iterator[tuple[int, Record]]:
        """Records after one number and up to another, in order."""
        seq = schema.journal.c.seq
        query = select(seq, schema.journal.c.body)
        return self._pages(query if upto is None else query.where(seq <= upto), seq, after)

    def job_records(self, job: str, app: str | None = None) -> Iterator[tuple[int, Record]]:
        """Records that name a job: its submission, reports about it, and decisions that stop, place or launch it.

        With an app, also those in which the app's own agent comes, goes, is asked or answers.
        """
        named, seq = schema.journal_jobs, schema.journal.c.seq
        names = [job] if app is None else [job, _app_name(app)]
        wanted = select(named.c.seq).where(named.c.job.in_(names))
        return self._pages(select(seq, schema.journal.c.body).where(seq.in_(wanted)), seq, 0)

    def last_seq(self) -> int:
        """Number of the last record; 0 if there is none."""
        with reading(self._engine) as connection:
            return _last(connection, schema.journal.c.seq)

    def try_writing(self) -> int:
        """Write what is there once more, to see whether that can be done; gives the number of the last record."""
        facts = schema.facts
        with writing(self._engine) as connection:
            connection.execute(update(facts).where(facts.c.name == "epoch").values(value=repr(self.epoch)))
            return _last(connection, schema.journal.c.seq)

    def whole(self) -> bool:
        """Whether every record that was ever written is still there."""
        with reading(self._engine) as connection:
            number = schema.journal.c.seq
            return (connection.scalar(select(func.count(number))) or 0) == _last(connection, number)

    def _pages(self, query: Select[int, str], seq: ColumnElement[int], after: int) -> Iterator[tuple[int, Record]]:
        while True:
            with reading(self._engine) as connection:
                page = connection.execute(query.where(seq > after).order_by(seq).limit(_PAGE)).all()
            yield from ((number, decode(json.loads(body))) for number, body in page)
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    # ----------------------------------------------------------- checkpoints

    def save_checkpoint(self, seq: int, body: bytes) -> None:
        """Keep the engine as it was after a record; the last two checkpoints stay."""
        kept = schema.checkpoints
        with writing(self._engine) as connection:
            connection.execute(delete(kept).where(kept.c.seq == seq))
            connection.execute(kept.insert(), {"seq": seq, "body": body})
            newest = connection.scalars(select(kept.c.seq).order_by(kept.c.seq.desc()).limit(2)).all()
            connection.execute(delete(kept).where(kept.c.seq < newest[-1]))

    def newest_checkpoint(self, before: int | None = None) -> tuple[int, bytes] | None:
        """The newest checkpoint and the record it stands after; `before` asks for the one before that."""
        kept = schema.checkpoints
        query = select(kept.c.seq, kept.c.body).order_by(kept.c.seq.desc()).limit(1)
        with reading(self._engine) as connection:
            row = connection.execute(query if before is None else query.where(kept.c.seq < before)).first()
        return (row.seq, bytes(row.body)) if row else None

    def compact(self, before_seq: int, keep_since_s: float, jobs: Iterable[str] = ()) -> int:
        """Drop records before a number that recovery can do without; gives how many.

        Recovery starts from a checkpoint, at worst from the older of the two, so what comes after
        that is never dropped. Of the rest, whatever is older than `keep_since_s` goes, but for what
        says which nodes there are and how things are set, and for what names one of some jobs, which
        came earlier and are still there; and of the reports on progress those that later ones supersede.
        """
        journal = schema.journal
        with writing(self._engine) as connection:
            covered = connection.scalar(select(func.min(schema.checkpoints.c.seq))) or 0
            # The last record stays whatever happens: the next one is numbered after it.
            end = min(before_seq, covered + 1, _last(connection, journal.c.seq))
            first_kept = select(journal.c.seq).where(journal.c.at_s >= keep_since_s).order_by(journal.c.seq).limit(1)
            old = journal.c.seq < min(end, connection.scalar(first_kept) or end)
            spared = _naming(connection, jobs)
            aged = connection.scalars(select(journal.c.seq).where(old & journal.c.kind.not_in(_NEVER_OLD))).all()
            dropped = 0
            for numbers in _chunks([seq for seq in aged if seq not in spared]):
                dropped += _drop(connection, journal.c.seq.in_(numbers))
            reports = _reports(connection, self._compacted, end)
            for numbers in _chunks([seq for seq in superseded(reports) if seq < end]):
                dropped += _drop(connection, journal.c.seq.in_(numbers))
        self._compacted = max(self._compacted, end)
        return dropped

    # ----------------------------------------------------------------- tasks

    def tasks(self, jobs: Iterable[str] | None = None) -> dict[str, Task]:
        """What jobs run, by job: of all, or of those asked for that there are."""
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
        """Jobs that have left will not run again: what they ran need not be known."""
        with writing(self._engine) as connection:
            for names in _chunks(sorted(set(jobs))):
                connection.execute(delete(schema.tasks).where(schema.tasks.c.job.in_(names)))

    # ---------------------------------------------------------------- tokens

    def add_token(self, token: TokenRecord) -> None:
        """Let a token in."""
        with writing(self._engine) as connection:
            connection.execute(schema.tokens.insert(), asdict(token))

    def tokens(self) -> list[TokenRecord]:
        """All tokens, oldest first, those that were revoked or have expired among them."""
        columns = schema.tokens.c
        with reading(self._engine) as connection:
            rows = connection.execute(select(schema.tokens).order_by(columns.created_s, columns.id))
            return [TokenRecord(**row) for row in rows.mappings()]

    def revoke(self, token: str) -> int:
        """Let a token, by its id, open nothing any more; gives how many did until now."""
        columns = schema.tokens.c
        with writing(self._engine) as connection:
            return connection.execute(
                update(schema.tokens).where(columns.id == token, columns.revoked.is_(False)).values(revoked=True)
            ).rowcount

    # ----------------------------------------------------------- audit trail

    def acts(self, limit: int = 100) -> list[Act]:
        """The newest acts, newest first."""
        rows = schema.acts
        query = select(rows.c.at_s, rows.c.actor, rows.c.action, rows.c.target, rows.c.detail)
        with reading(self._engine) as connection:
            return [Act(*row) for row in connection.execute(query.order_by(rows.c.number.desc()).limit(limit))]


def _row(record: Record) -> dict[str, Any]:
    """A record as a row, but for its number."""
    body = encode(record)
    return {"at_s": record.at_s, "kind": body["kind"], "body": _JSON.encode(body)}


def _names(record: Record) -> Iterable[str]:
    """The jobs, and the apps that bid for themselves, that a record names, each once."""
    match record:
        case JobSubmitted():
            return (record.spec.id,)
        case Decided():
            stopped = (name for stop in record.stops for name in (stop.job, stop.by) if name)
            taken = (*(one.job for one in record.placed), *(one.job for one in record.launches))
            # A question that is still open is repeated by every decision.
            asked = (ask.app for ask in record.asks if ask.asked_s == record.at_s)
            apps = map(_app_name, (*asked, *record.unanswered))
            return dict.fromkeys((*(one.job for one in record.given_up), *stopped, *record.withdrawn, *taken, *apps))
        case NodeJoined() | NodeLost() | NodeDraining() | NodeObserved() | SettingsChanged() | JobsRetired():
            return ()
        case AgentChanged():
            return (_app_name(record.app),)
        case BidReceived():
            return (_app_name(record.answer.app),)
        case _:
            return (record.job,)


def _app_name(app: str) -> str:
    """How an app is called among jobs: no job's id has a colon."""
    return f"app:{app}"


def _last(connection: Connection, number: ColumnElement[int]) -> int:
    """The largest number in a column, 0 if it is empty."""
    return connection.scalar(select(func.max(number))) or 0


def _drop(connection: Connection, which: ColumnElement[bool]) -> int:
    """Take records out of the journal, and with them which jobs they name; gives how many."""
    journal, named = schema.journal, schema.journal_jobs
    connection.execute(delete(named).where(named.c.seq.in_(select(journal.c.seq).where(which))))
    return connection.execute(delete(journal).where(which)).rowcount


def _naming(connection: Connection, jobs: Iterable[str]) -> set[int]:
    """Numbers of the records that name jobs."""
    named = schema.journal_jobs
    return {
        seq
        for names in _chunks(sorted(set(jobs)))
        for seq in connection.scalars(select(named.c.seq).where(named.c.job.in_(names)))
    }


def _reports(connection: Connection, since: int, end: int) -> Iterator[tuple[int, JobProgressed]]:
    """Reports on the progress of jobs that have made many, and some of them from one number on and before another."""
    journal, named = schema.journal, schema.journal_jobs
    is_report = journal.c.kind == JobProgressed.__name__
    beside = named.join(journal, journal.c.seq == named.c.seq)
    new = select(named.c.job).select_from(beside).where(is_report, journal.c.seq >= since, journal.c.seq < end)
    query = select(journal.c.seq, journal.c.body).select_from(beside).where(is_report)
    for jobs in _chunks(list(connection.scalars(new.distinct()))):
        counted = select(named.c.job).select_from(beside).where(is_report, named.c.job.in_(jobs), journal.c.seq < end)
        many = counted.group_by(named.c.job).having(func.count() > MOST_KEPT)
        for seq, body in connection.execute(query.where(named.c.job.in_(many)).order_by(journal.c.seq)):
            record = decode(json.loads(body))
            assert isinstance(record, JobProgressed)
            yield seq, record


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(table.insert(), rows)


def _append_acts(connection: Connection, acts: Sequence[Act]) -> None:
    first = _last(connection, schema.acts.c.number) + 1 if acts else 0
    _insert(connection, schema.acts, [{"number": number, **asdict(act)} for number, act in enumerate(acts, first)])


def _chunks(names: list[Name]) -> Iterator[list[Name]]:
    """Names or numbers, so many at a time as a statement may hold."""
    return (names[at : at + _NAMES] for at in range(0, len(names), _NAMES))
