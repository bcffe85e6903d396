"""`horae simulate`: the contract that scripts rely on, and every way to call it wrongly."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from horae.workload.catalogue import gpu_type, model
from horae.workload.roofline import estimate
from horae.workload.traces import load_trace
from tests.cli.conftest import TRACE, Horae

#: What the JSON of a run holds at least.
FIELDS = set(
    "policy jobs finished avg_jct_s median_jct_s p95_jct_s p99_jct_s makespan_s utilization preemptions rho "
    "isolated_rho app_isolated_rho cpu_s wall_s peak_rss_mb".split()
)
JOB_COLUMNS = (
    "job_id submit_s start_s end_s jct_s gpus gpu_seconds preemptions rho isolated_rho app_isolated_rho".split()
)


def test_json_alone_on_stdout_with_every_field_of_the_contract(horae: Horae, trace: Path) -> None:
    answer = horae("simulate", "--trace", trace, "--cluster", "1x4", "--policy", "fifo", "-o", "json")
    assert (answer.code, answer.err) == (0, "")
    assert set(answer.json) >= FIELDS
    assert set(answer.json["rho"]) >= {"avg", "max", "over_1"}
    assert set(answer.json["isolated_rho"]) >= {"avg", "max", "over_1"}
    assert answer.json["app_isolated_rho"] == answer.json["isolated_rho"], "every job is an app of its own"
    assert (answer.json["policy"], answer.json["jobs"], answer.json["finished"]) == ("fifo", 5, 5)


def test_fifo_on_four_gpus_by_hand(horae: Horae, trace: Path, tmp_path: Path) -> None:
    # The gang of four waits for the first two (to 210) and blocks those behind it until 260.
    jobs = tmp_path / "jobs.csv"
    words = ["--placement", "anywhere", "--restart-cost", "0", "--jobs-out", jobs, "-o", "json"]
    answer = horae("simulate", "--trace", trace, "--cluster", "1x4", "--policy", "fifo", *words)
    rows = list(csv.DictReader(jobs.read_text().splitlines()))
    assert list(rows[0]) == JOB_COLUMNS
    assert [(float(row["start_s"]), float(row["end_s"])) for row in rows] == [
        (0, 100), (10, 210), (210, 260), (260, 660), (260, 280),
    ]  # fmt: skip
    assert answer.json["makespan_s"] == 660
    assert answer.json["avg_jct_s"] == pytest.approx((100 + 200 + 240 + 630 + 240) / 5)
    assert answer.json["preemptions"] == 0


def test_a_workload_that_is_made_up_is_the_one_that_compare_runs(horae: Horae) -> None:
    words = ["--cluster", "2x4", "--generate", "themis", "--jobs", "20", "--workload", "trials_median=3", "--seed", "3"]
    alone = horae("simulate", "--policy", "themis", *words, "-o", "json")
    compared = horae("compare", "--policy", "themis", "--workers", "1", *words, "-o", "json")
    assert (alone.code, alone.err) == (0, "")
    (same,) = compared.json["policies"]
    assert {key: alone.json[key] for key in same} == same
    assert same["jobs"] == 20


def test_jobs_come_from_a_trace_or_a_preset_and_not_from_both(horae: Horae, trace: Path) -> None:
    words = ["simulate", "--cluster", "2x4", "--policy", "fifo"]
    for more in ([], ["--trace", trace, "--generate", "plain"]):
        assert "either a trace with --trace FILE or a workload" in horae(*words, *more).err
    assert "--jobs does nothing with --trace" in horae(*words, "--trace", trace, "--jobs", "5").err


def test_csv_is_one_line(horae: Horae, trace: Path) -> None:
    answer = horae("simulate", "--trace", trace, "--cluster", "1x4", "--policy", "srtf", "-o", "csv")
    (row,) = csv.DictReader(answer.out.splitlines())
    assert row["policy"] == "srtf"
    assert float(row["rho.max"]) > 0


def test_the_table_speaks_of_completion_and_fairness(horae: Horae, trace: Path) -> None:
    answer = horae("simulate", "--trace", trace, "--cluster", "1x4", "--policy", "las", "--set", "quantum=60")
    assert answer.code == 0
    assert all(word in answer.out for word in ("las", "JCT", "rho", "utilisation"))


def test_the_page_is_whole_and_needs_nothing_else(horae: Horae, trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    answer = horae("simulate", "--trace", trace, "--cluster", "1x4", "--policy", "las", "--html", page)
    assert answer.code == 0
    text = page.read_text()
    assert text.rstrip().endswith("</html>")
    assert 'src="http' not in text


@pytest.mark.parametrize("command", [["simulate"], ["audit", "--samples", "1"]])
def test_the_file_for_a_trace_viewer_shows_every_job(
    command: list[str], horae: Horae, trace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    answer = horae(*command, "--trace", trace, "--cluster", "1x4", "--policy", "fifo", "--perfetto", file)
    assert (answer.code, str(file) in answer.err) == (0, True)
    slices = [event for event in json.loads(file.read_text())["traceEvents"] if "args" in event and event["ph"] == "X"]
    assert {event["name"] for event in slices} == {job.id for job in load_trace(trace).jobs}


def test_a_window_measures_some_jobs_only(horae: Horae, trace: Path) -> None:
    words = ["--cluster", "1x4", "--policy", "fifo", "--measure-from", "1", "--measure-to", "3", "-o", "json"]
    assert horae("simulate", "--trace", trace, *words).json["jobs"] == 2


def test_faults_cost_time_and_leave_every_job_finished(horae: Horae, trace: Path) -> None:
    words = ["simulate", "--trace", trace, "--cluster", "2x4", "--policy", "fifo", "-o", "json"]
    calm = horae(*words).json
    rough = horae(*words, "--faults", "launch_failures=0.5").json
    assert rough["finished"] == 5
    assert rough["avg_jct_s"] > calm["avg_jct_s"]


def test_the_same_seed_gives_the_same_answer(horae: Horae, trace: Path) -> None:
    words = ["simulate", "--trace", trace, "--cluster", "2x4", "--policy", "las", "--seed", "7", "-o", "json"]
    first, second = horae(*words).json, horae(*words).json
    costs = ("cpu_s", "wall_s", "peak_rss_mb")
    assert {k: v for k, v in first.items() if k not in costs} == {k: v for k, v in second.items() if k not in costs}


def test_skipped_rows_are_told_on_stderr(horae: Horae, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE + "5,1,50,1,vgg19,nan,1\n")
    words = ["simulate", "--trace", path, "--cluster", "1x4", "--policy", "fifo", "--skip-bad", "-o", "json"]
    answer = horae(*words)
    assert answer.json["jobs"] == 5
    assert "skipped 1 bad row" in answer.err
    assert ":7:" in answer.err


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "missing file": ({"--trace": "nowhere.csv"}, "nowhere.csv"),
    "unknown policy": ({"--policy": "fif"}, "Did you mean 'fifo'?"),
    "unknown placement": ({"--placement": "best-efort"}, "Did you mean 'best-effort'?"),
    "unknown format": ({"--format": "philli"}, "philly"),
    "no cluster at all": ({"--cluster": "many"}, "15x4"),
    "no GPUs in the cluster": ({"--cluster": "4x0"}, "GPUs"),
    "setting without a value": ({"--policy": "las", "--set": "quantum"}, "key=value"),
    "unknown setting": ({"--policy": "las", "--set": "quantumm=3"}, "quantum"),
    "bad setting": ({"--policy": "las", "--set": "quantum=soon"}, "soon"),
    "negative setting": ({"--policy": "las", "--set": "quantum=-5"}, "quantum"),
    "profile of nothing": ({"--profile-share": "0.5"}, "--throughputs FILE"),
    "unknown fault": ({"--faults": "node_loses_per_day=1"}, "No fault is called"),
    "fault that is no number": ({"--faults": "launch_failures=often"}, "often"),
    "empty window": ({"--measure-from": "99"}, "99"),
    "no such table": ({"--throughputs": "nowhere.json"}, "nowhere.json"),
    "no such queues": ({"--queues": "nowhere.yaml"}, "nowhere.yaml"),
    "gang larger than the cluster": ({"--cluster": "1x2"}, "'2'"),
    "page in a missing folder": ({"--html": "missing/page.html"}, "missing"),
    "page onto a folder": ({"--html": "."}, "not a regular file"),
    "fault without a value": ({"--faults": "x"}, "--faults stragglers=0.1"),
    "policy in capitals": ({"--policy": "FIFO"}, "Did you mean 'fifo'?"),
    "queues in a trace": ({"--queues": "trace.csv"}, "section `queues:`"),
    "page onto the cluster": ({"--html": "trace.csv", "--trace": "x", "--cluster": "./trace.csv"}, "named twice"),
    "page onto stdout": ({"--html": "/dev/stdout"}, "Cannot write /dev/stdout"),
    "page onto the trace": ({"--html": "trace.csv"}, "named twice"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_input_gets_one_sentence(case: str, horae: Horae, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trace.parent)
    changes, told = WRONG[case]
    options = {"--trace": "trace.csv", "--cluster": "1x4", "--policy": "fifo", "--jobs-out": "jobs.csv"} | changes
    answer = horae("simulate", *(word for pair in options.items() for word in pair))
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert told in answer.err
    assert "bug" not in answer.err
    assert sorted(path.name for path in trace.parent.iterdir()) == ["trace.csv"], "nothing half-written"
    assert trace.read_text() == TRACE


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("5,1,50,1,vgg19,nan,1", "line 7"),
        ("5,0,50,1,vgg19,10,1", "line 7"),
        ("5,1,50,1,vgg19,-3,1", "line 7"),
        ("5,1,inf,1,vgg19,10,1", "line 7"),
        ("5,1.5,50,1,vgg19,10,1", "line 7"),
        ("4,1,50,1,vgg19,10,1", "line 7"),
        ("5,1", "line 7"),
    ],
)
def test_a_bad_row_is_told_with_its_line(row: str, told: str, horae: Horae, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{TRACE}{row}\n")
    answer = horae("simulate", "--trace", path, "--cluster", "1x4", "--policy", "fifo", "-o", "json")
    assert (answer.code, answer.out) == (1, "")
    assert told in answer.err
    assert "--skip-bad" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "option", [["--restart-cost", "nan"], ["--restart-cost", "-1"], ["--seed", "-1"], ["--seed", "x"]]
)
def test_an_option_out_of_range_is_wrong_usage(option: list[str], horae: Horae, trace: Path) -> None:
    answer = horae("simulate", "--trace", trace, "--cluster", "1x4", "--policy", "fifo", *option)
    assert (answer.code, answer.out) == (2, "")
    assert option[0] in answer.err


def test_the_program_as_a_user_starts_it(trace: Path) -> None:
    words = ["simulate", "--trace", trace, "--cluster", "1x4", "--policy", "srsf", "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "horae.cli.main", *map(str, words)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert '"policy": "srsf"' in done.stdout


@pytest.mark.parametrize(
    ("together", "words"),
    [(None, "needs speeds of two jobs on the same GPUs"), (0.0, "no two jobs shared GPUs"), (0.8, "")],
)
def test_sharing_that_cannot_come_about_is_never_passed_over_in_silence(
    horae: Horae, tmp_path: Path, together: float | None, words: str
) -> None:
    pairs = {} if together is None else {"('m', 1)": [together, together]}
    table, jobs = tmp_path / "speeds.json", tmp_path / "jobs.csv"
    table.write_text(json.dumps({"v100": {"('m', 1)": {"null": 1.0, **pairs}}}))
    jobs.write_text("job_id,submit_s,gpus,work,unit,job_class\n" + "".join(f"{k},0,1,3600,steps,m\n" for k in range(2)))
    asked = ("simulate", "--trace", jobs, "--cluster", "v100:1x1", "--policy", "max-min", "--throughputs", table)
    answer = horae(*asked, "--set", "space-sharing=true", "-o", "json")
    assert words in answer.err if words else not answer.err
    assert answer.code == (together is None)


STEPS = "job_id,submit_s,gpus,work,unit,job_class\na,0,1,1000,steps,resnet50\nb,0,1,1000,steps,{other}\n"


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_model_of_the_catalogue_runs_unmeasured_at_its_estimate(command: str, horae: Horae, tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(STEPS.format(other="vgg16"))
    words = ["--trace", file, "--cluster", "v100:1x2", "--policy", "fifo", "--restart-cost", "0", "-o", "json"]
    answer = horae(command, *words)
    assert "2 speeds are estimates from the catalogue" in answer.err
    report = answer.json if command == "simulate" else answer.json["policies"][0]
    speeds = [estimate(model(name), gpu_type("v100")).steps_per_s for name in ("resnet-50", "vgg-16")]
    assert report["avg_jct_s"] == pytest.approx(sum(1000 / speed for speed in speeds) / 2)


def test_a_model_that_nobody_knows_is_still_refused(horae: Horae, tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(STEPS.format(other="mine"))
    answer = horae("simulate", "--trace", file, "--cluster", "v100:1x2", "--policy", "fifo")
    assert answer.code != 0
    assert "no throughput is known for class 'mine'" in answer.err


def test_a_measured_class_is_not_estimated(horae: Horae, tmp_path: Path) -> None:
    file, table = tmp_path / "steps.csv", tmp_path / "table.json"
    file.write_text(STEPS.format(other="resnet50"))
    table.write_text('{"v100": {"(\'resnet50\', 1)": {"null": 10.0}}}')
    words = ["--trace", file, "--cluster", "v100:1x2,a100-40:1x2", "--policy", "fifo", "--restart-cost", "0"]
    answer = horae("simulate", *words, "--throughputs", table, "-o", "json")
    assert "estimates" not in answer.err
    assert answer.json["avg_jct_s"] == pytest.approx(100)


def test_prices_come_from_the_catalogue_where_the_policy_has_none(horae: Horae, trace: Path) -> None:
    words = ["--trace", trace, "--cluster", "h100:1x4,b200:1x4", "-o", "json"]
    assert horae("simulate", *words, "--policy", "cost").json["settings"]["prices"] == "h100:5,b200:10"
    own = horae("simulate", *words, "--policy", "cost", "--set", "prices=h100:1,b200:1").json
    assert own["settings"]["prices"] == "h100:1,b200:1"
    published = horae("simulate", "--trace", trace, "--cluster", "v100:1x4", "--policy", "cost", "-o", "json").json
    assert "prices" not in published["settings"]
