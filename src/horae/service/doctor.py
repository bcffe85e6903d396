"""Findings about a service, from its state folder and journal, read only: each a sentence that says what to do."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from horae import __version__
from horae.core.errors import UserError
from horae.core.states import ENDING, HOLDING, LAUNCHING, STATES, STOPPING
from horae.service.initial_settings import OwnSettings
from horae.service.recovery import check_tasks, recover
from horae.service.store import schema
from horae.service.store.high_water_mark import MARK_FILE, HighWaterMark, Mark
from horae.service.store.opening import journal_url
from horae.service.store.store import Store

#: Bytes of free space below which the disk counts as nearly full.
LITTLE_SPACE = 256 * 2**20
#: Seconds after which a launch or a stop counts as stuck.
STUCK_S = 300.0
#: Files in the state folder that nobody else may read.
_PRIVATE = ("token", "secret", "journal.db", "journal.db-wal", MARK_FILE)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    about: str
    ok: bool
    what: str


def examine(state: Path, database: str | None = None) -> list[Finding]:
    """Everything that can be found out without changing anything, also beside a running service."""
    return [*_versions(), *_permissions(state), *_space(state), *_journal(state, database)]


def _versions() -> Iterator[Finding]:
    text = f"horae {__version__}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    yield Finding("versions", True, f"{text}, tables of version {schema.SCHEMA}.")


def _permissions(state: Path) -> Iterator[Finding]:
    if not state.is_dir():
        yield Finding("state folder", False, f"There is no folder {state}: name the state folder with --state.")
        return
    owner, mode = state.stat().st_uid, state.stat().st_mode
    if owner != os.getuid():
        yield Finding("state folder", False, f"{state} belongs to another user: run this as the user of the service.")
    open_to_others = [state] if mode & 0o077 else []
    files = (state / name for name in _PRIVATE)
    open_to_others += [path for path in files if path.exists() and path.stat().st_mode & 0o077]
    for path in open_to_others:
        yield Finding("permissions", False, f"Other users can read {path}: run `chmod go= {path}`.")
    if not open_to_others:
        yield Finding("permissions", True, "Only its owner can read the state folder, token and journal.")


def _space(state: Path) -> Iterator[Finding]:
    if not state.is_dir():
        return
    free = shutil.disk_usage(state).free
    ok = free >= LITTLE_SPACE
    advice = "" if ok else ": free some, or jobs can no longer be submitted"
    yield Finding("disk", ok, f"{free / 1e9:.1f} GB are free for {state}{advice}.")


def _journal(state: Path, database: str | None) -> Iterator[Finding]:
    mark: Mark | None = None
    try:
        mark = HighWaterMark(state / MARK_FILE).mark
        yield Finding("mark", True, _mark_told(mark))
    except UserError as why:
        yield Finding("mark", False, str(why))
    url = database or journal_url(state)
    if not database and not (state / "journal.db").exists():
        if mark:
            yield Finding("journal", False, f"The journal in {state} is gone: `horae restore` puts a backup back.")
        return
    try:
        with closing(Store(url, may_create=False)) as store:
            yield from _verified(store, mark)
    except UserError as why:
        yield Finding("journal", False, str(why))


def _mark_told(mark: Mark | None) -> str:
    return f"The journal had come to record {mark.seq}." if mark else "There is no high-water mark yet."


def _verified(store: Store, mark: Mark | None) -> Iterator[Finding]:
    """Verify the journal, and rebuild the engine as a start would."""
    store.verify(mark)
    last = store.last_seq()
    store.verify_bodies(last)
    yield Finding("journal", True, f"{last} records, each as it was written; the chain is whole.")
    for seq, body in _checkpoints(store):
        if not body:
            yield Finding("checkpoint", False, f"The checkpoint after record {seq} is damaged: an older one is used.")
    stored = store.initial_settings()
    if stored is None:
        return
    engine, _ = recover(store, OwnSettings.from_dict(stored))
    check_tasks(engine, store.tasks())
    jobs, now_s = engine.jobs, max(engine.now_s, time.time() - store.epoch)
    stuck = 0
    for row in engine.gpus.occupied:
        state, name = STATES[jobs.state[row]], jobs.specs[row].id
        since_s = now_s - float(jobs.launched_s[row])
        if state is LAUNCHING and since_s > STUCK_S:
            stuck += 1
            yield Finding(
                "launch", False, f"Job {name} has been starting for {since_s:.0f} s: cancel it, or see its log."
            )
        elif state in (STOPPING, HOLDING, *ENDING) and now_s - float(jobs.waiting_since_s[row]) > STUCK_S:
            stuck += 1
            yield Finding("stop", False, f"Job {name} has not ended though it was told to: see what its processes do.")
    if not stuck:
        yield Finding("launches and stops", True, "None is overdue.")


def _checkpoints(store: Store) -> Iterator[tuple[int, bytes]]:
    newest = store.newest_checkpoint()
    while newest is not None:
        yield newest
        newest = store.newest_checkpoint(before=newest[0])
