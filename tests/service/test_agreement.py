"""A simulation tells what a live run does: the short form, with real processes. `make agreement` is the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.agreement import Comparison, Plan, Wanted, run_live, run_simulated, swapped
from horae.service.history.simulation_costs import calibrate

#: Costs are means over all starts of the run; on two busy cores single ones differ by a second.
TOLERANCE = 0.10


def ten_jobs() -> Plan:
    """Ten jobs on four GPUs, of which long ones make way for new ones after 4 GPU-seconds."""
    crowd = tuple(Wanted("resnet", 0.0, steps, "v100") for steps in (120, 130, 140, 150))
    later = tuple(Wanted("resnet", 3.0 + 1.5 * number, 40, "v100") for number in range(6))
    return Plan((*crowd, *later), "tiresias", {"thresholds": "4"})


@pytest.mark.long
def test_ten_jobs_live_and_simulated(tmp_path: Path) -> None:
    """Speeds and costs are those of the live run itself, unlike in `make agreement`.

    How long a process takes to start depends on what else the machine does at that time, so another run would measure
    other costs. What remains to be different is what the service and the simulator do with the same costs.
    """
    plan = ten_jobs()
    live = run_live(plan, tmp_path / "live")
    known = calibrate(live.history)
    found = Comparison(live.history, run_simulated(live, plan, known))
    assert len(found.live.jobs) == 10
    assert found.live.finished.all()
    assert found.simulated.finished.all()
    assert min(found.preemptions) >= 3, found.preemptions  # four on an idle machine
    assert abs(found.difference) <= TOLERANCE, (found.jct_s, known.overall)


def test_only_starts_that_are_close_in_both_runs_may_swap() -> None:
    names, live_s = ["a", "b", "c"], np.array([0.0, 0.5, 9.0])
    assert swapped(names, live_s, np.array([0.4, 0.0, 9.0])) == []
    assert swapped(names, live_s, np.array([3.0, 0.0, 9.0])) == [("b", "a")]
    assert swapped(names, live_s, np.array([0.0, 0.5, 0.2])) == [("c", "b")]
