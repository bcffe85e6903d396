"""Connections to the store's database (SQLite or PostgreSQL): durable commits, timeouts, errors as sentences."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
)

from horae.core.errors import UserError
from horae.service.store.chain import JournalDamaged

#: Seconds to wait for a lock that another program holds.
TIMEOUT_S = 4.0

#: Advisory locks of a PostgreSQL database: of the current writer, and of the daemon that owns the store.
WRITER_LOCK, OWNER_LOCK = 0x484F524100, 0x484F524101
#: Name of the fact that counts the services that have owned the store, and of the engine's option with the own number.
TERM = "term"


class StoreTrouble(UserError):
    """The store cannot be read or written now. The transaction was rolled back; nothing is half-written."""


class StoreDamaged(JournalDamaged, StoreTrouble):
    """The database cannot read its own files."""


class StoreFull(StoreTrouble):
    """No space is left for the journal."""


class StoreLocked(StoreTrouble):
    """Another program held a lock for longer than the timeout."""


class StoreAway(StoreTrouble):
    """The database does not answer. It may come back."""


class StoreInUse(UserError):
    """Another daemon owns the store."""


def read_url(text: str) -> URL:
    """Parse and check the URL of a database for a store."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # Show neither the text nor the cause: they may contain a password.
        raise StoreTrouble(f"This is not the URL of a database: give a URL such as {_EXAMPLES}.") from None
    backend_name = {"postgres": "postgresql"}.get(url.get_backend_name(), url.get_backend_name())
    in_memory = backend_name == "sqlite" and url.database in (None, "", ":memory:")
    if backend_name not in ("sqlite", "postgresql") or in_memory:
        shown = url.render_as_string(hide_password=True)
        raise StoreTrouble(f"{shown!r} cannot hold the journal: give a URL such as {_EXAMPLES}.")
    return url.set(drivername="postgresql+psycopg" if backend_name == "postgresql" else "sqlite")


#: What PostgreSQL (SQLSTATE) and SQLite say of damaged files.
_DAMAGED = ("XX001", "XX002")
_DAMAGED_WORDS = ("malformed", "not a database", "Could not decode")

_EXAMPLES = "sqlite:////var/lib/horae/journal.db or postgresql://user@host/database"


def connect(url: URL, timeout_s: float) -> Engine:
    """An SQLAlchemy engine whose commits are on disk when they return, and whose locks time out."""
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, timeout_s)
    try:
        from horae.service.store.deadlines import DeadlineConnection, begin_session, connect_options

        engine = create_engine(url, pool_timeout=timeout_s)
    except (NoSuchModuleError, ModuleNotFoundError) as why:
        raise StoreTrouble("PostgreSQL needs another package: pip install 'horae[postgres]'.") from why

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, words: Any, named: dict[str, Any]) -> Any:
        return DeadlineConnection.connect(*words, **{**connect_options(timeout_s), **named})

    @event.listens_for(engine, "connect")
    def _set(connection: Any, _record: Any) -> None:
        begin_session(connection, timeout_s)

    @event.listens_for(engine, "checkout")
    def _ping(connection: Any, _record: Any, _proxy: Any) -> None:
        if not connection.is_there():
            raise DisconnectionError  # the pool makes a new connection

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("writes", False):
            # One writer at a time, as in SQLite, so that record numbers follow the order of commits.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")
            if TERM in options:
                check_term(connection, options[TERM])

    return engine


def check_term(connection: Connection, term: int) -> None:
    """Raise `StoreInUse` if a service with a higher term has taken the store over; under the lock of the writers."""
    found = connection.exec_driver_sql(f"SELECT value FROM facts WHERE name = '{TERM}'").scalar()
    if int(found or 0) > term:
        raise StoreInUse(
            f"Another service has taken over (term {found}, this one had term {term}): this one ends. Start it again "
            "with --standby."
        )


@contextmanager
def unhurried(connection: Connection, limit_s: float | None = None) -> Iterator[None]:
    """Let statements of a transaction take this long, or as long as they need: migrations, which nobody waits for."""
    driver = connection.connection.driver_connection
    if connection.dialect.name != "postgresql" or driver is None:
        yield
        return
    limit_ms = int((limit_s or 0.0) * 1000)
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.exec_driver_sql(f"SET LOCAL {name} = {limit_ms}")
    deadline_s, driver.deadline_s = driver.deadline_s, limit_s
    try:
        yield
    finally:
        driver.deadline_s = deadline_s


def _sqlite(url: URL, timeout_s: float) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite gives its additional files the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
    except OSError as why:
        raise StoreTrouble(f"The journal {path} cannot be opened ({why.strerror}): choose another folder.") from why
    engine = create_engine(url, pool_timeout=timeout_s, connect_args={"timeout": timeout_s})

    @event.listens_for(engine, "connect")
    def _set(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions by itself: `_begin` does, with the right mode.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that starts as a reader cannot wait for the write lock later.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A read transaction."""
    with translated_errors(engine.url), engine.begin() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A write transaction: committed to disk at the end, rolled back on an error."""
    with translated_errors(engine.url), engine.execution_options(writes=True).begin() as connection:
        yield connection


@contextmanager
def translated_errors(url: URL) -> Iterator[None]:
    """Raise database errors as `StoreTrouble`. `IntegrityError` passes: it is a bug of Horae."""
    try:
        yield
    except IntegrityError:
        raise
    except SQLAlchemyError as why:
        raise _trouble_of(url, why) from why


#: SQLSTATEs of a server that ends, or is about to begin: shutdown, crash of another session, start.
_COMES_BACK = ("57P01", "57P02", "57P03")


def _trouble_of(url: URL, why: SQLAlchemyError) -> StoreTrouble:
    """A database error as a sentence that says what to do. `code` is PostgreSQL's SQLSTATE."""
    where = str(url.database) if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)
    message = next(iter(str(why.orig if isinstance(why, DBAPIError) else why).strip().splitlines()), "no reason given")
    code = getattr(getattr(why, "orig", None), "sqlstate", None)
    if code == "53100" or "disk is full" in message:
        return StoreFull(
            f"No space is left for the journal {where}: free some space and try again. Nothing was written."
        )
    if code == "55P03" or "is locked" in message:
        return StoreLocked(f"Another program has locked the journal {where}: end that program and try again.")
    if code in _DAMAGED or any(words in message for words in _DAMAGED_WORDS):
        return StoreDamaged(f"The journal {where} is damaged ({message}).")
    if code in (None, *_COMES_BACK) and url.get_backend_name() == "postgresql":
        return StoreAway(
            f"The journal {where} cannot be reached ({message}): check that PostgreSQL runs there and accepts you."
        )
    return StoreTrouble(f"The journal {where} cannot be used ({message}): fix that and try again.")


def keep_copy(url: URL, version: int) -> None:
    """Keep a copy of an SQLite database before its tables are migrated from `version`, if the disk has room."""
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    copy = path.with_name(f"{path.name}.v{version}")
    if copy.exists() or shutil.disk_usage(path.parent).free < 3 * path.stat().st_size:
        return
    copy_sqlite(path, copy)


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy an SQLite database, also while it is written: one moment of it, readable by the owner only."""
    draft = target.with_name(f".{target.name}.draft")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    try:
        with closing(sqlite3.connect(source)) as original, closing(sqlite3.connect(draft)) as copy:
            original.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.DatabaseError as why:
        draft.unlink(missing_ok=True)
        raise StoreTrouble(f"The journal {source} cannot be copied ({why}): fix that and try again.") from why
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.rename(target)
