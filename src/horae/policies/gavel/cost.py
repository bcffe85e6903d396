"""The most steps for the money, over unlike GPUs that cost unlike sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from horae.core.arrays import Bools, Ints
from horae.core.errors import UserError, did_you_mean
from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.policies.gavel.rounds import MEMORY
from horae.policies.settings import BadSetting, setting
from horae.solve.allocation.problem import AllocationProblem, Solution

#: List prices of an hour of one GPU at Google Cloud, in US$.
_PRICES = "v100:2.48,p100:1.46,k80:0.45"
#: Stands for every GPU type that has no price of its own.
_ANY = "*"
#: A share of time that is none.
_TRIFLE = 1e-6


class NoPrice(UserError):
    """GPU types without a price, or prices without a GPU type."""


@dataclass(frozen=True)
class Cost(AllocationPolicy):
    """Get the most work done for the money: the largest sum of throughput over the price of an hour.

    Gavel, section 4.2. Every job goes where a step is cheapest, as far as there is room.
    """

    objective: ClassVar = "sum of throughput over the price of an hour"
    unit: ClassVar = "steps/s per price of an hour"
    prices: str = setting(_PRICES, "price of an hour of one GPU of each type, such as v100:2.48,k80:0.45,*:1")

    def __post_init__(self) -> None:
        super().__post_init__()
        _read_prices(self.prices)

    def check(self, gpu_types: tuple[str, ...], pairs_known: bool) -> None:
        """Every GPU type has a price, and every price that was given a GPU type."""
        super().check(gpu_types, pairs_known)
        known = _read_prices(self.prices)
        missing = [name for name in gpu_types if name not in known and _ANY not in known]
        if missing:
            raise NoPrice(
                f"No price is known for {', '.join(missing)}: give one for every GPU type, such as "
                f"--set prices={','.join(f'{name}:1.5' for name in gpu_types)}."
            )
        strange = [name for name in known if name not in (*gpu_types, _ANY)]
        if strange and self.prices != _PRICES:
            raise NoPrice(
                f"There is a price for {strange[0]!r} and the cluster has {', '.join(gpu_types)}: leave it out."
                f"{did_you_mean(strange[0], gpu_types)}"
            )

    def allocate(self, problem: AllocationProblem) -> Solution:
        """One linear program."""
        from horae.solve.allocation.programs import cost

        return cost(_priced(problem, self.prices))


@dataclass(frozen=True)
class CostDeadline(Cost):
    """Get the most work done for the money while every deadline is met that can be.

    Gavel, section 4.2. Deadlines are taken up in order; one that cannot be met beside those
    before it is relaxed, and nobody else's with it. A share may be had as late as a round
    from now, so deadlines are aimed at a round early, if the job's fastest type allows it.
    """

    objective: ClassVar = "sum of throughput over the price of an hour, deadlines met"
    timeless: ClassVar = False
    memory: ClassVar[MemorySpec] = MemorySpec(
        #: 1 for a job whose deadline was given up while it lay ahead.
        columns={**MEMORY.columns, "relaxed": 0},
        by_type=MEMORY.by_type,
        scalars=MEMORY.scalars,
    )

    def note(self, now: Snapshot, memory: Memory, rows: Ints, solution: Solution) -> None:
        """Remember the jobs whose deadlines were relaxed, so that a report can name them."""
        rows = rows[solution.relaxed]
        rows = rows[now.table.deadline_s[rows] > now.now_s]
        memory.put("relaxed", rows[memory.column("relaxed", rows) == 0], np.ones(1))

    def relaxed(self, memory: Memory, rows: Ints) -> Bools:
        """Which jobs' deadlines were given up while they still lay ahead."""
        given_up: Bools = memory.column("relaxed", rows) > 0
        return given_up

    def allocate(self, problem: AllocationProblem) -> Solution:
        """A linear program with a floor under each throughput."""
        from horae.solve.allocation.programs import cost_with_deadlines

        solution = cost_with_deadlines(_priced(self._a_round_early(problem), self.prices))
        # What only rounding gives a job entitles it to nothing.
        share, pair_share = (np.where(x > _TRIFLE, x, 0.0) for x in (solution.share, solution.pair_share))
        return replace(solution, share=share, pair_share=pair_share)

    def _a_round_early(self, problem: AllocationProblem) -> AllocationProblem:
        # A hair more than the least time there is, lest rounding makes it impossible.
        least_s = (1 + 1e-12) * problem.steps_left / problem.speed.max(axis=1)
        early_s = np.maximum(problem.deadline_s - self.round, np.minimum(least_s, problem.deadline_s))
        return replace(problem, deadline_s=early_s)


def _priced(problem: AllocationProblem, prices: str) -> AllocationProblem:
    """The problem with prices. A type that joined later and has none is taken to be as dear as the dearest."""
    known = _read_prices(prices)
    other = known.get(_ANY, max(known.values()))
    return replace(problem, price=np.array([known.get(name, other) for name in problem.gpu_types]))


def _read_prices(text: str) -> dict[str, float]:
    """Price by GPU type."""
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.rpartition(":"))
        if not name or name in prices:
            raise BadSetting(f"prices={text} must name each GPU type once: {part!r} is not such as v100:2.48.")
        prices[name] = _read_price(number, part)
    return prices


def _read_price(number: str, part: str) -> float:
    try:
        price = float(number)
    except ValueError:
        price = math.nan
    if not 0 < price < math.inf:
        raise BadSetting(f"{part!r} is no price: give a finite number above 0, such as v100:2.48.")
    return price
