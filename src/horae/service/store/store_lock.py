"""The store lock: one daemon per store. The lock ends with its process, however the process ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Protocol

from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from horae.core.errors import UserError
from horae.service.store.connection import OWNER_LOCK, StoreLocked, StoreTrouble, translated_errors


class StoreInUse(UserError):
    """Another daemon owns the store."""


class StoreLock(Protocol):
    """The right to append to a store."""

    def confirm(self) -> None:
        """Raise `StoreInUse` if another daemon has taken the lock."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...


def lock_store(engine: Engine) -> StoreLock:
    """Lock a store for this process."""
    if engine.url.get_backend_name() == "sqlite":
        return _FileLock(engine.url)
    return _ServerLock(engine)


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

    def confirm(self) -> None:
        """Nothing to check: a file lock cannot be lost."""

    def release(self) -> None:
        """Release the lock."""
        os.close(self._file)


class _ServerLock:
    """An advisory lock of PostgreSQL. The server holds it as long as the connection lives."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection = self._take()

    def _take(self) -> Connection:
        with translated_errors(self._engine.url):
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            # Waits for the timeout: the server may need time to notice that the last daemon has died.
            with translated_errors(self._engine.url):
                connection.execute(text(f"SELECT pg_advisory_lock({OWNER_LOCK})"))
        except StoreLocked as why:
            connection.close()
            where = self._engine.url.render_as_string(hide_password=True)
            raise StoreInUse(f"Another service uses the journal {where}: stop it first, or use another one.") from why
        return connection

    def confirm(self) -> None:
        """Take the lock again if the connection was lost; fails if another daemon was faster."""
        try:
            self._connection.scalar(text("SELECT 1"))
        except SQLAlchemyError:
            with suppress(SQLAlchemyError):
                self._connection.invalidate()
            self._connection.close()
            self._connection = self._take()

    def release(self) -> None:
        """Release the lock."""
        with suppress(SQLAlchemyError):
            # Do not return the connection to the pool: there it would keep the lock.
            self._connection.detach()
            self._connection.close()
