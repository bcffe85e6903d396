"""Opening the journal of a service: compared with its high-water mark, and verified, before anything rests on it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from horae.core.events import NumbersRaised
from horae.service.store.chain import JournalDamaged, JournalLost
from horae.service.store.connection import TIMEOUT_S, StoreTrouble, connect, read_url
from horae.service.store.high_water_mark import MARK_FILE, HighWaterMark, Mark
from horae.service.store.salvage import salvage
from horae.service.store.store import Store
from horae.service.store.store_lock import lock_store
from horae.service.store.used_numbers import GAP, used_numbers

#: Records up to which all bodies are verified before the service starts; those of longer journals are verified beside
#: the service.
FEW_RECORDS = 20_000
_UNMARKED = (
    "The journal had no high-water mark (it is of an older release, or came from another folder): it is taken as it "
    "is, and marked from now on."
)


def journal_url(state: Path) -> str:
    """URL of the journal in a state folder, which a service uses unless it is told of a database."""
    return URL.create("sqlite", database=str(state / "journal.db")).render_as_string()


@dataclass(frozen=True)
class Opened:
    """A verified store, and what the operator is told of it."""

    store: Store
    notes: tuple[str, ...] = ()


def open_store(
    url: str,
    state: Path,
    own: bool = True,
    timeout_s: float = TIMEOUT_S,
    accept_loss: bool = False,
    shared: Path | None = None,
) -> Opened:
    """Open and verify the journal of the service with this state folder; refuses a journal that lost anything.

    With `accept_loss`, goes on with what there is; `shared` is the folder in which a cluster's jobs have theirs.
    Without `own`, the journal of another service is opened to be read, and `take_store` verifies it.
    """
    if not own:
        return Opened(Store(url, timeout_s=timeout_s))
    try:
        return _open_sound(url, state, timeout_s)
    except JournalDamaged as damage:
        if not accept_loss:
            raise
        return _open_after_loss(url, state, timeout_s, damage, shared)


def _open_sound(url: str, state: Path, timeout_s: float) -> Opened:
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
    notes = (_UNMARKED,) if mark.mark is None and last else ()
    store.keep_mark(mark)
    if last > FEW_RECORDS:
        threading.Thread(target=_verify_beside, args=(store, last), name="horae-verify", daemon=True).start()
    return Opened(store, notes)


def _refuse_missing(url: str) -> None:
    """Refuse an SQLite file that is gone or empty. SQLite itself would delete the log beside it, and begin anew."""
    path = file_of(url)
    if path is None:
        return
    try:
        size = path.stat().st_size
    except OSError:
        raise JournalLost(f"The journal {path} is gone, though this service has used it.") from None
    if size == 0:
        raise JournalLost(f"The journal {path} is empty, though this service has written to it.")


def file_of(url: str) -> Path | None:
    """The file of an SQLite database; None for PostgreSQL."""
    parsed = read_url(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def _verify_beside(store: Store, upto: int) -> None:
    """Verify all records while the service runs. What is found shows in `/healthz`."""
    try:
        store.verify_bodies(upto)
    except JournalDamaged as damage:
        store.damage = damage.what
    except StoreTrouble:
        # The store is closed, or its database is away: nothing is known of the rest.
        return


# ------------------------------------------------------------ after loss or damage


def _open_after_loss(url: str, state: Path, timeout_s: float, damage: JournalDamaged, shared: Path | None) -> Opened:
    """Go on with what there is. No number that may have been used is given again."""
    mark = _mark_left(state)
    notes = [f"Loss was accepted. {damage.what}"]
    try:
        store = Store(url, own=True, timeout_s=timeout_s)
        try:
            store.verify()
            store.verify_bodies(store.last_seq())
        except BaseException:
            store.close()
            raise
    except JournalDamaged:
        notes.append(_salvage_locked(url, timeout_s))
        store = Store(url, own=True, timeout_s=timeout_s)
    try:
        folders = [state, *([shared] if shared else []), *_shared_folders(store)]
        raise_numbers(store, mark.mark, folders, damage.what)
        store.keep_mark(mark)
    except BaseException:
        store.close()
        raise
    return Opened(store, tuple(notes))


def _mark_left(state: Path) -> HighWaterMark:
    """The mark, or a new one if it is damaged."""
    try:
        return HighWaterMark(state / MARK_FILE)
    except JournalDamaged:
        damaged = state / MARK_FILE
        damaged.rename(damaged.with_name(f"{MARK_FILE}.damaged"))
        return HighWaterMark(state / MARK_FILE)


def _salvage_locked(url: str, timeout_s: float) -> str:
    path = file_of(url)
    if path is None:
        raise JournalDamaged("A damaged journal in PostgreSQL cannot be taken as it is: restore a backup.")
    engine = connect(read_url(url), timeout_s)
    lock = lock_store(engine)
    try:
        engine.dispose()
        return salvage(path)
    finally:
        lock.release()


def _shared_folders(store: Store) -> Iterable[Path]:
    shared = store.serve_options().get("shared")
    return [Path(shared)] if shared else []


def raise_numbers(store: Store, mark: Mark | None, folders: Iterable[Path], why: str) -> NumbersRaised:
    """Write to the journal which numbers may have been used: by the mark, and by folders on disk."""
    jobs, attempts = used_numbers(folders)
    known_jobs, known_attempts = store.highest_numbers()
    if mark is None:
        # Nobody knows how far it had come.
        known_jobs, known_attempts = known_jobs + GAP, known_attempts + GAP
    else:
        known_jobs, known_attempts = max(known_jobs, mark.job_number), max(known_attempts, mark.attempt)
    last = next((record.at_s for _, record in store.tail(store.last_seq() - 1)), 0.0)
    raised = NumbersRaised(last, max(jobs, known_jobs), max(attempts, known_attempts), why)
    store.append([raised])
    return raised
