"""Agents: each speaks for one app, and sees nothing but that app and what is offered.

An agent answers two questions: how unfairly is the app treated now (its rho), and which parts of an
offer would it like, with the rho that each would bring. To write another, give an object with these
two methods; the arbiter asks nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.bidding import BidAnswer
from horae.core.cluster import Machines, Span
from horae.policies.themis.app_split import WORTH_MOVING
from horae.policies.themis.bid_bundles import Stock, bundles_of
from horae.solve.auction.bids import BadBid, Bid, Bundles, Offer, Taker, check_bid
from horae.solve.auction.rounding import words_of


@dataclass(frozen=True)
class AppView:
    """An app as its agent sees it. Columns by job, in the order in which the app wants them run.

    Speeds are told in GPUs of a job's best type: 4 GPUs that are half as fast are a speed of 2.
    """

    name: str
    #: Time since the app came, its finish time alone on its share of the cluster, and the length of a lease.
    elapsed_s: float
    alone_s: float
    lease_s: float
    gpus: Ints
    #: GPU-seconds left by job and GPU type; infinite where it cannot run.
    serial_s: Floats
    #: Gives the slow-down by GPU type and span; only apps that bid are asked for theirs.
    find_slowdown: Callable[[], Floats]
    #: Speed at which each job runs on GPUs that stay its own; 0 for those that want some.
    speed: Floats
    #: GPUs of its share of the cluster.
    share: float = 0.0
    #: GPU-seconds left of trials that cannot run at this moment, on their best types.
    resting_s: float = 0.0
    #: GPUs by machine that the app has had until now: it is best off there.
    near: dict[int, int] = field(default_factory=dict)
    #: Positions of jobs that have just been given GPUs, and ask for no others now.
    settled: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def slowdown(self) -> Floats:
        """Slow-down by GPU type and span."""
        return self.find_slowdown()

    @cached_property
    def asking(self) -> Ints:
        """Positions of the jobs that GPUs are wanted for: those that have none, then those on slow ones, slowest first.

        A job that has GPUs asks for others only if these could be much faster; then it gives its own back.
        """
        if not self.speed.any():
            return np.arange(len(self.speed))
        best = self.gpus * (self.work_s[:, None] / self.serial_s).max(axis=1)
        slow = np.flatnonzero((self.speed > 0) & (self.speed * WORTH_MOVING < best))
        if not len(slow):
            return np.flatnonzero(self.speed == 0)
        slow = np.setdiff1d(slow, self.settled, assume_unique=True)
        slow = slow[np.argsort((self.speed / best)[slow], kind="stable")]
        return np.append(np.flatnonzero(self.speed == 0), slow)

    @cached_property
    def wanting(self) -> Ints:
        """GPUs of each job that asks, in order."""
        return self.gpus[self.asking]

    @cached_property
    def speed_without(self) -> Floats:
        """Speed in all without the first so many of those that ask."""
        return float(self.speed.sum()) - np.append(0.0, np.cumsum(self.speed[self.asking]))

    @cached_property
    def work_s(self) -> Floats:
        """GPU-seconds left of each job on its best type."""
        return np.asarray(self.serial_s.min(axis=1))

    @cached_property
    def type_speed(self) -> Floats:
        """Speed of one GPU of each type, over the jobs that can use it; 0 where none can."""
        usable = np.isfinite(self.serial_s)
        work_s = np.where(usable, self.work_s[:, None], 0.0).sum(axis=0)
        serial_s = np.where(usable, self.serial_s, 0.0).sum(axis=0)
        speed: Floats = np.divide(work_s, serial_s, out=np.zeros_like(serial_s), where=serial_s > 0)
        return speed

    def finish_s(self, speed: Floats) -> Floats:
        """Seconds until the app is done at some speeds in all: jobs take turns, but the longest takes its time."""
        longest_s = float((self.work_s / self.gpus).max(initial=0.0))
        left_s = float(self.work_s.sum()) + self.resting_s
        with np.errstate(divide="ignore"):
            finish_s: Floats = np.maximum(left_s / speed, longest_s)
        return finish_s

    def rho(self, speed: Floats) -> Floats:
        """Finish time in the shared cluster over that alone, at some speeds in all."""
        return np.asarray((self.elapsed_s + self.finish_s(speed)) / self.alone_s, np.float64)

    @property
    def rho_of_nothing(self) -> float:
        """Rho if nothing is won: with what the app holds, or with its best gang when a lease is over."""
        speed = float(self.speed.sum())
        if speed > 0:
            return float(self.rho(np.array([speed]))[0])
        return self._rho_after_a_lease(float(self.type_speed.max() * self.gpus.max()))

    @property
    def rho_now(self) -> float:
        """Rho if from now on, or from the end of a lease if it holds nothing, the app has its share, or what it holds.

        Apps that hold little today are compared by how late they are, and not by how large.
        """
        speed = float(self.speed.sum())
        gangs = min(max(self.share, float(self.gpus.max())), float(self.gpus.sum()))
        best = max(speed, float(self.type_speed.max()) * gangs)
        return float(self.rho(np.array([best]))[0]) if speed > 0 else self._rho_after_a_lease(best)

    def _rho_after_a_lease(self, speed: float) -> float:
        return float((self.elapsed_s + self.lease_s + self.finish_s(np.array([speed]))[0]) / self.alone_s)

    def speed_of(self, gpu_type: int, gpus: int, span: Span) -> float:
        """Speed of one gang somewhere."""
        return float(gpus * self.type_speed[gpu_type] / self.slowdown[gpu_type, int(span)])


class Agent(Protocol):
    """Speaks for an app."""

    def rho(self, app: AppView) -> float:
        """The app's rho with what it holds now."""
        ...

    def bid(self, app: AppView, offer: Offer, machines: Machines) -> Bid:
        """The bundles of an offer that the app would like; positions in both are the same machines."""
        ...


