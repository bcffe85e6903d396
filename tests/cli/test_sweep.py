"""`horae sweep`: curves over loads, cluster sizes and settings, of a steady state or of everything."""

import csv
from pathlib import Path

import numpy as np
import pytest

from horae.cli.sweep import EXPERIMENTS, GAVEL, read_variation
from horae.core.cluster import Cluster
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.experiments.sweep import SweepWindow, choose_window
from horae.experiments.sweep_axis import SweepAxis
from horae.policies import POLICIES, describe
from horae.simulator.run import simulate
from horae.simulator.scenario import PolicyChoice, Scenario
from horae.workload.clusters import parse_cluster
from horae.workload.generator import PRESETS
from tests.cli.conftest import Horae

WINDOW = ["--generate", "plain", "--cluster", "2x8", "--measure-from", 10, "--measure-to", 30, "--workers", 1]
SMALL = ["sweep", *WINDOW, "--jobs", 1000]
FINITE = ["sweep", "--generate", "plain", "--cluster", "2x8", "--jobs", 20, "--workers", 1]


def test_a_point_is_what_compare_measures_of_the_same_jobs(horae: Horae, tmp_path: Path) -> None:
    plot, page = tmp_path / "curves.png", tmp_path / "curves.html"
    words = ["--policies", "fifo-backfill,srtf", "-o", "json"]
    answer = horae(*SMALL, "--vary", "rate=60,6", *words, "--workers", 2, "--plot", plot, "--html", page)
    assert answer.code == 0
    points = answer.json["points"]
    assert [(point["vary"], point["value"], point["policy"]) for point in points] == [
        ("rate", 6, "fifo-backfill"), ("rate", 6, "srtf"), ("rate", 60, "fifo-backfill"), ("rate", 60, "srtf"),
    ]  # fmt: skip
    others = ["--rate", 60, "--jobs", 1000, "--placement", "anywhere"]
    whole = horae("compare", *WINDOW, *others, *words).json["policies"]
    assert [point["avg_jct_s"] for point in points[2:]] == [one["avg_jct_s"] for one in whole]
    assert points[2]["avg_jct_s"] > points[0]["avg_jct_s"]
    assert all(point["cpu_s"] > 0 and point["finished"] == 20 for point in points)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "fifo-backfill" in page.read_text()


def test_a_setting_is_set_in_every_policy_and_seeds_give_intervals(horae: Horae) -> None:
    words = ["--rate", 8, "--policy", "max-min", "--policy", "max-min:aware=false,stay=0", "--seeds", 2]
    rows = list(csv.DictReader(horae(*SMALL, "--vary", "round=600,3600", *words, "-o", "csv").out.splitlines()))
    assert [(row["value"], row["label"], row["settings.round"]) for row in rows] == [
        ("600.0", "max-min", "600"),
        ("600.0", "max-min (aware=false, stay=0)", "600"),
        ("3600.0", "max-min", "3600"),
        ("3600.0", "max-min (aware=false, stay=0)", "3600"),
    ]
    assert all(float(row["ci95.avg_jct_s"]) > 0 for row in rows)


def test_values_that_make_no_difference_are_told_beside_the_answer(horae: Horae) -> None:
    words = ["--policy", "themis", "--rate", 6, "--vary", "f=0.9,0.95,0", "-o", "json"]
    answer = horae(*FINITE, *words)
    assert answer.err == "themis came to the very same runs at f 0.9, 0.95: there it makes no difference.\n"
    auctions = [point["auctions"] for point in answer.json["points"]]
    assert auctions[1] == auctions[2] != auctions[0]
    assert horae(*FINITE, "--policy", "fifo", "--vary", "rate=6,60", "-o", "json").err == ""


