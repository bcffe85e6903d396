"""Leases and auctions of Themis, as the engine runs them.

Tests policies/themis/app_split.py, policies/themis/app_views.py, policies/themis/bid_bundles.py,
policies/themis/bidding_agent.py and policies/themis/queue_minima.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event, JobFinished, JobSubmitted
from horae.core.queues import Queue
from horae.core.quotas import QuotaUse
from horae.core.reasons import Reason
from horae.core.states import State
from horae.placement.rules import make_placement
from horae.policies import make_policy
from horae.policies.settings import BadSetting
from horae.policies.themis.bidding_agent import ErringAgent, TruthfulAgent
from horae.policies.themis.themis import _JobGrants
from horae.report.metrics.measure import measure
from horae.simulator.driver import Driver
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.simulator.world import World
from horae.solve.auction.bids import check_bid
from horae.workload.clusters import parse_cluster
from horae.workload.generator import generate, preset
from horae.workload.speed_files import load_throughputs
from horae.workload.traces import load_trace
from tests.builders import Cell, cluster, job, run, times
from tests.policies.themis_apps import LEASE_S, SHORT, offer, random_job, view

# ----------------------------------------------------------------- the agent


def test_rho_of_nothing_is_that_of_the_best_gang_a_lease_from_now() -> None:
    assert view(elapsed_s=50.0).rho_now == pytest.approx((50 + LEASE_S + 1000 / 2) / 1000)


def test_an_app_ends_no_sooner_than_its_longest_job() -> None:
    app = view(jobs=3)
    assert app.rho(np.array([2.0, 4.0, 6.0, 600.0])) == pytest.approx([1.5, 0.75, 0.5, 0.5])


def test_a_bid_has_a_row_for_every_number_of_gangs_that_fit() -> None:
    offered, machines = offer(4, 2, 2)
    bid = TruthfulAgent().bid(view(jobs=9), offered, machines)
    check_bid(offered, bid)
    assert bid.bundles.total.tolist() == [2, 4, 6, 8]
    assert bid.bundles.rho == pytest.approx(9000 / np.array([2, 4, 6, 8]) / 1000)
    assert bid.gang == 2
    assert bid.taker.most == 9


def test_a_gang_that_no_machine_holds_is_spread_over_a_rack_at_a_cost() -> None:
    offered, machines = offer(1, 1, 1, 1)
    bid = TruthfulAgent().bid(view(), offered, machines)
    check_bid(offered, bid)
    assert bid.bundles.rho == pytest.approx([1000 / (2 / 1.5) / 1000] * 2)


def test_who_holds_gpus_bids_only_for_much_faster_ones_and_gives_its_own_back() -> None:
    offered, machines = offer(4)
    assert len(view(speed=np.array([2.0])).asking) == 0
    slow = view(speed=np.array([1.0]))
    bid = TruthfulAgent().bid(slow, offered, machines)
    assert bid.rho == pytest.approx(1.0)
    assert bid.bundles.rho == pytest.approx([0.5])


def test_errors_are_bounded_and_the_same_for_the_same_seed() -> None:
    offered, machines = offer(4, 4)
    true = TruthfulAgent().bid(view(jobs=4), offered, machines)
    agents = [ErringAgent(TruthfulAgent(), 0.2, (seed, 0)) for seed in (1, 1, 2)]
    bids = [agent.bid(view(jobs=4), offered, machines) for agent in agents]
    for bid in bids:
        assert (np.abs(bid.bundles.rho / true.bundles.rho - 1) <= 0.2).all()
    assert (bids[0].bundles.rho == bids[1].bundles.rho).all()
    assert (bids[0].bundles.rho != bids[2].bundles.rho).all()


# ------------------------------------------------------------------ the runs


def test_an_app_alone_has_a_rho_of_exactly_1_and_is_never_stopped() -> None:
    history = run([job("a", gpus=4, work=1000)], "1x4", "themis", settings=SHORT)
    assert times(history)["a"] == (0, 1000)
    assert measure(history).rho.max == 1.0


def test_settings_that_cannot_be_are_refused() -> None:
    for settings_, words in (
        ({"f": "2"}, "from 0 to 1"),
        ({"bid-error": "1"}, "below 1"),
        ({"denominator": "x"}, "isol"),
    ):
        with pytest.raises(BadSetting, match=words):
            make_policy("themis", settings_)


def test_a_job_on_slow_gpus_exchanges_them_for_fast_ones_that_come_free() -> None:
    cell = Cell("fast:1x1,slow:1x1", "themis", {"lease": "10000"})
    speeds = {"fast": 10.0, "slow": 1.0}
    cell.submit(0, job("a", work=1000, throughput=speeds), job("b", work=1e5, throughput=speeds))
    first = "a" if cell.gpus("a") == (0,) else "b"
    other = "b" if first == "a" else "a"
    assert cell.gpus(first) == (0,)
    assert cell.gpus(other) == (1,)
    cell.at(50, JobFinished(50, first, cell.attempt(first)))
    assert cell.gpus(other) == (0,)


def test_a_freed_gpu_is_auctioned_at_once() -> None:
    history = run([job("a", work=30), job("b", work=100)], "1x1", "themis", settings=SHORT)
    ran = times(history)
    first, second = sorted(ran, key=lambda name: ran[name][0])
    assert ran[first][0] == 0
    assert ran[second][0] == ran[first][1]


def test_an_unmet_minimum_is_served_before_the_auction_and_up_the_tree() -> None:
    """Team a of org is guaranteed nothing itself: it has org's minimum. Without it, chance decides at some seed."""
    got = []
    for queues in ([Queue("org", gpus_min=2)], []):
        for seed in range(6):
            cell = Cell("1x4", "themis", {**SHORT, "seed": str(seed)}, queues=queues)
            others = [job(f"x{n}", work=1000, app="x", queue="else") for n in range(8)]
            cell.submit(0, *others, *(job(f"o{n}", work=10_000, app=f"o{n}", queue="org/a") for n in range(3)))
            got.append(sum(bool(cell.gpus(f"o{n}")) for n in range(3)))
    assert min(got[:6]) >= 2
    assert min(got[6:]) < 2


