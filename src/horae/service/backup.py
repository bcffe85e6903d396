"""Backups: a copy of one moment of a service's journal, verified, and how it is put back.

A backup is a folder, or a tar file of one:

    manifest.json   release, time, number of the last record, SHA-256 of each file
    journal.db      the journal as SQLite, whichever database it came from; tokens as digests only
    journal.mark    the high-water mark, if the state folder had one
    secret          what signs the tokens of running jobs
    logs/           with `logs`: what attempts printed, as logs/JOB/ATTEMPT.txt

Stored: change by addition.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, inspect, select

from horae import __version__
from horae.core.errors import UserError
from horae.service.store import schema
from horae.service.store.chain import JournalDamaged
from horae.service.store.connection import TIMEOUT_S, connect, copy_sqlite, read_url, writing
from horae.service.store.high_water_mark import MARK_FILE, HighWaterMark, Mark
from horae.service.store.opening import journal_url, raise_numbers
from horae.service.store.rows import insert
from horae.service.store.salvage import set_aside
from horae.service.store.store import Store
from horae.service.store.store_lock import lock_store

VERSION = 1
MANIFEST, JOURNAL, SECRET, LOGS = "manifest.json", "journal.db", "secret", "logs"
#: Rows that are copied at a time.
_PAGE = 2000
_TAR = (".tar", ".tar.gz", ".tgz")


class BadBackup(UserError):
    """A backup that cannot be made or used."""


@dataclass(frozen=True)
class Backup:
    """What a backup holds."""

    path: Path
    seq: int
    jobs: int
    bytes: int


@dataclass(frozen=True)
class Restored:
    """What a restore did."""

    seq: int
    #: Numbers up to these are not given again.
    job_number: int
    attempt: int
    #: Where the journal that was there is now; None if there was none.
    aside: Path | None


def make_backup(state: Path, database: str | None, target: Path, logs: bool = False) -> Backup:
    """Copy one moment of a service's journal, also while it runs, and verify the copy."""
    if target.exists():
        raise BadBackup(f"{target} exists already: name a new file or folder.")
    try:
        with tempfile.TemporaryDirectory(prefix=".horae-backup-", dir=target.parent) as draft:
            folder = Path(draft) / "backup"
            folder.mkdir(mode=0o700)
            _copy_journal(database or journal_url(state), folder / JOURNAL)
            for name in (MARK_FILE, SECRET):
                if (state / name).exists():
                    _copy_private(state / name, folder / name)
            if logs:
                _copy_logs(state / "jobs", folder / LOGS)
            found = _write_manifest(folder)
            verify_backup(folder)
            _publish(folder, target)
    except OSError as why:
        raise BadBackup(f"The backup {target} cannot be written ({why.strerror or why}): name another place.") from why
    return Backup(target, found["seq"], found["jobs"], _size(target))


