"""Looking on changes nothing; what is seen is true.

Tests core/audit_observations.py.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from horae.core.audit_observations import Observations
from horae.core.cluster import Span
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event
from horae.core.job import JobSpec
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.states import WAITING
from horae.core.throughputs import Speeds, Throughputs
from horae.policies import POLICIES
from horae.simulator.audit.idle_gpus import idle_now
from horae.simulator.audit.misreports import Misreport, apply_misreport
from horae.simulator.audit.observer import Observer, sample_times
from horae.simulator.faults import Faults
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from tests.builders import Cell, Script, cluster, job

TWO_TYPES = "v100:1x4,k80:2x2"


def workload(seed: int = 0, count: int = 14, **more: Any) -> list[JobSpec]:
    """Jobs that come faster than they go, each with speeds of its own."""
    draw = np.random.default_rng(seed)
    return [
        job(
            f"job-{k}",
            gpus=int(draw.choice([1, 2, 4])),
            work=float(draw.integers(300, 6000)),
            submit_s=float(draw.integers(0, 3000)),
            throughput={"v100": float(draw.uniform(1, 3)), "k80": float(draw.uniform(0.5, 1))},
            slowdown=(1.0, 1.0, 1.2, 1.5),
            app=f"app-{k // 2}",
            **more,
        )
        for k in range(count)
    ]


def observed(jobs: list[JobSpec], spec: str, policy: str, samples: int = 6, **more: Any) -> tuple[Any, Observations]:
    """A run, and what an onlooker saw of it."""
    true = Throughputs()
    onlooker = Observer(sample_times(jobs, cluster(spec), true, samples, 0), true, 0)
    history = simulate(Scenario(jobs, cluster(spec), policy=policy, **more), onlooker=onlooker)
    return history, onlooker.observations()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_is_the_same_whether_somebody_looks_on_or_not(policy: str) -> None:
    faults = Faults(node_losses_per_day=20, launch_failures=0.1)
    jobs = workload(count=8, max_restarts=5)
    alone = simulate(Scenario(jobs, cluster(TWO_TYPES), policy=policy, faults=faults))
    watched, seen = observed(jobs, TWO_TYPES, policy, samples=3, faults=faults)
    np.testing.assert_array_equal(alone.end_s, watched.end_s)
    np.testing.assert_array_equal(alone.attempts.gpu_ids, watched.attempts.gpu_ids)
    np.testing.assert_array_equal(alone.attempts.begin_s, watched.attempts.begin_s)
    assert seen.moments
    assert len(seen.probes) > 6
    assert seen.decisions > 8


class Twin:
    """Forks the engine before every decision, and sees whether the fork decides the same."""

    def __init__(self) -> None:
        self._foreseen: Decided | None = None
        self.compared = 0

    def expect(self, engine: Engine, now_s: float) -> None:
        before = repr(engine.contents())
        self._foreseen = engine.fork().decide(now_s)
        assert repr(engine.contents()) == before, "a fork that decides leaves the engine alone"

    def see(self, engine: Engine, what: Event | Decided) -> None:
        if isinstance(what, Decided) and self._foreseen is not None:
            self.compared += 1
            foreseen, self._foreseen = self._foreseen, None
            assert foreseen.commands == what.commands
            assert foreseen.placed == what.placed
            assert foreseen.leased == what.leased


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "gandiva", "max-min", "finish-time", "themis"])
def test_a_fork_decides_what_the_engine_decides(policy: str) -> None:
    twin = Twin()
    simulate(Scenario(workload(count=8), cluster(TWO_TYPES), policy=policy), onlooker=twin)
    assert twin.compared > 8


def test_moments_are_spread_over_the_time_that_the_work_takes() -> None:
    at_once = [job(f"job-{k}", gpus=2, work=1000.0) for k in range(20)]
    times_s = sample_times(at_once, cluster("1x4"), Throughputs(), 10, seed=3)
    assert np.floor(times_s / 1000).tolist() == list(range(10))
    coming = [job(f"job-{k}", submit_s=100.0 * k, work=1.0) for k in range(11)]
    times_s = sample_times(coming, cluster("1x4"), Throughputs(), 5, seed=3)
    assert np.floor(times_s / 200).tolist() == list(range(5))


def test_nothing_is_looked_at_while_an_app_is_alone() -> None:
    history, seen = observed([job("a", work=100, app="x"), job("b", work=100, app="x")], "1x1", "las")
    assert history.finished.all()
    assert (seen.moments, seen.probes) == ((), ())


# ------------------------------------------------------------------ idle GPUs


def brute_force(now: Snapshot) -> int:
    """The most GPUs that waiting jobs could use at once, by trying every type for every job."""
    table, ledger = now.table, now.gpu_ledger
    rows = [row for row in now.rows.tolist() if table.state[row] == WAITING]
    free = np.bincount(
        now.cluster.gpu_type[(ledger.holders[0] < 0) & (ledger.occupants[0] < 0) & ledger.gpu_open],
        minlength=len(now.cluster.gpu_types),
    )
    most = 0
    for choice in product((-1, 0, 1), repeat=len(rows)):
        used = np.zeros(2, int)
        for row, gpu_type in zip(rows, choice, strict=True):
            if gpu_type >= 0:
                used[gpu_type] += table.gpus_min[row] if table.rates[row, gpu_type] > 0 else 1000
        if (used <= free).all():
            most = max(most, int(used.sum()))
    return most


@pytest.mark.parametrize("seed", range(6))
def test_idle_gpus_are_those_that_waiting_jobs_could_use(seed: int) -> None:
    counts = []

    def look(engine: Engine, what: Event | Decided) -> None:
        if isinstance(what, Decided) and len(engine.jobs.active) < 8:
            found, most = idle_now(engine.snapshot()), brute_force(engine.snapshot())
            gpus = found.gpus if found else 0
            assert (gpus > 0) == (most > 0)
            assert gpus <= most
            if found:
                spec = engine.jobs.specs[found.job]
                assert len(found.gpu_ids) == spec.gpus_min
                assert (engine.gpus.holders[0, list(found.gpu_ids)] < 0).all()
            counts.append(gpus)

    Script(workload(seed, 10), TWO_TYPES, "fifo", look=look)
    assert max(counts) > 0


def test_what_a_blocked_queue_wastes_is_counted_to_the_second() -> None:
    jobs = [job("a", 2, 100.0), job("b", 4, 100.0, submit_s=5), job("c", 1, 10.0, submit_s=10)]
    _, seen = observed(jobs, "1x4", "fifo")
    idle = seen.idleness
    assert (idle.stretches, idle.gpu_seconds) == (1, 90.0)
    assert idle.worst is not None
    assert (idle.worst.begin_s, idle.worst.end_s, idle.worst.gpus, idle.worst.job) == (10.0, 100.0, 1, 2)
    assert idle.worst.reason is Reason.BEHIND_EARLIER
    _, seen = observed(jobs, "1x4", "fifo-backfill")
    assert seen.idleness.worst is None


def test_a_job_beyond_its_quota_waits_for_no_gpu() -> None:
    jobs = [job("a", 1, 100.0, queue="team"), job("b", 1, 100.0, queue="team")]
    _, seen = observed(jobs, "1x4", "fifo", queues=[Queue("team", gpus_max=1)])
    assert seen.idleness.worst is None
    _, seen = observed(jobs, "1x4", "fifo", queues=[Queue("team", gpus_max=2)])
    assert seen.idleness.worst is None


# ------------------------------------------------------------------------ lies


def test_a_lie_changes_what_the_engine_believes_of_one_app_alone() -> None:
    cell = Cell("v100:1x2,k80:1x2", "fifo-backfill")
    speeds = {"v100": 2.0, "k80": 1.0}
    liar = job("liar", 2, 100.0, throughput=speeds, slowdown=(1.0, 1.0, 2.0, 2.0))
    cell.submit(0.0, liar, job("other", 2, 100.0, throughput=speeds))
    fork = cell.engine.fork()
    apply_misreport(fork, [0], Misreport("", work=8.0, speed=(("v100", 0.5),), spread=0.25), 10.0)
    table = fork.jobs
    assert table.work_left[:2].tolist() == [8 * 80.0, 100.0]
    assert table.work[0] - table.work_left[0] == 20.0
    assert table.rates[:2].tolist() == [[1.0, 1.0], [2.0, 1.0]]
    assert table.rate[:2].tolist() == [1.0, 1.0], "what it claims to do where it runs now"
    assert table.rate_on(0, 1, 2, Span.RACK) == 1.0 / 2 / 4
    assert cell.engine.jobs.work_left[:2].tolist() == [100.0, 100.0]
    assert cell.engine.jobs.rates[0].tolist() == [2.0, 1.0]
    assert type(cell.engine.jobs.speeds) is Speeds


def test_claiming_less_work_pays_under_shortest_first_and_not_under_fifo() -> None:
    jobs = [job("short", work=400.0), job("long", work=1000.0, submit_s=100.0)]
    _, seen = observed(jobs, "1x1", "srtf", samples=40)
    paid = {(one.app, one.lie) for one in seen.probes if one.lying.speed > one.honest.speed}
    assert paid == {("long", "1/8 of the work left")}
    lost = {(one.app, one.lie) for one in seen.probes if one.lying.speed < one.honest.speed}
    assert lost == {("short", "8 times the work left")}
    one = next(one for one in seen.probes if one.app == "long" and one.lying.speed > 0)
    assert (one.at_s, one.honest.gpus, one.lying.gpus, one.lying.finish_s) == (100.0, 0, 1, 1000.0)
    assert one.honest.finish_s == 1200.0 + 1000.0
    _, seen = observed(jobs, "1x1", "fifo", samples=40)
    assert seen.probes
    assert all(one.lying == one.honest for one in seen.probes)


@pytest.mark.parametrize(("nodes", "idle"), [(0, (2, 3)), (1, (2, 3)), (2, ())])
def test_gpus_are_idle_for_a_job_that_asks_for_nodes_only_on_such_nodes(nodes: int, idle: tuple[int, ...]) -> None:
    cell = Cell("2x2", "fifo")
    cell.submit(0, job("a", gpus=2, nodes=1), job("big", gpus=4), job("gang", gpus=2, nodes=nodes))
    found = idle_now(cell.engine.snapshot())
    assert (found.gpu_ids if found else ()) == idle