def test_a_minimum_takes_no_lease_away_and_is_served_when_one_ends() -> None:
    cell = Cell("1x4", "themis", SHORT, queues=[Queue("org", gpus_min=4)])
    cell.submit(0, job("big", gpus=4, work=1e6, queue="else"))
    cell.submit(10, job("late", gpus=4, work=1e6, queue="org"))
    assert (cell.running, cell.gpus("late")) == (["big"], ())
    cell.at(LEASE_S)
    assert cell.running == ["late"]
    for lease in range(2, 6):
        cell.at(lease * LEASE_S)
        assert cell.running == ["late"]
    assert cell.attempt("late") == 1


def test_a_job_that_runs_by_guarantee_counts_as_leased() -> None:
    """Its app's other job then bids with the speed it has, so that the app without any GPUs is worse off and wins."""
    cell = Cell("2x1", "themis", {**SHORT, "f": "1"}, queues=[Queue("org", gpus_min=1)])
    cell.submit(0, *(job(f"a{n}", work=1000, app="a", queue="org") for n in range(2)), job("b", work=2000))
    assert sorted(cell.running) == ["a0", "b"]


class Watcher:
    """Checks that no lease is broken or outlived, and after every decision that nobody idles and minima are served."""

    def __init__(self) -> None:
        self.leases: dict[tuple[str, int], float] = {}

    def __call__(self, engine: Engine, event: Event | Decided) -> None:
        self._nobody_outlives_a_lease(engine, event)
        if not isinstance(event, Decided):
            return
        for stop in event.stops:
            assert self.leases.get((stop.job, stop.attempt), -np.inf) <= event.at_s or stop.why.value == "moved"
        if event.planned:
            self._nobody_idles(engine)
            self._minima_are_served(engine, event)
        for row in event.leased:
            name = engine.jobs.specs[row].id
            self.leases[name, int(engine.jobs.attempt[row])] = event.lease_until_s

    def _nobody_outlives_a_lease(self, engine: Engine, event: Event | Decided) -> None:
        """What was leased is offered again at the very moment the lease ends, so that nobody has GPUs beyond it."""
        planned = isinstance(event, Decided) and event.planned
        for row in engine.gpus.held:
            until_s = float(engine.jobs.protected_until_s[row])
            assert until_s > event.at_s or (until_s == event.at_s and not planned)

    def _minima_are_served(self, engine: Engine, event: Decided) -> None:
        """Nobody waits within a minimum while others are given, in the same decision, GPUs that would do."""
        if any(stop.why.value == "moved" for stop in event.stops):
            return  # What a job that moved left behind came free later.
        jobs, ledger, use = engine.jobs, engine.gpus, self._use(engine)
        others = [row for row in event.leased if engine.queues.paths[jobs.queue[row]] != "org/b"]
        could_have = ledger.gpu_open & ((ledger.holders[0] < 0) | np.isin(ledger.holders[0], others))
        by_type = np.bincount(ledger.cluster.gpu_type[could_have], minlength=len(ledger.cluster.gpu_types))
        for row in jobs.active.tolist():
            quota, gpus = int(jobs.quota[row]), int(jobs.gpus[row])
            if State(int(jobs.state[row])) == State.WAITING and use.guarantees(quota, gpus):
                assert gpus > max(by_type[t] for t in range(len(by_type)) if jobs.types[row] >> t & 1)

    def _nobody_idles(self, engine: Engine) -> None:
        free = engine.gpus.holders[0] < 0
        waiting = [row for row in engine.jobs.active.tolist() if State(int(engine.jobs.state[row])) == State.WAITING]
        for gpu_type in range(len(engine.gpus.cluster.gpu_types)):
            idle = int((free & (engine.gpus.cluster.gpu_type == gpu_type)).sum())
            for row in waiting:
                able = engine.jobs.types[row] >> gpu_type & 1 and engine.jobs.gpus[row] <= idle
                assert not able or Reason(int(engine.jobs.reason[row])) is Reason.OVER_QUOTA or self._full(engine, row)

    def _full(self, engine: Engine, row: int) -> bool:
        return not self._use(engine).allows(int(engine.jobs.quota[row]), int(engine.jobs.gpus[row]))

    def _use(self, engine: Engine) -> QuotaUse:
        use = QuotaUse(engine.queues)
        for holder, gpu_ids in engine.gpus.held.items():
            use.add(int(engine.jobs.quota[holder]), len(gpu_ids))
        return use