def test_a_policy_without_the_setting_is_run_once_and_told(horae: Horae, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["--policies", "fifo,las", "--rate", 60, "--vary", "quantum=60,3600"]
    answer = horae(*FINITE, *words, "-o", "json", "--html", page)
    assert answer.err.startswith("fifo has no setting 'quantum': it is run once and drawn as a flat line.\n")
    points = answer.json["points"]
    assert [(point["label"], point["value"]) for point in points] == [("las", 60), ("las", 3600), ("fifo", None)]
    whole = horae("compare", *FINITE[1:], "--rate", 60, "--placement", "anywhere", "--policies", "fifo", "-o", "json")
    assert points[2]["avg_jct_s"] == whole.json["policies"][0]["avg_jct_s"]
    assert "quantum (minutes)" in page.read_text()


def test_the_same_jobs_fare_better_on_a_larger_cluster(horae: Horae) -> None:
    words = ["--vary", "gpus=16,64", "--rate", 60, "--policies", "fifo-backfill", "-o", "json"]
    small, large = horae(*FINITE, *words).json["points"]
    assert (small["gpus"], large["gpus"]) == (16, 64)
    assert large["avg_jct_s"] < small["avg_jct_s"]


def test_apps_are_run_to_the_end_on_the_cluster_of_their_paper(horae: Horae, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["sweep", "--generate", "themis", "--jobs", 60, "--policies", "srtf", "--workers", 1, "--vary", "load=1,2"]
    answer = horae(*words, "--measure", "rho.max", "--html", page, "-o", "json")
    text = page.read_text()
    assert text.index("Worst slowdown versus fair share") < text.index("Average completion time")
    assert all(title in text for title in ("Completion time of apps", "GPU time", "Better off alone"))
    points = answer.json["points"]
    assert [(point["gpus"], point["finished"], point["jobs"]) for point in points] == [(256, 60, 60)] * 2
    assert points[0]["app_completion_s"]["avg"] > points[0]["avg_jct_s"]


def test_a_measure_is_drawn_and_stands_first_and_a_page_without_apps_does_not_speak_of_them(
    horae: Horae, tmp_path: Path
) -> None:
    plot, page = tmp_path / "plot.svg", tmp_path / "page.html"
    words = ["--vary", "load=1", "--policies", "fifo", "--measure", "gpu_hours", "--plot", plot, "--html", page]
    answer = horae(*FINITE, *words)
    assert answer.err == f"plot: {plot}\npage: {page}\n"
    assert answer.out.split("policy")[1].split()[:2] == ["GPU-hours", "held"]
    assert "GPU-hours held" in plot.read_text()
    assert "Average completion time" in page.read_text()
    assert "Completion time of apps" not in page.read_text()


def test_the_table_stands_by_value_and_policy(horae: Horae) -> None:
    words = ["--vary", "quantum=60,3600", "--rate", 9, "--policies", "fifo,las,time-slice", "--seeds", 2]
    answer = horae(*FINITE, *words)
    lines = [line.split() for line in answer.out.splitlines() if "±" in line]
    assert [line[:2] for line in lines[::2]] == [["1", "las"], ["60", "las"], ["any", "fifo"]]
    assert [line[0] for line in lines[1::2]] == ["time-slice", "time-slice"]
    assert "CPU s a run" in answer.out
    assert answer.err.count("\n") == 1


def test_a_cluster_that_empties_while_jobs_are_measured_is_told(horae: Horae) -> None:
    words = ["--vary", "rate=60", "--policies", "fifo", "-o", "json"]
    answer = horae("sweep", *WINDOW, "--jobs", 30, *words)
    assert answer.code == 0
    assert answer.err.startswith("At 1 of 1 points, such as fifo at 60, all 30 jobs had come before")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rate"], "like --vary f=0,0.5,0.8"),
        (["=4"], "like --vary f=0,0.5,0.8"),
        (["rate=4", "--rate", "5"], "leave --rate and --load out"),
        (["load=1", "--rate", "5"], "leave --rate and --load out"),
        (["round=60", "--rate", "-1"], "give a number above 0"),
        (["round=60", "--rate", "5", "--load", "1"], "either --load or --rate"),
        (["rate=4,x"], "--vary rate=x is not a number. A sweep draws numbers"),
        (["rate=4,inf"], "not a finite number"),
        (["rate=4,0"], "numbers above 0"),
        (["rate=,"], "names no value"),
        (["round="], "names no value"),
        (["rate=4,4.0"], "4 twice"),
        (["round=60,360,60.000"], "60 twice"),
        (["gpus=16.5"], "whole numbers"),
        (["gpus=20"], "20 GPUs cannot be made of whole nodes of every sort (8 x gpu); choose 16 or 24."),
        (["rounds=60"], "Did you mean 'round'? They can be swept over rate, load, gpus, round, stay"),
        (["f=0.5", "--policies", "fifo,srtf"], "None of the chosen policies has a setting 'f'."),
        (["f=0.5,2", "--policies", "themis"], "f=2 is not a share"),
        (["lease=0", "--policies", "themis,fifo"], "too small"),
        (["denominator=share", "--policies", "themis"], "--policy NAME:denominator=share"),
        (["round=60", "--policies", "max-min:round=60"], "leave it out of max-min:round=60"),
        (["bid-error=0", "--policies", "themis:bid_error=0"], "leave it out of themis:bid_error=0"),
        (["rate=4", "--policies", ""], "names no policy"),
        (["rate=4", "--queues", "queues.yaml"], "queues.yaml"),
        (["rate=4", "--measure-from", "30"], "is empty"),
        (["rate=4", "--jobs", "29"], "30 are needed"),
        (["rate=4", "--measure", "rho.mx"], "Did you mean 'rho.max'?"),
        (["rate=4", "--measure", "by_queue"], "No measure is called 'by_queue'. Known are finished, avg_jct_s"),
        (["rate=4", "--plot", "curves.gif"], "in .png or .svg"),
        (["rate=4", "--plot", "missing/curves.png"], "missing"),
        (["rate=4", "--plot", "a.svg", "--html", "a.svg"], "twice"),
        (["rate=4", "--generate", "gavel"], "throughputs"),
        (["rate=4", "--policies", "max-mim"], "Did you mean 'max-min'?"),
    ],
)
def test_a_wrong_input_gets_one_sentence(
    words: list[str], told: str, horae: Horae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = horae(*SMALL, "--vary", *words)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert told in answer.err
    assert list(tmp_path.glob("*.*")) == []


def test_a_sweep_of_nothing_is_wrong_usage(horae: Horae) -> None:
    answer = horae(*SMALL)
    assert answer.code == 2
    assert "--vary" in answer.err


def test_steps_stand_from_the_lowest_up_and_change_one_thing() -> None:
    cluster, chosen = parse_cluster("4x4"), [PolicyChoice("themis")]
    rates = read_variation("rate=5.6, 4", chosen).steps(cluster, None, None)
    assert [(step.value, step.rate, step.load, step.settings) for step in rates] == [
        (4.0, 4.0, None, {}),
        (5.6, 5.6, None, {}),
    ]
    leases = read_variation("lease=2880,60", chosen).steps(cluster, 5.6, None)
    assert [(step.rate, step.settings) for step in leases] == [(5.6, {"lease": "60"}), (5.6, {"lease": "2880"})]
    sizes = read_variation("gpus=8,16", chosen).steps(cluster, None, 1.5)
    assert [(step.cluster.gpus, step.load) for step in sizes] == [(8, 1.5), (16, 1.5)]
    assert sizes[1].cluster == cluster
    assert all(step.cluster is cluster for step in (*rates, *leases))


def test_underlined_settings_are_known_too() -> None:
    assert read_variation("bid_error=0,0.2", [PolicyChoice("themis")]) == SweepAxis("bid-error", (0.0, 0.2))


def test_every_setting_in_seconds_is_drawn_as_time() -> None:
    seconds = {"round", "stay", "half-life", "gain", "reserve", "quantum", "lease"}
    known = {one.name for info in map(describe, POLICIES) for one in info.parameters}
    drawn = {name for name in known if SweepAxis(name, (60.0, 120.0)).axis("jobs").label != name}
    assert drawn & seconds == known & seconds
    assert not {"f", "bid-error", "seed", "aware"} & drawn
    assert SweepAxis("lease", (300.0, 3600.0)).axis("jobs").text(300.0) == "5"


def test_what_comes_at_a_rate_is_named() -> None:
    assert SweepAxis("rate", (1.0,)).axis("apps").label == "input rate (apps/hour)"


@pytest.mark.parametrize(
    ("preset", "words", "window"),
    [
        ("plain", {}, SweepWindow(20_000, 4000, 5000)),
        ("plain", {"measure_from": 4500}, SweepWindow(20_000, 4500, 5000)),
        ("plain", {"measure_to": 30}, SweepWindow(120, 0, 30)),
        ("plain", {"jobs": 100}, SweepWindow(100, 0, None)),
        ("plain", {"jobs": 100, "measure_from": 10}, SweepWindow(100, 10, None)),
        ("plain", {"jobs": 100, "measure_from": 10, "measure_to": 50}, SweepWindow(100, 10, 50)),
        ("themis", {}, SweepWindow(1000, 0, None)),
        ("themis", {"measure_from": 100, "measure_to": 200}, SweepWindow(800, 100, 200)),
    ],
)
def test_jobs_alone_are_run_to_the_end_and_a_window_is_a_steady_state(
    preset: str, words: dict[str, int], window: SweepWindow
) -> None:
    jobs = words.pop("jobs", None)
    work = PRESETS[preset] if jobs is None else PRESETS["plain"]
    assert choose_window(work, jobs, **words) == window


def test_the_papers_clusters_can_be_read() -> None:
    assert [parse_cluster(one.cluster).gpus for one in (GAVEL, *EXPERIMENTS.values())] == [108, 256]
    themis = parse_cluster(EXPERIMENTS["themis"].cluster)
    assert {node.gpus for node in themis.nodes} == {1, 2, 4}
    assert len(themis.racks) > 1


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(UserError, match="is empty"):
        choose_window(PRESETS["themis"], None, 1000)


def test_a_simulation_may_stop_when_its_first_jobs_have_ended() -> None:
    cluster = Cluster.of([("gpu", 1, 1)])
    jobs = [JobSpec(f"{n}", 10.0 * n, 1, 25.0) for n in range(20)]
    whole = simulate(Scenario(jobs, cluster, policy="fifo"))
    cut = simulate(Scenario(jobs, cluster, policy="fifo", until=4))
    assert cut.end_s[:4].tolist() == whole.end_s[:4].tolist() == [25, 50, 75, 100]
    assert len(cut.jobs) == 11
    assert not cut.finished[4:].any()


def test_the_first_jobs_may_end_in_any_order() -> None:
    cluster = Cluster.of([("gpu", 1, 2)])
    jobs = [JobSpec("long", 0, 1, 1000), *(JobSpec(f"{n}", 1.0 + n, 1, 10) for n in range(500))]
    cut = simulate(Scenario(jobs, cluster, policy="fifo", until=2))
    assert cut.end_s[:2].tolist() == [1000, 11]
    assert len(cut.jobs) == 501
    assert np.nanmax(cut.end_s) == 1000
