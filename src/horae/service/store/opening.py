"""Opening the journal of a service: compared with its high-water mark, and verified, before anything rests on it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from horae.service.store.chain import JournalDamaged, JournalLost
from horae.service.store.connection import TIMEOUT_S, StoreTrouble, read_url
from horae.service.store.high_water_mark import MARK_FILE, HighWaterMark
from horae.service.store.store import Store

#: Records up to which all bodies are verified before the service starts; those of longer journals are verified beside
#: the service.
FEW_RECORDS = 20_000
_UNMARKED = (
    "The journal had no high-water mark (it is of an older release, or came from another folder): it is taken as it "
    "is, and marked from now on."
)


@dataclass(frozen=True)
class Opened:
    """A verified store, and what the operator is told of it."""

    store: Store
    notes: tuple[str, ...] = ()


def open_store(url: str, state: Path, own: bool = True, timeout_s: float = TIMEOUT_S) -> Opened:
    """Open and verify the journal of the service with this state folder; refuses a journal that lost anything.

    Without `own`, the journal of another service is opened to be read, and `take_store` verifies it.
    """
    if not own:
        return Opened(Store(url, timeout_s=timeout_s))
    has_mark = HighWaterMark(state / MARK_FILE).mark is not None
    if has_mark:
        _refuse_missing(url)
    store = Store(url, own=True, timeout_s=timeout_s, may_create=not has_mark)
    try:
        return take_store(store, state)
    except BaseException:
        store.close()
        raise


def take_store(store: Store, state: Path) -> Opened:
    """Verify a store that this process owns, and keep its high-water mark in the state folder from now on."""
    mark = HighWaterMark(state / MARK_FILE)
    store.verify(mark.mark)
    last = store.last_seq()
    if last <= FEW_RECORDS:
        store.verify_bodies(last)
    notes = _notes(store, mark)
    store.keep_mark(mark)
    if last > FEW_RECORDS:
        threading.Thread(target=_verify_beside, args=(store, last), name="horae-verify", daemon=True).start()
    return Opened(store, notes)


def _refuse_missing(url: str) -> None:
    """Refuse an SQLite file that is gone or empty. SQLite itself would delete the log beside it, and begin anew."""
    parsed = read_url(url)
    if parsed.get_backend_name() != "sqlite":
        return
    path = Path(str(parsed.database))
    try:
        size = path.stat().st_size
    except OSError:
        raise JournalLost(f"The journal {path} is gone, though this service has used it.") from None
    if size == 0:
        raise JournalLost(f"The journal {path} is empty, though this service has written to it.")


def _notes(store: Store, mark: HighWaterMark) -> tuple[str, ...]:
    if mark.mark is not None or store.last_seq() == 0:
        return ()
    return (_UNMARKED,)


def _verify_beside(store: Store, upto: int) -> None:
    """Verify all records while the service runs. What is found shows in `/healthz`."""
    try:
        store.verify_bodies(upto)
    except StoreTrouble as trouble:
        # The store is closed, or its database is away: nothing is known of the rest.
        store.damage = trouble.what if isinstance(trouble, JournalDamaged) else ""
    except JournalDamaged as damage:
        store.damage = damage.what
