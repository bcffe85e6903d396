"""How a service begins, and how it comes back: the engine from its first day, a checkpoint, and the journal's tail."""

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

#: Live speeds are measured over at least so long: jobs report about once a second.
LEAST_MEASURED_S = 5.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class InitialSettings:
    """What the engine was built with on its first day. It never changes; everything since is in the journal."""

    nodes: tuple[Node, ...]
    policy: str
    settings: Mapping[str, str] = field(default_factory=dict)
    placement: str = "best-effort"
    queues: tuple[Queue, ...] = ()

    def engine(self, learn: bool = True) -> Engine:
        """The engine of the first day; it can be kept from learning speeds from what jobs report."""
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
        """The same as plain values."""
        return asdict(self)

    @staticmethod
    def from_dict(said: Mapping[str, Any]) -> InitialSettings:
        """What `as_dict` gave."""
        beginning: InitialSettings = TypeAdapter(InitialSettings).validate_python(said)
        return beginning


class MissingPolicy:
    """In the place of a policy that cannot be made any more: a file of its settings is gone, or its name.

    What it decided is folded without it, so that no service needs a policy that it left long ago.
    """

    def __init__(self, why: UserError) -> None:
        self.why, self.memory = why, MemorySpec()

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Say why it cannot."""
        raise self.why


def _make(name: str, settings: Mapping[str, str]) -> Policy:
    try:
        return make_policy(name, settings)
    except UserError as why:
        return MissingPolicy(why)


def recover(store: Store, beginning: InitialSettings) -> tuple[Engine, int]:
    """The engine as the journal has it, and the last record's number. No policy is asked."""
    engine, seq = _last_saved(store, beginning)
    for number, record in store.tail(seq):
        engine.apply(record)
        seq = number
    return engine, seq


def _last_saved(store: Store, beginning: InitialSettings) -> tuple[Engine, int]:
    """The engine of the newest checkpoint that can be read, or of the first day if all records since are there."""
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
    if unread and not store.whole():
        raise unread
    return beginning.engine(), 0
