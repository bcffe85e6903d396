"""The gate's verdicts, from numbers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gate import recorded
from benchmarks.gate.calibration import calibrate
from benchmarks.gate.measurement import FEWEST, Judged, Verdict, fastest_s, judge, measure
from benchmarks.gate.workloads import WORKLOADS, TimedPair


def test_code_that_is_a_third_slower_fails_with_the_name_of_the_workload() -> None:
    judged = judge("las", 1.0, [0.7, 0.74, 0.75, 0.73])
    assert judged.verdict is Verdict.SLOWER
    assert "'las'" in judged.sentence
    assert "0.750, recorded 1.000 (-25%, look 4)" in judged.sentence


@pytest.mark.parametrize(("ratio", "verdict"), [(0.84, Verdict.SLOWER), (0.86, Verdict.KEPT), (1.14, Verdict.KEPT)])
def test_a_ratio_may_fall_by_fifteen_percent(ratio: float, verdict: Verdict) -> None:
    assert judge("las", 1.0, [ratio] * 4).verdict is verdict


def test_a_clear_pass_is_looked_at_once() -> None:
    assert judge("las", 1.0, [0.99, 0.1]).looks == 1


def test_the_first_look_needs_a_clear_margin() -> None:
    assert judge("las", 1.0, [0.88, 0.80, 0.80, 0.80]).verdict is Verdict.SLOWER


def test_a_low_ratio_is_looked_at_again_before_it_fails() -> None:
    judged = judge("las", 1.0, [0.80, 0.81, 0.95, 0.1])
    assert (judged.verdict, judged.ratio, judged.looks) == (Verdict.KEPT, 0.95, 3)


def test_a_ratio_far_above_the_recorded_one_should_be_raised() -> None:
    judged = Judged("las", 1.2, 1.0, 8)
    assert judged.verdict is Verdict.RAISE
    assert "Raise the recorded ratio" in judged.sentence


def test_a_workload_without_a_recorded_ratio_says_how_to_record_it() -> None:
    judged = judge("new", None, [1.0])
    assert judged.verdict is Verdict.UNRECORDED
    assert "--record" in judged.sentence


def test_the_fastest_repetitions_count() -> None:
    assert fastest_s([2.0, 7.0, 2.0, 2.0]) == 2.0


def test_a_ratio_that_is_enough_is_measured_no_longer() -> None:
    done: list[float] = []
    pair = TimedPair(lambda: done.append(calibrate(1)), lambda: calibrate(1))
    measure(lambda: pair, 9)
    assert len(done) == 2 + 9
    done.clear()
    measure(lambda: pair, 9, enough=0.01)
    assert len(done) == 2 + FEWEST


def test_a_workload_that_does_its_work_twice_has_half_the_ratio() -> None:
    """The workload and the reference do the same, the workload twice; a busy machine makes little of that."""
    pair = TimedPair(lambda: (calibrate(40), calibrate(40)), lambda: calibrate(40))
    assert measure(lambda: pair, 6) == pytest.approx(0.5, rel=0.35)


def test_recording_a_workload_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "ratios.json"
    recorded.save({"las": 1.0, "srtf": 2.0}, path)
    recorded.save({"las": 1.5}, path)
    assert recorded.load(path).ratios == {"las": 1.5, "srtf": 2.0}


def test_every_workload_has_a_recorded_ratio_and_no_other() -> None:
    assert set(json.loads(recorded.PATH.read_text())["ratios"]) == set(WORKLOADS)
