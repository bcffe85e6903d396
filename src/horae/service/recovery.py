"""Recovery: the engine from the initial settings, the newest checkpoint and the journal's tail."""

from __future__ import annotations

import logging

from horae.core.checkpoint import UnreadableCheckpoint, load
from horae.core.engine import Engine
from horae.service.initial_settings import InitialSettings
from horae.service.store.store import Store

_LOG = logging.getLogger(__name__)


def recover(store: Store, beginning: InitialSettings) -> tuple[Engine, int]:
    """Rebuild the engine from the journal; returns it with the number of the last record. No policy is asked."""
    engine, seq = _last_saved(store, beginning)
    for number, record in store.tail(seq):
        engine.apply(record)
        seq = number
    return engine, seq


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
