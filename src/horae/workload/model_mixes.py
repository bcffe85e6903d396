"""Model mixes: which models generated jobs train, and how their speed depends on the span of their GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Span
from horae.core.errors import UserError
from horae.core.job import NO_SLOWDOWN
from horae.core.throughputs import Setting, Throughputs

Slowdown = tuple[float, float, float, float]


@dataclass(frozen=True)
class JobKind:
    """What the jobs of one app have in common. Without steps/s their work is counted in seconds."""

    job_class: str = ""
    slowdown: Slowdown = NO_SLOWDOWN
    steps_per_s: float | None = None
    skew: float | None = None


class Mix(Protocol):
    """A population of jobs."""

    def draw(self, rng: np.random.Generator, gpus: NDArray[np.int64], throughputs: Throughputs | None) -> list[JobKind]:
        """Draw the kind of each app, given the GPUs that its jobs ask for."""


@dataclass(frozen=True)
class Plain:
    """Jobs that differ in size and duration only."""

    def draw(self, rng: np.random.Generator, gpus: NDArray[np.int64], throughputs: Throughputs | None) -> list[JobKind]:
        """The same kind for everybody."""
        return [JobKind()] * gpus.size


@dataclass(frozen=True)
class ComputeOrNetworkBound:
    """Themis' jobs: bound by compute, and at home anywhere, or by the network, and slow when spread."""

    network_share: float = 0.4
    compute: Slowdown = (1.0, 1.0, 1.02, 1.05)
    network: Slowdown = (1.0, 1.1, 1.5, 2.0)

    def __post_init__(self) -> None:
        if not 0 <= self.network_share <= 1:
            raise UserError(f"network_share is {self.network_share}; choose a share from 0 to 1.")

    def draw(self, rng: np.random.Generator, gpus: NDArray[np.int64], throughputs: Throughputs | None) -> list[JobKind]:
        """Draw for each app what bounds it."""
        compute, network = JobKind("compute-bound", self.compute), JobKind("network-bound", self.network)
        return [network if bound else compute for bound in rng.random(gpus.size) < self.network_share]


def _batches(model: str, *sizes: int) -> tuple[str, ...]:
    return tuple(f"{model} (batch size {size})" for size in sizes)


#: The 26 job types of Gavel's generated workload: those that can use several GPUs, and those that cannot.
DISTRIBUTED = (
    *_batches("ResNet-18", 16, 32, 64, 128, 256),
    *_batches("ResNet-50", 16, 32, 64, 128),
    *_batches("Transformer", 16, 32, 64, 128, 256),
    *_batches("LM", 5, 10, 20, 40, 80),
)
SINGLE = (*_batches("Recommendation", 512, 1024, 2048, 4096, 8192), "A3C", "CycleGAN")


@dataclass(frozen=True)
class Models:
    """Gavel's job types, each equally likely; gangs only of those that can be distributed.

    Work is counted in steps: the duration times the measured speed on
    `reference_type`, so a table of throughputs is needed.
    """

    distributed: tuple[str, ...] = DISTRIBUTED
    single: tuple[str, ...] = SINGLE
    reference_type: str = "v100"

    def draw(self, rng: np.random.Generator, gpus: NDArray[np.int64], throughputs: Throughputs | None) -> list[JobKind]:
        """Draw for each app a job type that can use its GPUs."""
        if throughputs is None:
            raise UserError(
                "The gavel mix counts work in steps and needs measured speeds; "
                "pass --throughputs, or take the plain mix for the same jobs in seconds."
            )
        everything = self.distributed + self.single
        # One draw an app, scaled to the longer or the shorter list: the other draws stay as they are.
        chosen = rng.random(gpus.size)
        kinds = []
        for share, size in zip(chosen, gpus.tolist(), strict=True):
            choices = everything if size == 1 else self.distributed
            kinds.append(self._job_kind(choices[int(share * len(choices))], size, throughputs))
        return kinds

    def _job_kind(self, job_class: str, gpus: int, throughputs: Throughputs) -> JobKind:
        span = Span.GPU if gpus == 1 else Span.NODE
        throughput = throughputs.get(Setting(job_class, self.reference_type, gpus, span))
        if throughput is None or throughput.steps_per_s <= 0:
            raise UserError(
                f"The table of throughputs has no speed for {job_class!r} on {gpus} {self.reference_type} GPUs; "
                "add it, or choose other sizes or another mix."
            )
        return JobKind(job_class, steps_per_s=throughput.steps_per_s)


@dataclass(frozen=True)
class Catalogued:
    """Models of the catalogue: some with one tensor far larger than the rest, which suffer when spread, and others."""

    skewed: tuple[str, ...] = ("VGG-16", "VGG-19", "AlexNet")
    even: tuple[str, ...] = ("ResNet-50", "Inception-v3", "BERT-base")
    skewed_share: float = 0.5

    def draw(self, rng: np.random.Generator, gpus: NDArray[np.int64], throughputs: Throughputs | None) -> list[JobKind]:
        """Draw a model for each app."""
        from horae.workload.skew import known_skew, slowdown_when_spread

        kinds = {}
        for name in self.skewed + self.even:
            skew = known_skew(name)
            assert skew is not None, f"{name} is not in the catalogue"
            kinds[name] = JobKind(name, slowdown_when_spread(skew), skew=skew)
        suffers, chosen = rng.random(gpus.size) < self.skewed_share, rng.random(gpus.size)
        return [
            kinds[names[int(share * len(names))]]
            for names, share in zip(
                (self.skewed if is_skewed else self.even for is_skewed in suffers), chosen, strict=True
            )
        ]


#: The populations by name, with the papers' numbers.
MIXES: dict[str, Mix] = {
    "plain": Plain(),
    "themis": ComputeOrNetworkBound(),
    "gavel": Models(),
    "tiresias": Catalogued(),
}
