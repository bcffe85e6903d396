"""Themis: GPUs are leased, and free GPUs are auctioned among the apps with the highest rho."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.bidding import Ask
from horae.core.gpu_moves import NOBODY
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.gavel.isolated_time import COLUMNS, isolated_total_s
from horae.policies.next_quantum import next_quantum_s
from horae.policies.settings import BadSetting, setting
from horae.policies.themis.app_split import Counts, divide, held_by, rate_now
from horae.policies.themis.app_views import AppViews
from horae.policies.themis.bidding_agent import (
    Agent,
    AppView,
    ErringAgent,
    SharedColumns,
    TruthfulAgent,
    answered_bid,
    app_taker,
    job_taker,
)
from horae.policies.themis.queue_minima import serve_minima
from horae.policies.themis.rho import BY_USER, MEMORY, AppsNow, alone_s, find_apps, users_rho, whole_demand
from horae.solve.auction.bids import Bid, Offer, Taker

#: Memory (stored): counters of all runs, and counters of runs with agents outside the scheduler.
_COUNTED, _COUNTED_OUTSIDE = ("auctions", "gpus_won", "gpus_paid"), ("bids_asked", "bids_heard")
_DENOMINATORS = ("share", "isolated")


@dataclass(frozen=True)
class Themis:
    """Lease GPUs; offer free ones to the apps that are worst off, who bid, and pay by giving a part back.

    Finish-time fairness by partial allocation auction (Themis, NSDI '20, sections 4 and 5). No job loses its GPUs
    before its lease is over. Then the GPUs are offered again, and a job that wins them back keeps running.
    """

    objective: ClassVar = "rho = finish time here / finish time alone on 1/N, by auction"
    unit: ClassVar = "rho"
    paper: ClassVar = "Themis, NSDI '20"
    type_aware: ClassVar = True
    chooses_machines: ClassVar = True
    memory: ClassVar[MemorySpec] = MemorySpec(
        columns={**MEMORY.columns, **COLUMNS},
        by_app=MEMORY.by_app,
        scalars={**MEMORY.scalars, **dict.fromkeys((*_COUNTED, *_COUNTED_OUTSIDE), 0.0)},
    )
    f: float = setting(0.8, "offers go to the worst 1 - f of all apps, at least to one", least=0)
    lease: float = setting(
        1200.0, "seconds for which won GPUs are safe, plus or minus half, so that leases end together", least=1
    )
    denominator: str = setting("share", "time alone: share, on 1/N of the GPUs, or isolated, on 1/N of each type")
    bid_error: float = setting(
        0.0, "largest relative error of bids: each rho is multiplied by a factor from 1 - this to 1 + this", least=0
    )
    answer: float = setting(
        2.0, "seconds that an app's own agent has to answer; after that the built-in agent bids", least=0.01
    )
    seed: int = setting(0, "seed of lots and bid errors", least=0)
    by_user: bool = setting(True, BY_USER)

    def __post_init__(self) -> None:
        if self.f > 1:
            raise BadSetting(f"f={self.f:g} is not a share: use a number from 0 to 1.")
        if self.bid_error >= 1:
            raise BadSetting(f"bid-error={self.bid_error:g} would make rho negative: use a number below 1.")
        if self.denominator not in _DENOMINATORS:
            raise BadSetting(f"denominator={self.denominator} is not known: choose {' or '.join(_DENOMINATORS)}.")

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Serve queue minima; then hold an auction if there are free GPUs and apps that can use them."""
        apps = find_apps(now, memory, self.by_user)
        views = AppViews(now, apps, self._alone_s(now, memory, apps), self.lease)
        free = _offered_gpus(now, views)
        given = serve_minima(now, views, free)
        if given:
            views, free = replace(views, granted=given), _without(free, given)
        asks: tuple[Ask, ...] = ()
        # Without free GPUs, waiting jobs wait for leases to end, not behind an app that was worse off; placement says
        # so, too, of jobs that lost an auction in which leased GPUs were missing.
        waiting = Reason.LEASED
        if free.any() and views.may_bid.any():
            auction = self._open(now, memory, views, free)
            asks = self._asks(now, auction)
            waiting = Reason.AWAITING_BIDS if asks else Reason.BEHIND_SHARE
            if not asks:
                given = given | self._hold(now, memory, views, auction)
        wake_s = self._next_lease_end_s(now, bool(given))
        return Wishes(
            job=now.rows[list(given)] if given else np.empty(0, np.int64),
            pins=tuple(given.values()),
            lease_until_s=self._lease_end_s(now.now_s),
            waiting=waiting,
            asks=asks,
            wake_s=min([wake_s, *(ask.deadline_s for ask in asks)]),
        )

    def counters(self, memory: Memory) -> dict[str, int]:
        """Number of auctions, GPUs won, GPUs paid back by winners; bids asked of and received from agents outside."""
        names = (*_COUNTED, *_COUNTED_OUTSIDE) if memory.scalar("bids_asked") else _COUNTED
        return {name: int(memory.scalar(name)) for name in names}

    def _next_lease_end_s(self, now: Snapshot, new_leases: bool) -> float:
        """When the first lease is over. Its GPUs are offered again then, even if only their holder wants them.

        A job that loads is protected beyond its lease, but for less time once it is known how long loading took.
        """
        rows, table = now.rows[now.has_gpus], now.table
        leased = table.lease_until_s[rows] > now.now_s
        until_s = np.where(leased, table.lease_until_s[rows], table.protected_until_s[rows])
        soonest_s = float(until_s[until_s > now.now_s].min(initial=math.inf))
        return min(soonest_s, self._lease_end_s(now.now_s)) if new_leases else soonest_s

    def _lease_end_s(self, now_s: float) -> float:
        """End of a lease that begins now: on the time grid, so that leases end together; .5 to 1.5 lease lengths."""
        end_s = next_quantum_s(now_s, self.lease)
        return end_s if end_s - now_s >= self.lease / 2 else end_s + self.lease

    def _alone_s(self, now: Snapshot, memory: Memory, apps: AppsNow) -> Floats:
        """T_id of each app."""
        if self.denominator == "share":
            return alone_s(whole_demand(now, apps), now.cluster.gpus_by_type, apps.contention)
        longest_s = np.zeros(len(apps))
        np.maximum.at(longest_s, apps.of_job, isolated_total_s(now, memory))
        return longest_s

    def _open(self, now: Snapshot, memory: Memory, views: AppViews, free: Ints) -> _AuctionRound:
        """The auction of these free GPUs: its offer, the apps that ask, and the apps that may bid."""
        number = int(memory.scalar("auctions"))
        agent = self._agent(number)
        asking = {app: view for app in np.flatnonzero(views.may_bid).tolist() if len((view := views.view(app)).asking)}
        offer = Offer(now.machines.names, free, now.machines.gpu_type)
        of_user = users_rho(now, views.apps, self.lease) if self.by_user else np.zeros(len(views.apps))
        return _AuctionRound(number, offer, asking, tuple(self._bidders(agent, asking, of_user)), agent)

    def _asks(self, now: Snapshot, auction: _AuctionRound) -> tuple[Ask, ...]:
        """Open questions to agents outside, which delay the auction. Each agent is asked once in an auction."""
        asked = tuple(ask for ask in now.bidding.asked.values() if ask.auction == auction.number)
        if asked:
            open_until_s = max(ask.deadline_s for ask in asked)
            return asked if now.now_s < open_until_s and not now.bidding.complete else ()
        outside = [app for app in auction.bidders if auction.asking[app].name in now.bidding.agents]
        return tuple(_ask(auction, now, app, now.now_s + self.answer) for app in outside)

    def _hold(self, now: Snapshot, memory: Memory, views: AppViews, auction: _AuctionRound) -> dict[int, Counts]:
        """Hold the auction. Returns GPU count by machine of each job (by position) that gets GPUs."""
        from horae.solve.auction.auction import hold_auction

        number, offer, asking = auction.number, auction.offer, auction.asking
        memory.put_scalar("auctions", number + 1)
        bids = [self._bid(now, memory, auction, app) for app in auction.bidders]
        typical = _typical_speed(asking, int(offer.free.sum()))
        others = [app_taker(view, now.machines, typical) for app, view in asking.items() if app not in auction.bidders]
        outcome = hold_auction(offer, bids, others, (self.seed, number))
        memory.put_scalar("gpus_won", memory.scalar("gpus_won") + outcome.won)
        memory.put_scalar("gpus_paid", memory.scalar("gpus_paid") + outcome.paid)
        grants = _JobGrants(now, views, asking)
        grants.divide_won(outcome.holdings())
        grants.give_leftovers(offer.free, typical, (self.seed, number))
        return grants.given

    def _bid(self, now: Snapshot, memory: Memory, auction: _AuctionRound, app: int) -> Bid:
        """The bid of the app's own agent, if there is one, in time and valid; else the built-in agent's bid."""
        view = auction.asking[app]
        answer = now.bidding.answers.get(view.name)
        if view.name in now.bidding.asked:
            memory.put_scalar("bids_asked", memory.scalar("bids_asked") + 1)
        bid = answered_bid(view, auction.offer, now.machines, answer) if answer else None
        if bid is None:
            return auction.agent.bid(view, auction.offer, now.machines)
        memory.put_scalar("bids_heard", memory.scalar("bids_heard") + 1)
        return bid

    def _agent(self, auction: int) -> Agent:
        """The built-in agent of all apps in this auction."""
        truthful = TruthfulAgent()
        return ErringAgent(truthful, self.bid_error, (self.seed, auction)) if self.bid_error else truthful

    def _bidders(self, agent: Agent, asking: Mapping[int, AppView], of_user: Floats) -> list[int]:
        """The apps that may bid: the asking apps with the highest rho, at most 1 - f of all apps.

        Apps of the users whose rho is highest come first; `of_user` is that rho, by app.
        """
        rho = {app: agent.rho(view) for app, view in asking.items()}
        worst_first = sorted(asking, key=lambda app: (-round(float(of_user[app]), 9), -round(rho[app], 9), app))
        return worst_first[: max(1, math.ceil(round((1.0 - self.f) * len(of_user), 9)))]


@dataclass(frozen=True)
class _AuctionRound:
    """One auction: the offer, the apps that ask for GPUs, and those of them that may bid."""

    number: int
    offer: Offer
    asking: Mapping[int, AppView]
    bidders: tuple[int, ...]
    agent: Agent


class _JobGrants:
    """The GPUs that each job gets, as apps divide what they won. No queue gets more than its maximum."""

    def __init__(self, now: Snapshot, views: AppViews, asking: Mapping[int, AppView]) -> None:
        self._now, self._views, self._asking = now, views, asking
        self._number = {view.name: app for app, view in asking.items()}
        self._use, self._columns = views.queue_use(), SharedColumns(now.machines)
        #: GPU count by machine, by position of the job.
        self.given: dict[int, Counts] = {}

    def divide_won(self, won: Mapping[str, Counts]) -> None:
        """Divide the GPUs that each app won among its asking jobs."""
        for name, counts in won.items():
            app = self._number[name]
            jobs = self._views.jobs_of[app][self._asking[app].asking]
            for i, places in divide(self._now, jobs, counts, self._views.leased).items():
                self._give(i, places)

    def give_leftovers(self, free: Ints, typical: Floats | None, seed: tuple[int, int]) -> None:
        """Give GPUs that apps could not use, or that their jobs leave, to jobs that still ask, by lot."""
        from horae.solve.auction.leftovers import give_leftovers

        # Every pass gives a job GPUs, or much faster GPUs, so the loop ends.
        for attempt in range(len(self._now) + 1):
            left = self._left(free)
            takers = self._takers(typical) if left.any() else {}
            if not takers:
                return
            named = [replace(taker, app=str(i)) for i, taker in takers.items()]
            found = give_leftovers(left, named, (), {}, (*seed, attempt))
            granted = [self._give(int(name), places) for name, places in found.items()]
            if not any(granted):
                return

    def _give(self, i: int, places: Counts) -> bool:
        """Give a job GPUs, or others than it was given before; False if its queue is at its maximum."""
        if i not in self.given and not self._views.leased[i]:
            quota, gpus = int(self._now.quota[i]), int(self._now.gpus[i])
            if not self._use.allows(quota, gpus):
                return False
            self._use.add(quota, gpus)
        self.given[i] = places
        return True

    def _left(self, free: Ints) -> Ints:
        """GPU count by machine that no job was given, with the GPUs that moving jobs leave."""
        left = _without(free, self.given)
        for i in self.given:
            if self._views.leased[i]:
                # A job with a new lease leaves what it was granted: the GPUs that it had are offered anyway.
                leaves = self._views.granted.get(i) or held_by(self._now, i)
                for machine, gpus in leaves.items():
                    left[machine] += gpus
        return left

    def _takers(self, typical: Floats | None) -> dict[int, Taker]:
        """Takers by position of the job: jobs without GPUs, and jobs on slow GPUs that have not moved yet."""
        takers = {}
        for app, view in self._asking.items():
            for k, i in zip(view.asking.tolist(), self._views.jobs_of[app][view.asking].tolist(), strict=True):
                stays = i not in self.given or self.given[i] == held_by(self._now, i)
                allowed = self._views.leased[i] or i in self.given
                if stays and (allowed or self._use.allows(int(self._now.quota[i]), int(self._now.gpus[i]))):
                    takers[i] = job_taker(view, k, self._columns, typical, self._speed(i))
        return takers

    def _speed(self, i: int) -> float:
        """Speed of a job on its GPUs, in GPUs of its fastest type; 0 without GPUs."""
        if i not in self.given and not self._views.leased[i]:
            return 0.0
        return rate_now(self._now, i) * int(self._now.gpus[i]) / float(self._now.rates[i].max())


def _ask(auction: _AuctionRound, now: Snapshot, app: int, deadline_s: float) -> Ask:
    """The question to the own agent of one app."""
    view, offer, types = auction.asking[app], auction.offer, now.cluster.gpu_types
    gang = app_taker(view, now.machines).gang
    free = zip(offer.machines, offer.free.tolist(), now.machines.gpu_type.tolist(), strict=True)
    return Ask(
        app=view.name,
        auction=auction.number,
        deadline_s=deadline_s,
        offer=tuple((machine, count, types[gpu_type]) for machine, count, gpu_type in free if count),
        gang=gang,
        gangs=int(view.wanting.sum()) // gang,
        rho=view.rho_of_nothing,
        elapsed_s=view.elapsed_s,
        alone_s=view.alone_s,
        holds=int(view.gpus[view.speed > 0].sum()),
        asked_s=now.now_s,
    )


def _typical_speed(asking: Mapping[int, AppView], free: int) -> Floats | None:
    """Mean speed of each GPU type over the asking apps; None if the free GPUs are enough for all of them."""
    if not asking or sum(int(view.wanting.sum()) for view in asking.values()) <= free:
        return None
    return np.asarray(np.mean([view.type_speed for view in asking.values()], axis=0))


def _offered_gpus(now: Snapshot, views: AppViews) -> Ints:
    """GPU count by machine that is free, or whose lease is over."""
    ledger = now.gpu_ledger
    open_gpus = ledger.gpu_open & (ledger.holders[0] == NOBODY)
    for i in np.flatnonzero(now.has_gpus & ~views.leased).tolist():
        gpu_ids = list(ledger.held[int(now.rows[i])])
        open_gpus[gpu_ids] = ledger.gpu_open[gpu_ids]
    return np.bincount(now.machines.of_gpu[open_gpus], minlength=len(now.machines.names)).astype(np.int64)


def _without(free: Ints, given: Mapping[int, Counts]) -> Ints:
    """Free GPUs by machine, without those that jobs were given."""
    left = free.copy()
    for counts in given.values():
        left[list(counts)] -= list(counts.values())
    return left