def verify_backup(folder: Path) -> dict[str, Any]:
    """Check each file of a backup, and the journal in it; returns the manifest."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        files: dict[str, str] = manifest["files"]
        if manifest["v"] > VERSION:
            raise BadBackup(f"{folder} was made by release {manifest['horae']}: use that release, or a later one.")
        bad = [name for name, digest in files.items() if _file_digest(folder / name) != digest]
    except FileNotFoundError as why:
        raise BadBackup(f"{folder} is no whole backup: {why.filename} is missing.") from why
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
        raise BadBackup(f"{folder} is no backup, or a damaged one: its {MANIFEST} cannot be read.") from why
    if bad:
        raise BadBackup(f"The backup {folder} is damaged: {bad[0]} is not what was written. Use another backup.")
    try:
        with _copied(folder / JOURNAL) as copy, closing(Store(_sqlite(copy))) as store:
            store.verify()
            store.verify_bodies(store.last_seq())
    except JournalDamaged as damage:
        raise BadBackup(f"The journal in {folder} is damaged. {damage.what} Use another backup.") from damage
    return manifest


def restore_backup(backup: Path, state: Path, database: str | None = None) -> Restored:
    """Put a backup back. What was there is kept aside; numbers that may have been used are not given again."""
    with unpacked(backup) as folder:
        manifest = verify_backup(folder)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        url = database or journal_url(state)
        engine = connect(read_url(url), TIMEOUT_S)
        try:
            lock = lock_store(engine)
            try:
                aside = _replace(engine, folder / JOURNAL, state)
            finally:
                lock.release()
        finally:
            engine.dispose()
        if not (state / SECRET).exists() and (folder / SECRET).exists():
            _copy_private(folder / SECRET, state / SECRET)
        _restore_logs(folder / LOGS, state / "jobs")
        mark = _newest_mark(state, folder)
    with closing(Store(url, own=True)) as store:
        why = f"The journal was restored from a backup of {manifest['made']}."
        raised = raise_numbers(store, mark.mark, [state, *_shared(store)], why)
        store.keep_mark(mark)
        store.verify(mark.mark)
        return Restored(store.last_seq(), raised.job_number, raised.attempt, aside)


@contextmanager
def unpacked(backup: Path) -> Iterator[Path]:
    """The folder of a backup; a tar file is unpacked for a while."""
    if backup.is_dir():
        yield backup
        return
    with tempfile.TemporaryDirectory(prefix="horae-restore-") as draft:
        try:
            with tarfile.open(backup) as archive:
                archive.extractall(draft, filter="data")
        except (OSError, tarfile.TarError) as why:
            raise BadBackup(f"{backup} cannot be read as a backup ({why}): name a folder or tar file of one.") from why
        yield Path(draft)


# ------------------------------------------------------------------- journals


def _copy_journal(url: str, target: Path) -> None:
    """Copy a journal into an SQLite file, as of one moment."""
    parsed = read_url(url)
    if parsed.get_backend_name() == "sqlite":
        source = Path(str(parsed.database))
        if not source.exists():
            raise BadBackup(f"There is no journal {source}: name the state folder of a service with --state.")
        copy_sqlite(source, target)
        return
    source_engine = connect(parsed, TIMEOUT_S)
    target_engine = connect(URL.create("sqlite", database=str(target)), TIMEOUT_S)
    try:
        snapshot = source_engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with snapshot.connect() as original, original.begin(), writing(target_engine) as copy:
            if not inspect(original).has_table(schema.facts.name):
                raise BadBackup("This database holds no journal of Horae: check the URL.")
            _copy_tables(original, copy)
        with target_engine.connect() as copy:
            copy.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        source_engine.dispose()
        target_engine.dispose()
    for part in ("-wal", "-shm"):
        target.with_name(target.name + part).unlink(missing_ok=True)


def _copy_tables(source: Connection, target: Connection) -> None:
    """Create the tables and copy all rows."""
    schema.create(target)
    target.execute(schema.facts.delete())
    for table in schema.TABLES.sorted_tables:
        rows = source.execution_options(yield_per=_PAGE).execute(select(table)).mappings()
        for page in rows.partitions(_PAGE):
            insert(target, table, [_plain(dict(row)) for row in page])


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in row.items()}


def _replace(engine: Engine, journal: Path, state: Path) -> Path | None:
    """Put a journal where another was, which is kept aside; returns where."""
    if engine.url.get_backend_name() == "sqlite":
        path = Path(str(engine.url.database))
        engine.dispose()
        aside = set_aside(path) if path.exists() and path.stat().st_size else None
        copy_sqlite(journal, path)
        return aside
    source = connect(URL.create("sqlite", database=str(journal)), TIMEOUT_S)
    aside = None
    try:
        with engine.connect() as connection:
            is_used = inspect(connection).has_table(schema.facts.name)
        if is_used:
            aside = state / f"journal.before-restore.{time.strftime('%Y%m%d-%H%M%S')}.db"
            _copy_journal(engine.url.render_as_string(hide_password=False), aside)
        with source.connect() as copy, writing(engine) as target:
            if is_used:
                schema.TABLES.drop_all(target)
                target.exec_driver_sql("DROP FUNCTION IF EXISTS acts_stay() CASCADE")
            _copy_tables(copy, target)
    finally:
        source.dispose()
    return aside


def _newest_mark(state: Path, folder: Path) -> HighWaterMark:
    """The mark of the state folder, with the highest numbers that any mark knows."""
    marks = [found for path in (state / MARK_FILE, folder / MARK_FILE) if (found := _mark_in(path))]
    if (state / MARK_FILE).exists() and _mark_in(state / MARK_FILE) is None:
        (state / MARK_FILE).rename(state / f"{MARK_FILE}.damaged")
    if not (state / MARK_FILE).exists():
        # The jobs of after the backup are unknown here: numbers are raised by a wide gap.
        return HighWaterMark(state / MARK_FILE)
    mark = HighWaterMark(state / MARK_FILE)
    job, attempt = max(found.job_number for found in marks), max(found.attempt for found in marks)
    assert mark.mark is not None
    mark.write(Mark(mark.mark.identity, mark.mark.seq, mark.mark.head, job, attempt))
    return mark


def _mark_in(path: Path) -> Mark | None:
    try:
        return HighWaterMark(path).mark
    except JournalDamaged:
        return None


def _shared(store: Store) -> list[Path]:
    shared = store.serve_options().get("shared")
    return [Path(shared)] if shared else []


# --------------------------------------------------------------------- files


def _sqlite(path: Path) -> str:
    return URL.create("sqlite", database=str(path)).render_as_string()


@contextmanager
def _copied(journal: Path) -> Iterator[Path]:
    """A copy for a while: to open a database may change its file, and a backup may not be writable."""
    with tempfile.TemporaryDirectory(prefix="horae-verify-") as draft:
        yield Path(shutil.copy(journal, Path(draft) / JOURNAL))


def _copy_private(source: Path, target: Path) -> None:
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as copy, source.open("rb") as original:
        shutil.copyfileobj(original, copy)


def _copy_logs(jobs: Path, target: Path) -> None:
    """Copy the logs of all attempts. Jobs can write there: only plain files are read, and links are not followed."""
    for log in jobs.glob("*/*/log.txt*"):
        if log.is_symlink() or log.parent.is_symlink() or not log.is_file():
            continue
        folder = target / log.parent.parent.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A long log has further parts, named by where they begin.
        _copy_private(log, folder / log.name.replace("log", log.parent.name, 1))


def _restore_logs(logs: Path, jobs: Path) -> None:
    """Put logs back where there are none. A folder of an attempt keeps its number from being used again."""
    for log in logs.glob("*/*.txt*"):
        attempt, _, ending = log.name.partition(".")
        target = jobs / log.parent.name / attempt / f"log.{ending}"
        if not target.exists():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _copy_private(log, target)


def _write_manifest(folder: Path) -> dict[str, Any]:
    with closing(Store(_sqlite(folder / JOURNAL))) as store:
        seq, jobs = store.last_seq(), len(store.tasks())
    for part in ("-wal", "-shm"):
        (folder / f"{JOURNAL}{part}").unlink(missing_ok=True)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    manifest = {
        "v": VERSION,
        "horae": __version__,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seq": seq,
        "jobs": jobs,
        "files": {name: _file_digest(folder / name) for name in files},
    }
    handle = os.open(folder / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    return manifest


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _publish(folder: Path, target: Path) -> None:
    """Give a finished backup its name."""
    if not target.name.endswith(_TAR):
        folder.rename(target)
        return
    draft = folder.with_name("backup.tar")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        with tarfile.open(fileobj=file, mode="w" if target.suffix == ".tar" else "w:gz") as archive:
            archive.add(folder, arcname=".")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(target)


def _size(target: Path) -> int:
    if target.is_file():
        return target.stat().st_size
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
