"""Bidding agents: an agent bids for one app, and sees only that app and the offer.

An agent answers two questions: the app's rho now, and its bid: bundles of the offer, each with the rho that the app
would have with it. Another agent is an object with these two methods (`Agent`); the auction asks nothing else.
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
from horae.solve.auction.rounding import entropy_of


@dataclass(frozen=True)
class AppView:
    """An app as its agent sees it. Columns are by job, in the app's order.

    The unit of speed is one GPU of the job's fastest type: 4 GPUs of half that speed are a speed of 2.
    """

    name: str
    #: Seconds since the app came, its finish time alone on its share of the cluster (T_id), length of a lease.
    elapsed_s: float
    alone_s: float
    lease_s: float
    gpus: Ints
    #: GPU-seconds left by job and GPU type; infinite where the job cannot run.
    serial_s: Floats
    #: Computes the slow-down by GPU type and span; called only for apps that bid.
    find_slowdown: Callable[[], Floats]
    #: Speed of each job on GPUs that it keeps; 0 for jobs without.
    speed: Floats
    #: GPU count of the app's share of the cluster.
    share: float = 0.0
    #: GPU-seconds left of paused trials, on their fastest types.
    paused_s: float = 0.0
    #: GPU count by machine of GPUs whose lease is over: the app prefers these.
    near: dict[int, int] = field(default_factory=dict)
    #: Positions of jobs that were granted GPUs before the auction, and ask for no others.
    granted: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def slowdown(self) -> Floats:
        """Slow-down by GPU type and span."""
        return self.find_slowdown()

    @cached_property
    def asking(self) -> Ints:
        """Positions of the jobs that ask for GPUs: jobs without GPUs, then jobs on slow GPUs, slowest first.

        A job with GPUs asks only if others could be much faster, and gives its own back if it gets them.
        """
        if not self.speed.any():
            return np.arange(len(self.speed))
        best = self.gpus * (self.work_s[:, None] / self.serial_s).max(axis=1)
        slow = np.flatnonzero((self.speed > 0) & (self.speed * WORTH_MOVING < best))
        if not len(slow):
            return np.flatnonzero(self.speed == 0)
        slow = np.setdiff1d(slow, self.granted, assume_unique=True)
        slow = slow[np.argsort((self.speed / best)[slow], kind="stable")]
        return np.append(np.flatnonzero(self.speed == 0), slow)

    @cached_property
    def wanting(self) -> Ints:
        """GPU count of each asking job, in order."""
        return self.gpus[self.asking]

    @cached_property
    def speed_without(self) -> Floats:
        """Element k: total speed of the app without its first k asking jobs."""
        return float(self.speed.sum()) - np.append(0.0, np.cumsum(self.speed[self.asking]))

    @cached_property
    def work_s(self) -> Floats:
        """GPU-seconds left of each job on its fastest type."""
        return np.asarray(self.serial_s.min(axis=1))

    @cached_property
    def type_speed(self) -> Floats:
        """Speed of one GPU of each type, over the jobs that can use the type; 0 if no job can."""
        usable = np.isfinite(self.serial_s)
        work_s = np.where(usable, self.work_s[:, None], 0.0).sum(axis=0)
        serial_s = np.where(usable, self.serial_s, 0.0).sum(axis=0)
        speed: Floats = np.divide(work_s, serial_s, out=np.zeros_like(serial_s), where=serial_s > 0)
        return speed

    def finish_s(self, speed: Floats) -> Floats:
        """Seconds until the app ends, for each total speed: jobs take turns, but no sooner than the longest job."""
        longest_s = float((self.work_s / self.gpus).max(initial=0.0))
        left_s = float(self.work_s.sum()) + self.paused_s
        with np.errstate(divide="ignore"):
            finish_s: Floats = np.maximum(left_s / speed, longest_s)
        return finish_s

    def rho(self, speed: Floats) -> Floats:
        """Rho for each total speed: finish time in the shared cluster / finish time alone."""
        return np.asarray((self.elapsed_s + self.finish_s(speed)) / self.alone_s, np.float64)

    @property
    def rho_of_nothing(self) -> float:
        """Rho if the app wins nothing: at its present speed, or with its fastest gang after one lease."""
        speed = float(self.speed.sum())
        if speed > 0:
            return float(self.rho(np.array([speed]))[0])
        return self._rho_after_a_lease(float(self.type_speed.max() * self.gpus.max()))

    @property
    def rho_now(self) -> float:
        """Rho if the app has its share, or its present speed if higher, from now on; after one lease if it has no GPUs.

        So apps with few GPUs now are compared by how late they are, not by their size.
        """
        speed = float(self.speed.sum())
        gangs = min(max(self.share, float(self.gpus.max())), float(self.gpus.sum()))
        best = max(speed, float(self.type_speed.max()) * gangs)
        return float(self.rho(np.array([best]))[0]) if speed > 0 else self._rho_after_a_lease(best)

    def _rho_after_a_lease(self, speed: float) -> float:
        return float((self.elapsed_s + self.lease_s + self.finish_s(np.array([speed]))[0]) / self.alone_s)

    def speed_of(self, gpu_type: int, gpus: int, span: Span) -> float:
        """Speed of one gang on a GPU type, spread over `span`."""
        return float(gpus * self.type_speed[gpu_type] / self.slowdown[gpu_type, int(span)])


class Agent(Protocol):
    """Bids for an app. Public: write your own by these two methods."""

    def rho(self, app: AppView) -> float:
        """The app's rho now. The apps with the highest may bid."""
        ...

    def bid(self, app: AppView, offer: Offer, machines: Machines) -> Bid:
        """The app's bid for an offer. Machine k of the offer is machine k of `machines`."""
        ...


