"""The policies: one readable file for each policy or family; this dict is the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
from horae.policies.settings import Parameter, build, parameters_of
from horae.policies.themis.highest_rho import HighestRho
from horae.policies.themis.themis import Themis
from horae.policies.tiresias.tiresias import Tiresias, TiresiasGittins

_CLASSES: dict[str, type] = {
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


@dataclass(frozen=True)
class PolicyInfo:
    """A policy, for people."""

    name: str
    summary: str
    objective: str
    unit: str
    paper: str
    parameters: tuple[Parameter, ...]


class UnknownPolicy(UserError):
    """A policy that does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(f"No policy is called {name!r}.{did_you_mean(name, POLICIES)} `horae policies` lists them.")


def _info(name: str, policy: type) -> PolicyInfo:
    summary = (policy.__doc__ or "").split("\n", 1)[0]
    about = {field: getattr(policy, field) for field in ("objective", "unit", "paper")}
    return PolicyInfo(name=name, summary=summary, parameters=parameters_of(policy), **about)


POLICIES: dict[str, PolicyInfo] = {name: _info(name, policy) for name, policy in _CLASSES.items()}


def make_policy(name: str, settings: Mapping[str, str]) -> Policy:
    """The policy of this name with these settings."""
    if name not in _CLASSES:
        raise UnknownPolicy(name)
    policy: Policy = build(name, _CLASSES[name], settings)
    return policy


def with_seed(name: str, settings: Mapping[str, str], seed: int) -> dict[str, str]:
    """The settings of a policy that draws at random with the run's seed among them, unless they name their own."""
    draws = name in POLICIES and any(one.name == "seed" for one in POLICIES[name].parameters)
    return {"seed": str(seed), **settings} if draws else dict(settings)
