"""Recovery: the engine from the initial settings, the newest checkpoint and the journal's tail."""

from __future__ import annotations

import logging
from collections.abc import Collection

from horae.core.checkpoint import UnreadableCheckpoint, load
from horae.core.engine import Engine
from horae.service.initial_settings import InitialSettings
from horae.service.store.chain import JournalDamaged
from horae.service.store.store import Store

_LOG = logging.getLogger(__name__)


def recover(store: Store, beginning: InitialSettings) -> tuple[Engine, int]:
    """Rebuild the engine from the journal; returns it with the number of the last record. No policy is asked."""
    engine, seq = _last_saved(store, beginning)
    for number, record in store.tail(seq, whole=True):
        engine.apply(record)
        seq = number
    return engine, seq


def check_tasks(engine: Engine, tasks: Collection[str]) -> None:
    """Raise `JournalDamaged` if a job that has not ended has no task."""
    jobs = engine.jobs
    for row in jobs.active:
        if jobs.specs[row].id not in tasks:
            raise JournalDamaged(f"The journal is damaged: the task of job {jobs.specs[row].id} is missing.")


def _last_saved(store: Store, beginning: InitialSettings) -> tuple[Engine, int]:
    """The engine of the newest readable checkpoint; without one, a new engine if the journal is complete."""
    unread: UnreadableCheckpoint | None = None
    newest = store.newest_checkpoint()
    while newest is not None:
        (seq, body), engine = newest, beginning.engine(live=True)
        try:
            load(engine, body)
        except UnreadableCheckpoint as why:
            _LOG.warning("The checkpoint after record %d cannot be read, an older one is used: %s", seq, why)
            unread, newest = why, store.newest_checkpoint(before=seq)
        else:
            return engine, seq
    if unread and not store.is_complete():
        raise unread
    return beginning.engine(live=True), 0
