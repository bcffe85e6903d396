"""Start and recovery: the engine from the initial settings, the newest checkpoint and the journal's tail.

`InitialSettings` is stored: change by addition.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from horae.core.checkpoint import UnreadableCheckpoint, load
from horae.core.cluster import Cluster, Node
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.memory import Memory, MemorySpec
from horae.core.policy import Policy
from horae.core.queues import Queue
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.placement.rules import make_placement
from horae.policies import make_policy
from horae.service.store.store import Store

#: Least seconds over which a live speed is measured; jobs report about once a second.
LEAST_MEASURED_S = 5.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class InitialSettings:
    """Settings of the engine at the first start of the service. Later changes are in the journal."""

    nodes: tuple[Node, ...]
    policy: str
    settings: Mapping[str, str] = field(default_factory=dict)
    placement: str = "best-effort"
    queues: tuple[Queue, ...] = ()

    def engine(self, learn: bool = True) -> Engine:
        """A new engine with these settings. `learn`: whether it learns speeds from progress reports."""
        return Engine(
            Cluster(self.nodes),
            _make,
            self.policy,
            self.settings,
            make_placement(self.placement),
            queues=self.queues,
            learn=learn,
            least_measured_s=LEAST_MEASURED_S,
        )

    def as_dict(self) -> dict[str, Any]:
        """These settings as plain values, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(said: Mapping[str, Any]) -> InitialSettings:
        """The settings that `as_dict` wrote."""
        beginning: InitialSettings = TypeAdapter(InitialSettings).validate_python(said)
        return beginning


class MissingPolicy:
    """Stands in for a policy that cannot be created: its name is unknown, or a file of its settings is gone.

    Its recorded decisions are applied without it, so a service does not need a policy that it no longer uses.
    """

    def __init__(self, why: UserError) -> None:
        self.why, self.memory = why, MemorySpec()

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Raise the error with which the policy could not be created."""
        raise self.why


def _make(name: str, settings: Mapping[str, str]) -> Policy:
    try:
        return make_policy(name, settings)
    except UserError as why:
        return MissingPolicy(why)


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
        (seq, body), engine = newest, beginning.engine()
        try:
            load(engine, body)
        except UnreadableCheckpoint as why:
            _LOG.warning("The checkpoint after record %d cannot be read, an older one is used: %s", seq, why)
            unread, newest = why, store.newest_checkpoint(before=seq)
        else:
            return engine, seq
    if unread and not store.is_complete():
        raise unread
    return beginning.engine(), 0
