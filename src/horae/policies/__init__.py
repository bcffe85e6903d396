"""The policies: one readable file for each policy or family. The registry is a dictionary, open for additions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from horae.core.errors import UserError, did_you_mean
from horae.core.policy import Policy
from horae.policies.gavel.allox import AlloX
from horae.policies.gavel.cost import Cost, CostDeadline
from horae.policies.gavel.fifo_sjf_aware import FifoAware, ShortestAware
from horae.policies.gavel.finish_time import FinishTime
from horae.policies.gavel.gandiva import Gandiva
from horae.policies.gavel.isolated import Isolated
from horae.policies.gavel.makespan import Makespan
from horae.policies.gavel.share_policies import Hierarchical, MaxMin, StrategyProof, TotalThroughput, WaterFilling
from horae.policies.marginal_gain.optimus import Optimus
from horae.policies.marginal_gain.slaq import Slaq
from horae.policies.ordering.fifo import Fifo, FifoBackfill
from horae.policies.ordering.least_attained import LeastAttainedService
from horae.policies.ordering.shortest_first import ShortestRemainingService, ShortestRemainingTime
from horae.policies.ordering.smallest_first import SmallestFirst
from horae.policies.ordering.time_slice import TimeSlice
from horae.policies.outside import BadPolicy, is_built_in, make_of
from horae.policies.settings import Parameter, parameters_of
from horae.policies.themis.highest_rho import HighestRho
from horae.policies.themis.themis import Themis
from horae.policies.tiresias.tiresias import Tiresias, TiresiasGittins

#: Policy classes by name. A name with a colon is the place of a class outside, such as `./mine.py:MyPolicy`.
POLICIES: dict[str, type[Any]] = {
    "fifo": Fifo,
    "fifo-backfill": FifoBackfill,
    "smallest-first": SmallestFirst,
    "srtf": ShortestRemainingTime,
    "srsf": ShortestRemainingService,
    "las": LeastAttainedService,
    "time-slice": TimeSlice,
    "tiresias": Tiresias,
    "tiresias-gittins": TiresiasGittins,
    "isolated": Isolated,
    "highest-rho": HighestRho,
    "slaq": Slaq,
    "optimus": Optimus,
    "gandiva": Gandiva,
    "max-min": MaxMin,
    "water-filling": WaterFilling,
    "hierarchical": Hierarchical,
    "finish-time": FinishTime,
    "makespan": Makespan,
    "total-throughput": TotalThroughput,
    "strategy-proof": StrategyProof,
    "cost": Cost,
    "cost-deadline": CostDeadline,
    "themis": Themis,
    "fifo-aware": FifoAware,
    "sjf-aware": ShortestAware,
    "allox": AlloX,
}


#: Setting that the service stores with a policy from a file or a module: the hash of its content.
CONTENT_HASH = "file-sha256"

#: What people are told of a policy, where its author says nothing.
_UNSAID = {"objective": "-", "unit": "-", "paper": ""}

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class PolicyInfo:
    """A policy, for people."""

    name: str
    summary: str
    objective: str
    unit: str
    paper: str
    #: Whether the policy goes by the speeds of jobs on GPU types; None if its author does not say.
    type_aware: bool | None
    parameters: tuple[Parameter, ...]


class UnknownPolicy(UserError):
    """A policy that does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(f"No policy is called {name!r}.{did_you_mean(name, POLICIES)} `horae policies` lists them.")


def policy(name: str) -> Callable[[Class], Class]:
    """Register a policy class under a name: a decorator.

    The name can then be used wherever a policy is named. Another class of the same name replaces the first,
    so that a cell of a notebook can be run again; the names of Horae's own policies are taken.
    """

    def register(chosen: Class) -> Class:
        add_policy(name, chosen)
        return chosen

    return register


def add_policy(name: str, chosen: type[Any]) -> None:
    """Add a class to the registry; a class without `plan` and a name that is taken are refused."""
    if not callable(getattr(chosen, "plan", None)):
        raise BadPolicy(f"{chosen!r} cannot be the policy {name!r}: it has no method plan(self, now, memory).")
    if is_built_in(POLICIES.get(name)) and POLICIES[name] is not chosen:
        raise BadPolicy(f"{name!r} is the name of a policy of Horae's own: choose another name.")
    POLICIES[name] = chosen


def describe(name: str) -> PolicyInfo:
    """What people want to know of a policy."""
    chosen = class_of(name)
    summary = (chosen.__doc__ or "").split("\n", 1)[0]
    about = {field: str(getattr(chosen, field, unsaid)) for field, unsaid in _UNSAID.items()}
    aware = getattr(chosen, "type_aware", None)
    return PolicyInfo(
        name=name,
        summary=summary,
        type_aware=aware if isinstance(aware, bool) else None,
        parameters=parameters_of(chosen),
        **about,
    )


def make_policy(name: str, settings: Mapping[str, str]) -> Policy:
    """The policy of this name with these settings. What a policy from outside wishes is checked."""
    chosen = class_of(name)
    own = {key: value for key, value in settings.items() if key != CONTENT_HASH or ":" not in name}
    return make_of(name, chosen, own)


def class_of(name: str) -> type[Any]:
    """The class of a registered policy."""
    if name not in POLICIES:
        raise UnknownPolicy(name)
    return POLICIES[name]
