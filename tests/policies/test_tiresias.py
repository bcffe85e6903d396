"""The feedback queues of Tiresias: demotion, promotion, both orders, what they learn, and that nobody starves.

Tests policies/tiresias/attained_service.py, policies/tiresias/feedback_queues.py, policies/tiresias/learnt_service.py
and policies/tiresias/queue_bounds.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import JobCancelled, JobStarted, JobSubmitted, NodeDraining
from horae.core.history import History
from horae.core.job import JobSpec
from horae.placement import PLACEMENTS
from horae.placement.rules import make_placement
from horae.policies import make_policy
from horae.policies.settings import BadSetting
from horae.policies.tiresias.queue_bounds import worthwhile_bounds
from horae.policies.tiresias.tiresias import TiresiasGittins
from horae.simulator.driver import Driver
from horae.simulator.run import simulate
from horae.simulator.scenario import PolicyChoice, Scenario
from horae.simulator.world import World
from horae.workload.clusters import parse_cluster
from horae.workload.generator import PRESETS, generate
from horae.workload.traces import load_trace
from tests.builders import Cell, Script, ends, job, run, times

BOTH = ("tiresias", "tiresias-gittins")


def spells(history: History) -> Iterator[tuple[int, list[tuple[float, float]]]]:
    """When each job worked, from and to."""
    attempts = history.attempts
    for row in range(len(history.jobs)):
        mine = np.flatnonzero((attempts.job == row) & (attempts.stop_s > attempts.work_s))
        yield row, sorted(zip(attempts.work_s[mine].tolist(), attempts.stop_s[mine].tolist(), strict=True))


def launches(history: History, name: str) -> list[float]:
    """When a job got GPUs."""
    row = [one.id for one in history.jobs].index(name)
    return [float(begin) for begin in history.attempts.begin_s[history.attempts.job == row]]


# Demotion


def test_a_running_job_is_demoted_the_moment_it_crosses_the_bound() -> None:
    jobs = [job("wide", gpus=4, work=1000), job("late", gpus=1, work=50, submit_s=10)]
    history = run(jobs, "1x4", "tiresias", settings={"thresholds": "250,7200"})
    assert times(history)["late"] == (62.5, 112.5), "four GPUs have had 250 GPU-seconds after 62.5 s"


def test_every_bound_counts() -> None:
    jobs = [job("a", work=1000), job("b", work=1000)]
    history = run(jobs, "1x1", "tiresias", settings={"thresholds": "100,300", "promote-knob": "off"})
    # First queue: a, b. Second: b runs on until it has had 300, then a. Last: a runs on to its end, then b.
    assert launches(history, "a") == [0, 400]
    assert launches(history, "b") == [100, 1300]


def test_a_running_job_gives_way_to_earlier_queues_not_to_an_earlier_start() -> None:
    """All are in the second queue from 150 on, where b runs and a, which began earlier, waits; new is in the first."""
    cell = Cell("1x2", "tiresias", {"thresholds": "100", "promote-knob": "off"})
    cell.submit(0, job("a", gpus=2, work=1000))
    cell.submit(50, job("b", work=1000, submit_s=50), job("c", work=1000, submit_s=50))
    assert cell.running == ["b", "c"]
    assert cell.at(150).stops == ()
    cell.submit(300, job("new", gpus=2, work=10, submit_s=300))
    assert cell.running == ["new"]


def test_equal_jobs_do_not_take_turns_within_a_queue() -> None:
    history = run([job(name, work=3000) for name in "abc"], "1x1", "tiresias", settings={"thresholds": "3250"})
    assert len(history.attempts.job) == 3


def test_those_that_fit_fill_in_behind_those_that_do_not() -> None:
    jobs = [job("a", gpus=3, work=10), job("b", gpus=2, work=10), job("c", gpus=1, work=10)]
    assert times(run(jobs, "1x4", "tiresias"))["c"] == (0, 10)


def test_a_demotion_that_helps_nobody_wakes_nobody() -> None:
    cell = Cell("1x2", "tiresias", {"thresholds": "100"})
    cell.submit(0, job("a", work=1000), job("b", work=1000))
    assert cell.engine.wake_s == math.inf


def test_who_waits_two_queues_below_wakes_nobody_at_the_first_bound() -> None:
    cell = Cell("1x1", "tiresias", {"thresholds": "100,300", "promote-knob": "off"})
    cell.submit(0, job("old", work=1000))
    cell.submit(200, job("new", work=1000, submit_s=200))
    cell.at(300)
    assert cell.running == ["new"]
    assert cell.engine.wake_s == 500, "old is in the second queue, which new leaves with 300 GPU-seconds"


def test_a_job_that_waits_in_the_last_queue_wakes_nobody() -> None:
    cell = Cell("1x1", "tiresias", {"thresholds": "100,300", "promote-knob": "off", "patience": "off"})
    cell.submit(0, job("old", work=1000))
    cell.submit(400, job("new", work=1000, submit_s=400))
    assert (cell.running, cell.engine.wake_s) == (["new"], math.inf)


def test_a_job_that_loads_long_is_demoted_by_what_it_worked() -> None:
    cell = Cell("1x1", "tiresias", {"thresholds": "100", "patience": "off"}, slow_starts=True)
    cell.submit(0, job("a", work=1000), job("b", work=1000, submit_s=0))
    assert cell.engine.wake_s == math.inf
    cell.at(40, JobStarted(40, "a", 1))
    assert cell.engine.wake_s == 140


def test_a_job_next_to_its_bound_that_cannot_start_keeps_nobody_awake() -> None:
    jobs = [
        job("big", gpus=2, work=1000),
        job("first", submit_s=49.9, work=30),
        job("second", submit_s=49.9, work=300),
    ]
    script = Script(jobs, "1x2", "tiresias", {"thresholds": "100", "promote-knob": "off"})
    assert len(script.records) < 20, "big is .2 GPU-seconds below its bound, and waits for half the cluster"


# Promotion


def promoted(records: list[Decided]) -> list[tuple[int, float]]:
    """Who was promoted when, by the memory of the policy."""
    writes = [(record.at_s, write) for record in records for write in record.memory]
    moments = [(at_s, rows) for at_s, (name, rows, _) in writes if name == "promoted_s" and rows is not None]
    return [(row, at_s) for at_s, rows in moments for row in rows.tolist()]


def assert_promoted_exactly(records: list[Decided], history: History, bound: float, knob: float) -> int:
    """Nobody is promoted before it is due, and nobody who waits after; told from nothing but when jobs worked.

    Gives the number of promotions of jobs that waited.
    """
    when, waited = promoted(records), 0
    for row, worked in spells(history):
        gpus, mine = history.jobs[row].gpus, [at_s for one, at_s in when if one == row]
        gaps = [(end_s, begin_s) for (_, end_s), (begin_s, _) in pairwise(worked)]
        since_s = worked[0][0]
        for at_s in [*mine, math.inf]:
            for lost_s, got_s in gaps:
                ran_s = ran_between(worked, since_s, lost_s)
                due_s = max(since_s + (1 + knob) * ran_s, lost_s)
                if lost_s < since_s or gpus * ran_s < bound - 1e-6 or at_s < lost_s:
                    continue
                assert at_s == pytest.approx(due_s, abs=1e-5) if at_s <= got_s else due_s > got_s - 1e-5
                waited += at_s <= got_s
            ran_s = ran_between(worked, since_s, at_s)
            if at_s < math.inf:
                assert gpus * ran_s >= bound - 1e-3
                assert at_s - since_s - ran_s >= knob * ran_s - 1e-3
            since_s = at_s
    return waited


def ran_between(worked: list[tuple[float, float]], from_s: float, to_s: float) -> float:
    """How long a job worked in a span of time."""
    return sum(max(min(end_s, to_s) - max(begin_s, from_s), 0.0) for begin_s, end_s in worked)


def test_a_job_is_promoted_when_it_has_waited_knob_times_as_long_as_it_worked() -> None:
    jobs = [job("old", work=1000), *(job(f"new-{k}", work=90, submit_s=50 + 90 * k) for k in range(9))]
    script = Script(jobs, "1x1", "tiresias", {"thresholds": "100", "promote-knob": "2"})
    # It works until 100 and waits; at 300 it is back in the first queue, where only the job that runs goes before it.
    assert promoted(script.records)[0] == (0, 300)
    assert launches(script.history, "old")[:2] == [0, 370]


def test_without_promotion_it_waits_for_all_of_them() -> None:
    jobs = [job("old", work=1000), *(job(f"new-{k}", work=90, submit_s=50 + 90 * k) for k in range(9))]
    history = run(jobs, "1x1", "tiresias", settings={"thresholds": "100", "promote-knob": "off"})
    assert launches(history, "old") == [0, 100 + 9 * 90]


small_jobs = st.lists(
    st.builds(
        lambda gpus, work, submit_s: {"gpus": gpus, "work": float(work), "submit_s": float(submit_s)},
        st.integers(1, 4),
        st.integers(1, 400),
        st.integers(0, 300),
    ),
    min_size=2,
    max_size=12,
)


def named(drawn: list[dict[str, Any]]) -> list[JobSpec]:
    return [job(str(number), **one) for number, one in enumerate(sorted(drawn, key=lambda one: one["submit_s"]))]


@settings(max_examples=60, deadline=None)
@given(small_jobs, st.sampled_from([0.25, 1.0, 3.0, 8.0]), st.sampled_from(BOTH))
def test_everybody_is_promoted_exactly_when_the_limit_is_reached(
    drawn: list[dict[str, Any]], knob: float, policy: str
) -> None:
    script = Script(named(drawn), "1x4", policy, {"thresholds": "150,400", "promote-knob": str(knob)})
    # By index, promotion applies in the first queue, too, to whoever has worked at all.
    assert_promoted_exactly(script.records, script.history, 150 if policy == "tiresias" else 1, knob)


@pytest.mark.parametrize(("knob", "least"), [(8, 0), (4, 10), (2, 100), (1, 150)])
def test_everybody_of_the_published_trace_is_promoted_exactly_then(shared_data: Path, knob: int, least: int) -> None:
    folder, records = shared_data / "tiresias", []
    machines = parse_cluster(str(folder / "n15g4.csv"))
    with_knob = {"thresholds": "3250,7200", "promote-knob": str(knob)}
    engine = Engine(machines, make_policy, "tiresias", with_knob, make_placement("anywhere"))
    arrivals = [JobSubmitted(one.submit_s, one) for one in load_trace(folder / "480gen_job.csv").jobs]
    watch = lambda _, what: records.append(what) if isinstance(what, Decided) else None  # noqa: E731
    driver = Driver(engine, World(engine.jobs, machines, 0.0, None, 0), arrivals, watch)
    driver.run()
    assert assert_promoted_exactly(records, driver.history({}), 3250, knob) >= least


# Preemption


def bounced(history: History) -> list[tuple[str, float]]:
    """Jobs that lost their GPUs and got some at the same moment, or as good as that."""
    attempts, found = history.attempts, []
    for row, spec in enumerate(history.jobs):
        mine = attempts.job == row
        lost_s, got_s = attempts.stop_s[mine & attempts.preempted].tolist(), attempts.begin_s[mine]
        found += [(spec.id, at_s) for at_s in lost_s if (np.abs(got_s - at_s) < 1e-3).any()]
    return found


@pytest.mark.parametrize(("knob", "most"), [("off", 480), ("8", 480), ("1", 1300)])
def test_nobody_is_preempted_and_given_back(shared_data: Path, knob: str, most: int) -> None:
    folder = shared_data / "tiresias"
    history = simulate(
        Scenario(
            load_trace(folder / "480gen_job.csv").jobs,
            parse_cluster(str(folder / "n15g4.csv")),
            policy="tiresias",
            settings={"thresholds": "3250,7200", "promote-knob": knob},
            placement="anywhere",
            restart_cost_s=30.0,
        )
    )
    assert bounced(history) == []
    assert int(history.attempts.preempted.sum()) <= most


@settings(max_examples=40, deadline=None)
@given(small_jobs, st.sampled_from(["off", "0.5", "2", "8"]), st.sampled_from([0.0, 30.0]))
def test_whoever_is_due_for_promotion_keeps_its_gpus(drawn: list[dict[str, Any]], knob: str, cost_s: float) -> None:
    with_knob = {"thresholds": "150,400", "promote-knob": knob}
    history = run(named(drawn), "1x4", "tiresias", settings=with_knob, placement="anywhere", restart_cost_s=cost_s)
    assert bounced(history) == []


# The order by index


@pytest.fixture
def two_kinds(tmp_path: Path) -> str:
    """Nine jobs in ten take 10 GPU-seconds; one takes 1,000."""
    path = tmp_path / "samples.csv"
    path.write_text("gpu_seconds\n" + "10\n" * 9 + "1000\n")
    return str(path)


@pytest.mark.parametrize("index", ["quantum", "supremum"])
def test_a_job_that_was_not_short_gives_way_to_one_that_may_be(two_kinds: str, index: str) -> None:
    jobs = [job("old", work=1000), job("new", work=10, submit_s=15)]
    by_index = {"thresholds": "3000", "samples": two_kinds, "index": index}
    assert times(run(jobs, "1x1", "tiresias-gittins", settings=by_index))["new"] == (15, 25)
    assert times(run(jobs, "1x1", "tiresias", settings={"thresholds": "3000"}))["new"] == (1000, 1010)


def test_a_job_that_is_likely_to_end_at_once_keeps_its_gpus(two_kinds: str) -> None:
    jobs = [job("old", work=10), job("new", work=10, submit_s=8)]
    by_index = {"thresholds": "3000", "samples": two_kinds, "index": "supremum"}
    assert ends(run(jobs, "1x1", "tiresias-gittins", settings=by_index)) == [10, 20]


@pytest.mark.parametrize(("more", "starts_s"), [({}, 12), ({"index": "supremum"}, 25), ({"thresholds": "3000"}, 30)])
def test_the_quantum_ends_with_the_queue(tmp_path: Path, more: dict[str, str], starts_s: float) -> None:
    """At 12, old will not end before the bound of 25; without that bound it is as near its end as any new job."""
    file = tmp_path / "samples.csv"
    file.write_text("10\n30\n")
    jobs = [job("old", work=30), job("new", work=10, submit_s=12)]
    by_index = {"thresholds": "25", "samples": str(file), "promote-knob": "off", **more}
    # At 25 it comes to stand in the second queue, where new ones pass it whatever its index is.
    assert times(run(jobs, "1x1", "tiresias-gittins", settings=by_index))["new"][0] == starts_s


@pytest.mark.parametrize("index", ["quantum", "supremum"])
def test_finished_jobs_of_this_cluster_are_samples(index: str) -> None:
    past = [job(f"past-{k}", work=10 if k % 10 else 1000, submit_s=10 * k) for k in range(120)]
    then = [job("old", work=1000, submit_s=90_000), job("new", work=10, submit_s=90_015)]
    history = run([*past, *then], "1x1", "tiresias-gittins", settings={"thresholds": "3000", "index": index})
    assert times(history)["new"] == (90_015, 90_025)
    few = run([*past[:60], *then], "1x1", "tiresias-gittins", settings={"thresholds": "3000", "index": index})
    assert times(few)["new"] == (91_000, 91_010), "too few to know anything: whoever started first goes first"


def test_the_learnt_distribution_holds_only_jobs_that_had_finished() -> None:
    jobs = [job(f"done-{k}", work=5 + k % 7, submit_s=20 * k) for k in range(120)] + [job("long", work=5000)]
    script = Script(sorted(jobs, key=lambda one: one.submit_s), "1x2", "tiresias-gittins")
    policy = script.engine.policy
    assert isinstance(policy, TiresiasGittins)
    ((_, learnt_s, known),) = policy._learnt._last
    assert known is not None
    ended = {one.id: end for one, end in zip(script.history.jobs, script.history.end_s.tolist(), strict=True)}
    wanted = sorted(one.work for one in jobs if ended[one.id] < learnt_s)
    assert sorted(known.samples.tolist()) == pytest.approx(wanted)
    assert len(wanted) >= 99


def test_cancelled_jobs_teach_no_service() -> None:
    cell = Cell("1x1", "tiresias-gittins")
    for number in range(120):
        cell.submit(number, job(f"gone-{number}", work=1e6, submit_s=number))
        cell.at(number, JobCancelled(number, f"gone-{number}"))
    cell.submit(200, job("old", work=1000, submit_s=200))
    memory = cell.engine.memory
    assert (memory.scalar("learnt_from"), memory.scalar("chosen_from")) == (0, 0)


@pytest.mark.parametrize(("longest", "starts_s"), [(400, 400), (700, 101)])
def test_who_holds_gpus_gives_way_only_to_twice_its_index(tmp_path: Path, longest: int, starts_s: float) -> None:
    """Half the jobs take 100: a new one has index 1/200, one of age 101 has 1/299 if the others take 400."""
    file = tmp_path / "samples.csv"
    file.write_text(f"100\n{longest}\n")
    by_index = {"thresholds": "3000", "samples": str(file), "index": "supremum"}
    jobs = [job("old", work=longest), job("new", work=100, submit_s=101)]
    assert times(run(jobs, "1x1", "tiresias-gittins", settings=by_index))["new"][0] == starts_s


def own_samples(jobs: tuple[JobSpec, ...], path: Path) -> str:
    path.write_text("\n".join(str(one.gpus * one.work) for one in jobs))
    return str(path)


@pytest.mark.parametrize("thresholds", ["auto", "3250,7200"])
def test_who_knows_the_distribution_does_at_least_as_well(tmp_path: Path, thresholds: str) -> None:
    machines, jct = parse_cluster("16x4"), dict.fromkeys(BOTH, 0.0)
    for seed in range(4):
        jobs = generate(PRESETS["tiresias"], machines, None, seed)
        own = own_samples(jobs, tmp_path / f"{seed}.csv")
        for policy, more in (("tiresias", {}), ("tiresias-gittins", {"samples": own})):
            history = run(jobs, machines, policy, settings={"thresholds": thresholds, **more}, placement="anywhere")
            jct[policy] += float(np.mean(history.end_s - history.submit_s))
    assert jct["tiresias-gittins"] <= jct["tiresias"]


# Samples


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff10\n20\n30\n",
        "\ufeffjob_id,gpu_seconds\na,10\nb,20\nc,30\n",
        "10\n20\n30\n",
        "gpu_seconds\n10\n20\n30\n",
        "total\n10\n\n20\n30",
        "job_id,gpu_seconds\na,10\nb,20\nc,30\n",
    ],
)
def test_samples_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(text)
    policy = PolicyChoice("tiresias-gittins", {"samples": str(path)}).make()
    assert isinstance(policy, TiresiasGittins)
    assert policy._given is not None
    assert policy._given.samples.tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "holds no numbers"),
        ("gpu_seconds\n", "holds no numbers"),
        ("10\n-5\n", "'-5', which gives no GPU-seconds above 0"),
        ("10\nmany\n", "'many', which gives no GPU-seconds above 0"),
        ("10\ninf\n", "'inf', which gives no GPU-seconds above 0"),
        ("job_id,gpu_seconds\na,10\nb\n", "'b', which gives no GPU-seconds"),
        ("a,b\n1,2\n", "name one of them gpu_seconds"),
        ('job_id,gpu_seconds\n"a,10\nb,20\n', "is not a CSV file"),
        ("9" * 200_000, "is not a CSV file"),
    ],
)
def test_samples_that_cannot_be_used_are_refused(tmp_path: Path, text: str, wanted: str) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(text)
    with pytest.raises(BadSetting, match=wanted):
        PolicyChoice("tiresias-gittins", {"samples": str(path)}).make()


def test_the_policy_itself_reads_no_file(tmp_path: Path) -> None:
    assert make_policy("tiresias-gittins", {"samples": "10,20"}) == make_policy(
        "tiresias-gittins", {"samples": "10,20"}
    )
    for text in (str(tmp_path / "none.csv"), "10,many", "10,-5", "10,inf", "10,,20"):
        with pytest.raises(BadSetting, match="samples"):
            make_policy("tiresias-gittins", {"samples": text})


def test_words_may_be_written_in_capitals() -> None:
    words = {"thresholds": "Auto", "samples": "History", "index": "Supremum", "promote-knob": "OFF"}
    policy = make_policy("tiresias-gittins", words)
    assert isinstance(policy, TiresiasGittins)
    assert policy.promote_knob == math.inf
    assert times(run([job("a", work=10)], "1x1", "tiresias-gittins", settings=words)) == {"a": (0, 10)}


def test_who_gives_too_little_hears_of_off() -> None:
    with pytest.raises(BadSetting, match=r"use at least 0.01, or off"):
        make_policy("tiresias", {"promote-knob": "0"})


def test_a_file_of_samples_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="name a CSV file"):
        PolicyChoice("tiresias-gittins", {"samples": str(tmp_path / "none.csv")}).make()


# Thresholds


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize("text", ["", "7200,3250", "100,100", "-5", "0.5", "nan", "inf", "100,inf", "soon", "100,,200"])
def test_bounds_that_are_none_are_refused(policy: str, text: str) -> None:
    with pytest.raises(BadSetting, match="thresholds="):
        make_policy(policy, {"thresholds": text})


def chosen_bounds(jobs: list[JobSpec]) -> tuple[float, list[float]]:
    """When bounds were first chosen from jobs that run one by one, and which."""
    script = Script(jobs, "1x1", "tiresias")
    chosen = [record for record in script.records if any(name == "bound_1" for name, _, _ in record.memory)]
    assert len(chosen) == 1, "the first choice is made when 30 have finished; the next would be at 45"
    return chosen[0].at_s, [float(value) for name, _, value in chosen[0].memory if name.startswith("bound_")]


def test_bounds_are_chosen_from_all_service_so_far() -> None:
    jobs = [job(str(k), work=1000.0 * 8 ** (k % 4), submit_s=2e7 * k) for k in range(40)]
    at_s, bounds = chosen_bounds(jobs)
    had = np.array([one.work for one in jobs if one.submit_s < at_s])
    assert len(had) == 30
    wanted = worthwhile_bounds(had, had)
    assert len(wanted) > 2
    assert bounds == [*wanted, *[math.inf] * (len(bounds) - len(wanted))]


def brute_force_bounds(attained: list[float], finished: list[float]) -> list[float]:
    """The rule again, job by job."""
    chosen, before = [], math.inf if not finished else sum(attained) / len(finished)
    bound = 2000.0
    while any(one > bound for one in attained):
        beyond, ended = sum(one - bound for one in attained if one > bound), sum(one > bound for one in finished)
        if (beyond / ended if ended else math.inf) >= 1.25 * before:
            chosen.append(bound)
            before = beyond / ended if ended else math.inf
        if not ended:
            break
        bound *= 4
    return chosen


@given(
    st.lists(st.sampled_from([100.0, 3000.0, 9000.0, 50_000.0, 400_000.0, 9e6]), min_size=1, max_size=30),
    st.lists(st.sampled_from([0.0, 5000.0, 60_000.0, 2e6]), max_size=10),
)
def test_bounds_are_where_clearly_more_is_left_than_at_the_bound_before(had: list[float], has: list[float]) -> None:
    """`had` by finished jobs, `has` by those that go on."""
    chosen = worthwhile_bounds(np.array(had + has), np.array(had))
    assert chosen == brute_force_bounds(had + has, had)


def test_jobs_that_are_alike_need_no_bounds_and_few_long_ones_among_many_short_ones_do() -> None:
    draw = np.random.default_rng(0)
    alike, heavy = draw.uniform(20_000, 60_000, 1000), 1000 * draw.pareto(0.8, 1000)
    assert worthwhile_bounds(alike, alike) == []
    assert len(worthwhile_bounds(heavy, heavy)) > 3


@pytest.mark.parametrize(("trace", "machines"), [("60_job", "n4g4"), ("480gen_job", "n15g4")])
@pytest.mark.parametrize("policy", BOTH)
def test_queues_are_no_worse_than_none_where_restarts_cost(
    shared_data: Path, trace: str, machines: str, policy: str
) -> None:
    folder, jct = shared_data / "tiresias", []
    jobs, where = load_trace(folder / f"{trace}.csv").jobs, parse_cluster(str(folder / f"{machines}.csv"))
    for name in (policy, "fifo-backfill"):
        history = simulate(Scenario(jobs, where, policy=name, placement="anywhere", restart_cost_s=30.0))
        jct.append(float((history.end_s - history.submit_s).mean()))
    assert jct[0] <= jct[1]


def test_before_that_there_are_eight_bounds() -> None:
    cell = Cell("1x1", "tiresias")
    cell.submit(0, job("a", work=10_000), job("b", work=10_000))
    assert cell.engine.wake_s == 2000
    assert cell.at(2000).stops[0].job == "a"


# GPUs of unlike speed


@pytest.mark.parametrize(("normalise", "leaves_s"), [("false", 100), ("true", 400)])
def test_service_may_count_by_speed(normalise: str, leaves_s: float) -> None:
    cell = Cell("fast:1x1,slow:1x1", "tiresias", {"thresholds": "100", "normalise": normalise})
    (fast,) = [node.name for node in cell.engine.gpus.cluster.nodes if node.gpu_type == "fast"]
    cell.at(0, NodeDraining(0, fast, evict=True))
    speeds = {"unit": "steps", "throughput": {"fast": 4.0, "slow": 1.0}, "work": 10_000}
    cell.submit(0, job("a", **speeds), job("b", **speeds))
    assert cell.running == ["a"]
    assert cell.engine.wake_s == pytest.approx(leaves_s)
    assert [stop.job for stop in cell.at(leaves_s).stops] == ["a"]


@settings(max_examples=30, deadline=None)
@given(small_jobs, st.sampled_from(BOTH))
def test_on_one_type_it_changes_nothing_to_count_by_speed(drawn: list[dict[str, Any]], policy: str) -> None:
    """Not even for jobs that are slow where they are spread."""
    jobs = [replace(one, slowdown=(1.0, 1.5, 2.0, 3.0)) for one in named(drawn)]
    plain, by_speed = (
        run(jobs, "2x2", policy, settings={"thresholds": "150,400", "normalise": text}) for text in ("false", "true")
    )
    assert times(plain) == times(by_speed)


# Starvation


@settings(max_examples=60, deadline=None)
@given(
    drawn=small_jobs,
    policy=st.sampled_from(BOTH),
    thresholds=st.sampled_from(["auto", "10", "50", "50,51", "100,400,900", "3250,7200"]),
    knob=st.sampled_from(["off", "0.01", "0.3", "1", "8", "100"]),
    normalise=st.booleans(),
    index=st.sampled_from(["quantum", "supremum"]),
    placement=st.sampled_from(list(PLACEMENTS)),
    cost_s=st.sampled_from([0.0, 1.0, 30.0, 300.0]),
    machines=st.sampled_from(["1x4", "2x2", "4x1", "a:1x4,b:2x2"]),
    reserve=st.sampled_from(["off", "0", "100"]),
    patience=st.sampled_from(["off", "0", "50", "3600"]),
)
def test_every_job_finishes_under_every_parameter(
    drawn: list[dict[str, Any]],
    policy: str,
    thresholds: str,
    knob: str,
    normalise: bool,
    index: str,
    placement: str,
    cost_s: float,
    machines: str,
    reserve: str,
    patience: str,
) -> None:
    chosen = {"thresholds": thresholds, "promote-knob": knob, "normalise": str(normalise), "reserve": reserve}
    chosen["patience"] = patience
    if policy == "tiresias-gittins":
        chosen["index"] = index
    script = Script(named(drawn), machines, policy, chosen, placement=placement, restart_cost_s=cost_s)
    assert not np.isnan(script.history.end_s).any()


@pytest.mark.parametrize("policy", BOTH)
def test_a_gang_does_not_wait_for_a_stream_of_small_jobs_to_end(policy: str) -> None:
    """Eight GPUs that small jobs keep busy to nine tenths are never free at once."""
    waits = []
    for stream in (100, 200):
        small = [job(f"small-{k}", work=1000.0, submit_s=140.0 * k) for k in range(stream)]
        jobs = sorted([*small, job("gang", gpus=8, work=1000.0, submit_s=2000.5)], key=lambda one: one.submit_s)
        by = {"thresholds": "3250,7200"}
        waits.append(times(run(jobs, "1x8", policy, settings=by, placement="anywhere"))["gang"][0] - 2000.5)
        forever = run(jobs, "1x8", policy, settings={**by, "patience": "off"}, placement="anywhere")
        assert times(forever)["gang"][0] > 140 * (stream - 1)
    assert waits[0] == waits[1] <= 3600 + 1000


@pytest.mark.parametrize("index", ["quantum", "supremum"])
def test_an_old_job_does_not_wait_behind_new_ones_for_ever_by_index(index: str) -> None:
    """All that is known are jobs of 100 s, so that an older one has index 0, in the first queue and in the last."""
    by_index = {"thresholds": "3250,7200", "promote-knob": "1", "index": index}
    ended = []
    for stream in (400, 600):
        small = [job(f"small-{k}", work=100.0, submit_s=100.0 * k + 50) for k in range(stream)]
        jobs = sorted([*small, job("old", work=9000.0, submit_s=12_001)], key=lambda one: one.submit_s)
        ended.append(times(run(jobs, "1x1", "tiresias-gittins", settings=by_index))["old"][1])
    assert ended[0] == ended[1] < 40_000


def test_a_job_that_came_late_to_its_gpus_keeps_them() -> None:
    """It is owed precedence since 3,600, so that jobs that are owed it since later do not pass it when it runs."""
    small = [job(f"small-{k}", work=1000.0, submit_s=140.0 * k) for k in range(60)]
    jobs = sorted([*small, job("gang", gpus=8, work=200.0, submit_s=0.5)], key=lambda one: one.submit_s)
    assert launches(run(jobs, "1x8", "tiresias", placement="anywhere"), "gang") == [3600.5]


def test_a_gang_that_was_promoted_does_not_wait_for_a_stream_of_small_jobs_to_end() -> None:
    """It runs until 1,000 and is promoted after 100 s of wait; its patience ends 3,600 s later."""
    starts = []
    for stream in (100, 200):
        small = [job(f"small-{k}", work=1000.0, submit_s=500.0 + 140.0 * k) for k in range(stream)]
        jobs = sorted([*small, job("gang", gpus=8, work=2000.0)], key=lambda one: one.submit_s)
        by = {"thresholds": "8000", "promote-knob": "0.1"}
        starts.append(launches(run(jobs, "1x8", "tiresias", settings=by, placement="anywhere"), "gang"))
    assert starts[0] == starts[1] == [0, 1100 + 3600]


def test_the_smallest_bound_and_knob_end_too() -> None:
    """Every promotion needs a GPU-second of work since the last, so that there are no more than work has seconds."""
    jobs = [job(name, gpus=gpus, work=60.0) for name, gpus in (("a", 1), ("b", 2), ("c", 3), ("d", 4))]
    script = Script(jobs, "1x4", "tiresias", {"thresholds": "1", "promote-knob": "0.01"})
    assert not np.isnan(script.history.end_s).any()
    assert 100 < len(promoted(script.records)) <= 600


def test_who_runs_on_is_not_looked_at_for_promotion() -> None:
    """From 100 to 160 old stands in the second queue and runs, for wide cannot pass late in the first."""
    jobs = [job("old", work=5000), job("late", work=5000, submit_s=60), job("wide", gpus=2, work=10, submit_s=61)]
    script = Script(jobs, "1x2", "tiresias", {"thresholds": "100", "promote-knob": "0.01"})
    assert [record.at_s for record in script.records if 61 < record.at_s < 160] == [100]
    assert launches(script.history, "wide")[0] == 160
