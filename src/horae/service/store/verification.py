"""Verification of a store: what is read is what was written, and nothing is missing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, Select, select

from horae.service.store import schema
from horae.service.store.chain import (
    JournalDamaged,
    JournalLost,
    Link,
    check_links,
    first_head,
    record_digest,
    text_digest,
)
from horae.service.store.connection import reading
from horae.service.store.facts import read_fact, write_fact
from horae.service.store.high_water_mark import Mark
from horae.service.store.rows import last_number

#: Rows per page. No transaction is open between two pages.
_PAGE = 5000


@contextmanager
def telling_damage() -> Iterator[None]:
    """Raise values of the wrong type, which only damage can leave in a table, as `JournalDamaged`."""
    try:
        yield
    except JournalDamaged:
        raise
    except (TypeError, ValueError, AttributeError, AssertionError, OverflowError) as why:
        raise JournalDamaged("The journal is damaged: one of its rows holds what cannot be read.") from why


def checkpoint_digest(seq: int, body: bytes) -> bytes:
    """Digest of a checkpoint."""
    return hashlib.sha256(b"%d\0" % seq + body).digest()


def check_pages(engine: Engine) -> None:
    """Let SQLite check the structure of its file."""
    if engine.url.get_backend_name() != "sqlite":
        return
    with reading(engine) as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        raise JournalDamaged("The journal is damaged: SQLite finds errors in the structure of its file.")


def check_chain(engine: Engine, identity: str, mark: Mark | None) -> None:
    """Compute the chain again, and compare it with the high-water mark."""
    if mark and mark.identity != identity:
        raise JournalLost("This is another journal than the one that this state folder belongs to.")
    last, head = 0, first_head(identity)
    marked = head if mark and mark.seq == 0 else None
    marked_seq = mark.seq if mark else -1
    with telling_damage():
        # First: a service that runs may append meanwhile. A journal whose links are missing is behind all the same.
        with reading(engine) as connection:
            newest = last_number(connection, schema.journal.c.seq)
        for last, head in check_links(identity, _links(engine)):
            if last == marked_seq:
                marked = head
        with reading(engine) as connection:
            latest = last_number(connection, schema.journal.c.seq)
    if not newest <= last <= latest:
        raise JournalDamaged(f"The journal is damaged: it ends at record {newest}, and its chain at record {last}.")
    if mark and marked is None:
        raise JournalLost(
            f"The journal is older than what was acknowledged: it ends at record {last}, and record {mark.seq} "
            "had been written."
        )
    if mark and marked and marked.hex() != mark.head:
        raise JournalLost(f"The journal is not the one that was written: it differs before record {mark.seq}.")


def check_counts(engine: Engine, mark: Mark) -> None:
    """Compare audit trail and tokens with the mark: neither ever shrinks."""
    with reading(engine) as connection:
        acts, tokens = counts(connection)
    if acts < mark.acts:
        raise JournalLost(f"The journal is older than what was acknowledged: {mark.acts - acts} acts are missing.")
    if tokens < mark.tokens:
        raise JournalLost("The journal is older than what was acknowledged: tokens, or their end, are missing.")


def counts(connection: Connection) -> tuple[int, int]:
    """Number of the last act, and how often tokens were made or revoked."""
    rows = connection.execute(select(schema.tokens.c.revoked)).scalars().all()
    return last_number(connection, schema.acts.c.number), len(rows) + sum(map(bool, rows))


def _links(engine: Engine) -> Iterator[tuple[int, bytes, bytes]]:
    """The links of the chain, in order: number, digest, head."""
    table, after = schema.digests, 0
    query = select(table.c.seq, table.c.digest, table.c.head).order_by(table.c.seq).limit(_PAGE)
    while True:
        with reading(engine) as connection:
            page = connection.execute(query.where(table.c.seq > after)).all()
        yield from map(tuple, page)
        if len(page) < _PAGE:
            return
        after = page[-1].seq


def check_tasks(engine: Engine, upto: int) -> None:
    """Compare the tasks with the digests that were submitted up to record `upto`."""
    tasks, named, digests = schema.tasks, schema.journal_jobs, schema.digests
    joined = tasks.join(named, named.c.job == tasks.c.job).join(digests, digests.c.seq == named.c.seq)
    query = select(tasks.c.job, tasks.c.body, digests.c.task).select_from(joined)
    with telling_damage(), reading(engine) as connection:
        for job, body, digest in connection.execute(query.where(digests.c.task.is_not(None), digests.c.seq <= upto)):
            if text_digest(body) != bytes(digest):
                raise JournalDamaged(f"The journal is damaged: the task of job {job} is not what was submitted.")


def seal_tokens(connection: Connection) -> None:
    """Store the digest of all tokens; part of every transaction that changes one."""
    write_fact(connection, "tokens", tokens_digest(connection))


def check_tokens(connection: Connection) -> None:
    """Compare the tokens with their digest."""
    stored = read_fact(connection, "tokens")
    if stored is not None and stored != tokens_digest(connection):
        raise JournalDamaged("The journal is damaged: its table of tokens is not what was written.")


def tokens_digest(connection: Connection) -> str:
    """Digest of all tokens."""
    rows = schema.tokens.c
    names = (rows.id, rows.digest, rows.user, rows.role, rows.job, rows.scope)
    query = select(*names, rows.created_s, rows.expires_s, rows.revoked).order_by(rows.id)
    found = [tuple(row) for row in connection.execute(query)]
    return text_digest(repr(sorted(found))).hex()


def check_body(seq: int, at_s: float, record_kind: str, body: str, digest: bytes, task: bytes | None) -> None:
    """Compare a record with its digest."""
    with telling_damage():
        if record_digest(seq, at_s, record_kind, body, bytes(task) if task is not None else None) != bytes(digest):
            raise JournalDamaged(f"The journal is damaged: record {seq} is not what was written.")


def check_bodies(engine: Engine, upto: int) -> None:
    """Compare all records up to `upto` that compaction has left with their digests."""
    after = 0
    while True:
        with telling_damage(), reading(engine) as connection:
            page = connection.execute(_bodies(after, upto)).all()
            for row in page:
                check_body(row.seq, row.at_s, row.kind, row.body, row.digest, row.task)
        if len(page) < _PAGE:
            return
        after = page[-1].seq


def _bodies(after: int, upto: int) -> Select[int, float, str, str, bytes, bytes]:
    journal, digests = schema.journal, schema.digests
    return (
        select(journal.c.seq, journal.c.at_s, journal.c.kind, journal.c.body, digests.c.digest, digests.c.task)
        .select_from(journal.outerjoin(digests, digests.c.seq == journal.c.seq))
        .where(journal.c.seq > after, journal.c.seq <= upto)
        .order_by(journal.c.seq)
        .limit(_PAGE)
    )


def tip(connection: Connection, identity: str) -> Link:
    """The last link of the chain."""
    table = schema.digests
    query = select(table.c.seq, table.c.digest, table.c.head, table.c.task).order_by(table.c.seq.desc()).limit(1)
    row = connection.execute(query).first()
    return Link(row.seq, bytes(row.digest), bytes(row.head)) if row else Link(0, b"", first_head(identity))
