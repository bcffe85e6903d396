"""Salvage: a new journal from what can still be read of a damaged one. The damaged files are kept aside."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import URL, Connection, Table

from horae.backends.task import Task
from horae.service.store import schema
from horae.service.store.chain import JournalDamaged, record_digest, text_digest
from horae.service.store.chain_migration import link_all
from horae.service.store.connection import connect, writing
from horae.service.store.facts import write_fact
from horae.service.store.record_rows import record_of
from horae.service.store.rows import insert
from horae.service.store.stored_records import encode_task
from horae.service.store.verification import checkpoint_digest, seal_tokens, tokens_digest

Row = dict[str, Any]
#: Files that belong to an SQLite database, by what is appended to its name.
_PARTS = ("", "-wal", "-shm")
#: What a job runs whose task was lost: its user learns it from the log.
_LOST_TASK = ("sh", "-c", "echo 'The task of this job was lost with the journal: submit it again.' >&2; exit 1")


def set_aside(journal: Path) -> Path:
    """Move the files of an SQLite journal aside; returns where the database is now."""
    aside = _free_name(journal)
    for part in _PARTS:
        file = journal.with_name(journal.name + part)
        if file.exists():
            file.rename(aside.with_name(aside.name + part))
    return aside


def _free_name(journal: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (journal.with_name(f"{journal.name}.{stamp}{more}") for more in ("", *(f"-{k}" for k in range(1, 1000))))
    return next(name for name in names if not name.exists())


def salvage(journal: Path) -> str:
    """Make a new journal from what can be read of a damaged one; returns what became of it, as a sentence."""
    aside = set_aside(journal)
    found = {table.name: list(_rows(aside, table)) for table in schema.TABLES.sorted_tables}
    facts = _sound_facts(found["facts"])
    kept = _sound_records(found["journal"], found["digests"], found["checkpoints"])
    url = URL.create("sqlite", database=str(journal))
    engine = connect(url, 4.0)
    try:
        with writing(engine) as connection:
            schema.create(connection)
            for name in ("epoch", "beginning", "served"):
                if name in facts:
                    write_fact(connection, name, facts[name])
            if "epoch" not in facts:
                write_fact(connection, "epoch", repr(time.time()))
            identity = str(uuid4())
            write_fact(connection, "identity", identity)
            if "beginning" in facts:
                _fill(connection, found, kept)
            link_all(connection, identity)
            if tokens_digest(connection) != facts.get("tokens"):
                # Nobody may become an admin by damage: all tokens must be made anew.
                connection.execute(schema.tokens.delete())
            seal_tokens(connection)
    finally:
        engine.dispose()
    last = kept[-1] if kept and "beginning" in facts else 0
    return f"Of the damaged journal, records up to number {last} were kept; its files are now at {aside}."


def _rows(path: Path, table: Table) -> Iterator[Row]:
    """Rows of a table as far as they can be read."""
    names = list(table.columns.keys())
    columns = ", ".join(f'"{name}"' for name in names)
    order = ", ".join(f'"{column.name}"' for column in table.primary_key)
    with suppress(sqlite3.Error, ValueError, TypeError), closing(sqlite3.connect(path)) as connection:
        for values in connection.execute(f'SELECT {columns} FROM "{table.name}" ORDER BY {order}'):
            yield dict(zip(names, values, strict=True))


def _sound_facts(rows: list[Row]) -> dict[str, str]:
    values = {row["name"]: row["value"] for row in rows if isinstance(row["value"], str)}
    return {name: value for name, value in values.items() if values.get(f"{name}.sha256") == text_digest(value).hex()}


def _sound_records(journal: list[Row], digests: list[Row], checkpoints: list[Row]) -> list[int]:
    """Numbers of the records to keep: all sound ones up to the first that recovery would miss."""
    wanted = {row["seq"]: (row["digest"], row["task"]) for row in digests}
    sound = {row["seq"] for row in journal if _is_sound(row, *wanted.get(row["seq"], (None, None)))}
    bases = [row["seq"] for row in checkpoints if _is_sound_checkpoint(row)]
    last = max((_reach(base, sound) for base in (0, *bases)), default=0)
    return sorted(seq for seq in sound if seq <= last)


def _reach(base: int, sound: set[int]) -> int:
    """The last record that recovery reaches from a checkpoint."""
    while base + 1 in sound:
        base += 1
    return base


def _is_sound(row: Row, digest: bytes | None, task: bytes | None) -> bool:
    with suppress(TypeError, ValueError, AttributeError, JournalDamaged):
        if record_digest(row["seq"], row["at_s"], row["kind"], row["body"], task) == digest:
            record_of(row["seq"], row["body"])
            return True
    return False


def _is_sound_checkpoint(row: Row) -> bool:
    return isinstance(row["body"], bytes) and checkpoint_digest(row["seq"], row["body"]) == row["digest"]


def _acceptable(table: Table, rows: list[Row]) -> list[Row]:
    """Rows that the table takes: nothing is missing that must be there, and no key comes twice."""
    must = [column.name for column in table.columns if not column.nullable]
    keys = [column.name for column in table.primary_key]
    whole = [row for row in rows if all(row[name] is not None for name in must)]
    return list({tuple(row[key] for key in keys): row for row in whole}.values())


def _fill(connection: Connection, found: dict[str, list[Row]], kept: list[int]) -> None:
    """Write what is sound into the new tables."""
    numbers, last = set(kept), kept[-1] if kept else 0
    insert(connection, schema.journal, [row for row in found["journal"] if row["seq"] in numbers])
    named = _acceptable(schema.journal_jobs, [row for row in found["journal_jobs"] if row["seq"] in numbers])
    insert(connection, schema.journal_jobs, named)
    sound = [row for row in found["checkpoints"] if row["seq"] <= last and _is_sound_checkpoint(row)]
    insert(connection, schema.checkpoints, sound)
    insert(connection, schema.memories, [row for row in found["memories"] if row["seq"] in numbers])
    insert(connection, schema.tasks, _sound_tasks(found, named, numbers))
    for table in (schema.tokens, schema.acts):
        insert(connection, table, _acceptable(table, found[table.name]))


def _sound_tasks(found: dict[str, list[Row]], named: list[Row], numbers: set[int]) -> list[Row]:
    """Tasks of the jobs that were kept; a lost task is replaced by one that says so."""
    digests = {row["seq"]: row["task"] for row in found["digests"] if row["task"] is not None and row["seq"] in numbers}
    bodies = {row["job"]: row["body"] for row in found["tasks"] if isinstance(row["body"], str)}
    tasks = []
    for row in named:
        digest = digests.get(row["seq"])
        if digest is None:
            continue
        job = row["job"]
        body = bodies.get(job, "")
        lost = encode_task(Task(job, "", job.rpartition("-")[0] or job, _LOST_TASK, 1.0))
        tasks.append({"job": job, "body": body if text_digest(body) == digest else lost})
    return tasks
