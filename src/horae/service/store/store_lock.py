"""One daemon for one store: a lock that goes with the process that has it, however it ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Protocol

from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from horae.core.errors import UserError
from horae.service.store.connection import OWNER, StoreLocked, StoreTrouble, told


class StoreInUse(UserError):
    """Another daemon has the store."""


class StoreLock(Protocol):
    """The right to append."""

    def confirm(self) -> None:
        """Raise `StoreInUse` if the right was lost to another daemon."""
        ...

    def release(self) -> None:
        """Give it up."""
        ...


def own(engine: Engine) -> StoreLock:
    """Take a store for this process."""
    if engine.url.get_backend_name() == "sqlite":
        return _FileLock(engine.url)
    return _ServerLock(engine)


class _FileLock:
    """A lock on a file beside the database. The kernel keeps it as long as the process lives."""

    def __init__(self, url: URL) -> None:
        path = f"{url.database}.lock"
        try:
            self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as why:
            raise StoreTrouble(f"The lock {path} cannot be opened ({why.strerror}): choose another place.") from why
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as why:
            owner = os.pread(self._file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise StoreInUse(
                f"Another daemon, process {owner}, has the journal {url.database}: stop it first, or use another one."
            ) from why
        # Only for the sentence above: a full disk keeps nobody from owning the store.
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def confirm(self) -> None:
        """Nobody can take it from us."""

    def release(self) -> None:
        """Let the next daemon in."""
        os.close(self._file)


class _ServerLock:
    """An advisory lock of PostgreSQL, which the server keeps as long as the connection lives."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection = self._take()

    def _take(self) -> Connection:
        with told(self._engine.url):
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            # It waits a little: the server may be about to notice that a daemon has died.
            with told(self._engine.url):
                connection.execute(text(f"SELECT pg_advisory_lock({OWNER})"))
        except StoreLocked as why:
            connection.close()
            where = self._engine.url.render_as_string(hide_password=True)
            raise StoreInUse(f"Another daemon has the journal {where}: stop it first, or use another one.") from why
        return connection

    def confirm(self) -> None:
        """A connection that was cut lost the lock; it is taken again unless another daemon was quicker."""
        try:
            self._connection.scalar(text("SELECT 1"))
        except SQLAlchemyError:
            with suppress(SQLAlchemyError):
                self._connection.invalidate()
            self._connection.close()
            self._connection = self._take()

    def release(self) -> None:
        """Let the next daemon in."""
        with suppress(SQLAlchemyError):
            # Into the pool it must not go: there it would keep the lock.
            self._connection.detach()
            self._connection.close()