class TruthfulAgent:
    """The built-in agent: says what it expects, for every number of gangs, on each type and where they are best."""

    def __init__(self) -> None:
        self._stock: Stock | None = None

    def rho(self, app: AppView) -> float:
        """How late the app is going to be, if it has its share from now on."""
        return app.rho_now

    def bid(self, app: AppView, offer: Offer, machines: Machines) -> Bid:
        """One row for each number of gangs and way to place them that could matter; see `bundles.py`."""
        priced = list(bundles_of(app, self._stock_of(offer, machines)))
        speed = np.array([app.speed_without[gangs] + more for _, more, gangs in priced])
        table = zip((pieces for pieces, _, _ in priced), app.rho(speed).tolist(), strict=True)
        return Bid(app_taker(app, machines), Bundles.of(table), app.rho_of_nothing)

    def _stock_of(self, offer: Offer, machines: Machines) -> Stock:
        """Looked over once for all apps of an auction."""
        if self._stock is None or self._stock.offer is not offer or self._stock.machines is not machines:
            self._stock = Stock(offer, machines)
        return self._stock


@dataclass(frozen=True)
class ErringAgent:
    """Means well, but every rho it says is off by a factor from 1 - error to 1 + error."""

    agent: Agent
    error: float
    #: Errors are drawn from the seed and the name of the app.
    seed: tuple[int, ...]

    def rho(self, app: AppView) -> float:
        """The other agent's, and an error."""
        return self.agent.rho(app) * float(self._factors(app, "rho", 1)[0])

    def bid(self, app: AppView, offer: Offer, machines: Machines) -> Bid:
        """The other agent's, with an error in every row."""
        bid = self.agent.bid(app, offer, machines)
        nothing, *rows = self._factors(app, "bid", 1 + len(bid.bundles)).tolist()
        rho = None if bid.rho is None else bid.rho * nothing
        return replace(bid, rho=rho, bundles=replace(bid.bundles, rho=bid.bundles.rho * np.array(rows)))

    def _factors(self, app: AppView, what: str, count: int) -> Floats:
        rng = np.random.default_rng(np.random.SeedSequence(words_of(self.seed, what, app.name)))
        return rng.uniform(1.0 - self.error, 1.0 + self.error, count)


def answered_bid(app: AppView, offer: Offer, machines: Machines, answer: BidAnswer) -> Bid | None:
    """The bid that an app's own agent gave, less what is not offered any more; none if nothing of it makes sense."""
    if answer.problem:
        return None
    taker = app_taker(app, machines)
    free = dict(zip(offer.machines, offer.free.tolist(), strict=True))
    fits = [
        (dict(row.gpus), row.rho)
        for row in answer.table
        if all(0 < count <= free.get(name, 0) for name, count in row.gpus)
        and sum(count for _, count in row.gpus) % taker.gang == 0
    ]
    if not fits:
        return None
    bid = Bid(taker, Bundles.named(offer, fits), app.rho_of_nothing if answer.rho is None else answer.rho)
    try:
        check_bid(offer, bid)
    except BadBid:
        return None
    return bid


def app_taker(app: AppView, machines: Machines, typical: Floats | None = None) -> Taker:
    """The app as somebody who takes GPUs, a gang at a time, on types that its jobs can use.

    Fast types are best; or, where `typical` says how fast each is for others, those that are fast for this app
    above all.
    """
    gang = gcd(*app.wanting.tolist())
    # Who has GPUs already takes none that are not much faster.
    least = WORTH_MOVING * float(app.speed[app.asking[0]] / app.wanting[0])
    usable = np.flatnonzero((app.type_speed > least)[machines.gpu_type])
    rank = _rank(app.type_speed, typical)[machines.gpu_type]
    return Taker(app.name, gang, int(app.wanting.sum()) // gang, usable, rank, app.near)


class SharedColumns:
    """What holds for GPU types, by machine; takers to whom types are alike share one column.

    A column for each of thousands of jobs, as long as the cluster has machines, would take gigabytes.
    """

    def __init__(self, machines: Machines) -> None:
        self._type = machines.gpu_type
        self._made: dict[tuple[str, bytes], Ints] = {}

    def where(self, types: NDArray[np.bool_]) -> Ints:
        """Positions of the machines that have one of some types."""
        key = "where", types.tobytes()
        if key not in self._made:
            self._made[key] = np.flatnonzero(types[self._type])
        return self._made[key]

    def rank(self, by_type: Ints) -> Ints:
        """The rank of each machine, which is that of its type."""
        key = "rank", by_type.tobytes()
        if key not in self._made:
            self._made[key] = by_type[self._type]
        return self._made[key]


def job_taker(app: AppView, job: int, columns: SharedColumns, typical: Floats | None, speed: float) -> Taker:
    """One job of an app as somebody who takes its gang, and no more; who has a speed already, on much faster types."""
    gpus = int(app.gpus[job])
    by_type = app.work_s[job] / app.serial_s[job]
    usable = columns.where(by_type * gpus > WORTH_MOVING * speed)
    return Taker(app.name, gpus, 1, usable, columns.rank(_rank(by_type, typical)))


def _rank(speed: Floats, typical: Floats | None) -> Ints:
    """Types from the best, 0, to the worst."""
    goodness = speed if typical is None else speed / np.maximum(typical, 1e-9)
    return np.argsort(np.argsort(-goodness, kind="stable"))
