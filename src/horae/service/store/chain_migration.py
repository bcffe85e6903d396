"""Migration to version 2 of the tables: the chain over a journal that was written without one."""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import Connection, inspect, select

from horae.service.store import schema
from horae.service.store.chain import Link, first_head, linked, text_digest
from horae.service.store.facts import read_fact, write_fact
from horae.service.store.rows import insert
from horae.service.store.verification import checkpoint_digest

#: Records in one step.
_PAGE = 2000
_BYTES = {"sqlite": "BLOB", "postgresql": "BYTEA"}


def add_chain(connection: Connection) -> None:
    """Add identity, digests and checksums."""
    for table in (schema.digests, schema.memories):
        table.create(connection, checkfirst=True)
    if "digest" not in {column["name"] for column in inspect(connection).get_columns("checkpoints")}:
        connection.exec_driver_sql(f"ALTER TABLE checkpoints ADD COLUMN digest {_BYTES[connection.dialect.name]}")
    identity = str(uuid4())
    write_fact(connection, "identity", identity)
    for name in ("epoch", "beginning", "served"):
        if (value := read_fact(connection, name)) is not None:
            write_fact(connection, name, value)
    link_all(connection, identity)
    checkpoints = schema.checkpoints
    for seq, body in connection.execute(select(checkpoints.c.seq, checkpoints.c.body)).all():
        digest = checkpoint_digest(seq, bytes(body))
        connection.execute(checkpoints.update().where(checkpoints.c.seq == seq).values(digest=digest))


def link_all(connection: Connection, identity: str) -> None:
    """Give all records their digests. A record that was dropped gets the digest of an empty record."""
    journal = schema.journal
    tasks = {
        job: text_digest(body) for job, body in connection.execute(select(schema.tasks.c.job, schema.tasks.c.body))
    }
    submitted = _submissions(connection)
    seq, head = 0, first_head(identity)
    while True:
        page = connection.execute(
            select(journal.c.seq, journal.c.at_s, journal.c.kind, journal.c.body)
            .where(journal.c.seq > seq)
            .order_by(journal.c.seq)
            .limit(_PAGE)
        ).all()
        links: list[Link] = []
        for number, at_s, record_kind, body in page:
            task = tasks.get(submitted.get(number, ""))
            dropped = [(0.0, "", "", None)] * (number - seq - 1)
            links += linked(seq, head, [*dropped, (at_s, record_kind, body, task)])
            seq, head = links[-1].seq, links[-1].head
        insert(connection, schema.digests, [link_row(link) for link in links])
        if len(page) < _PAGE:
            return


def _submissions(connection: Connection) -> dict[int, str]:
    """Jobs by the number of the record that submitted them."""
    named, journal = schema.journal_jobs, schema.journal
    joined = named.join(journal, journal.c.seq == named.c.seq)
    rows = connection.execute(
        select(named.c.seq, named.c.job).select_from(joined).where(journal.c.kind == "JobSubmitted")
    )
    return {row.seq: row.job for row in rows}


def link_row(link: Link) -> dict[str, object]:
    """A link of the chain as a row."""
    return {"seq": link.seq, "digest": link.digest, "head": link.head, "task": link.task}
