"""The most work for the money, on GPU types of different price; with or without deadlines."""

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
#: Name in `prices` for every GPU type without a price of its own.
_ANY = "*"
#: Shares of time up to this are rounding errors of the solver.
_ROUNDING = 1e-6


class NoPrice(UserError):
    """A GPU type without a price, or a price without a GPU type."""


@dataclass(frozen=True)
class Cost(AllocationPolicy):
    """Get the most work done for the money: the largest sum of throughput over the price of an hour.

    Gavel, section 4.2. Every job goes to the GPU type on which a step is cheapest, as far as there are GPUs.
    """

    objective: ClassVar = "sum of throughput over the price of an hour"
    unit: ClassVar = "steps/s per price of an hour"
    prices: str = setting(_PRICES, "price of an hour of one GPU of each type, such as v100:2.48,k80:0.45,*:1")

    def __post_init__(self) -> None:
        super().__post_init__()
        _read_prices(self.prices)

    def check(self, gpu_types: tuple[str, ...], pairs_known: bool) -> None:
        """Refuse GPU types without a price, and prices that the user gave without a GPU type."""
        super().check(gpu_types, pairs_known)
        prices = _read_prices(self.prices)
        missing = [name for name in gpu_types if name not in prices and _ANY not in prices]
        if missing:
            raise NoPrice(
                f"No price is known for {', '.join(missing)}: give one for every GPU type, such as "
                f"--set prices={','.join(f'{name}:1.5' for name in gpu_types)}."
            )
        unused = [name for name in prices if name not in (*gpu_types, _ANY)]
        if unused and self.prices != _PRICES:
            raise NoPrice(
                f"There is a price for {unused[0]!r} and the cluster has {', '.join(gpu_types)}: leave it out."
                f"{did_you_mean(unused[0], gpu_types)}"
            )

    def allocate(self, problem: AllocationProblem) -> Solution:
        """One linear program."""
        from horae.solve.allocation.programs import cost

        return cost(_priced(problem, self.prices))


@dataclass(frozen=True)
class CostDeadline(Cost):
    """Get the most work done for the money while every deadline is met that can be.

    Gavel, section 4.2. The choices that are ours: deadlines are admitted from the earliest to the latest, and a
    deadline that cannot be met together with those before it is relaxed, but no other. A job may get its share as
    late as a round from now, so the program aims a round before the deadline, if the fastest type allows it.
    """

    objective: ClassVar = "sum of throughput over the price of an hour, deadlines met"
    timeless: ClassVar = False
    memory: ClassVar[MemorySpec] = MemorySpec(
        #: 1 for a job whose deadline was relaxed before it had passed.
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
        """Whether the deadline of each job was relaxed before it had passed."""
        relaxed: Bools = memory.column("relaxed", rows) > 0
        return relaxed

    def allocate(self, problem: AllocationProblem) -> Solution:
        """A linear program with a floor under each throughput."""
        from horae.solve.allocation.programs import cost_with_deadlines

        solution = cost_with_deadlines(_priced(self._a_round_early(problem), self.prices))
        # A share that comes from rounding alone entitles the job to nothing.
        share, pair_share = (np.where(x > _ROUNDING, x, 0.0) for x in (solution.share, solution.pair_share))
        return replace(solution, share=share, pair_share=pair_share)

    def _a_round_early(self, problem: AllocationProblem) -> AllocationProblem:
        # A little more than the least possible time, or rounding could make the deadline impossible.
        least_s = (1 + 1e-12) * problem.steps_left / problem.speed.max(axis=1)
        early_s = np.maximum(problem.deadline_s - self.round, np.minimum(least_s, problem.deadline_s))
        return replace(problem, deadline_s=early_s)


def _priced(problem: AllocationProblem, prices: str) -> AllocationProblem:
    """The problem with prices. A GPU type that joined later and has no price costs as much as the dearest."""
    by_type = _read_prices(prices)
    other = by_type.get(_ANY, max(by_type.values()))
    return replace(problem, price=np.array([by_type.get(name, other) for name in problem.gpu_types]))


def _read_prices(text: str) -> dict[str, float]:
    """Price by GPU type, from text such as v100:2.48,*:1."""
    prices: dict[str, float] = {}
    for entry in text.split(","):
        name, _, number = (piece.strip() for piece in entry.rpartition(":"))
        if not name or name in prices:
            raise BadSetting(f"prices={text} must name each GPU type once: {entry!r} is not such as v100:2.48.")
        prices[name] = _read_price(number, entry)
    return prices


def _read_price(number: str, entry: str) -> float:
    try:
        price = float(number)
    except ValueError:
        price = math.nan
    if not 0 < price < math.inf:
        raise BadSetting(f"{entry!r} is no price: give a finite number above 0, such as v100:2.48.")
    return price