@settings(max_examples=40, deadline=None)
@example(1200, 0.0, True, False)  # A plan while a job loads that is protected beyond its lease until it works.
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.booleans(), st.booleans())
def test_leases_hold_nothing_idles_and_everybody_finishes(seed: int, f: float, hetero: bool, quotas: bool) -> None:
    rng = np.random.default_rng(seed)
    machines = cluster("fast:2x4,slow:3x2" if hetero else "3x4", nodes_per_rack=2)
    specs = [random_job(rng, number) for number in range(int(rng.integers(2, 20)))]
    if hetero:
        specs = [replace(spec, throughput={"fast": 4.0, "slow": 1.0}, unit="steps") for spec in specs]
    queues = [Queue("org/a", gpus_max=4), Queue("org/b", gpus_min=10)] if quotas else []
    policy = {"f": str(f), "lease": "200", "seed": str(seed)}
    engine = Engine(machines, make_policy, "themis", policy, make_placement("best-effort"), queues=queues)
    world = World(engine.jobs, machines, 20.0, None, 0)
    Driver(engine, world, [JobSubmitted(spec.submit_s, spec) for spec in specs], watch=Watcher()).run()
    assert (engine.jobs.state[: len(specs)] == int(State.FINISHED)).all()


# ----------------------------------------------------------------- workloads


def test_the_papers_mix_is_shared_far_more_fairly_than_by_others_and_for_no_more_gpu_time() -> None:
    machines = parse_cluster("gpu:12x4,gpu:6x2,gpu:4x1")
    jobs = generate(preset("themis", jobs=300, load=1.2), machines, None, 0)
    reports = {
        policy: measure(simulate(Scenario(jobs, machines, policy=policy)))
        for policy in ("themis", "tiresias", "gandiva", "slaq")
    }
    themis = reports.pop("themis")
    for policy, report in reports.items():
        assert report.rho.max >= 2.25 * themis.rho.max, policy
        assert themis.gpu_hours <= 1.05 * report.gpu_hours, policy


def test_gavels_trace_with_each_job_its_own_app(shared_data: Path) -> None:
    speeds = load_throughputs(shared_data / "gavel" / "simulation_throughputs.json")
    jobs = load_trace(shared_data / "gavel" / "max_min_fairness.trace", throughputs=speeds).jobs
    machines = parse_cluster("v100:8x1,p100:16x1,k80:24x1")
    for seed in ("0", "1"):
        history = simulate(
            Scenario(
                jobs,
                machines,
                policy="themis",
                settings={"denominator": "isolated", "seed": seed},
                placement="anywhere",
                restart_cost_s=0.0,
                throughputs=speeds,
            )
        )
        report = measure(history)
        assert report.isolated_rho.max <= 1.10
        assert report.avg_jct_s <= 14_500


def test_trials_that_stop_early_are_bid_for_in_their_order() -> None:
    machines = parse_cluster("4x4")
    settings_ = preset("themis", jobs=60, load=2.0, app_scheduler="halving:eta=3")
    history = simulate(Scenario(generate(settings_, machines, None, 0), machines, policy="themis", settings=SHORT))
    report = measure(history)
    assert report.given_up > 10
    assert history.counters["auctions"] > 0
    assert (~np.isnan(history.end_s)).all()


def test_a_job_that_moves_leaves_what_it_was_granted_before_the_auction_or_else_what_it_has() -> None:
    views = SimpleNamespace(leased=[True, True], granted={0: {1: 2}}, queue_use=lambda: None)
    now = SimpleNamespace(
        machines=SimpleNamespace(
            names=("a", "b", "c"), of_gpu=np.array([0, 0, 1, 1, 2]), gpu_type=np.zeros(3, np.int64)
        ),
        rows=np.array([4, 5]),
        gpu_ledger=SimpleNamespace(held={5: (4,)}, gpu_open=np.array([True] * 4 + [False])),
    )
    grants = _JobGrants(now, views, {})  # type: ignore[arg-type]
    grants.given = {0: {0: 2}, 1: {0: 1}}
    assert grants._left(np.array([4, 0, 0])).tolist() == [1, 2, 0], "the GPU that job 1 has is closed"
    now.gpu_ledger.gpu_open[4] = True
    assert grants._left(np.array([4, 0, 0])).tolist() == [1, 2, 1]
