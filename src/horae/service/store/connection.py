"""Databases by their URL, made to keep what they acknowledge, and their troubles in plain words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from horae.core.errors import UserError

#: How long to wait for a lock that somebody else has.
PATIENCE_S = 4.0

#: Numbers of ours among the advisory locks of a PostgreSQL database: who writes now, and whose the store is.
WRITER, OWNER = 0x484F524100, 0x484F524101


class StoreTrouble(UserError):
    """The store cannot be read or written now. Whatever was begun is undone; nothing is half-written."""


class StoreLocked(StoreTrouble):
    """Somebody else has a lock, and kept it longer than we wait."""


def read_url(text: str) -> URL:
    """The URL of a database that a store can be in."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # Not what was given, and not what it comes from: there may be a password in it.
        raise StoreTrouble(f"This is no URL of a database: give one such as {_EXAMPLES}.") from None
    kind = {"postgres": "postgresql"}.get(url.get_backend_name(), url.get_backend_name())
    if kind not in ("sqlite", "postgresql") or (kind == "sqlite" and url.database in (None, "", ":memory:")):
        shown = url.render_as_string(hide_password=True)
        raise StoreTrouble(f"A store cannot be in {shown!r}: give a URL such as {_EXAMPLES}.")
    return url.set(drivername="postgresql+psycopg" if kind == "postgresql" else "sqlite")


_EXAMPLES = "sqlite:////var/lib/horae/journal.db or postgresql://user@host/database"


def connect(url: URL, patience_s: float) -> Engine:
    """An engine whose commits are on disk when they return, and that waits for nobody longer than told."""
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, patience_s)
    try:
        engine = create_engine(
            url, pool_pre_ping=True, pool_timeout=patience_s, connect_args={"connect_timeout": max(2, int(patience_s))}
        )
    except (NoSuchModuleError, ModuleNotFoundError) as why:
        raise StoreTrouble("PostgreSQL needs another package: pip install 'horae[postgres]'.") from why
    settings = f"SET lock_timeout = {int(patience_s * 1000)}; SET synchronous_commit = on"

    @event.listens_for(engine, "connect")
    def _set(connection: Any, _record: Any) -> None:
        connection.execute(settings)
        connection.commit()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # One writer at a time, as in SQLite: records are numbered in the order in which they are committed.
        if connection.get_execution_options().get("writes", False):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER})")

    return engine


def _sqlite(url: URL, patience_s: float) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The files beside it, which SQLite makes, get the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
    except OSError as why:
        raise StoreTrouble(f"The journal {path} cannot be opened ({why.strerror}): choose another place.") from why
    engine = create_engine(url, pool_timeout=patience_s, connect_args={"timeout": patience_s})

    @event.listens_for(engine, "connect")
    def _set(connection: Any, _record: Any) -> None:
        # The driver begins no transactions by itself: we say when, and of which kind.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer that began as a reader could not wait for its turn.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads."""
    with told(engine.url), engine.begin() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes: on disk when it is left, undone when it is left by an error."""
    with told(engine.url), engine.execution_options(writes=True).begin() as connection:
        yield connection


@contextmanager
def told(url: URL) -> Iterator[None]:
    """Troubles of a database become `StoreTrouble`; what contradicts its own records is a bug and stays one."""
    try:
        yield
    except IntegrityError:
        raise
    except SQLAlchemyError as why:
        raise _in_plain_words(url, why) from why


def _in_plain_words(url: URL, why: SQLAlchemyError) -> StoreTrouble:
    """What a database said, and what is to be done. Codes are PostgreSQL's."""
    where = str(url.database) if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)
    said = next(iter(str(why.orig if isinstance(why, DBAPIError) else why).strip().splitlines()), "no reason given")
    code = getattr(getattr(why, "orig", None), "sqlstate", None)
    if code == "53100" or "disk is full" in said:
        return StoreTrouble(
            f"No room is left for the journal {where}: make room where it lies and try again. Nothing was written."
        )
    if code == "55P03" or "is locked" in said:
        return StoreLocked(f"Another program keeps the journal {where} locked: end it and try again.")
    if code is None and url.get_backend_name() == "postgresql":
        return StoreTrouble(
            f"The journal {where} cannot be reached ({said}): see that PostgreSQL runs there and lets you in."
        )
    return StoreTrouble(f"The journal {where} cannot be used ({said}): mend that and try again.")
