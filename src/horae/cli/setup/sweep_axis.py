"""What a sweep varies: how often jobs come, how large the cluster is, or a setting of the policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from horae.cli.setup.inputs import read_number
from horae.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from horae.core.cluster import Cluster
    from horae.report.pages.curves import Axis

#: What can be varied whatever the policies are; everything else is a setting of theirs.
RATE, LOAD, GPUS = "rate", "load", "gpus"
SURROUNDINGS = (RATE, LOAD, GPUS)

EXAMPLE = "--vary f=0,0.5,0.8"

#: A policy and the settings given to it.
Chosen = tuple[str, dict[str, str]]


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

    def concerns(self, policy: str) -> bool:
        """Whether it makes any difference to a policy."""
        return not self.is_setting or self.what in _settings([policy])

    def steps(self, cluster: Cluster, rate: float | None, load: float | None) -> list[Step]:
        """A step for each value, everything else as given."""
        if self.what in (RATE, LOAD) and (rate is not None or load is not None):
            raise UserError(f"--vary {self.what} says how often jobs come; leave --rate and --load out.")
        return [self._step(value, cluster, rate, load) for value in self.values]

    def _step(self, value: float, cluster: Cluster, rate: float | None, load: float | None) -> Step:
        from horae.workload.cluster_sizes import resized

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
        from horae.report.formatting import time_unit
        from horae.report.pages.curves import Axis

        labels = {RATE: f"input rate ({arrivals}/hour)", LOAD: "load", GPUS: "cluster size (GPUs)"}
        if not self._is_time():
            return Axis(labels.get(self.what, self.what), self.values)
        unit = time_unit(self.values[-1])
        return Axis(f"{self.what} ({unit.plural})", self.values, unit.seconds)

    def _is_time(self) -> bool:
        """Whether the values are seconds, as every setting that is says of itself."""
        return self.is_setting and "seconds" in _settings(None).get(self.what, "")


def read_variation(text: str, chosen: Sequence[Chosen]) -> SweepAxis:
    """Read `WHAT=V,V,...`; what the chosen policies cannot be set to is found here, not hours later."""
    what, equals, values = (part.strip() for part in text.partition("="))
    what = what.replace("_", "-")
    if not (what and equals):
        raise UserError(f"--vary {text!r} is not of the form WHAT=VALUE,VALUE,...; write it like {EXAMPLE}.")
    variation = SweepAxis(what, _values(what, values))
    if variation.is_setting:
        _check_policies(variation, chosen)
    return variation


def _values(what: str, text: str) -> tuple[float, ...]:
    """Numbers, each once, from the lowest up."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"--vary {what}={text} names no value; write them like {EXAMPLE}.")
    values = sorted(_value(what, part) for part in parts)
    twice = next((low for low, high in pairwise(values) if low == high), None)
    if twice is not None:
        raise UserError(f"--vary {what}={text} has {twice:g} twice; once is enough.")
    if what in SURROUNDINGS and values[0] <= 0:
        raise UserError(f"--vary {what}={text} has {values[0]:g}; give numbers above 0.")
    if what == GPUS and not all(value.is_integer() for value in values):
        raise UserError(f"--vary {what}={text} has parts of a GPU; give whole numbers.")
    return tuple(values)


def _value(what: str, text: str) -> float:
    try:
        return read_number(f"--vary {what}", text)
    except UserError as why:
        raise UserError(
            f"{why} A sweep draws numbers; to compare anything else, name a policy for each, such as "
            f"--policy NAME:{what}={text}."
        ) from None


def _check_policies(variation: SweepAxis, chosen: Sequence[Chosen]) -> None:
    """Some policy has the setting, and all that have it can be set to every value."""
    from horae.policies import make_policy

    what = variation.what
    if not any(variation.concerns(name) for name, _ in chosen):
        known = [*SURROUNDINGS, *_settings([name for name, _ in chosen])]
        raise UserError(
            f"None of the chosen policies has a setting {what!r}.{did_you_mean(what, known)} "
            f"They can be swept over {', '.join(known)}."
        )
    for name, settings in chosen:
        given = next((key for key in settings if key.replace("_", "-") == what), None)
        if given is not None:
            raise UserError(f"--vary sets {what!r} in every policy; leave it out of {name}:{given}={settings[given]}.")
        if variation.concerns(name):
            for value in variation.values:
                make_policy(name, {**settings, what: f"{value:.12g}"})


def _settings(policies: Sequence[str] | None) -> dict[str, str]:
    """The settings of these policies, or of all, and what each is about."""
    from horae.policies import POLICIES

    return {one.name: one.summary for name in policies or POLICIES for one in POLICIES[name].parameters}