class TruthfulAgent:
    """The built-in agent: bids the rho that it expects, for each number of gangs, on each GPU type, placed best."""

    def __init__(self) -> None:
        self._stock: Stock | None = None

    def rho(self, app: AppView) -> float:
        """Rho if the app has its share from now on."""
        return app.rho_now

    def bid(self, app: AppView, offer: Offer, machines: Machines) -> Bid:
        """One row for each number of gangs and each useful placement of them; see `bid_bundles.py`."""
        valued = list(bundles_of(app, self._stock_of(offer, machines)))
        speed = np.array([app.speed_without[gangs] + gained for _, gained, gangs in valued])
        table = zip((pieces for pieces, _, _ in valued), app.rho(speed).tolist(), strict=True)
        return Bid(app_taker(app, machines), Bundles.of(table), app.rho_of_nothing)

    def _stock_of(self, offer: Offer, machines: Machines) -> Stock:
        """The stock of an offer, computed once for all apps of an auction."""
        if self._stock is None or self._stock.offer is not offer or self._stock.machines is not machines:
            self._stock = Stock(offer, machines)
        return self._stock


@dataclass(frozen=True)
class ErringAgent:
    """Wraps another agent, and multiplies every rho by a random factor from 1 - error to 1 + error."""

    agent: Agent
    error: float
    #: The random factors depend on the seed and the name of the app.
    seed: tuple[int, ...]

    def rho(self, app: AppView) -> float:
        """The other agent's rho, with an error."""
        return self.agent.rho(app) * float(self._factors(app, "rho", 1)[0])

    def bid(self, app: AppView, offer: Offer, machines: Machines) -> Bid:
        """The other agent's bid, with an error in every row."""
        bid = self.agent.bid(app, offer, machines)
        nothing, *rows = self._factors(app, "bid", 1 + len(bid.bundles)).tolist()
        rho = None if bid.rho is None else bid.rho * nothing
        return replace(bid, rho=rho, bundles=replace(bid.bundles, rho=bid.bundles.rho * np.array(rows)))

    def _factors(self, app: AppView, purpose: str, count: int) -> Floats:
        rng = np.random.default_rng(np.random.SeedSequence(entropy_of(self.seed, purpose, app.name)))
        return rng.uniform(1.0 - self.error, 1.0 + self.error, count)


def answered_bid(app: AppView, offer: Offer, machines: Machines, answer: BidAnswer) -> Bid | None:
    """The bid of an app's own agent, without rows that the offer does not hold; None if no valid bid is left."""
    if answer.problem:
        return None
    taker = app_taker(app, machines)
    free = dict(zip(offer.machines, offer.free.tolist(), strict=True))
    rows = [
        (dict(row.gpus), row.rho)
        for row in answer.table
        if all(0 < count <= free.get(name, 0) for name, count in row.gpus)
        and sum(count for _, count in row.gpus) % taker.gang == 0
    ]
    if not rows:
        return None
    bid = Bid(taker, Bundles.named(offer, rows), app.rho_of_nothing if answer.rho is None else answer.rho)
    try:
        check_bid(offer, bid)
    except BadBid:
        return None
    return bid


def app_taker(app: AppView, machines: Machines, typical: Floats | None = None) -> Taker:
    """The app as a taker of GPUs, gang by gang, on the GPU types that its jobs can use.

    It prefers the types that are fastest for it; with `typical`, the mean speed of each type for all asking apps,
    the types that are fastest relative to that.
    """
    gang = gcd(*app.wanting.tolist())
    # A job with GPUs takes only GPUs that are much faster.
    least = WORTH_MOVING * float(app.speed[app.asking[0]] / app.wanting[0])
    usable = np.flatnonzero((app.type_speed > least)[machines.gpu_type])
    rank = _rank(app.type_speed, typical)[machines.gpu_type]
    return Taker(app.name, gang, int(app.wanting.sum()) // gang, usable, rank, app.near)


class SharedColumns:
    """Columns by machine that follow from a column by GPU type; takers with equal columns share one array.

    Separate columns, of one number for each machine, for each of thousands of jobs would take gigabytes.
    """

    def __init__(self, machines: Machines) -> None:
        self._type = machines.gpu_type
        self._columns: dict[tuple[str, bytes], Ints] = {}

    def where(self, types: NDArray[np.bool_]) -> Ints:
        """Positions of the machines of the chosen GPU types."""
        key = "where", types.tobytes()
        if key not in self._columns:
            self._columns[key] = np.flatnonzero(types[self._type])
        return self._columns[key]

    def rank(self, by_type: Ints) -> Ints:
        """The rank of each machine: that of its GPU type."""
        key = "rank", by_type.tobytes()
        if key not in self._columns:
            self._columns[key] = by_type[self._type]
        return self._columns[key]


def job_taker(app: AppView, job: int, columns: SharedColumns, typical: Floats | None, speed: float) -> Taker:
    """One job of an app as a taker of its gang; if it has a speed already, on much faster types only."""
    gpus = int(app.gpus[job])
    by_type = app.work_s[job] / app.serial_s[job]
    usable = columns.where(by_type * gpus > WORTH_MOVING * speed)
    return Taker(app.name, gpus, 1, usable, columns.rank(_rank(by_type, typical)))


def _rank(speed: Floats, typical: Floats | None) -> Ints:
    """Rank of each GPU type; the best is 0."""
    score = speed if typical is None else speed / np.maximum(typical, 1e-9)
    return np.argsort(np.argsort(-score, kind="stable"))
