"""The gate's verdicts, from numbers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gate import recorded
from benchmarks.gate.measurement import LOOKS, Judged, Samples, Verdict, judge
from benchmarks.gate.workloads import WORKLOADS


class Clock:
    """Gives samples of a fixed ratio and remembers how far it was asked to go."""

    def __init__(self, *ratios: float) -> None:
        self._ratios, self.asked = list(ratios), list[int]()

    def extend(self, repetitions: int) -> Samples:
        self.asked.append(repetitions)
        ratio = self._ratios[min(len(self.asked), len(self._ratios)) - 1]
        return Samples([1.0] * repetitions, [ratio] * repetitions)


def test_code_that_is_a_third_slower_fails_with_the_name_of_the_workload() -> None:
    clock = Clock(0.75)
    judged = judge("las", 1.0, clock.extend)
    assert judged.verdict is Verdict.SLOWER
    assert "'las'" in judged.sentence
    assert "0.750, recorded 1.000 (-25%" in judged.sentence
    assert clock.asked == list(LOOKS)


@pytest.mark.parametrize(("ratio", "verdict"), [(0.84, Verdict.SLOWER), (0.86, Verdict.KEPT), (1.14, Verdict.KEPT)])
def test_a_ratio_may_fall_by_fifteen_percent(ratio: float, verdict: Verdict) -> None:
    assert judge("las", 1.0, Clock(ratio).extend).verdict is verdict


def test_a_clear_pass_needs_few_repetitions() -> None:
    clock = Clock(0.99)
    assert judge("las", 1.0, clock.extend).verdict is Verdict.KEPT
    assert clock.asked == [LOOKS[0]]


def test_a_low_ratio_is_measured_again_before_it_fails() -> None:
    clock = Clock(0.80, 0.95)
    assert judge("las", 1.0, clock.extend).verdict is Verdict.KEPT
    assert clock.asked == list(LOOKS[:2])


def test_a_ratio_far_above_the_recorded_one_should_be_raised() -> None:
    judged = Judged("las", 1.2, 1.0, 8)
    assert judged.verdict is Verdict.RAISE
    assert "Raise the recorded ratio" in judged.sentence


def test_a_workload_without_a_recorded_ratio_says_how_to_record_it() -> None:
    judged = judge("new", None, Clock(1.0).extend)
    assert judged.verdict is Verdict.UNRECORDED
    assert "--record" in judged.sentence


def test_the_fastest_repetitions_count() -> None:
    assert Samples([1.0, 1.0, 1.0, 9.0], [2.0, 7.0, 2.0, 2.0]).ratio == 2.0


def test_recording_a_workload_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "ratios.json"
    recorded.save({"las": 1.0, "srtf": 2.0}, path)
    recorded.save({"las": 1.5}, path)
    assert recorded.load(path).ratios == {"las": 1.5, "srtf": 2.0}


def test_every_workload_has_a_recorded_ratio_and_no_other() -> None:
    assert set(json.loads(recorded.PATH.read_text())["ratios"]) == set(WORKLOADS)
