"""What preemption, loading and distance cost in the simulator, worked out by hand."""

from __future__ import annotations

import pytest

from horae.core.cluster import Span
from horae.core.events import JobHeld, JobReleased
from horae.core.throughputs import Setting, Throughputs
from tests.builders import Script, cluster, job, run, times


def test_a_resumed_job_pays_the_restart_cost_and_a_fresh_one_does_not() -> None:
    jobs = [job("long", work=100), job("short", work=10, submit_s=20)]
    history = run(jobs, "1x1", "srtf", restart_cost_s=30)
    # long: 20 s of work, then from 30 on 30 s of loading and 80 s of work.
    assert times(history) == {"long": (0, 140), "short": (20, 30)}
    assert history.attempts.preempted.tolist() == [True, False, False]
    assert history.attempts.work_s.tolist() == [0, 20, 60]


def test_a_jobs_own_costs_replace_the_default() -> None:
    jobs = [job("long", work=100, checkpoint_s=5, restore_s=7), job("short", work=10, submit_s=20)]
    history = run(jobs, "1x1", "srtf", restart_cost_s=30)
    # long saves from 20 to 25; short runs from 25 to 35; long loads until 42 and works 80 more.
    assert times(history) == {"long": (0, 122), "short": (25, 35)}
    assert history.attempts.stop_s.tolist()[0] == 20
    assert history.attempts.end_s.tolist()[0] == 25


def test_the_first_launch_takes_as_long_as_the_job_says_and_later_ones_load() -> None:
    jobs = [job("long", work=100, start_s=12, restore_s=7), job("short", work=10, submit_s=20)]
    history = run(jobs, "1x1", "srtf", restart_cost_s=30)
    # long starts until 12 and works until it has worked as long as that; it loads from 34 and works 88 more.
    assert times(history) == {"long": (12, 129), "short": (24, 34)}
    assert history.attempts.begin_s.tolist() == [0, 24, 34]
    assert history.attempts.work_s.tolist() == [12, 24, 41]


def test_a_job_that_is_stopped_before_it_ever_worked_starts_anew() -> None:
    events = [JobHeld(5, "a"), JobReleased(20, "a")]
    script = Script([job("a", work=100, start_s=12)], "1x1", events=events, restart_cost_s=30)
    assert times(script.history)["a"] == (32, 132)


def test_a_job_that_is_stopped_while_it_loads_has_lost_nothing_but_the_loading() -> None:
    jobs = [job("long", work=100), job("short", work=10, submit_s=20)]
    events = [JobHeld(40, "long"), JobReleased(50, "long")]
    script = Script(jobs, "1x1", "srtf", events=events, restart_cost_s=30)
    # long works 0-20, loads 30-40 in vain, loads 50-80, works 80-160.
    assert times(script.history)["long"] == (0, 160)


def test_a_job_that_loads_is_preempted_only_when_it_has_worked_as_long() -> None:
    jobs = [job("long", work=100), job("s1", work=10, submit_s=20), job("s2", work=10, submit_s=40)]
    history = run(jobs, "1x1", "srtf", restart_cost_s=30)
    # long works 0-20, loads 30-60, works 60-90, loads 100-130, works 130-180.
    assert times(history) == {"long": (0, 180), "s1": (20, 30), "s2": (90, 100)}


def test_a_job_that_has_done_its_work_holds_its_gpus_until_it_is_gone() -> None:
    history = run([job("a", work=100, finish_s=5), job("b", work=10)], "1x1", "fifo")
    assert times(history) == {"a": (0, 105), "b": (105, 115)}


def test_a_job_that_is_on_its_way_out_finishes_whatever_it_is_told() -> None:
    jobs = [job("a", work=100, finish_s=5), job("b", work=1, submit_s=102)]
    # b would preempt a at 102, but a has done its work and leaves by itself.
    assert times(run(jobs, "1x1", "las")) == {"a": (0, 105), "b": (105, 106)}
    script = Script([job("a", work=100, finish_s=5)], "1x1", events=[JobHeld(103, "a")])
    assert times(script.history)["a"] == (0, 105)


def test_a_held_job_pays_the_restart_cost_when_it_goes_on() -> None:
    script = Script([job("a", work=100)], "1x1", events=[JobHeld(40, "a"), JobReleased(70, "a")], restart_cost_s=30)
    assert times(script.history)["a"] == (0, 160)
    assert not script.history.attempts.preempted.any(), "a hold is the user's wish, not a preemption"


@pytest.mark.parametrize(
    ("spec", "nodes_per_rack", "gpus", "seconds"),
    [("1x4", 0, 1, 100), ("1x4", 0, 4, 110), ("2x2", 0, 4, 120), ("2x2", 1, 4, 150)],
)
def test_a_job_slows_down_with_the_span_of_its_gpus(spec: str, nodes_per_rack: int, gpus: int, seconds: float) -> None:
    spread = job("a", gpus=gpus, work=100, slowdown=(1.0, 1.1, 1.2, 1.5))
    assert run([spread], cluster(spec, nodes_per_rack)).end_s.tolist() == pytest.approx([seconds])


def test_where_only_the_count_matters_distance_costs_nothing() -> None:
    spread = job("a", gpus=4, work=100, slowdown=(1.0, 1.0, 2.0, 3.0))
    assert run([spread], "4x1", placement="anywhere").end_s.tolist() == [100]


@pytest.mark.parametrize(("placement", "start_s", "end_s"), [("best-effort", 11, 211), ("consolidated", 50, 150)])
def test_a_gang_that_is_spread_starts_sooner_and_runs_longer(placement: str, start_s: float, end_s: float) -> None:
    pairs = [job(f"{name}{node}", work=work) for node in (0, 1) for name, work in (("brief", 10), ("long", 50))]
    gang = job("gang", gpus=2, work=100, submit_s=11, slowdown=(1.0, 1.0, 2.0, 2.0))
    assert times(run([*pairs, gang], "2x2", placement=placement))["gang"] == (start_s, end_s)


def test_a_measured_throughput_by_span_goes_before_the_jobs_slow_down() -> None:
    table = Throughputs()
    table.put(Setting("resnet", "gpu", 4, Span.NODE), 10.0)
    table.put(Setting("resnet", "gpu", 4, Span.RACK), 4.0)
    work = job("a", gpus=4, work=100, unit="steps", job_class="resnet", slowdown=(1.0, 1.0, 9.0, 9.0))
    assert run([work], "gpu:1x4", throughputs=table).end_s.tolist() == [10]
    assert run([work], "gpu:2x2", throughputs=table).end_s.tolist() == [25]


def test_a_preempted_job_may_go_on_at_another_speed_on_another_type() -> None:
    speeds = {"fast": 2.0, "slow": 1.0}
    jobs = [
        job("long", work=200, throughput=speeds),
        job("short", work=20, submit_s=50, throughput={"fast": 1.0}),
    ]
    history = run(jobs, "fast:1x1,slow:1x1", "srtf")
    # long has 100 left at 50 (50 s on fast), short takes fast until 70; long goes on at speed 1 on slow.
    assert times(history) == {"long": (0, 150), "short": (50, 70)}
