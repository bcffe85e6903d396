"""`horae compare`: policies side by side."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from horae.cli.compare import DEFAULT_POLICIES, read_policies, split_policies
from horae.core.errors import UserError
from horae.experiments import parallel
from horae.policies import POLICIES
from tests.cli.conftest import Horae

GENERATED = ["compare", "--generate", "plain", "--jobs", "20", "--cluster", "2x8"]


def test_policies_on_one_trace_side_by_side(horae: Horae, trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["--policy", "fifo", "--policy", "las:quantum=60", "--html", page, "-o", "json"]
    answer = horae("compare", "--trace", trace, "--cluster", "1x4", *words)
    assert answer.code == 0
    fifo, las = answer.json["policies"]
    assert (fifo["policy"], las["policy"]) == ("fifo", "las")
    assert las["settings"]["quantum"] == "60"
    assert {"cpu_s", "wall_s", "peak_rss_mb"} <= set(answer.json)
    assert page.read_text().rstrip().endswith("</html>")


def test_a_comparison_agrees_with_the_single_run(horae: Horae, trace: Path) -> None:
    alone = horae("simulate", "--trace", trace, "--cluster", "1x4", "--policy", "srtf", "-o", "json").json
    words = ["--policies", "fifo,srtf", "-o", "json"]
    together = horae("compare", "--trace", trace, "--cluster", "1x4", *words).json["policies"][1]
    assert together["avg_jct_s"] == alone["avg_jct_s"]
    assert together["rho"] == alone["rho"]


def test_seeds_give_means_and_intervals(horae: Horae) -> None:
    words = [*GENERATED, "--policies", "fifo", "-o", "json"]
    single = [horae(*words, "--seed", seed).json["policies"][0]["avg_jct_s"] for seed in (0, 1, 2)]
    (record,) = horae(*words, "--seeds", 3, "--workers", 2).json["policies"]
    assert record["avg_jct_s"] == pytest.approx(sum(single) / 3)
    assert record["ci95"]["avg_jct_s"] > 0
    assert record["jobs"] == 20


def test_the_table_shows_intervals(horae: Horae) -> None:
    answer = horae(*GENERATED, "--policies", "fifo,srtf", "--seeds", "2")
    assert answer.code == 0
    assert "±" in answer.out
    assert "means of 2 seeds" in answer.out


def test_csv_is_one_line_a_policy(horae: Horae) -> None:
    rows = list(csv.DictReader(horae(*GENERATED, "--policies", "fifo,srtf", "-o", "csv").out.splitlines()))
    assert [row["policy"] for row in rows] == ["fifo", "srtf"]


def test_the_default_policies_exist() -> None:
    assert set(DEFAULT_POLICIES) <= set(POLICIES)
    assert [name for name, _ in read_policies((), None)] == list(DEFAULT_POLICIES)


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        ("fifo, las", [("fifo", []), ("las", [])]),
        ("las:quantum=300,reserve=60,fifo", [("las", ["quantum=300", "reserve=60"]), ("fifo", [])]),
        ("cost:prices=v100:3,k80:1", [("cost", ["prices=v100:3,k80:1"])]),
        (
            "max-min,cost:prices=v100:3, k80:1,*:2,round=60,cost:prices=*:1,las:quantum=5",
            [
                ("max-min", []),
                ("cost", ["prices=v100:3,k80:1,*:2", "round=60"]),
                ("cost", ["prices=*:1"]),
                ("las", ["quantum=5"]),
            ],
        ),
        (
            "tiresias:thresholds=3250, 7200,1e5,promote-knob=4,fifo",
            [("tiresias", ["thresholds=3250,7200,1e5", "promote-knob=4"]), ("fifo", [])],
        ),
        # What is misspelt is a policy, so that the error names it.
        ("las:quantum=300,lsa:quantum=60", [("las", ["quantum=300"]), ("lsa", ["quantum=60"])]),
        ("max-min:aware=false,fiffo", [("max-min", ["aware=false"]), ("fiffo", [])]),
    ],
)
def test_commas_stand_between_policies_settings_and_parts_of_a_value(
    text: str, policies: list[tuple[str, list[str]]]
) -> None:
    assert split_policies(text) == policies


def test_prices_of_several_types_can_be_compared(horae: Horae, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,gpus,work\n" + "".join(f"{k},0,1,600\n" for k in range(4)))
    words = ("compare", "--trace", path, "--cluster", "v100:1x1,k80:1x1", "--workers", 1, "-o", "json")
    answer = horae(*words, "--policies", "cost:prices=v100:3,k80:1,cost:prices=v100:1,k80:3")
    assert answer.code == 0, answer.err
    assert [one["settings"]["prices"] for one in answer.json["policies"]] == ["v100:3,k80:1", "v100:1,k80:3"]


def test_bounds_of_queues_can_be_compared(horae: Horae, trace: Path) -> None:
    words = ("compare", "--trace", trace, "--cluster", "1x4", "--workers", 1, "-o", "json")
    answer = horae(*words, "--policies", "tiresias:thresholds=3250,7200,tiresias:thresholds=100")
    assert answer.code == 0, answer.err
    assert [one["settings"]["thresholds"] for one in answer.json["policies"]] == ["3250,7200", "100"]


def test_a_policy_may_come_twice_with_other_settings_only() -> None:
    assert len(read_policies(["las", "las:quantum=60"], None)) == 2
    with pytest.raises(UserError, match="named twice"):
        read_policies(["las"], "las")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--cluster", "1x4"], "--trace FILE"),
        (["--cluster", "1x4", "--trace", "trace.csv", "--generate", "plain"], "either"),
        (["--cluster", "1x4", "--trace", "trace.csv", "--seeds", "3"], "--seeds"),
        (["--cluster", "1x4", "--trace", "trace.csv", "--jobs", "3"], "--jobs"),
        (["--cluster", "1x4", "--generate", "plane"], "plain"),
        (["--cluster", "1x8", "--generate", "plain", "--format", "horae"], "--format does nothing"),
        (["--cluster", "1x8", "--generate", "plain", "--skip-bad"], "--skip-bad does nothing"),
        (["--cluster", "1x8", "--generate", "plain", "--policies", ","], "names no policy"),
        (["--cluster", "1x8", "--generate", "plain", "--policy", "las:quantum"], "like --policy las:quantum=600"),
        (["--cluster", "1x8", "--generate", "plain", "--policy", "las:quantum=nan"], "not a finite number"),
        (["--cluster", "1x8", "--generate", "plain", "--hours-from", "trace.csv", "--html", "trace.csv"], "twice"),
        (["--cluster", "./trace.csv", "--generate", "plain", "--html", "trace.csv"], "twice"),
        (["--cluster", "1x8", "--generate", "gavel"], "throughputs"),
        (["--cluster", "1x8", "--generate", "plain", "--load", "1", "--rate", "2"], "either"),
        (["--cluster", "1x8", "--generate", "plain", "--load", "nan"], "load"),
        (["--cluster", "1x8", "--generate", "plain", "--workload", "teams=1.5"], "whole number"),
        (["--cluster", "1x8", "--generate", "plain", "--workload", "jobs=5"], "--jobs"),
        (["--cluster", "1x8", "--generate", "plain", "--policy", "lass"], "las"),
        (["--cluster", "1x2", "--trace", "trace.csv", "--policies", "fifo"], "'2'"),
        (["--cluster", "1x8", "--generate", "plain", "--html", "missing/page.html"], "missing"),
    ],
)
def test_a_wrong_input_gets_one_sentence(
    words: list[str], told: str, horae: Horae, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    answer = horae("compare", *words)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert told in answer.err
    assert [path.name for path in trace.parent.iterdir()] == ["trace.csv"]


def test_jobs_that_did_not_finish_are_told_for_each_policy(
    horae: Horae, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all = parallel.run_all

    def cut_short(*words: Any, **more: Any) -> list[parallel.Outcome]:
        return [replace(outcome, waiting={"2": "no room"}) for outcome in run_all(*words, **more)]

    monkeypatch.setattr(parallel, "run_all", cut_short)
    answer = horae("compare", "--trace", trace, "--cluster", "1x4", "--policies", "srtf,las")
    assert answer.code == 0
    assert answer.err.splitlines() == [
        "srtf: 1 job did not finish, such as 2: no room",
        "las: 1 job did not finish, such as 2: no room",
    ]
