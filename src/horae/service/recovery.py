"""Start and recovery: the engine from the initial settings, the newest checkpoint and the journal's tail.

`InitialSettings` is stored: change by addition.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from pydantic import TypeAdapter

from horae.core.checkpoint import UnreadableCheckpoint, load
from horae.core.cluster import Cluster, Node
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.memory import Memory, MemorySpec
from horae.core.policy import Policy
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.placement.rules import make_placement
from horae.plugins.policies import load_stored_policy
from horae.plugins.setting_files import with_files
from horae.policies import make_policy
from horae.policies.outside import CheckedPolicy
from horae.service.store.store import Store

#: Least seconds over which a live speed is measured; jobs report about once a second.
LEAST_MEASURED_S = 5.0
#: A policy from outside that failed is asked again after this long, even if nothing happens.
_RETRY_S = 60.0
_NO_ROWS = np.empty(0, np.int64)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class InitialSettings:
    """Settings of the engine at the first start of the service. Later changes are in the journal."""

    nodes: tuple[Node, ...]
    policy: str
    settings: Mapping[str, str] = field(default_factory=dict)
    placement: str = "best-effort"
    queues: tuple[Queue, ...] = ()

    def engine(self, learn: bool = True, live: bool = False) -> Engine:
        """A new engine with these settings. `learn`: whether it learns speeds from progress reports.

        `live`: whether the engine goes on if a policy from outside fails.
        """
        return Engine(
            Cluster(self.nodes),
            self._make_live if live else self._make,
            self.policy,
            self.settings,
            make_placement(self.placement),
            queues=self.queues,
            learn=learn,
            least_measured_s=LEAST_MEASURED_S,
        )

    def make_policy(self, name: str, settings: Mapping[str, str]) -> Policy:
        """A policy that is registered; nothing is loaded, for the journal may be another machine's."""
        return make_policy(name, with_files(name, settings))

    def _make(self, name: str, settings: Mapping[str, str]) -> Policy:
        try:
            return self.make_policy(name, settings)
        except UserError as why:
            return MissingPolicy(why)

    def _make_live(self, name: str, settings: Mapping[str, str]) -> Policy:
        made = self._make(name, settings)
        return SteadyPolicy(made.name, made.inner) if isinstance(made, CheckedPolicy) else made

    def as_dict(self) -> dict[str, Any]:
        """These settings as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The settings that `as_dict` wrote."""
        beginning: Self = TypeAdapter(cls).validate_python(values)
        return beginning


class OwnSettings(InitialSettings):
    """The same for the service itself: policies from files and modules that it stored are loaded, if unchanged."""

    def make_policy(self, name: str, settings: Mapping[str, str]) -> Policy:
        """The policy of a name, or of a place that was named on the service's own command line."""
        load_stored_policy(name, settings)
        return super().make_policy(name, settings)


class MissingPolicy:
    """Stands in for a policy that cannot be created: its file is gone or changed, or it is not installed here.

    Its recorded decisions are applied without it, so a service does not need a policy that it no longer uses, and
    the journal of another machine can be read.
    """

    def __init__(self, why: UserError) -> None:
        self.why, self.memory = why, MemorySpec()

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Raise the error with which the policy could not be created."""
        raise self.why


class SteadyPolicy(CheckedPolicy):
    """A policy from outside in a live service. While it fails, jobs keep their GPUs, and no other job starts."""

    #: What is wrong with the policy; empty while all is well.
    trouble = ""

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """What the policy wishes, or nothing; it is asked again at the next event, or after a minute."""
        try:
            wishes = super().plan(now, memory)
        except UserError as error:
            _LOG.warning("%s No job is started or stopped until the policy answers.", error, exc_info=error.__cause__)
            self.trouble = str(error)
            return Wishes(_NO_ROWS, waiting=Reason.NOT_YET_CONSIDERED, wake_s=now.now_s + _RETRY_S)
        self.trouble = ""
        return wishes


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
