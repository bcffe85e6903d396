"""A PostgreSQL server for tests alone: in a folder of its own, on a socket that nobody else finds."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from horae.service.store.connection import OWNER_LOCK


def program(name: str) -> str | None:
    """Where a program of PostgreSQL is: on the path, or where distributions put it."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or next((str(path) for path in installed), None)


def _memory() -> Path | None:
    """A folder in memory, where there is one with room: databases are made and thrown away much faster there."""
    folder = Path("/dev/shm")
    return folder if folder.is_dir() and shutil.disk_usage(folder).free > 2**30 else None


class Server:
    """One server. Databases are made as they are asked for."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="horae-pg-", dir=_memory()))
        # PostgreSQL refuses to be run by root.
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
            self._as = {"user": "postgres", "group": "postgres", "extra_groups": []}
        self._numbers = itertools.count(1)
        self._call(program("initdb"), "-D", "data", "-U", "horae", "-A", "trust", "-E", "UTF8", "--no-sync")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _call(self, *command: str | None) -> None:
        subprocess.run([str(word) for word in command], cwd=self.folder, check=True, capture_output=True, **self._as)

    def start(self) -> None:
        settings = ("fsync=off", "listen_addresses=", f"unix_socket_directories={self.folder}")
        words = [word for setting in settings for word in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(program("postgres")), "-D", "data", *words], cwd=self.folder, stdout=log, stderr=log, **self._as
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Cut all connections and end."""
        if self._process:
            self._process.send_signal(how)
            self._process.wait(timeout=60)
        self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes of the server where they are: sockets stay open, and nobody answers."""
        assert self._process
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        os.kill(self._process.pid, signal.SIGSTOP)
        pids = [self._process.pid, *(int(pid) for pid in children.read_text().split())]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        # Without the tidying up: nobody needs the data any more.
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql://horae@/{database}?host={self.folder}"

    def do(self, *statements: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def new_database(self, options: str = "") -> str:
        name = f"store_{next(self._numbers)}"
        self.do(f"CREATE DATABASE {name} {options}")
        return self.url(name)


def owners(postgres: Server) -> int:
    """How many sessions have the lock of an owner."""
    with psycopg.connect(postgres.url("postgres")) as connection:
        rows = connection.execute("SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted").fetchall()
    return sum(row[0] == OWNER_LOCK & 0xFFFFFFFF for row in rows)
