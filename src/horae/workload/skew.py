"""Skew: of a job's model, the limit above which a job is consolidated, and the slow-down of a spread job.

The idea is Tiresias' (NSDI '19, section 3.3): a profiler looks at the sizes of a model's tensors,
and only jobs with one that is far larger than the rest wait for GPUs that are close together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from horae.core.errors import UserError
from horae.core.job import NO_SLOWDOWN, PACK_LIMIT, JobSpec
from horae.train import skew
from horae.workload.catalogue import find_model
from horae.workload.model_mixes import Slowdown


class BadSkew(UserError):
    """Sizes, skews or observations that cannot be."""


def declared_skew(sizes: Sequence[float]) -> float:
    """The skew of a model from its tensor sizes, in any unit. Public: no command calls it."""
    try:
        return skew(sizes)
    except ValueError:
        raise BadSkew("Tensor sizes must be finite numbers from 0 up that are not all 0; list them anew.") from None


def known_skew(job_class: str) -> float | None:
    """The skew of a model in the catalogue, such as "ResNet-50 (batch size 64)" or vgg16; None if it is not there."""
    model = find_model(job_class)
    return model.skew if model else None


def consolidates(skew: float, limit: float = PACK_LIMIT) -> bool:
    """Whether a job of this skew should have the fewest nodes, and wait for them."""
    return skew > limit


def slowdown_when_spread(skew: float, limit: float = PACK_LIMIT, oversubscription: float = 1.0) -> Slowdown:
    """What spreading costs a model of this skew, by the span of its GPUs: GPU, node, rack, cluster.

    A step sends while it computes, and waits for whichever ends later. Sending ends with the
    largest tensor, which no second link can help with, so it takes time in proportion to the
    skew; the limit is the skew at which both take equally long. Hence max(1, skew / limit)
    across nodes: nothing for ResNet-50, 2.1 for AlexNet, 2.5 for VGG-16. Inside a node links
    are fast enough for anybody. Links between racks may be slower by `oversubscription`.
    """
    if not (0 < skew <= 1 and 0 < limit < math.inf and 1 <= oversubscription < math.inf):
        raise BadSkew(
            f"No slow-down follows from skew {skew}, limit {limit} and oversubscription {oversubscription}: "
            "give a skew above 0 and up to 1, a limit above 0, and an oversubscription from 1 up."
        )
    return 1.0, 1.0, max(1.0, skew / limit), max(1.0, oversubscription * skew / limit)


def profiled(jobs: Iterable[JobSpec]) -> tuple[JobSpec, ...]:
    """The same jobs, with the skew of those whose model the catalogue knows, and what spreading costs a known skew.

    A skew or a slow-down that the job itself states stays.
    """
    skew_of_class = cache(known_skew)
    cost = cache(slowdown_when_spread)

    def with_skew(job: JobSpec) -> JobSpec:
        skew = skew_of_class(job.job_class) if job.skew is None and job.job_class else job.skew
        if not skew:
            return job
        return replace(job, skew=skew, slowdown=cost(skew) if job.slowdown == NO_SLOWDOWN else job.slowdown)

    return tuple(with_skew(job) for job in jobs)


class SpeedObservation(NamedTuple):
    """One measured speed. Speeds of one kind (model, batch, GPUs) can be compared with each other."""

    kind: str
    skew: float
    spread: bool
    steps_per_s: float


class SpreadComparison(NamedTuple):
    """A kind of job that ran together and spread: both median speeds, and whether it suffers when spread.

    Spoken: the field names are keys of `horae skew -o json`.
    """

    kind: str
    skew: float
    together: float
    spread: float
    suffers: bool


def compare_speeds(observations: Iterable[SpeedObservation], tolerance: float = 0.1) -> list[SpreadComparison]:
    """Kinds of job seen both ways, by skew. One suffers if it is slower when spread by more than `tolerance`.

    Kinds seen one way only say nothing.
    """
    seen: dict[tuple[float, str], tuple[list[float], list[float]]] = {}
    for observation in observations:
        if not (0 < observation.skew <= 1 and 0 < observation.steps_per_s < math.inf):
            raise BadSkew(f"{observation} cannot be: a skew is above 0 and up to 1, a speed finite and above 0.")
        seen.setdefault((observation.skew, observation.kind), ([], []))[observation.spread].append(
            observation.steps_per_s
        )
    both = [
        (skew, kind, median(together), median(spread))
        for (skew, kind), (together, spread) in sorted(seen.items())
        if together and spread
    ]
    return [
        SpreadComparison(kind, skew, together, spread, spread < (1 - tolerance) * together)
        for skew, kind, together, spread in both
    ]


def fit_limit(observations: Iterable[SpeedObservation], tolerance: float = 0.1, default: float = PACK_LIMIT) -> float:
    """The limit that best tells the kinds of job that suffer from being spread from those that do not.

    1. Compare the kinds that were seen both ways.
    2. If all suffer, or none does, there is nothing to tell apart: the default stays.
    3. Otherwise take the limit with the fewest mistakes (kinds that suffer at or below it, or
       do not above it) of: the default, the middles between neighbouring skews, and one
       beyond either end. Of equal ones, the nearest to the default, then the lower.
    """
    comparisons = compare_speeds(observations, tolerance)
    if len({comparison.suffers for comparison in comparisons}) < 2:
        return default
    skews = sorted({comparison.skew for comparison in comparisons})
    limits = [default, skews[0] / 2, *(sum(pair) / 2 for pair in pairwise(skews)), (skews[-1] + 1) / 2]

    def mistakes(limit: float) -> int:
        return sum(consolidates(comparison.skew, limit) != comparison.suffers for comparison in comparisons)

    return min(limits, key=lambda limit: (mistakes(limit), abs(limit - default), limit))
