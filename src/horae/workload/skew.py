"""Whom consolidation helps: the skew of a job's model, the limit above which it matters, and what spreading costs.

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
    """The skew of a model whose tensor sizes its user lists, in any unit."""
    try:
        return skew(sizes)
    except ValueError:
        raise BadSkew("Tensor sizes must be finite numbers from 0 up that are not all 0; list them anew.") from None


def known_skew(job_class: str) -> float | None:
    """The skew of a model in the catalogue, such as "ResNet-50 (batch size 64)" or vgg16; None if it is not there."""
    known = find_model(job_class)
    return known.skew if known else None


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

    What a job says itself stays, and so does whatever speed was measured.
    """
    known = cache(known_skew)
    cost = cache(slowdown_when_spread)

    def look(job: JobSpec) -> JobSpec:
        skew = known(job.job_class) if job.skew is None and job.job_class else job.skew
        if not skew:
            return job
        return replace(job, skew=skew, slowdown=cost(skew) if job.slowdown == NO_SLOWDOWN else job.slowdown)

    return tuple(look(job) for job in jobs)


class Observation(NamedTuple):
    """How fast a job ran once. Speeds of one kind (model, batch, GPUs) can be compared with each other."""

    kind: str
    skew: float
    spread: bool
    steps_per_s: float


class Comparison(NamedTuple):
    """A kind of job that was seen both ways: its median speed together and spread, and whether that made it suffer."""

    kind: str
    skew: float
    together: float
    spread: float
    suffers: bool


def compare_speeds(observations: Iterable[Observation], tolerance: float = 0.1) -> list[Comparison]:
    """Kinds of job seen both ways, by skew. One suffers if it is slower when spread by more than `tolerance`.

    Kinds seen one way only say nothing.
    """
    seen: dict[tuple[float, str], tuple[list[float], list[float]]] = {}
    for one in observations:
        if not (0 < one.skew <= 1 and 0 < one.steps_per_s < math.inf):
            raise BadSkew(f"{one} cannot be: a skew is above 0 and up to 1, a speed finite and above 0.")
        seen.setdefault((one.skew, one.kind), ([], []))[one.spread].append(one.steps_per_s)
    both = [
        (skew, kind, median(near), median(far)) for (skew, kind), (near, far) in sorted(seen.items()) if near and far
    ]
    return [Comparison(kind, skew, near, far, far < (1 - tolerance) * near) for skew, kind, near, far in both]


def fit_limit(observations: Iterable[Observation], tolerance: float = 0.1, default: float = PACK_LIMIT) -> float:
    """The limit that best tells the kinds of job that suffer from being spread from those that do not.

    1. Compare the kinds that were seen both ways.
    2. If all suffer, or none does, there is nothing to tell apart: the default stays.
    3. Otherwise take the limit with the fewest mistakes (kinds that suffer at or below it, or
       do not above it) of: the default, the middles between neighbouring skews, and one
       beyond either end. Of equal ones, the nearest to the default, then the lower.
    """
    kinds = compare_speeds(observations, tolerance)
    if len({one.suffers for one in kinds}) < 2:
        return default
    skews = sorted({one.skew for one in kinds})
    limits = [default, skews[0] / 2, *(sum(pair) / 2 for pair in pairwise(skews)), (skews[-1] + 1) / 2]

    def mistakes(limit: float) -> int:
        return sum(consolidates(one.skew, limit) != one.suffers for one in kinds)

    return min(limits, key=lambda limit: (mistakes(limit), abs(limit - default), limit))
