"""Generated jobs follow the numbers they were asked for, and the seed alone decides."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.cluster import Span
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.throughputs import Setting, Throughputs
from horae.workload.arrivals import hourly_shape
from horae.workload.clusters import parse_cluster
from horae.workload.generator import PRESETS, SIZES, Workload, generate, preset
from horae.workload.job_durations import Exponential, LogUniform, TwoClasses
from horae.workload.model_mixes import DISTRIBUTED, SINGLE, ComputeOrNetworkBound
from horae.workload.speed_files import load_throughputs

CLUSTER = parse_cluster("v100:8x8,k80:8x8")
MANY = 20_000


def speeds() -> Throughputs:
    """Every model runs at 2 steps/s a GPU on a V100."""
    table = Throughputs()
    for job_class in DISTRIBUTED + SINGLE:
        for gpus in (1, 2, 4, 8) if job_class in DISTRIBUTED else (1,):
            table.put(Setting(job_class, "v100", gpus, Span.GPU if gpus == 1 else Span.NODE), 2.0 * gpus)
    return table


def draw(workload: Workload, seed: int = 0) -> tuple[JobSpec, ...]:
    return generate(workload, CLUSTER, speeds(), seed)


def durations_s(jobs: tuple[JobSpec, ...]) -> np.ndarray:
    return np.array([job.work for job in jobs])


@pytest.mark.parametrize("name", PRESETS)
def test_the_same_seed_gives_the_same_jobs_and_another_does_not(name: str) -> None:
    assert draw(PRESETS[name], 3) == draw(PRESETS[name], 3)
    assert draw(PRESETS[name], 3) != draw(PRESETS[name], 4)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(PRESETS)),
    st.integers(1, 200),
    st.integers(0, 2**40),
    st.floats(0.01, 3.0),
    st.sampled_from([(), (1.2, 2.0, 10.0)]),
    st.integers(0, 4),
)
def test_every_workload_is_whole(name: str, jobs: int, seed: int, load: float, multiples: tuple, teams: int) -> None:
    drawn = draw(preset(name, jobs=jobs, load=load, deadline_multiples=multiples, teams=teams), seed)
    assert len(drawn) == jobs == len({job.id for job in drawn})
    assert [job.id for job in drawn] == sorted(job.id for job in drawn)
    assert drawn[0].submit_s == 0
    assert all(a.submit_s <= b.submit_s for a, b in pairwise(drawn))
    assert all((job.deadline_s is not None) == bool(multiples) for job in drawn)


def test_settings_survive_the_way_to_another_process() -> None:
    for workload in PRESETS.values():
        assert pickle.loads(pickle.dumps(workload)) == workload


def test_one_aspect_changes_without_the_others() -> None:
    plain = draw(PRESETS["plain"])
    urgent = draw(preset("plain", deadline_multiples=(2.0,), teams=3, heavy_share=0.5))
    assert [replace(job, deadline_s=None, queue="default", weight=1.0) for job in urgent] == list(plain)


def test_poisson_arrivals_have_the_rate_and_the_spread() -> None:
    arrivals = [job.submit_s for job in draw(preset("plain", jobs=MANY, arrivals_per_hour=4.0))]
    gaps = np.diff(arrivals)
    assert gaps.mean() == pytest.approx(900, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)


def test_an_infinite_rate_submits_everything_at_once() -> None:
    assert {job.submit_s for job in draw(preset("plain", arrivals_per_hour=float("inf")))} == {0.0}


@pytest.mark.parametrize("name", ["plain", "gavel", "themis"])
@pytest.mark.parametrize("load", [0.5, 1.5])
def test_load_is_the_work_that_arrives_over_the_work_that_can_be_done(name: str, load: float) -> None:
    jobs = draw(preset(name, jobs=MANY, load=load))
    # `speeds` gives 2 steps/s for each GPU.
    gpu_seconds = sum(job.work / 2 if job.unit == "steps" else job.work * job.gpus for job in jobs)
    # Apps of 30 jobs leave only some hundreds of arrivals, hence the tolerance.
    assert gpu_seconds / (jobs[-1].submit_s * CLUSTER.gpus) == pytest.approx(load, rel=0.12)


def test_arrivals_follow_the_rhythm_of_the_day() -> None:
    hourly = (0.0,) * 8 + (3.0,) * 8 + (1.0,) * 8
    jobs = draw(preset("plain", jobs=MANY, arrivals_per_hour=50.0, hourly=hourly))
    by_hour = Counter(int(job.submit_s // 3600) % 24 for job in jobs)
    assert sum(by_hour[hour] for hour in range(8)) <= 1, "only the first job stands at time 0"
    assert sum(by_hour[hour] for hour in range(8, 16)) / MANY == pytest.approx(0.75, abs=0.02)
    assert MANY / (jobs[-1].submit_s / 3600) == pytest.approx(50, rel=0.06)


def test_the_shape_of_a_trace_is_found_again_in_what_is_generated_from_it() -> None:
    hourly = tuple(float(1 + hour % 5) for hour in range(24))
    drawn = draw(preset("plain", jobs=MANY, arrivals_per_hour=50.0, hourly=hourly))
    assert np.array(hourly_shape(drawn)) == pytest.approx(np.array(hourly) / sum(hourly), abs=0.006)


def test_a_trace_of_some_hours_shows_no_rhythm() -> None:
    with pytest.raises(UserError, match="less than a day"):
        hourly_shape([JobSpec("a", 0.0, 1, 1.0), JobSpec("b", 7200.0, 1, 1.0)])


def test_gavel_durations() -> None:
    minutes = durations_s(draw(preset("plain", jobs=MANY, durations=LogUniform()))) / 60
    assert minutes.min() >= 10**1.5 * 0.999
    assert minutes.max() <= 10**4 * 1.001
    assert (minutes < 1000).mean() == pytest.approx(0.8, abs=0.01)
    assert np.median(np.log10(minutes[minutes < 1000])) == pytest.approx(2.25, abs=0.03)
    assert np.median(np.log10(minutes[minutes > 1000])) == pytest.approx(3.5, abs=0.03)


def test_themis_durations_have_two_medians() -> None:
    for share, median in ((0.0, 59), (1.0, 123)):
        drawn = draw(preset("plain", jobs=MANY, durations=TwoClasses(long_share=share)))
        assert np.median(durations_s(drawn)) / 60 == pytest.approx(median, rel=0.03)


def test_exponential_durations() -> None:
    drawn = durations_s(draw(preset("plain", jobs=MANY, durations=Exponential(mean_s=500.0))))
    assert drawn.mean() == pytest.approx(500, rel=0.03)
    assert drawn.std() == pytest.approx(500, rel=0.05)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_come_with_their_chances(name: str) -> None:
    counts = Counter(job.gpus for job in draw(preset("plain", jobs=MANY, sizes=name)))
    chances = dict(SIZES[name])
    assert sum(chances.values()) == pytest.approx(1)
    assert set(counts) <= set(chances)
    for size, chance in chances.items():
        assert counts[size] / MANY == pytest.approx(chance, abs=0.01)


def test_the_gavel_mix_draws_26_types_and_gangs_of_those_that_can() -> None:
    jobs = draw(preset("gavel", jobs=MANY))
    assert len(DISTRIBUTED + SINGLE) == 26
    single = Counter(job.job_class for job in jobs if job.gpus == 1)
    gangs = Counter(job.job_class for job in jobs if job.gpus > 1)
    assert set(single) == set(DISTRIBUTED + SINGLE)
    assert set(gangs) == set(DISTRIBUTED)
    for counts in (single, gangs):
        expected = sum(counts.values()) / len(counts)
        assert all(0.8 < count / expected < 1.2 for count in counts.values())


def test_gavel_steps_are_duration_times_v100_speed() -> None:
    steps = draw(preset("gavel", jobs=50))
    seconds = draw(preset("gavel", jobs=50, mix="plain"))
    for job, same in zip(steps, seconds, strict=True):
        assert (job.unit, same.unit) == ("steps", "seconds")
        assert job.work == pytest.approx(same.work * 2.0 * job.gpus, abs=0.51)
        assert (job.gpus, job.submit_s) == (same.gpus, same.submit_s)


def test_the_gavel_mix_needs_speeds() -> None:
    with pytest.raises(UserError, match="--throughputs, or take the plain mix"):
        generate(PRESETS["gavel"], CLUSTER, None, 0)
    with pytest.raises(UserError, match="no speed for"):
        generate(PRESETS["gavel"], CLUSTER, Throughputs(), 0)


def test_the_gavel_mix_runs_on_the_published_speeds(shared_data: Path) -> None:
    table = load_throughputs(shared_data / "gavel" / "simulation_throughputs.json")
    jobs = generate(preset("gavel", jobs=500), CLUSTER, table, 0)
    seconds = [job.work / table.rate(job, "v100", job.gpus, Span.NODE) for job in jobs]
    assert min(seconds) > 0.9 * 60 * 10**1.5
    assert max(seconds) < 1.1 * 60 * 10**4


def test_apps_have_a_median_of_23_trials_and_at_most_98() -> None:
    trials = [len(app) for app in apps_of(draw(preset("themis", jobs=MANY))).values()]
    assert min(trials) >= 1
    assert max(trials) <= 98
    assert np.median(trials) == pytest.approx(23, abs=3)


def test_trials_of_an_app_differ_in_duration_alone() -> None:
    workload = preset("themis", jobs=2000, teams=3, heavy_share=0.3)
    for app in apps_of(draw(workload)).values():
        alike = {(job.submit_s, job.gpus, job.job_class, job.slowdown, job.weight, job.queue) for job in app}
        assert len(alike) == 1
        assert len({job.work for job in app}) == len(app)


def test_the_themis_mix_slows_network_bound_jobs_down() -> None:
    jobs = draw(preset("plain", jobs=MANY, mix=ComputeOrNetworkBound()))
    kinds = Counter((job.job_class, job.slowdown) for job in jobs)
    assert set(kinds) == {("compute-bound", (1.0, 1.0, 1.02, 1.05)), ("network-bound", (1.0, 1.1, 1.5, 2.0))}
    assert kinds["network-bound", (1.0, 1.1, 1.5, 2.0)] / MANY == pytest.approx(0.4, abs=0.015)


def test_jobs_without_trials_have_no_app() -> None:
    assert {job.app for job in draw(PRESETS["plain"])} == {""}


def test_weights_deadlines_and_queues_are_spread_as_asked() -> None:
    jobs = draw(preset("plain", jobs=MANY, heavy_share=0.2, deadline_multiples=(1.2, 2.0, 10.0), teams=4))
    assert Counter(job.weight for job in jobs)[5.0] / MANY == pytest.approx(0.2, abs=0.01)
    multiples = Counter(round((job.deadline_s or 0) / job.work, 1) for job in jobs if job.work > 1)
    assert set(multiples) == {1.2, 2.0, 10.0}
    assert all(count / MANY == pytest.approx(1 / 3, abs=0.015) for count in multiples.values())
    queues = Counter(job.queue for job in jobs)
    assert sorted(queues) == [f"org/team-{team}" for team in range(4)]
    assert all(count / MANY == pytest.approx(1 / 4, abs=0.015) for count in queues.values())


def test_gangs_larger_than_every_gpu_type_are_refused() -> None:
    with pytest.raises(UserError, match="gangs of 8 GPUs, but no GPU type of the cluster has more than 4"):
        generate(PRESETS["plain"], parse_cluster("a:1x4,b:2x2"), None, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"jobs": 0},
        {"load": 0.0},
        {"load": float("nan")},
        {"load": 0.5, "arrivals_per_hour": 3.0},
        {"load": None},
        {"arrivals_per_hour": -1.0},
        {"arrivals_per_hour": float("nan")},
        {"hourly": (1.0,)},
        {"hourly": (0.0,) * 24},
        {"sizes": ()},
        {"sizes": ((0, 1.0),)},
        {"sizes": ((1, -1.0),)},
        {"trials_max": 0},
        {"trials_median": 5.0},
        {"trials_sigma": -1.0},
        {"heavy_share": 1.5},
        {"heavy_weight": 0.0},
        {"deadline_multiples": (0.0,)},
        {"teams": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict) -> None:
    with pytest.raises(UserError, match="Cannot generate this workload"):
        preset("plain", **changes)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gavle", {}, "Did you mean 'gavel'"),
        ("plain", {"mix": "thermis"}, "Did you mean 'themis'"),
        ("plain", {"durations": "none"}, "Choose one of gavel, themis, exponential"),
        ("plain", {"sizes": "huge"}, "Choose one of single"),
        ("plain", {"job": 3}, "Did you mean 'jobs'"),
    ],
)
def test_unknown_names_get_a_suggestion(name: str, changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        preset(name, **changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LogUniform(short_share=2.0),
        lambda: LogUniform(short_exponents=(3.0, 1.0)),
        lambda: LogUniform(unit_s=0.0),
        lambda: TwoClasses(sigma=-1.0),
        lambda: TwoClasses(long_share=-0.1),
        lambda: TwoClasses(short_median_s=0.0),
        lambda: TwoClasses(long_median_s=float("nan")),
        lambda: Exponential(mean_s=float("inf")),
        lambda: ComputeOrNetworkBound(network_share=1.1),
    ],
)
def test_distributions_that_make_no_sense_are_refused(make) -> None:
    with pytest.raises(UserError):
        make()


def apps_of(jobs: tuple[JobSpec, ...]) -> dict[str, list[JobSpec]]:
    """The jobs of each app, but for the last, which is cut."""
    apps: dict[str, list[JobSpec]] = defaultdict(list)
    for job in jobs:
        apps[job.app].append(job)
    apps.pop(jobs[-1].app)
    return apps


def test_losses_are_drawn_apart_so_that_all_else_stays() -> None:
    plain, halving = draw(preset("themis", jobs=300)), draw(preset("themis", jobs=300, app_scheduler="halving:eta=4"))
    bare = [replace(job, loss=None, report_every=0.0, app_scheduler="") for job in halving]
    assert bare == list(plain)
    assert {job.app_scheduler for job in halving} == {"halving:eta=4"}
    assert all(job.loss is not None and job.work / job.report_every == pytest.approx(20) for job in halving)


def test_trials_of_an_app_begin_alike_and_who_leads_early_need_not_win() -> None:
    jobs = draw(preset("themis", jobs=1000, reports=5))
    apps = defaultdict(list)
    for job in jobs:
        assert job.loss is not None
        apps[job.app].append((job.loss.first, job.loss.at(job.work / 9), job.loss.at(job.work)))
    assert all(len({first for first, _, _ in trials}) == 1 for trials in apps.values())
    large = [np.array(trials) for trials in apps.values() if len(trials) > 10]
    agree = [np.corrcoef(trials[:, 1], trials[:, 2])[0, 1] for trials in large]
    assert 0.5 < np.median(agree) < 0.99
    assert {round(job.work / job.report_every) for job in jobs} == {5}


def test_reports_without_apps_need_no_scheduler() -> None:
    jobs = draw(preset("plain", jobs=20, reports=10))
    assert all(job.loss is not None and not job.app_scheduler for job in jobs)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"app_scheduler": "halving"}, "needs apps of several trials"),
        ({"app_scheduler": "halv", "trials_max": 5}, "no app scheduler is called 'halv'"),
        ({"reports": 1001}, "from 0 to 1000"),
    ],
)
def test_trials_that_make_no_sense_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        preset("plain", **settings)
