"""`horae sweep`: curves over input rates and round lengths, measured in a steady state."""

import csv
from pathlib import Path

import numpy as np
import pytest

from horae.cli.sweep import Step, read_steps
from horae.core.cluster import Cluster
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.simulate.run import simulate

from .conftest import Horae

WINDOW = ["--generate", "plain", "--cluster", "2x8", "--measure-from", 10, "--measure-to", 30, "--workers", 1]
SMALL = ["sweep", *WINDOW, "--jobs", 1000]


def test_a_point_is_what_compare_measures_of_the_same_jobs(horae: Horae, tmp_path: Path) -> None:
    plot, page = tmp_path / "curves.png", tmp_path / "curves.html"
    words = ["--policies", "fifo-backfill,srtf", "-o", "json"]
    answer = horae(*SMALL, "--rates", "60,6", *words, "--plot", plot, "--html", page)
    assert answer.code == 0
    points = answer.json["points"]
    assert [(point["rate_per_hour"], point["policy"]) for point in points] == [
        (6, "fifo-backfill"), (6, "srtf"), (60, "fifo-backfill"), (60, "srtf"),
    ]  # fmt: skip
    others = ["--rate", 60, "--jobs", 1000, "--placement", "anywhere"]
    whole = horae("compare", *WINDOW, *others, *words).json["policies"]
    assert [point["avg_jct_s"] for point in points[2:]] == [one["avg_jct_s"] for one in whole]
    assert points[2]["avg_jct_s"] > points[0]["avg_jct_s"]
    assert all(point["cpu_s"] > 0 and point["finished"] == 20 for point in points)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "fifo-backfill" in page.read_text()


def test_round_lengths_are_set_in_every_policy_and_seeds_give_intervals(horae: Horae) -> None:
    words = ["--rate", 8, "--policy", "max-min", "--policy", "max-min:aware=false,stay=0", "--seeds", 2]
    rows = list(csv.DictReader(horae(*SMALL, "--rounds", "600,3600", *words, "-o", "csv").out.splitlines()))
    assert [(row["round_s"], row["label"], row["settings.round"]) for row in rows] == [
        ("600.0", "max-min", "600"),
        ("600.0", "max-min (aware=false, stay=0)", "600"),
        ("3600.0", "max-min", "3600"),
        ("3600.0", "max-min (aware=false, stay=0)", "3600"),
    ]
    assert all(float(row["ci95.avg_jct_s"]) > 0 for row in rows)


def test_the_table_stands_by_value_and_policy(horae: Horae) -> None:
    answer = horae(*SMALL, "--rates", "3,6", "--policies", "fifo,srtf", "--seeds", 2)
    lines = [line.split() for line in answer.out.splitlines() if "srtf" in line or "fifo" in line]
    assert [line[:2] for line in lines[::2]] == [["3", "fifo"], ["6", "fifo"]]
    assert [line[0] for line in lines[1::2]] == ["srtf", "srtf"]
    assert all("±" in line for line in lines)
    assert "CPU s a run" in answer.out
    assert answer.err == ""


def test_a_cluster_that_empties_while_jobs_are_measured_is_told(horae: Horae) -> None:
    answer = horae("sweep", *WINDOW, "--jobs", 30, "--rates", "60", "--policies", "fifo", "-o", "json")
    assert answer.code == 0
    assert answer.err.startswith("At 1 of 1 points, such as fifo at 60, all 30 jobs had come before")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "either --rates 4.0,5.2,5.6 or --rounds"),
        (["--rates", "4", "--rounds", "60"], "either"),
        (["--rates", "4", "--rate", "5"], "--rate does nothing"),
        (["--rounds", "60"], "--rate 5.6"),
        (["--rounds", "60", "--rate", "-1"], "--rate 5.6"),
        (["--rates", "4,x"], "--rates=x is not a number"),
        (["--rates", "4,0"], "numbers above 0"),
        (["--rates", ","], "numbers above 0"),
        (["--rounds", "", "--rate", "5"], "like --rounds 60,360"),
        (["--rates", "4", "--policies", ""], "names no policy"),
        (["--rates", "4", "--queues", "queues.yaml"], "queues.yaml"),
        (["--rates", "4,4.0"], "twice"),
        (["--rates", "4", "--measure-from", "30"], "is empty"),
        (["--rates", "4", "--jobs", "29"], "30 are needed"),
        (["--rates", "4", "--plot", "curves.gif"], "in .png or .svg"),
        (["--rates", "4", "--plot", "missing/curves.png"], "missing"),
        (["--rates", "4", "--plot", "a.svg", "--html", "a.svg"], "twice"),
        (["--rates", "4", "--generate", "gavel"], "throughputs"),
        (["--rates", "4", "--policies", "max-mim"], "Did you mean 'max-min'?"),
        (["--rounds", "60", "--rate", "4", "--policies", "fifo"], "'fifo' has no rounds"),
        (["--rounds", "60", "--rate", "4", "--policies", "max-min:round=60"], "leave it out of max-min:round=60"),
    ],
)
def test_a_wrong_input_gets_one_sentence(
    words: list[str], told: str, horae: Horae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = horae(*SMALL, *words)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert told in answer.err
    assert list(tmp_path.glob("*.*")) == []


def test_steps_stand_from_the_lowest_up() -> None:
    assert read_steps("5.6, 4", None, None) == [Step(4.0, 4.0, {}), Step(5.6, 5.6, {})]
    assert read_steps(None, "2880,60", 5.6) == [Step(60.0, 5.6, {"round": "60"}), Step(2880.0, 5.6, {"round": "2880"})]


def test_too_many_digits_of_a_rate_are_still_one_value() -> None:
    with pytest.raises(UserError, match="twice"):
        read_steps("4,4.000", None, None)


def test_a_simulation_may_stop_when_its_first_jobs_have_ended() -> None:
    cluster = Cluster.of([("gpu", 1, 1)])
    jobs = [JobSpec(f"{n}", 10.0 * n, 1, 25.0) for n in range(20)]
    whole = simulate(jobs, cluster, policy="fifo")
    cut = simulate(jobs, cluster, policy="fifo", until=4)
    assert cut.end_s[:4].tolist() == whole.end_s[:4].tolist() == [25, 50, 75, 100]
    assert len(cut.jobs) == 11
    assert not cut.finished[4:].any()


def test_the_first_jobs_may_end_in_any_order() -> None:
    cluster = Cluster.of([("gpu", 1, 2)])
    jobs = [JobSpec("long", 0, 1, 1000), *(JobSpec(f"{n}", 1.0 + n, 1, 10) for n in range(500))]
    cut = simulate(jobs, cluster, policy="fifo", until=2)
    assert cut.end_s[:2].tolist() == [1000, 11]
    assert len(cut.jobs) == 501
    assert np.nanmax(cut.end_s) == 1000
