"""The engine's settings at the first start of a service, and the engine made from them. Stored: change by addition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pydantic import TypeAdapter

from horae.core.cluster import Cluster, Node
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.policy import Policy
from horae.core.queues import Queue
from horae.placement.rules import make_placement
from horae.plugins.policies import load_stored_policy
from horae.plugins.setting_files import with_files
from horae.policies import make_policy
from horae.policies.outside import CheckedPolicy
from horae.service.failing_policies import MissingPolicy, SteadyPolicy

#: Least seconds over which a live speed is measured; jobs report about once a second.
LEAST_MEASURED_S = 5.0


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
