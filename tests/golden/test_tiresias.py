"""The results of Tiresias' published simulator, job by job."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.workload.clusters import parse_cluster
from horae.workload.traces import load_trace
from tests.builders import ends, job, run

#: Schedules of the published simulator and our names for them.
SCHEDULES = {
    "fifo": "fifo",
    "fjf": "fifo-backfill",
    "sjf": "smallest-first",
    "shortest": "srtf",
    "shortest-gpu": "srsf",
}

#: Every listed file of those schedules.
FILES = [
    *((trace, machines, schedule) for trace, machines in (("480gen_job", "n15g4"),) for schedule in SCHEDULES),
    *(("60_job", "n2g4", schedule) for schedule in SCHEDULES),
    *(("60_job", "n4g4", schedule) for schedule in SCHEDULES if schedule != "shortest-gpu"),
]


def golden(path: Path) -> dict[str, tuple[float, float]]:
    with path.open() as file:
        return {row["job_id"]: (float(row["start_time"]), float(row["end_time"])) for row in csv.DictReader(file)}


@pytest.mark.parametrize(("trace", "machines", "schedule"), FILES)
def test_every_job_starts_and_ends_when_the_published_simulator_says(
    shared_data: Path, trace: str, machines: str, schedule: str
) -> None:
    folder = shared_data / "tiresias"
    history = simulate(
        Scenario(
            load_trace(folder / f"{trace}.csv").jobs,
            parse_cluster(str(folder / f"{machines}.csv")),
            policy=SCHEDULES[schedule],
            placement="anywhere",
            restart_cost_s=0.0,
        )
    )
    ours = {
        spec.id: (start, end)
        for spec, start, end in zip(history.jobs, history.start_s.tolist(), history.end_s.tolist(), strict=True)
    }
    assert ours == golden(folder / "golden" / f"{trace}__{machines}__count__{schedule}.csv")


def test_no_listed_file_is_left_out(shared_data: Path) -> None:
    listed = {path.stem for path in (shared_data / "tiresias" / "golden").glob("*.csv")}
    tested = {f"{trace}__{machines}__count__{schedule}" for trace, machines, schedule in FILES}
    assert {name for name in listed if name.rsplit("__", 1)[1] in SCHEDULES} == tested


@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [("srsf", {}, [2, 10, 16]), ("las", {"quantum": "1"}, [5, 14, 16]), ("srtf", {}, [2, 16, 8])],
)
def test_the_worked_example_comes_out_as_in_the_description(
    policy: str, settings: dict[str, str], expected: list[float]
) -> None:
    jobs = [job("1", gpus=2, work=2), job("2", gpus=1, work=8), job("3", gpus=2, work=6)]
    assert ends(run(jobs, "1x2", policy, settings=settings, placement="anywhere")) == expected


def published_jct(shared_data: Path, **settings: str) -> float:
    """Average JCT of the published trace with the published bounds, where restarts are free."""
    folder = shared_data / "tiresias"
    history = simulate(
        Scenario(
            load_trace(folder / "480gen_job.csv").jobs,
            parse_cluster(str(folder / "n15g4.csv")),
            policy="tiresias",
            settings={"thresholds": "3250,7200", **settings},
            placement="anywhere",
            restart_cost_s=0.0,
        )
    )
    return float((history.end_s - history.submit_s).mean())


def test_the_feedback_queue_is_as_good_as_the_published_one(shared_data: Path) -> None:
    """Not job by job: the published one demotes late, and orders queues by rules that are written down nowhere."""
    file = shared_data / "tiresias" / "golden" / "480gen_job__n15g4__count__dlas-gpu__jumpfix.csv"
    with file.open() as lines:
        theirs = [float(row["JCT"]) for row in csv.DictReader(lines)]
    assert sum(theirs) / len(theirs) == pytest.approx(2191, abs=1)
    assert published_jct(shared_data) < 1.04 * 2191


@pytest.mark.parametrize("knob", ["off", "8", "4", "2", "1"])
def test_every_job_of_the_published_trace_ends_however_often_it_is_promoted(shared_data: Path, knob: str) -> None:
    jct = published_jct(shared_data, **{"promote-knob": knob})
    assert jct < 1.25 * 2191, "not a number, if a job never ended"
