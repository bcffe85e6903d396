"""Themis: GPUs are leased, and those that come free are auctioned among the apps that are worst off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.bidding import Ask
from horae.core.gpu_ledger import NOBODY
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.gavel.isolated_time import COLUMNS, isolated_total_s
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
from horae.policies.themis.rho import MEMORY, AppFinishTimes, alone_s, look, whole_demand
from horae.policies.time_grid import next_quantum_s
from horae.solve.auction.bids import Bid, Offer, Taker

#: What is counted on the way: always, and where apps have agents of their own.
_COUNTED, _COUNTED_OUTSIDE = ("auctions", "gpus_won", "gpus_paid"), ("bids_asked", "bids_heard")
_DENOMINATORS = ("share", "isolated")


@dataclass(frozen=True)
class Themis:
    """Lease GPUs; offer free ones to the apps that are worst off, who bid, and pay by giving a part back.

    Finish-time fairness by partial allocation auction (Themis, NSDI '20, sections 4 and 5). Nobody loses
    GPUs before the lease is over; then they are offered again, and who wins them back keeps running.
    """

    objective: ClassVar = "rho = finish time here / finish time alone on 1/N, by auction"
    unit: ClassVar = "rho"
    paper: ClassVar = "Themis, NSDI '20"
    memory: ClassVar[MemorySpec] = MemorySpec(
        columns={**MEMORY.columns, **COLUMNS},
        by_app=MEMORY.by_app,
        scalars={**MEMORY.scalars, **dict.fromkeys((*_COUNTED, *_COUNTED_OUTSIDE), 0.0)},
    )
    f: float = setting(0.8, "offers go to the worst 1 - f of all apps, at least to one", least=0)
    lease: float = setting(
        1200.0, "seconds for which won GPUs are safe, give or take half, to end with others", least=1
    )
    denominator: str = setting("share", "time alone: share, on 1/N of the GPUs, or isolated, on 1/N of each type")
    bid_error: float = setting(0.0, "how far off bids are: each rho times 1 plus or minus at most this", least=0)
    answer: float = setting(2.0, "seconds that an app's own agent has to bid, before the built-in one does", least=0.01)
    seed: int = setting(0, "seed of lots and bid errors", least=0)

    def __post_init__(self) -> None:
        if self.f > 1:
            raise BadSetting(f"f={self.f:g} is no share: use a number from 0 to 1.")
        if self.bid_error >= 1:
            raise BadSetting(f"bid-error={self.bid_error:g} would make rho negative: use a number below 1.")
        if self.denominator not in _DENOMINATORS:
            raise BadSetting(f"denominator={self.denominator} is not known: choose {' or '.join(_DENOMINATORS)}.")

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Serve guaranteed minima; then hold an auction if there is anything to sell and anybody to buy."""
        apps = look(now, memory)
        views = AppViews(now, apps, self._alone_s(now, memory, apps), self.lease)
        free = _free(now, views)
        given = serve_minima(now, views, free)
        if given:
            views, free = replace(views, granted=given), _less(free, given)
        asks: tuple[Ask, ...] = ()
        # Those who wait when nothing is to be had wait for leases to end, not for anybody who was worse off.
        waiting = Reason.LEASED
        if free.any() and views.wants.any():
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
        """Auctions, the GPUs that were won in them, how many of these winners paid with; how agents outside fared."""
        names = (*_COUNTED, *_COUNTED_OUTSIDE) if memory.scalar("bids_asked") else _COUNTED
        return {name: int(memory.scalar(name)) for name in names}

    def _next_lease_end_s(self, now: Snapshot, leases: bool) -> float:
        """When the first lease is over: its GPUs are offered again, even to their holder alone."""
        until_s = now.table.protected_until_s[now.rows[now.has_gpus]]
        soonest_s = float(until_s[until_s > now.now_s].min(initial=math.inf))
        return min(soonest_s, self._lease_end_s(now.now_s)) if leases else soonest_s

    def _lease_end_s(self, now_s: float) -> float:
        """Leases end together, so that there is a choice, after half to one and a half times their length."""
        end_s = next_quantum_s(now_s, self.lease)
        return end_s if end_s - now_s >= self.lease / 2 else end_s + self.lease

    def _alone_s(self, now: Snapshot, memory: Memory, apps: AppFinishTimes) -> Floats:
        """T_id of each app."""
        if self.denominator == "share":
            return alone_s(whole_demand(now, apps), now.cluster.gpus_by_type, apps.contention)
        longest_s = np.zeros(len(apps))
        np.maximum.at(longest_s, apps.of_job, isolated_total_s(now, memory))
        return longest_s

    def _open(self, now: Snapshot, memory: Memory, views: AppViews, free: Ints) -> _AuctionRound:
        """Find out who may bid for what."""
        number = int(memory.scalar("auctions"))
        agent = self._agent(number)
        shown = {app: view for app in np.flatnonzero(views.wants).tolist() if len((view := views.view(app)).asking)}
        offer = Offer(now.machines.names, free, now.machines.gpu_type)
        return _AuctionRound(number, offer, shown, tuple(self._visible(agent, shown, len(views.apps))), agent)

    def _asks(self, now: Snapshot, auction: _AuctionRound) -> tuple[Ask, ...]:
        """What apps' own agents still have to answer before the auction can be held; they are asked once."""
        asked = tuple(ask for ask in now.bidding.asked.values() if ask.auction == auction.number)
        if asked:
            open_until_s = max(ask.deadline_s for ask in asked)
            return asked if now.now_s < open_until_s and not now.bidding.complete else ()
        outside = [app for app in auction.bidders if auction.shown[app].name in now.bidding.agents]
        return tuple(_ask(auction, now, app, now.now_s + self.answer) for app in outside)

    def _hold(self, now: Snapshot, memory: Memory, views: AppViews, auction: _AuctionRound) -> dict[int, Counts]:
        """GPUs by machine for each job (by position) that gets some."""
        from horae.solve.auction.auction import hold_auction

        number, offer, shown = auction.number, auction.offer, auction.shown
        memory.put_scalar("auctions", number + 1)
        bids = [self._bid(now, memory, auction, app) for app in auction.bidders]
        typical = _typical(shown, int(offer.free.sum()))
        others = [app_taker(view, now.machines, typical) for app, view in shown.items() if app not in auction.bidders]
        outcome = hold_auction(offer, bids, others, (self.seed, number))
        memory.put_scalar("gpus_won", memory.scalar("gpus_won") + outcome.won)
        memory.put_scalar("gpus_paid", memory.scalar("gpus_paid") + outcome.paid)
        shares = _Shares(now, views, shown)
        shares.hand_out(outcome.holdings())
        shares.hand_on(offer.free, typical, (self.seed, number))
        return shares.given

    def _bid(self, now: Snapshot, memory: Memory, auction: _AuctionRound, app: int) -> Bid:
        """What an app's own agent said in time, if it has one and it made sense; else the built-in agent's bid."""
        view = auction.shown[app]
        answer = now.bidding.answers.get(view.name)
        if view.name in now.bidding.asked:
            memory.put_scalar("bids_asked", memory.scalar("bids_asked") + 1)
        said = answered_bid(view, auction.offer, now.machines, answer) if answer else None
        if said is None:
            return auction.agent.bid(view, auction.offer, now.machines)
        memory.put_scalar("bids_heard", memory.scalar("bids_heard") + 1)
        return said

    def _agent(self, auction: int) -> Agent:
        """Who speaks for the apps."""
        truthful = TruthfulAgent()
        return ErringAgent(truthful, self.bid_error, (self.seed, auction)) if self.bid_error else truthful

    def _visible(self, agent: Agent, shown: Mapping[int, AppView], apps: int) -> list[int]:
        """The apps that may bid: those with the highest rho."""
        rho = {app: agent.rho(view) for app, view in shown.items()}
        worst_first = sorted(shown, key=lambda app: (-round(rho[app], 9), app))
        return worst_first[: max(1, math.ceil(round((1.0 - self.f) * apps, 9)))]


@dataclass(frozen=True)
class _AuctionRound:
    """One auction: what is offered, the apps that want some of it, and those of them that may bid."""

    number: int
    offer: Offer
    shown: Mapping[int, AppView]
    bidders: tuple[int, ...]
    agent: Agent


class _Shares:
    """Who of the jobs gets which GPUs, as apps divide what they won. No queue gets more than its maximum."""

    def __init__(self, now: Snapshot, views: AppViews, shown: Mapping[int, AppView]) -> None:
        self._now, self._views, self._shown = now, views, shown
        self._number = {view.name: app for app, view in shown.items()}
        self._use, self._columns = views.use(), SharedColumns(now.machines)
        #: GPUs by machine, by position of the job.
        self.given: dict[int, Counts] = {}

    def hand_out(self, won: Mapping[str, Counts]) -> None:
        """Let apps divide GPUs among their jobs that ask."""
        for name, counts in won.items():
            app = self._number[name]
            asking = self._views.jobs_of[app][self._shown[app].asking]
            for i, places in divide(self._now, asking, counts, self._views.leased).items():
                self._give(i, places)

    def hand_on(self, free: Ints, typical: Floats | None, seed: tuple[int, int]) -> None:
        """What apps could not use, and what their jobs leave behind, goes to jobs that still ask, by lot."""
        from horae.solve.auction.leftovers import give_leftovers

        # Every pass gives somebody GPUs, or much faster ones; so there is a last.
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
        """Give a job GPUs, or others than it was given before; False if its queue has all it may."""
        if i not in self.given and not self._views.leased[i]:
            queue, gpus = int(self._now.queue[i]), int(self._now.gpus[i])
            if not self._use.allows(queue, gpus):
                return False
            self._use.add(queue, gpus)
        self.given[i] = places
        return True

    def _left(self, free: Ints) -> Ints:
        """GPUs by machine that nobody has been given; those that a job with a lease leaves are among them."""
        left = _less(free, self.given)
        for i in self.given:
            if self._views.leased[i]:
                has = held_by(self._now, i)
                left[list(has)] += list(has.values())
        return left

    def _takers(self, typical: Floats | None) -> dict[int, Taker]:
        """Jobs that still ask, by position: those with nothing, and those on slow GPUs that have not moved yet."""
        takers = {}
        for app, view in self._shown.items():
            for k, i in zip(view.asking.tolist(), self._views.jobs_of[app][view.asking].tolist(), strict=True):
                stays = i not in self.given or self.given[i] == held_by(self._now, i)
                allowed = self._views.leased[i] or i in self.given
                if stays and (allowed or self._use.allows(int(self._now.queue[i]), int(self._now.gpus[i]))):
                    takers[i] = job_taker(view, k, self._columns, typical, self._speed(i))
        return takers

    def _speed(self, i: int) -> float:
        """Speed of a job that keeps its GPUs, in GPUs of its best type; 0 for one that has none."""
        if i not in self.given and not self._views.leased[i]:
            return 0.0
        return rate_now(self._now, i) * int(self._now.gpus[i]) / float(self._now.rates[i].max())


def _ask(auction: _AuctionRound, now: Snapshot, app: int, deadline_s: float) -> Ask:
    """The question to one app's own agent."""
    view, offer, types = auction.shown[app], auction.offer, now.cluster.gpu_types
    gang = app_taker(view, now.machines).gang
    free = zip(offer.machines, offer.free.tolist(), now.machines.gpu_type.tolist(), strict=True)
    return Ask(
        app=view.name,
        auction=auction.number,
        deadline_s=deadline_s,
        offer=tuple((machine, count, types[kind]) for machine, count, kind in free if count),
        gang=gang,
        gangs=int(view.wanting.sum()) // gang,
        rho=view.rho_of_nothing,
        elapsed_s=view.elapsed_s,
        alone_s=view.alone_s,
        holds=int(view.gpus[view.speed > 0].sum()),
        asked_s=now.now_s,
    )


def _typical(shown: Mapping[int, AppView], free: int) -> Floats | None:
    """The mean speed of each GPU type for those that ask, if there are not enough for all; none, if there are."""
    if not shown or sum(int(view.wanting.sum()) for view in shown.values()) <= free:
        return None
    return np.asarray(np.mean([view.type_speed for view in shown.values()], axis=0))


def _free(now: Snapshot, views: AppViews) -> Ints:
    """GPUs by machine that nobody has for sure."""
    ledger = now.gpu_ledger
    open_gpus = ledger.gpu_open & (ledger.holders[0] == NOBODY)
    for i in np.flatnonzero(now.has_gpus & ~views.leased).tolist():
        mine = list(ledger.held[int(now.rows[i])])
        open_gpus[mine] = ledger.gpu_open[mine]
    return np.bincount(now.machines.of_gpu[open_gpus], minlength=len(now.machines.names)).astype(np.int64)


def _less(free: Ints, given: Mapping[int, Counts]) -> Ints:
    """GPUs by machine without those that were given."""
    left = free.copy()
    for counts in given.values():
        left[list(counts)] -= list(counts.values())
    return left
