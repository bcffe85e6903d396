"""Gavel's table of speeds ends up under the right span, size and neighbour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from horae.core.cluster import Span
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.throughputs import Origin, Setting, Throughputs
from horae.workload.speed_files import load_throughputs

LM1, LM2, RN2 = "('LM (batch size 5)', 1)", "('LM (batch size 5)', 2)", "('ResNet-18', 2)"


def load(tmp_path: Path, content: object) -> Throughputs:
    path = tmp_path / "speeds.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_throughputs(path)


def speed(
    table: Throughputs, gpus: int, span: Span, neighbour: str = "", job_class: str = "LM (batch size 5)"
) -> float:
    found = table.get(Setting(job_class, "v100", gpus, span, neighbour))
    assert found is not None
    assert found.origin is Origin.GIVEN
    return found.steps_per_s


def test_spans_sizes_and_neighbours(tmp_path: Path) -> None:
    table = load(
        tmp_path,
        {
            "v100": {LM1: {"null": 5.0}, LM2: {"null": 9.0, RN2: [4.0, 3.0]}},
            "v100_unconsolidated": {LM1: {"null": 5.0}, LM2: {"null": 7.0}},
        },
    )
    assert speed(table, 1, Span.GPU) == 5.0
    assert speed(table, 2, Span.NODE) == 9.0
    assert speed(table, 2, Span.RACK) == 7.0
    assert speed(table, 2, Span.NODE, "ResNet-18") == 4.0
    assert speed(table, 2, Span.NODE, "LM (batch size 5)", "ResNet-18") == 3.0
    assert len(table) == 5, "one GPU cannot be spread, so that entry is none"


def test_a_class_of_its_own_record_wins_over_its_neighbours(tmp_path: Path) -> None:
    pairs = {LM2: {"null": 9.0, RN2: [4.0, 3.0]}, RN2: {"null": 8.0, LM2: [3.5, 4.5]}}
    table = load(tmp_path, {"v100": pairs})
    assert speed(table, 2, Span.NODE, "ResNet-18") == 4.0
    assert speed(table, 2, Span.NODE, "LM (batch size 5)", "ResNet-18") == 3.5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must be a map"),
        ({}, "holds no throughputs"),
        ({"v100": 3}, "v100 must be a map"),
        ({"v100": {"LM": {"null": 1}}}, "'LM' does not read like"),
        ({"v100": {"__import__('os')": {"null": 1}}}, "does not read like"),
        ({"v100": {"('LM', 0)": {"null": 1}}}, "does not read like"),
        ({"v100": {LM1: {"null": -1}}}, "-1 is no speed"),
        ('{"v100": {"(\'LM\', 1)": {"null": NaN}}}', "nan is no speed"),
        ({"v100": {LM1: {"null": "fast"}}}, "'fast' is no speed"),
        ({"v100": {LM1: {LM1: 3.0}}}, "list of two speeds"),
        ({"v100": {LM1: {LM2: [1, 1]}}}, "equal size"),
    ],
)
def test_a_wrong_table_says_what_is_wrong(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(tmp_path, content)


def test_a_missing_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="check the path"):
        load_throughputs(tmp_path / "none.json")
    with pytest.raises(UserError, match="is a folder"):
        load_throughputs(tmp_path)


def test_the_published_table(shared_data: Path) -> None:
    path = shared_data / "gavel" / "simulation_throughputs.json"
    table, raw = load_throughputs(path), json.loads(path.read_text())
    alone = raw["v100"]["('ResNet-18 (batch size 128)', 4)"]["null"]
    spread = raw["v100_unconsolidated"]["('ResNet-18 (batch size 128)', 4)"]["null"]
    job = JobSpec("a", 0.0, 4, 1.0, "steps", job_class="ResNet-18 (batch size 128)")
    assert table.rate(job, "v100", 4, Span.NODE) == alone
    assert table.rate(job, "v100", 4, Span.RACK) == spread
    assert 0 < spread < alone
    pair = raw["k80"]["('ResNet-18 (batch size 16)', 1)"]["('ResNet-18 (batch size 32)', 1)"]
    setting = Setting("ResNet-18 (batch size 16)", "k80", 1, Span.GPU, "ResNet-18 (batch size 32)")
    assert table.get(setting).steps_per_s == pair[0]  # type: ignore[union-attr]
    gang = JobSpec("b", 0.0, 2, 1.0, "steps", job_class="ResNet-50 (batch size 128)")
    assert table.rate(gang, "k80", 2, Span.NODE) == 0, "it does not fit there"
