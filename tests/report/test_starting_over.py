"""Work that is lost by starting over, in reports and audits. Tests report/audit/starting_over.py and `lost_work`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from horae.core.history import History
from horae.core.job import JobSpec
from horae.experiments.audit import audit
from horae.report.audit.starting_over import judge_starting_over
from horae.report.metrics.measure import measure
from horae.report.tables import comparison_rows
from horae.simulator.scenario import Scenario
from tests.builders import cluster, job, run
from tests.policies.short_turns import TURNS

LABEL = "GPU-time of work lost by starting over"


def jobs(unsaved: int) -> list[JobSpec]:
    """Six jobs of one GPU, of which the first few never save."""
    return [job(f"job-{k}", work=25.0, resumable=k >= unsaved) for k in range(6)]


def ran(policy: str, unsaved: int) -> History:
    return run(jobs(unsaved), "1x1", policy, settings=TURNS[policy])


@pytest.mark.parametrize("policy", TURNS)
def test_what_is_lost_is_all_that_the_same_jobs_hold_more_than_if_they_saved(policy: str) -> None:
    saved, unsaved = measure(ran(policy, 0)), measure(ran(policy, 6))
    assert (saved.lost_work.gpu_seconds, saved.gpu_hours * 3600) == (0, pytest.approx(6 * 25))
    assert unsaved.lost_work.gpu_seconds == pytest.approx(unsaved.gpu_hours * 3600 - 6 * 25, abs=1e-6)
    assert unsaved.lost_work.gpu_seconds > 0
    assert unsaved.lost_work.share == unsaved.lost_work.gpu_seconds / (unsaved.gpu_hours * 3600)


@pytest.mark.parametrize("policy", TURNS)
def test_an_audit_shows_that_not_saving_gains_nothing(policy: str) -> None:
    scenario = Scenario(jobs(2), cluster("1x1"), policy, TURNS[policy], restart_cost_s=0.0)
    found = {verdict.name: verdict for verdict in audit(scenario, samples=1).verdicts}
    verdict = found["not_saving_gains_nothing"]
    assert verdict.holds, verdict
    assert verdict.numbers["jobs"] == verdict.numbers["tried"] == 2
    assert 0 < verdict.numbers["lost_gpu_hours"] < verdict.numbers["gpu_hours"]
    honest = replace(scenario, workload=jobs(0))
    assert "not_saving_gains_nothing" not in {verdict.name for verdict in audit(honest, samples=1).verdicts}


def test_who_would_have_ended_later_with_saving_is_named() -> None:
    history = ran("las", 2)
    (verdict,) = judge_starting_over(history, {0: float(history.end_s[0]) + 7200, 1: float(history.end_s[1])})
    assert verdict.holds is False
    assert verdict.counter_example == "Job job-0 ended 2 h sooner than if it had saved its work."
    assert verdict.summary.endswith("GPU-hours held; 1 of 2 tried gained")


def test_tables_show_lost_work_where_there_is_any() -> None:
    shown = [LABEL in {row.label for row in comparison_rows([measure(ran("las", n))])} for n in (0, 6)]
    assert shown == [False, True]
