"""rho of apps as it evolves, against a slow reading of its definition.

Tests core/app_demand.py and policies/themis/highest_rho.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event, JobFinished, JobHeld, JobProgressed, JobSubmitted
from horae.core.job import JobSpec
from horae.core.loss_curve import LossCurve
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.policies.themis.rho import MEMORY, alone_s, demand_left, find_apps, rho, whole_demand
from horae.report.metrics.fairness import finish_time_fairness
from tests.builders import Cell, Script, job, run, times


def snapshot(engine: Engine) -> Snapshot:
    return Snapshot(engine.now_s, engine.jobs.active, engine.jobs, engine.gpus, engine.queues)


def trials(app: str, count: int, submit_s: float = 0.0, **more: object) -> list[JobSpec]:
    return [job(f"{app}{k}", submit_s=submit_s, app=app, **more) for k in range(count)]  # type: ignore[arg-type]


def fresh(engine: Engine) -> Memory:
    memory = Memory(MEMORY, len(engine.jobs.gpu_types))
    memory.fit(len(engine.jobs), len(engine.jobs.gpu_types))
    return memory


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_contention_is_the_average_number_of_apps_over_an_apps_life(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = [
        job(f"{app}-{k}", gpus=int(rng.integers(1, 4)), work=float(rng.integers(1, 900)), submit_s=at_s, app=app)
        for app, at_s in zip("abcde", np.sort(rng.integers(0, 2000, 5)).astype(float), strict=True)
        for k in range(3)
    ]
    seen = 0

    def agrees(engine: Engine, what: Event | Decided) -> None:
        nonlocal seen
        if not isinstance(what, Decided) or not what.planned:
            return
        table, now_s = engine.jobs, engine.now_s
        apps = find_apps(snapshot(engine), engine.memory)
        begin, end = lives(engine)
        for number, contention in zip(apps.numbers, apps.contention, strict=True):
            since_s = begin[number]
            life_s = now_s - since_s
            together = sum(max(0.0, min(end[k], now_s) - max(begin[k], since_s)) for k in begin)
            assert contention == pytest.approx(max(1.0, together / life_s) if life_s else len(apps), rel=1e-9)
            seen += 1
        assert apps.numbers.tolist() == sorted({int(table.app[row]) for row in table.active})

    Script(jobs, "2x4", "highest-rho", {"lease": "100"}, look=agrees)
    assert seen > 20


def lives(engine: Engine) -> tuple[dict[int, float], dict[int, float]]:
    """When each app came and went, from the whole table."""
    table, begin, end = engine.jobs, {}, {}
    for row in range(len(table)):
        app = int(table.app[row])
        begin[app] = min(begin.get(app, np.inf), float(table.submit_s[row]))
        end[app] = max(end.get(app, 0.0), float(table.ended_s[row]))
    return begin, end


def test_an_app_alone_that_has_all_it_can_use_has_rho_1() -> None:
    cell = Cell("2x4", "highest-rho")
    cell.submit(0, *trials("a", 2, gpus=4, work=500))
    now = snapshot(cell.engine)
    assert rho(now, find_apps(now, fresh(cell.engine)), 1200) == pytest.approx([1.0])


def test_rho_counts_waiting_placement_and_gpu_types_by_hand() -> None:
    cell = Cell("fast:1x2,slow:1x2", "highest-rho")
    speeds = {"fast": 2.0, "slow": 1.0}
    cell.submit(0, *trials("a", 2, gpus=2, work=800, unit="steps", throughput=speeds))
    cell.submit(0, *trials("b", 1, gpus=2, work=400, unit="steps", throughput=speeds))
    assert cell.running == ["a0", "a1"], "who came first has all"
    cell.engine.advance(100.0)
    now = snapshot(cell.engine)
    apps = find_apps(now, cell.engine.memory)
    assert apps.contention.tolist() == [2.0, 2.0]
    # Alone on half of the cluster: one fast GPU, serial work of a: 2 * 800 / 2 * 2 GPU-seconds, of b a quarter.
    fair_s = alone_s(whole_demand(now, apps), now.cluster.gpus_by_type, apps.contention)
    assert fair_s.tolist() == [1600.0, 400.0]
    # a advances at 3 of the 2 + 2 steps a second it would have on fast GPUs; its slow job ends last.
    # b waits for a lease and then takes 200 s.
    assert rho(now, apps, 1200.0).tolist() == [(100 + 700) / 1600, (100 + 1200 + 200) / 400]


def test_an_app_is_owed_what_finished_and_nothing_for_what_it_gave_up() -> None:
    script = Script(trials("a", 3, gpus=2, work=100), "1x2", "fifo")
    table = script.engine.jobs
    table.activate(2)
    table.state[1] = 10
    now = Snapshot(400.0, np.array([2]), table, script.engine.gpus, script.engine.queues)
    apps = find_apps(now, fresh(script.engine))
    assert whole_demand(now, apps).serial_gpu_s.tolist() == [[400.0]]
    assert demand_left(now, apps).serial_gpu_s.tolist() == [[0.0]]


def test_an_app_whose_jobs_are_all_held_contends_with_nobody() -> None:
    cell = Cell("1x4", "highest-rho")
    cell.submit(0, job("a", work=1000), job("b", work=1000))
    cell.at(100, JobHeld(100, "b"))
    cell.engine.advance(300.0)
    now = snapshot(cell.engine)
    assert find_apps(now, cell.engine.memory).contention.tolist() == [(2 * 100 + 1 * 200) / 300]


def test_a_policy_that_comes_late_takes_the_present_for_the_past() -> None:
    cell = Cell("1x4", "fifo")
    cell.submit(0, job("a", work=1000), job("b", work=1000))
    cell.engine.advance(500.0)
    now = snapshot(cell.engine)
    apps = find_apps(now, fresh(cell.engine))
    assert (apps.elapsed_s.tolist(), apps.contention.tolist()) == ([500.0, 500.0], [2.0, 2.0])


def test_the_app_with_the_highest_rho_takes_the_gpus_when_the_lease_ends() -> None:
    cell = Cell("1x4", "highest-rho", {"lease": "100"})
    cell.submit(0, *trials("a", 4, work=1000))
    cell.submit(10, *trials("b", 4, work=30))
    assert cell.running == ["a0", "a1", "a2", "a3"], "a lease is not broken"
    cell.at(100)
    assert cell.running == ["b0", "b1", "b2", "b3"], "b has waited three times what it needs, a is on time"


def test_what_a_job_of_the_worst_app_cannot_use_goes_to_the_next() -> None:
    history = run([*trials("a", 1, gpus=3, work=300), *trials("b", 4, work=100)], "1x4", "highest-rho")
    assert times(history)["b0"] == (0, 100)


def test_the_worst_app_first_lowers_the_largest_rho() -> None:
    rng = np.random.default_rng(3)
    jobs = [
        one
        for k in range(12)
        for one in trials(f"app{k}-", int(rng.integers(1, 9)), submit_s=200.0 * k, work=float(rng.integers(300, 4000)))
    ]
    worst = {
        policy: np.nanmax(finish_time_fairness(run(jobs, "2x4", policy, settings=settings)).rho)
        for policy, settings in {"highest-rho": {"lease": "60"}, "fifo-backfill": {}, "srtf": {}}.items()
    }
    assert worst["highest-rho"] < 0.8 * min(worst["fifo-backfill"], worst["srtf"])


def test_apps_that_are_not_there_are_no_trouble() -> None:
    cell = Cell("1x4", "highest-rho")
    now = snapshot(cell.engine)
    assert rho(now, find_apps(now, fresh(cell.engine)), 1200).tolist() == []
    cell.at(0, JobSubmitted(0, job("late")))
    assert cell.running == ["late"]


def test_within_an_app_the_order_is_the_apps() -> None:
    cell = Cell("1x1", "highest-rho", {"lease": "100"})
    cell.submit(0, *trials("a", 3, work=1000))
    cell.engine.jobs.turn[:3] = [2, 1, 0]
    cell.at(100)
    assert cell.running == ["a2"]


def test_trials_that_pause_are_work_left_all_the_same() -> None:
    cell = Cell("1x1", "highest-rho")
    curve = LossCurve(9.0, 1.0, 10.0)
    cell.submit(0, *trials("a", 2, work=1000, app_scheduler="halving:eta=2,rungs=2", loss=curve))
    cell.at(250, JobProgressed(250, "a0", 1, 250.0, 3.0))
    assert cell.running == ["a1"], "a0 waits at the rung for a1, lease or not"
    now = Snapshot(250.0, np.array([1]), cell.engine.jobs, cell.engine.gpus, cell.engine.queues)
    assert rho(now, find_apps(now, cell.engine.memory), 1200.0) == pytest.approx([(250 + 1750) / 2000])


def test_an_app_that_comes_again_is_owed_nothing_for_the_time_it_was_away() -> None:
    cell = Cell("1x1", "themis", {"lease": "60"})
    cell.submit(0.0, job("first", work=10.0, app="nightly"))
    cell.submit(5.0, job("overlaps", work=10.0, app="nightly"))
    cell.at(10.0, JobFinished(10.0, "first", 1))
    cell.at(20.0, JobFinished(20.0, "overlaps", 1))
    cell.submit(100_000.0, job("honest", work=1000.0), job("again", work=1000.0, app="nightly"))
    table = cell.engine.jobs
    assert [table.apps[number] for number in table.app[:4]] == ["nightly", "nightly", "honest", "nightly"]
    assert len(set(table.app[:4].tolist())) == 3, "one that comes after its end is another"
    apps = find_apps(snapshot(cell.engine), cell.engine.memory)
    assert apps.elapsed_s.tolist() == [0.0, 0.0]
    assert rho(snapshot(cell.engine), apps, 60.0).max() < 2.2, "not a day's wait for a thousand seconds of work"
