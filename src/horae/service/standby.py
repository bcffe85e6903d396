"""A standby: follows the journal of the active service, answers requests that read, and is ready to take over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from horae.backends.local.attempt_folders import AttemptFolders
from horae.backends.protocol import Sight
from horae.backends.shared_folder import piece_log, read_secrets
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.events import JobsRetired, JobSubmitted
from horae.core.status import ClusterStatus
from horae.service.clock import Clock
from horae.service.initial_settings import InitialSettings
from horae.service.loop_counters import LoopCounters
from horae.service.orphans import Orphans
from horae.service.recent_records import RecentRecords
from horae.service.recovery import recover
from horae.service.store.chain import JournalDamaged
from horae.service.store.connection import StoreTrouble
from horae.service.store.store import Store
from horae.service.tokens import Tokens

#: Seconds between two looks at the journal, and how many of them there are from one look at tokens to the next.
_FOLLOW_S, _TOKENS_EVERY = 0.2, 5
#: Names of facts in which services tell each other where they are reached.
ACTIVE, STANDBY = "active", "standby"


class StandingBy(UserError):
    """A standby changes nothing: another service is active."""


class LogFiles:
    """What a standby knows of the backend: where the active service's jobs write their logs. It opens no backend."""

    shares_gpus = True
    honours: frozenset[str] = frozenset()
    submit_with = ""
    trouble = ""

    def __init__(self, state: Path, shared: Path | None, secrets: Path | None, is_known: bool) -> None:
        """`is_known`: whether the backend keeps logs in one of these folders."""
        self._folders, self._shared, self._secrets, self._is_known = AttemptFolders(state), shared, secrets, is_known

    def log(self, job: str, attempt: int, piece: int = 0) -> Path:
        """The log file of an attempt."""
        if not self._is_known:
            raise StandingBy("Only the active service can read the logs of this cluster: ask that one.")
        if self._shared:
            return piece_log(self._shared, (job, attempt), piece)
        return self._folders.of((job, attempt)).log

    def refusal(self, user: str) -> str:
        """Nobody is refused: no job is submitted here."""
        return ""

    def secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Values of secrets, to be masked in logs."""
        return read_secrets(self._secrets, names)

    def sight(self) -> Sight | None:
        """Unknown: the nodes of the journal are shown."""
        return None

    def gone(self, node: str) -> None:
        """Do nothing: no request that changes anything gets so far."""

    def stop(self, job: str, attempt: int) -> None:
        """Do nothing, for the same reason."""


class Follower:
    """The engine of the active service, rebuilt record by record. For readers it is what `Daemon` is."""

    def __init__(
        self, store: Store, initial_settings: InitialSettings, backend: LogFiles, clock: Clock, tokens: Tokens
    ) -> None:
        self.store, self.initial_settings, self.backend, self.clock = store, initial_settings, backend, clock
        self._tokens = tokens
        self.engine, self.seq = recover(store, initial_settings)
        self.tasks = store.tasks()
        self.status: ClusterStatus = self.engine.status()
        self.published_seq = self.seq
        #: The newest records, for those who listen.
        self.recent = RecentRecords()
        self.counters: LoopCounters = LoopCounters(cycle_s=clock())
        self.crashed: BaseException | None = None
        #: A standby looks at no node, and writes to no disk.
        self.orphans, self.reserve = Orphans(), None
        #: Where the active service is reached, as far as is known.
        self.active_url = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horae-follower", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._look_at_services()
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def closing(self) -> bool:
        """Whether streams should end. They go on when this service takes over."""
        return False

    def ask(self, prepare: Callable[[Engine, float], Any], timeout_s: float = 0.0) -> Any:
        """Refuse: only the active service changes anything."""
        raise self.refusal()

    def refusal(self) -> StandingBy:
        """What is said to those who want to change something."""
        where = f": the active one is at {self.active_url}" if self.active_url else ""
        return StandingBy(f"This service is a standby{where}. Send changes there, or try again in a moment.")

    def catch_up(self) -> None:
        """Apply what the journal has beyond the engine. Records that were dropped meanwhile are in a checkpoint."""
        before = self.seq
        try:
            self._apply_new_records()
        except JournalDamaged:
            # Records and policy memory that a checkpoint covers may be dropped while they are read.
            if self.seq >= self.store.covered_seq():
                raise
            self._recover()
        if self.seq != before:
            self.status = self.engine.status()
            self.published_seq = self.seq

    def _apply_new_records(self) -> None:
        if self.seq < self.store.covered_seq():
            self._recover()
        for seq, record in self.store.tail(self.seq, whole=True):
            self.engine.apply(record)
            self.seq = seq
            self.recent.add((record,), seq)
            if isinstance(record, JobSubmitted):
                self.tasks.update(self.store.tasks([record.spec.id]))
            elif isinstance(record, JobsRetired):
                self.tasks = self.store.tasks()

    def _recover(self) -> None:
        self.engine, self.seq = recover(self.store, self.initial_settings)
        self.tasks = self.store.tasks()

    def _look_at_services(self) -> None:
        self._tokens.reload()
        self.active_url = str(self.store.fact(ACTIVE).get("url", ""))

    def _run(self) -> None:
        rounds = 0
        try:
            while not self._closing.wait(_FOLLOW_S):
                rounds += 1
                try:
                    self.catch_up()
                    if rounds % _TOKENS_EVERY == 0:
                        self._look_at_services()
                    self.counters.trouble = ""
                except StoreTrouble as trouble:
                    self.counters.trouble = str(trouble)
                self.counters.cycle_s = self.clock()
        except BaseException as error:
            # `Server.wait` raises the error in the main thread.
            self.crashed = error
