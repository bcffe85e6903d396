"""`horae solve`: the contract, and what it says to problems that make no sense."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Answer, Horae

PROBLEM: dict[str, Any] = {
    "gpus": {"v100": 1, "p100": 2, "k80": 3},
    "jobs": [
        {"id": "0", "throughput": {"v100": 2, "p100": 1, "k80": 0.5}, "steps_left": 300},
        {"id": "1", "throughput": {"v100": 3, "p100": 2, "k80": 1}, "steps_left": 500},
    ],
}


PAIR: dict[str, Any] = {"jobs": ["0", "1"], "throughput": {"v100": [1.8, 2.8]}}


def write(folder: Path, problem: object) -> str:
    path = folder / "problem.json"
    path.write_text(problem if isinstance(problem, str) else json.dumps(problem))
    return str(path)


def test_the_answer_has_the_agreed_shape(horae: Horae, tmp_path: Path) -> None:
    answer = horae("solve", "--policy", "max-min", "--problem", write(tmp_path, PROBLEM), "-o", "json")
    record = json.loads(answer.out)
    assert set(record) == {"policy", "objective", "allocation", "throughput", "solve_s", "certificate"}
    assert record["objective"] == pytest.approx(1.54839, abs=1e-5)
    assert record["throughput"] == pytest.approx({"0": 1.4194, "1": 2.5806}, abs=1e-4)
    assert set(record["allocation"]["0"]) == {"v100", "p100", "k80"}


def test_an_agnostic_policy_shares_time_not_throughput(horae: Horae, tmp_path: Path) -> None:
    words = ("solve", "--policy", "max-min", "--problem", write(tmp_path, PROBLEM), "-o", "json")
    record = json.loads(horae(*words, "--set", "aware=false").out)
    assert record["allocation"]["0"] == record["allocation"]["1"]


def solve(horae: Horae, folder: Path, policy: str, problem: object, *more: str) -> dict[str, Any]:
    answer = horae("solve", "--policy", policy, "--problem", write(folder, problem), "-o", "json", *more)
    assert answer.code == 0, answer.err
    record: dict[str, Any] = json.loads(answer.out)
    return record


def test_pairs_share_gpus_where_that_helps_and_only_if_wanted(horae: Horae, tmp_path: Path) -> None:
    one_gpu = {
        "gpus": {"v100": 1},
        "jobs": [{"id": name, "throughput": {"v100": 1}} for name in ("a", "b")],
        "pairs": [{"jobs": ["a", "b"], "throughput": {"v100": [0.75, 0.75]}}],
    }
    record = solve(horae, tmp_path, "max-min", one_gpu)
    assert record["allocation"]["a+b"] == pytest.approx({"v100": 1.0})
    assert record["throughput"] == pytest.approx({"a": 0.75, "b": 0.75})
    record = solve(horae, tmp_path, "max-min", one_gpu, "--set", "space-sharing=false")
    assert record["throughput"] == pytest.approx({"a": 0.5, "b": 0.5})
    assert set(record["allocation"]) == {"a", "b"}


def test_queues_are_filled_down_the_tree(horae: Horae, tmp_path: Path) -> None:
    problem = {
        "gpus": {"v100": 3},
        "jobs": [
            *({"id": f"x{k}", "throughput": {"v100": 1}, "queue": "x"} for k in range(4)),
            *({"id": f"y{k}", "throughput": {"v100": 1}, "queue": "y"} for k in range(3)),
        ],
        "queues": {"x": {"weight": 2}, "y": {"weight": 1, "rule": "fifo"}},
    }
    throughput = solve(horae, tmp_path, "hierarchical", problem)["throughput"]
    assert [throughput[f"x{k}"] for k in range(4)] == pytest.approx([0.5] * 4, abs=1e-6)
    assert [throughput[f"y{k}"] for k in range(3)] == pytest.approx([1, 0, 0], abs=1e-6)


def test_allox_matches_jobs_to_gpus_and_places_in_line(horae: Horae, tmp_path: Path) -> None:
    rows = [((2, 1, 0.5), 300), ((3, 2, 1), 500), ((4, 3, 2), 1000), ((1, 1, 1), 500)]
    types = ("v100", "p100", "k80")
    jobs = [
        {"id": str(m), "throughput": dict(zip(types, row, strict=True)), "steps_left": steps}
        for m, (row, steps) in enumerate(rows)
    ]
    record = solve(horae, tmp_path, "allox", {"gpus": {"v100": 2, "p100": 1, "k80": 3}, "jobs": jobs})
    assert record["objective"] == pytest.approx(1150)
    assert record["allocation"]["3"]["k80"] == 1
    assert sum(record["allocation"][name]["v100"] for name in "012") == 2


@pytest.mark.parametrize("policy", ["water-filling", "hierarchical", "max-min"])
def test_filling_names_agree_where_there_is_one_queue(horae: Horae, tmp_path: Path, policy: str) -> None:
    record = solve(horae, tmp_path, policy, PROBLEM)
    assert record["objective"] == pytest.approx(1.54839, abs=1e-5)


def test_the_strategy_proof_answer_says_what_each_job_keeps(horae: Horae, tmp_path: Path) -> None:
    record = solve(horae, tmp_path, "strategy-proof", PROBLEM)
    kept = record["certificate"]["kept"]
    assert set(kept) == {"0", "1"}
    assert all(0 < part <= 1 for part in kept.values())


@pytest.mark.parametrize("output", ["table", "csv"])
def test_people_and_spreadsheets_get_a_row_a_job(horae: Horae, tmp_path: Path, output: str) -> None:
    answer = horae("solve", "--policy", "makespan", "--problem", write(tmp_path, PROBLEM), "-o", output)
    assert answer.code == 0
    assert "throughput" in answer.out


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("{", "is not JSON"),
        ({}, "gpus: it is missing"),
        ({**PROBLEM, "pears": []}, "pears"),
        ({**PROBLEM, "gpus": {"v100": 0}}, "k80"),
        ({"gpus": {"a": 0}, "jobs": [{"id": "x", "throughput": {"a": 1}}]}, "no GPUs"),
        ({"gpus": {"a": 1}, "jobs": []}, "jobs"),
        ({"gpus": {"a": 1}, "jobs": [{"id": "x", "throughput": {"a": 0}}]}, "no throughput"),
        (
            {"gpus": {"a": 1, "b": 9}, "jobs": [{"id": "x", "gpus": 2, "throughput": {"a": 1}}]},
            "'x' needs 2 GPUs of one type, and the types it has a throughput on have 1 a: make it smaller",
        ),
        ({"gpus": {"a": 1}, "jobs": [{"id": "x", "throughput": {"b": 1}}]}, "'b'"),
        ({"gpus": {"a": 1}, "jobs": [{"id": "x", "throughput": {"a": -1}}]}, "at least 0"),
        ({"gpus": {"a": 1}, "prices": {"b": 1}, "jobs": [{"id": "x", "throughput": {"a": 1}}]}, "price for 'b'"),
        ({"gpus": {"a": 1}, "jobs": [{"id": "x", "throughput": {"a": 1}}] * 2}, "Two jobs"),
        ({**PROBLEM, "pairs": [{"jobs": ["0", "2"], "throughput": {}}]}, "'2', which is not among the jobs"),
        ({**PROBLEM, "pairs": [{"jobs": ["0", "0"], "throughput": {}}]}, "paired with itself"),
        ({**PROBLEM, "pairs": [{"jobs": ["0", "1"], "throughput": {"h100": [1, 1]}}]}, "'h100'"),
        ({**PROBLEM, "pairs": [PAIR, {"jobs": ["1", "0"], "throughput": {"v100": [1, 1]}}]}, "is there twice"),
        (
            {**PROBLEM, "jobs": [*PROBLEM["jobs"], {**PROBLEM["jobs"][0], "id": "0+1"}], "pairs": [PAIR]},
            "'0+1' has a '+'",
        ),
        ({**PROBLEM, "jobs": [{**PROBLEM["jobs"][0], "deadline_s": float("nan")}]}, "deadline_s: it must be a finite"),
        ({**PROBLEM, "jobs": [{**PROBLEM["jobs"][0], "deadline_s": float("inf")}]}, "deadline_s: it must be a finite"),
        ({**PROBLEM, "jobs": [{"id": "0", "throughput": {"v100": 1e300}}]}, "1e+300 steps/s are no throughput"),
        ({**PROBLEM, "jobs": [{"id": "0", "throughput": {"v100": 1e-300}}]}, "1e-300 steps/s are no throughput"),
        ({**PROBLEM, "jobs": [{"id": "0", "throughput": {"v100": float("inf")}}]}, "finite"),
        ({**PROBLEM, "jobs": [3]}, "jobs.0: it must be a map;"),
        ([], "the problem: it must be a map;"),
        ({**PROBLEM, "pairs": [{"jobs": ["0", "1", "0"], "throughput": {}}]}, "it must have at most 2 items"),
        ({**PROBLEM, "pairs": [{"jobs": ["0", "1"], "throughput": {"v100": 3}}]}, "v100: it must be a list;"),
        ({**PROBLEM, "queues": {"e": {"rule": "lottery"}}}, "rule"),
        ({"gpus": {"a": 1}, "jobs": [{"id": "x", "throughput": {"a": 1}, "queue": "a//b"}]}, "org/team/user"),
    ],
)
def test_a_bad_problem_gets_one_clear_sentence(horae: Horae, tmp_path: Path, problem: object, words: str) -> None:
    answer = horae("solve", "--policy", "max-min", "--problem", write(tmp_path, problem))
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert words in answer.err


def test_a_plus_in_an_id_does_no_harm_where_nobody_is_paired(horae: Horae, tmp_path: Path) -> None:
    problem = {**PROBLEM, "jobs": [{**PROBLEM["jobs"][0], "id": "0+1"}]}
    assert set(solve(horae, tmp_path, "max-min", problem)["allocation"]) == {"0+1"}


@pytest.mark.parametrize("policy", ["finish-time", "makespan", "max-min", "cost-deadline", "hierarchical"])
def test_a_job_without_speed_is_an_error_and_no_warning(horae: Horae, tmp_path: Path, policy: str) -> None:
    problem = {"gpus": {"a": 1}, "prices": {"a": 1}, "jobs": [{"id": "x", "throughput": {"a": 0}, "steps_left": 5}]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = horae("solve", "--policy", policy, "--problem", write(tmp_path, problem))
    assert answer.err == "error: Job 'x' has no throughput on any GPU type; give it one, or leave it out.\n"


def test_allox_counts_the_time_since_arrival_and_chooses_as_without(horae: Horae, tmp_path: Path) -> None:
    waited = {**PROBLEM, "jobs": [{**job, "elapsed_s": 100.0} for job in PROBLEM["jobs"]]}
    fresh, late = (solve(horae, tmp_path, "allox", problem) for problem in (PROBLEM, waited))
    assert late["objective"] == pytest.approx(fresh["objective"] + 200)
    assert late["allocation"] == fresh["allocation"]


def test_pairs_are_used_unless_switched_off_and_only_by_those_that_can(horae: Horae, tmp_path: Path) -> None:
    paired = write(tmp_path, {**PROBLEM, "pairs": [PAIR]})

    def ask(policy: str, *switches: str) -> Answer:
        words = [word for switch in switches for word in ("--set", switch)]
        return horae("solve", "--policy", policy, "--problem", paired, "-o", "json", *words)

    assert "0+1" in ask("total-throughput").json["allocation"]
    assert "0+1" in ask("total-throughput", "space_sharing=yes").json["allocation"]
    assert ask("total-throughput", "space-sharing=no").err == ""
    assert "0+1" not in ask("total-throughput", "space-sharing=no").json["allocation"]
    for answer in (ask("allox"), ask("isolated"), ask("total-throughput", "aware=false")):
        assert "pairs of the problem are left out" in answer.err
        assert "0+1" not in answer.json["allocation"]
    assert ask("total-throughput", "aware=false", "space-sharing=false").err == ""
    assert "leave one of them out" in ask("total-throughput", "aware=false", "space-sharing=true").err
    assert "changes nothing" in ask("allox", "space-sharing=true").err


def test_sharing_without_pairs_is_refused(horae: Horae, tmp_path: Path) -> None:
    words = ("solve", "--policy", "max-min", "--problem", write(tmp_path, PROBLEM), "--set", "space-sharing=true")
    assert "needs `pairs` in the problem" in horae(*words).err


def test_a_policy_that_solves_nothing_says_so_and_names_those_that_do(horae: Horae, tmp_path: Path) -> None:
    answer = horae("solve", "--policy", "fifo", "--problem", write(tmp_path, PROBLEM))
    assert answer.code == 1
    assert "'fifo' puts jobs in order" in answer.err
    assert "max-min, water-filling, hierarchical" in answer.err


@pytest.mark.parametrize("word", ["round=60", "aware=maybe", "stay=1"])
def test_what_solve_cannot_be_told_is_refused(horae: Horae, tmp_path: Path, word: str) -> None:
    answer = horae("solve", "--policy", "max-min", "--problem", write(tmp_path, PROBLEM), "--set", word)
    assert answer.code == 1
    assert word.split("=")[0] in answer.err


def test_a_policy_or_setting_that_does_not_exist_is_named(horae: Horae, tmp_path: Path) -> None:
    path = write(tmp_path, PROBLEM)
    assert "Did you mean 'max-min'?" in horae("solve", "--policy", "maxmin", "--problem", path).err
    assert "aware" in horae("solve", "--policy", "max-min", "--problem", path, "--set", "aware=perhaps").err
    assert "cannot be read" in horae("solve", "--policy", "max-min", "--problem", str(tmp_path / "none")).err
