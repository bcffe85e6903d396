"""`horae audit`: what scripts rely on, and every way to call it wrongly."""

import csv
from html import unescape
from pathlib import Path

import pytest

from tests.cli.conftest import Horae

NAMES = (
    "sharing_incentive sharing_incentive_isolated no_idle_gpus no_better_exchange envy_free envy_free_but_one_gang "
    "strategy_proof"
).split()


def test_json_has_every_verdict_with_its_numbers(horae: Horae, trace: Path) -> None:
    words = ["--trace", trace, "--cluster", "1x4", "--policy", "fifo", "-o", "json"]
    answer = horae("audit", *words)
    assert (answer.code, answer.err) == (0, "")
    verdicts = {verdict["name"]: verdict for verdict in answer.json["verdicts"]}
    assert list(verdicts) == NAMES
    for verdict in verdicts.values():
        assert set(verdict) == {"name", "claim", "holds", "summary", "numbers", "counter_example"}
        assert (verdict["holds"] is False) == (verdict["counter_example"] != "")
    assert answer.json["holds"] is False
    assert answer.json["policy"] == "fifo"
    # The gang of four blocks jobs 3 and 4, which could have had GPUs 1 and 2.
    assert not verdicts["no_idle_gpus"]["holds"]
    # The run is that of `horae simulate`.
    report = horae("simulate", *words).json
    assert verdicts["sharing_incentive"]["numbers"]["rho"] == report["rho"]
    assert verdicts["sharing_incentive_isolated"]["numbers"]["isolated_rho"] == report["isolated_rho"]


def test_the_table_is_short_and_shows_what_went_wrong(horae: Horae, trace: Path) -> None:
    answer = horae("audit", "--trace", trace, "--cluster", "1x4", "--policy", "fifo")
    assert answer.code == 0
    assert "Audit of fifo" in answer.out
    assert "BehindEarlier" in answer.out
    assert len(answer.out.splitlines()) < 25


def test_the_page_shows_every_verdict_and_what_went_wrong(horae: Horae, trace: Path, tmp_path: Path) -> None:
    words = ["audit", "--trace", trace, "--cluster", "1x4", "--policy", "fifo", "-o", "json"]
    answer = horae(*words, "--html", tmp_path / "page.html")
    assert (answer.code, answer.err) == (0, f"page: {tmp_path / 'page.html'}\n")
    page, verdicts = unescape((tmp_path / "page.html").read_text()), answer.json["verdicts"]
    held = [verdict["holds"] for verdict in verdicts]
    assert f"Audit: {sum(held)} of 7 properties held" in page
    assert page.count('badge bad">does not hold') == held.count(False) > 0
    for verdict in verdicts:
        assert verdict["claim"] in page
        assert verdict["summary"] in page
        assert verdict["counter_example"] in page
    assert "How fifo shared the cluster" in page
    worst = verdicts[0]["numbers"]["worst"][0]
    assert f"name {worst['name']}, rho {worst['rho']:.4g}" in page
    assert "is named twice" in horae(*words, "--html", trace).err


def test_csv_is_a_line_for_each_property(horae: Horae, trace: Path) -> None:
    answer = horae("audit", "--trace", trace, "--cluster", "1x4", "--policy", "srtf", "-o", "csv")
    rows = list(csv.DictReader(answer.out.splitlines()))
    assert [row["property"] for row in rows] == NAMES


def test_a_generated_workload_is_audited_and_a_seed_repeats_it(horae: Horae) -> None:
    words = [
        "--generate",
        "plain",
        "--jobs",
        "30",
        "--load",
        "1.5",
        "--cluster",
        "2x4",
        "--policy",
        "srtf",
        "-o",
        "json",
    ]
    verdicts = [horae("audit", *words, "--seed", seed, "--samples", "5").json["verdicts"] for seed in (1, 1, 2)]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0] != verdicts[2]
    assert verdicts[0][-1]["numbers"]["decisions"] <= 5


def test_speeds_that_the_policy_does_not_know_are_judged_by_the_truth(horae: Horae, shared_data: Path) -> None:
    gavel = shared_data / "gavel"
    words = ["--throughputs", gavel / "simulation_throughputs.json", "--generate", "gavel-single", "--jobs", "20"]
    words += ["--cluster", "v100:1x4,p100:1x4,k80:1x4", "--policy", "max-min", "--samples", "3", "-o", "json"]
    hidden = horae("audit", *words, "--profile-share", "0.3", "--set", "space-sharing=true")
    assert hidden.code == 0, hidden.err
    assert [verdict["name"] for verdict in hidden.json["verdicts"]] == NAMES


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--policy", "fifo"], 1, "Name either a trace"),
        (["--policy", "fifo", "--generate", "plain", "--skip-bad"], 1, "--skip-bad does nothing with --generate"),
        (["--policy", "fido", "--generate", "plain"], 1, "Did you mean 'fifo'?"),
        (["--policy", "fifo", "--generate", "plain", "--samples", "0"], 2, "--samples"),
        (["--policy", "fifo", "--generate", "plain", "--profile-share", "0.5"], 1, "name those with --throughputs"),
        (["--generate", "plain"], 2, "--policy"),
    ],
)
def test_a_wrong_call_is_told_in_one_line(horae: Horae, words: list[str], code: int, complaint: str) -> None:
    answer = horae("audit", "--cluster", "1x4", *words)
    assert answer.code == code
    assert answer.out == ""
    assert complaint in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_trace_takes_no_options_of_a_generator(horae: Horae, trace: Path) -> None:
    answer = horae("audit", "--cluster", "1x4", "--policy", "fifo", "--trace", trace, "--load", "1")
    assert (answer.code, answer.out) == (1, "")
    assert "--load does nothing with --trace" in answer.err


def test_jobs_that_the_cluster_cannot_hold_are_refused_as_ever(horae: Horae, trace: Path) -> None:
    answer = horae("audit", "--cluster", "1x2", "--policy", "fifo", "--trace", trace)
    assert answer.code == 1
    assert "needs 4 GPUs" in answer.err
