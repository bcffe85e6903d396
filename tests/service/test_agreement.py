"""A simulation tells what a live run does: the short form, with real processes. `make agreement` is the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.agreement import Plan, Wanted, compare, swapped

#: Two cores that others use, too: a process may take a second longer to start than it did a moment ago.
TOLERANCE = 0.15


@pytest.fixture(scope="module")
def short() -> tuple[Plan, Plan]:
    """A calibration of one class, and ten jobs, of which long ones make way for new ones after 4 GPU-seconds."""
    once = [Wanted("resnet", 0.0, 30, "v100"), Wanted("resnet", 0.0, 15, "k80")]
    twice = [Wanted("resnet", 0.0, 60, "v100"), Wanted("resnet", 0.0, 30, "k80")] * 4
    calibration = Plan((*once, *twice), "time-slice", {"quantum": "3"})
    crowd = tuple(Wanted("resnet", 0.0, steps, "v100") for steps in (120, 130, 140, 150))
    later = tuple(Wanted("resnet", 3.0 + 1.5 * number, 40, "v100") for number in range(6))
    return calibration, Plan((*crowd, *later), "tiresias", {"thresholds": "4"})


def test_ten_jobs_live_and_simulated(tmp_path: Path, short: tuple[Plan, Plan]) -> None:
    found = compare(tmp_path, *short)
    assert len(found.live.jobs) == 10
    assert found.live.finished.all()
    assert found.simulated.finished.all()
    assert min(found.preemptions) >= 4, found.preemptions
    assert abs(found.difference) <= TOLERANCE, found.jct_s


def test_only_starts_that_are_close_in_both_runs_may_swap() -> None:
    names, live_s = ["a", "b", "c"], np.array([0.0, 0.5, 9.0])
    assert swapped(names, live_s, np.array([0.4, 0.0, 9.0])) == []
    assert swapped(names, live_s, np.array([3.0, 0.0, 9.0])) == [("b", "a")]
    assert swapped(names, live_s, np.array([0.0, 0.5, 0.2])) == [("c", "b")]
