"""What a sweep varies: how often jobs come, how large the cluster is, or a setting of the policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from horae.core.cluster import Cluster
from horae.core.errors import UserError, did_you_mean
from horae.policies import POLICIES
from horae.policies.settings import parameters_of
from horae.report.formatting import time_unit
from horae.report.pages.curves import Axis
from horae.simulator.scenario import PolicyChoice
from horae.workload.cluster_sizes import resized

#: What can be varied whatever the policies are; everything else is a setting of theirs.
RATE, LOAD, GPUS = "rate", "load", "gpus"
SURROUNDINGS = (RATE, LOAD, GPUS)


@dataclass(frozen=True)
class Step:
    """One value of what is varied, and what it comes to. With neither rate nor load the preset's holds."""

    value: float
    cluster: Cluster
    rate: float | None = None
    load: float | None = None
    #: What it sets in the policies that can be set so.
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepAxis:
    """What is varied, and its values from the lowest up."""

    what: str
    values: tuple[float, ...]

    @property
    def is_setting(self) -> bool:
        """Whether policies are varied, not what surrounds them."""
        return self.what not in SURROUNDINGS

    def concerns(self, policy: PolicyChoice) -> bool:
        """Whether it makes any difference to a policy."""
        return not self.is_setting or any(parameter.name == self.what for parameter in policy.parameters)

    def steps(self, cluster: Cluster, rate: float | None, load: float | None) -> list[Step]:
        """A step for each value, everything else as given."""
        if self.what in (RATE, LOAD) and (rate is not None or load is not None):
            raise UserError(f"--vary {self.what} says how often jobs come; leave --rate and --load out.")
        return [self._step(value, cluster, rate, load) for value in self.values]

    def _step(self, value: float, cluster: Cluster, rate: float | None, load: float | None) -> Step:
        match self.what:
            case "rate":
                return Step(value, cluster, rate=value)
            case "load":
                return Step(value, cluster, load=value)
            case "gpus":
                return Step(value, resized(cluster, int(value)), rate, load)
            case setting:
                return Step(value, cluster, rate, load, {setting: f"{value:.12g}"})

    def axis(self, arrivals: str) -> Axis:
        """How it is drawn; `arrivals` are what comes at a rate: jobs or apps."""
        labels = {RATE: f"input rate ({arrivals}/hour)", LOAD: "load", GPUS: "cluster size (GPUs)"}
        if not (self.is_setting and _is_time(self.what)):
            return Axis(labels.get(self.what, self.what), self.values)
        unit = time_unit(self.values[-1])
        return Axis(f"{self.what} ({unit.plural})", self.values, unit.seconds)


def check_values(what: str, values: Sequence[float], written: str) -> tuple[float, ...]:
    """Values from the lowest up; those that cannot be varied over are refused. `told` is how they were written."""
    ordered = tuple(sorted(values))
    twice = next((low for low, high in pairwise(ordered) if low == high), None)
    if twice is not None:
        raise UserError(f"--vary {what}={written} has {twice:g} twice; once is enough.")
    if what in SURROUNDINGS and ordered[0] <= 0:
        raise UserError(f"--vary {what}={written} has {ordered[0]:g}; give numbers above 0.")
    if what == GPUS and not all(float(value).is_integer() for value in ordered):
        raise UserError(f"--vary {what}={written} has parts of a GPU; give whole numbers.")
    return ordered


def check_policies(variation: SweepAxis, chosen: Sequence[PolicyChoice]) -> None:
    """Some policy has the setting, and all that have it can be set to every value."""
    what = variation.what
    if not any(variation.concerns(choice) for choice in chosen):
        names = [*SURROUNDINGS, *dict.fromkeys(setting.name for choice in chosen for setting in choice.parameters)]
        raise UserError(
            f"None of the chosen policies has a setting {what!r}.{did_you_mean(what, names)} "
            f"They can be swept over {', '.join(names)}."
        )
    for choice in chosen:
        given = next((key for key in choice.settings if key.replace("_", "-") == what), None)
        if given is not None:
            raise UserError(
                f"--vary sets {what!r} in every policy; leave it out of {choice.name}:{given}={choice.settings[given]}."
            )
        if variation.concerns(choice):
            for value in variation.values:
                choice.make({**choice.settings, what: f"{value:.12g}"})


def _is_time(what: str) -> bool:
    """Whether a setting is in seconds, as every setting that is says of itself."""
    about = {setting.name: setting.summary for policy in POLICIES.values() for setting in parameters_of(policy)}
    return "seconds" in about.get(what, "")
