"""A simulation tells what a live run on Slurm does: the short form. `make agreement-slurm` is the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.agreement import Comparison, Plan, Wanted, run_live, run_simulated
from benchmarks.agreement_slurm import KINDS, SLURM, TRIALS, other_verdicts, part_of, rho_off, slurm_plan
from horae.core.history import History
from horae.service.history.simulation_costs import Costs, calibrate
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.testing import job
from horae.testing.slurm_cluster import why_not
from horae.workload.clusters import parse_cluster
from tests.engine_folder import engine_folder

#: A live run of ten jobs is no closer to another one.
TOLERANCE = 0.12
FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0)


def ten_gangs() -> Plan:
    """Ten gangs on four nodes, of which long ones make way for new ones. Noise of 0.3 s hardly changes who is first."""
    crowd = tuple(Wanted("bert", 0.0, steps) for steps in (50, 55, 60, 65))
    later = tuple(Wanted("bert", 4.0 + 1.5 * number, 25) for number in range(6))
    return Plan((*crowd, *later), "tiresias", {"thresholds": "16"}, SLURM)


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.skipif(bool(why_not()), reason=f"needs Slurm: {why_not()}")
def test_ten_gangs_live_and_simulated() -> None:
    """Speeds and costs are those of the live run itself, unlike in `make agreement-slurm`."""
    plan = ten_gangs()
    with engine_folder("slurm") as folder:
        live = run_live(plan, folder / "live")
    known = calibrate(live.history)
    found = Comparison(live.history, run_simulated(live, plan, known))
    assert len(found.live.jobs) == 10
    assert found.live.finished.all()
    assert min(found.preemptions) >= 4, found.preemptions
    assert abs(found.difference) <= TOLERANCE, (found.jct_s, known.overall)
    free = replace(known, costs=dict.fromkeys(known.costs, FREE), overall=FREE)
    unlearnt = Comparison(live.history, run_simulated(live, plan, free))
    assert unlearnt.difference < -TOLERANCE, "without what was learnt it is off"


def turns(quantum: int) -> History:
    """Two apps that take turns on one machine; the one that comes later has less to do."""
    jobs = [job("a", 4, 100, app="x"), job("b", 4, 20, 1.0, app="y")]
    return simulate(Scenario(jobs, parse_cluster("1x4"), "time-slice", {"quantum": str(quantum)}, restart_cost_s=0.0))


def test_the_same_run_is_as_fair_and_one_without_turns_is_not() -> None:
    same, other = Comparison(turns(10), turns(10)), Comparison(turns(10), turns(200))
    assert rho_off(same) == {"x": 0.0, "y": 0.0}
    assert other_verdicts(same) == []
    assert rho_off(other)["y"] > 1.0
    assert "sharing_incentive" in other_verdicts(other)


def test_a_table_says_what_was_missed() -> None:
    part = part_of("themis", Comparison(turns(10), turns(200), [turns(200)]))
    assert [row["run"] for row in part.rows] == ["live", "simulated"]
    assert any("rho of y" in miss for miss in part.missed), part.missed
    assert any("average JCT" in miss for miss in part.missed), part.missed


@pytest.mark.parametrize("policy", TRIALS)
def test_the_workload_has_gangs_of_all_sizes_in_apps_of_three_teams(policy: str) -> None:
    plan = slurm_plan(policy)
    assert {KINDS[wanted.kind].gpus for wanted in plan.jobs} == {1, 2, 4, 8}
    assert len({wanted.queue for wanted in plan.jobs}) == 3
    assert len({wanted.app for wanted in plan.jobs}) > 10
    assert np.all(np.diff([wanted.at_s for wanted in plan.jobs]) >= 0)
