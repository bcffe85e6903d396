"""The store lock: one daemon per store. The lock ends with its process, however the process ends."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from horae.service.store.connection import (
    OWNER_LOCK,
    TERM,
    StoreInUse,
    StoreLocked,
    StoreTrouble,
    check_term,
    translated_errors,
    writing,
)
from horae.service.store.facts import read_fact, write_fact

#: Seconds between two beats of the service that owns a store in PostgreSQL, and without one until the lock is free.
BEAT_S, LEASE_S = 1.0, 6.0
#: The first version of PostgreSQL that ends idle sessions. With older ones, TCP tells that a machine is dead.
_IDLE_TIMEOUT_SINCE = 14


class StoreLock(Protocol):
    """The right to append to a store."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts of the store that others may have changed a moment ago; empty if nobody else can."""
        ...

    def confirm(self) -> None:
        """Raise `StoreInUse` if another daemon has taken the store over."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...


def lock_store(engine: Engine) -> StoreLock:
    """Lock a store for this process; raises `StoreInUse` if another has it."""
    if engine.url.get_backend_name() == "sqlite":
        return _FileLock(engine.url)
    lock = _take_server_lock(engine, wait=True)
    assert lock is not None
    return lock


def try_lock(engine: Engine) -> StoreLock | None:
    """Lock a store in PostgreSQL for this process; None if another has it."""
    return _take_server_lock(engine, wait=False)


class _FileLock:
    """A lock on a file next to the SQLite database. The kernel holds it as long as the process lives."""

    def __init__(self, url: URL) -> None:
        path = f"{url.database}.lock"
        try:
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as why:
            raise StoreTrouble(f"The lock {path} cannot be opened ({why.strerror}): choose another folder.") from why
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as why:
            owner = os.pread(self._file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise StoreInUse(
                f"Another service (process {owner}) uses the journal {url.database}: stop it first, or use another one."
            ) from why
        # The process id is only for the sentence above: a full disk must not prevent the lock.
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)

    @property
    def facts(self) -> Mapping[str, str]:
        """Nothing: nobody else has the file."""
        return {}

    def confirm(self) -> None:
        """Nothing to check: a file lock cannot be lost."""

    def release(self) -> None:
        """Release the lock."""
        os.close(self._file)


class _ServerLock:
    """An advisory lock of PostgreSQL. The server holds it as long as the connection lives, and beats come.

    A thread beats every second. Without a beat for `LEASE_S` the server ends the session, and with it the lock: so a
    service loses it that is frozen, or on a machine that is cut off. The term tells whether another has taken over.
    """

    def __init__(self, engine: Engine, connection: Connection) -> None:
        self._engine, self._connection = engine, connection
        #: Why this service does not own the store any more; empty while it does.
        self._lost = ""
        self._facts: dict[str, str] = {}
        #: Whether the lock is this connection's; not, for a while, after the connection was lost.
        self._held = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="horae-lease", daemon=True)
        self._thread.start()

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts of the store, as they were at the last beat."""
        return self._facts

    def confirm(self) -> None:
        """Raise `StoreInUse` if another daemon has taken over. Asks nobody: each transaction checks the term itself."""
        if self._lost:
            raise StoreInUse(self._lost)

    def _beat_on(self) -> None:
        while not self._closing.wait(BEAT_S) and not self._lost:
            try:
                self._beat()
            except StoreInUse as why:
                self._lost = str(why)
            except SQLAlchemyError:
                self._connect_again()

    def _beat(self) -> None:
        """Read the facts, by which the server notes that this service lives. Take the lock again if it was lost."""
        rows = self._connection.execute(text("SELECT name, value FROM facts")).all()
        self._facts = {str(name): str(value) for name, value in rows}
        if term := self._engine.get_execution_options().get(TERM):
            check_term(self._connection, int(term))
        if not self._held:
            self._held = _try(self._connection)

    def _connect_again(self) -> None:
        self._held = False
        with suppress(SQLAlchemyError):
            self._connection.invalidate()
        with suppress(SQLAlchemyError):
            self._connection.close()
        with suppress(SQLAlchemyError):
            self._connection = _session(self._engine)
            _lease(self._connection)

    def release(self) -> None:
        """Release the lock."""
        self._closing.set()
        self._thread.join(BEAT_S)
        with suppress(SQLAlchemyError):
            self._connection.close()


def _session(engine: Engine) -> Connection:
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def _try(connection: Connection) -> bool:
    return bool(connection.scalar(text(f"SELECT pg_try_advisory_lock({OWNER_LOCK})")))


def _lease(connection: Connection) -> None:
    """Have the server end a session, and with it the lock, if no beat comes for `LEASE_S`."""
    # Such a session never goes back to the pool.
    connection.detach()
    if int((connection.dialect.server_version_info or (0,))[0]) >= _IDLE_TIMEOUT_SINCE:
        connection.execute(text(f"SET idle_session_timeout = {int(LEASE_S * 1000)}"))


def _take_server_lock(engine: Engine, wait: bool) -> _ServerLock | None:
    """Take the lock of a database; None if another has it and `wait` is False."""
    with translated_errors(engine.url):
        connection = _session(engine)
    try:
        with translated_errors(engine.url):
            if wait:
                # Waits for the timeout: the server may need time to notice that the last daemon has died.
                connection.execute(text(f"SELECT pg_advisory_lock({OWNER_LOCK})"))
            elif not _try(connection):
                connection.close()
                return None
            _lease(connection)
    except StoreLocked as why:
        connection.close()
        where = engine.url.render_as_string(hide_password=True)
        raise StoreInUse(
            f"Another service uses the journal {where}: stop it first, use another one, or wait for its end with "
            "--standby."
        ) from why
    except BaseException:
        connection.close()
        raise
    return _ServerLock(engine, connection)


def take_term(engine: Engine, above: int = 0) -> int:
    """Raise the term of a store, and write under this term alone from now on; returns it. Needs the lock."""
    with writing(engine) as connection:
        term = max(int(read_fact(connection, TERM) or 0), above) + 1
        write_fact(connection, TERM, str(term))
    engine.update_execution_options(**{TERM: term})
    return term
