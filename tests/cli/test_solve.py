"""`horae solve`: the contract, and what it says to problems that make no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Horae

PROBLEM: dict[str, Any] = {
    "gpus": {"v100": 1, "p100": 2, "k80": 3},
    "jobs": [
        {"id": "0", "throughput": {"v100": 2, "p100": 1, "k80": 0.5}, "steps_left": 300},
        {"id": "1", "throughput": {"v100": 3, "p100": 2, "k80": 1}, "steps_left": 500},
    ],
}


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
        ({"gpus": {"a": 1}, "jobs": [{"id": "x", "gpus": 2, "throughput": {"a": 1}}]}, "no throughput"),
        ({"gpus": {"a": 1}, "jobs": [{"id": "x", "throughput": {"b": 1}}]}, "'b'"),
        ({"gpus": {"a": 1}, "jobs": [{"id": "x", "throughput": {"a": -1}}]}, "at least 0"),
        ({"gpus": {"a": 1}, "prices": {"b": 1}, "jobs": [{"id": "x", "throughput": {"a": 1}}]}, "price for 'b'"),
        ({"gpus": {"a": 1}, "jobs": [{"id": "x", "throughput": {"a": 1}}] * 2}, "Two jobs"),
    ],
)
def test_a_bad_problem_gets_one_clear_sentence(horae: Horae, tmp_path: Path, problem: object, words: str) -> None:
    answer = horae("solve", "--policy", "max-min", "--problem", write(tmp_path, problem))
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert words in answer.err


def test_a_policy_or_setting_that_does_not_exist_is_named(horae: Horae, tmp_path: Path) -> None:
    path = write(tmp_path, PROBLEM)
    assert "Did you mean 'max-min'?" in horae("solve", "--policy", "maxmin", "--problem", path).err
    assert "aware" in horae("solve", "--policy", "max-min", "--problem", path, "--set", "aware=perhaps").err
    assert "cannot be read" in horae("solve", "--policy", "max-min", "--problem", str(tmp_path / "none")).err
