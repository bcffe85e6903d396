"""Trials in a simulated world: reports at exact moments, and apps that live by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from horae.core.cluster import Span
from horae.core.commands import Decided, Launch, Stop, StopWhy
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.events import Event, JobFinished, JobProgressed
from horae.core.job import JobSpec
from horae.core.job_table import JobTable
from horae.core.loss_curve import LossCurve
from horae.core.queues import QueueTree
from horae.core.states import State
from horae.core.throughputs import Origin, Setting, Speeds, Throughputs
from horae.report.metrics.measure import measure
from horae.simulator.faults import Faults
from horae.simulator.world import World
from tests.builders import Script, cluster, job, run, times

CURVE = LossCurve(10.0, 2.0, 50.0)


def trial(name: str, last: float = 2.0, **more: object) -> JobSpec:
    settings = {"app": "app", "app_scheduler": "halving:eta=2,rungs=2", "loss": LossCurve(10.0, last, 50.0), **more}
    return job(name, **settings)  # type: ignore[arg-type]


def reports(history_of: list[JobSpec], spec: str = "1x1", policy: str = "fifo", **more: object) -> list[JobProgressed]:
    """All reports of losses of a run."""
    found: list[JobProgressed] = []

    def look(_: Engine, what: Event | Decided) -> None:
        if isinstance(what, JobProgressed):
            found.append(what)

    Script(history_of, spec, policy, look=look, **more)  # type: ignore[arg-type]
    return found


def test_rungs_are_reported_to_the_second_with_the_loss_of_that_moment() -> None:
    heard = reports([trial("a", work=100)])
    assert [(one.at_s, one.work_done, one.loss) for one in heard] == [
        (25.0, 25.0, CURVE.at(25.0)),
        (50.0, 50.0, CURVE.at(50.0)),
    ]


def test_a_job_that_is_preempted_reports_where_it_went_on() -> None:
    jobs = [trial("a", work=100), job("b", work=1000)]
    heard = reports(jobs, policy="time-slice", settings={"quantum": "40"}, restart_cost_s=5.0)
    assert [(one.at_s, one.work_done) for one in heard] == [(25.0, 25.0), (95.0, 50.0)], "5 s of loading at 80 s"


def world_of(*specs: JobSpec, faults: Faults | None = None) -> World:
    """A world of two GPUs, in which two jobs of class m on the same GPUs have half the speed."""
    table = Throughputs()
    table.put(Setting("m", "gpu", 2, Span.NODE), 1.0, Origin.GIVEN)
    table.put(Setting("m", "gpu", 2, Span.NODE, "m"), 0.5, Origin.GIVEN)
    machines = cluster("1x2")
    jobs = JobTable(machines.gpu_types, Speeds(table), QueueTree())
    for spec in specs:
        jobs.add(spec, 0.0)
    return World(jobs, machines, 0.0, faults, 0)


def drain(world: World) -> list[tuple[str, float, float]]:
    """Reports and ends of everything that runs: job, time, work done."""
    seen = []
    while world.next_s < np.inf:
        for event in world.pop(world.next_s):
            if isinstance(event, JobProgressed):
                seen.append((event.job, event.at_s, event.work_done))
            elif isinstance(event, JobFinished):
                seen.append((event.job, event.at_s, np.inf))
    return seen


def test_a_report_stays_exact_when_a_neighbour_comes_and_goes() -> None:
    steps = {"gpus": 2, "unit": "steps", "job_class": "m", "loss": CURVE}
    world = world_of(job("a", work=100, **steps), job("b", work=20, **steps))
    world.launch(0, Launch("a", 1, (0, 1), Span.NODE, 0.0, (25.0, 50.0)), 0.0)
    world.pop(10.0)
    world.launch(1, Launch("b", 1, (0, 1), Span.NODE, 0.0, (15.0,)), 10.0)
    # a: 10 by 10 s, then half speed: 25 at 40 s. b: 15 at 40 s, all at 50 s; a has 30 then, and full speed.
    assert drain(world) == [
        ("b", 40.0, 15.0),
        ("a", 40.0, 25.0),
        ("b", 50.0, np.inf),
        ("a", 70.0, 50.0),
        ("a", 120.0, np.inf),
    ]


def test_rungs_that_were_passed_and_not_heard_of_are_reported_at_once_by_one_report() -> None:
    world = world_of(job("a", gpus=2, work=100, unit="steps", job_class="m", loss=CURVE))
    world.launch(0, Launch("a", 1, (0, 1), Span.NODE, 0.0), 0.0)
    world.stop(Stop("a", 1, StopWhy.PREEMPTED), 60.0)
    world.pop(60.0)
    world.launch(0, Launch("a", 2, (0, 1), Span.NODE, 60.0, (25.0, 50.0, 75.0)), 100.0)
    assert drain(world) == [("a", 100.0, 60.0), ("a", 115.0, 75.0), ("a", 140.0, np.inf)]


def test_a_stopped_process_reports_nothing_more() -> None:
    world = world_of(job("a", gpus=2, work=100, unit="steps", job_class="m", loss=CURVE))
    world.launch(0, Launch("a", 1, (0, 1), Span.NODE, 0.0, (25.0,)), 0.0)
    world.stop(Stop("a", 1, StopWhy.PREEMPTED), 20.0)
    assert drain(world) == []


def test_regular_reports_need_no_app_scheduler() -> None:
    heard = reports([job("a", work=100, report_every=30.0, loss=CURVE)])
    assert [one.at_s for one in heard] == [30.0, 60.0, 90.0]


def test_an_app_halves_its_trials_and_the_report_counts_what_it_gave_up() -> None:
    jobs = [trial(f"t{k}", last=float(k), work=100) for k in range(4)]
    history = run(jobs, "1x4")
    assert times(history) == {"t0": (0, 100), "t1": (0, 50), "t2": (0, 25), "t3": (0, 25)}
    report = measure(history)
    assert (report.finished, report.given_up, report.cancelled) == (1, 3, 0)
    assert report.given_up_gpu_hours == pytest.approx((50 + 25 + 25) / 3600)
    assert report.gpu_hours == pytest.approx(200 / 3600)
    # Nobody pauses where all reach a rung together: the app is owed what its best trial needed, and had it.
    assert report.rho.max == pytest.approx(1.0)
    assert report.app_isolated_rho.max == pytest.approx(1.0)


def test_with_one_gpu_trials_take_turns_and_the_same_ones_survive() -> None:
    jobs = [trial(f"t{k}", last=float(k), work=100) for k in range(4)]
    history = run(jobs, "1x1", "las", settings={"quantum": "25"})
    assert [State(state).name for state in history.state] == ["FINISHED", "CANCELLED", "CANCELLED", "CANCELLED"]
    assert history.given_up is not None
    assert history.given_up.tolist() == [False, True, True, True]


@pytest.mark.parametrize("scheduler", ["halving:eta=2,rungs=3", "hyperband:eta=2,rungs=2"])
def test_the_work_an_app_does_is_the_same_under_every_policy(scheduler: str) -> None:
    rng = np.random.default_rng(2)
    jobs = [
        replace(one, loss=LossCurve(10.0, float(rng.uniform(0, 9)), float(rng.uniform(5, 50))), app=f"app{k % 3}")
        for k in range(24)
        for one in [trial(f"t{k}", work=float(rng.integers(50, 500)), app_scheduler=scheduler)]
    ]
    seen = {
        policy: run(jobs, "2x4", policy, settings=settings)
        for policy, settings in {
            "fifo-backfill": {},
            "srtf": {},
            "las": {"quantum": "50"},
            "optimus": {"quantum": "30"},
            "highest-rho": {"lease": "40"},
        }.items()
    }
    states = {tuple(history.state.tolist()) for history in seen.values()}
    hours = [measure(history).gpu_hours for history in seen.values()]
    assert len(states) == 1
    assert hours == pytest.approx([hours[0]] * len(hours))
    assert measure(seen["las"]).given_up >= 12


def test_trouble_with_reports_delays_an_app_but_changes_nobodys_fate() -> None:
    trouble = Faults(late_reports=0.4, duplicated_reports=0.4, late_s=30.0)
    jobs = [trial(f"t{k}", last=k / 2, work=400.0 + 10 * k) for k in range(8)]
    history = run(jobs, "1x8", faults=trouble, seed=5)
    assert history.state.tolist().count(State.FINISHED) >= 1
    assert State(history.state[0]) is State.FINISHED


@pytest.mark.parametrize(
    ("jobs", "sentence"),
    [
        ([job("a", app_scheduler="halving")], "give the trace a column loss"),
        ([job("a", report_every=10.0)], "give the trace a column loss"),
        ([trial("a"), trial("b", app_scheduler="hyperband")], "give all jobs of an app the same"),
    ],
)
def test_what_could_never_work_is_refused_before_the_run(jobs: list[JobSpec], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        run(jobs, "1x4")
