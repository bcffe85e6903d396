"""An audit: a run with an onlooker, judged."""

from __future__ import annotations

from dataclasses import dataclass, replace

from horae.core.history import History
from horae.core.throughputs import Throughputs
from horae.report.audit.audit import judge
from horae.report.audit.starting_over import MOST_TRIED, jobs_that_started_over, judge_starting_over
from horae.report.audit.verdict import Verdict
from horae.simulator.audit.observer import Observer, sample_times
from horae.simulator.driver import Progress
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario

#: Decisions that are looked at closely, unless somebody says otherwise.
SAMPLES = 20


@dataclass(frozen=True)
class Audited:
    """A run and the verdicts on it."""

    history: History
    verdicts: list[Verdict]


def audit(scenario: Scenario, samples: int = SAMPLES, progress: Progress | None = None) -> Audited:
    """Run a scenario, look closely at some decisions, and judge the run by the true speeds."""
    true = scenario.truth or scenario.throughputs or Throughputs()
    times_s = sample_times(scenario.jobs, scenario.cluster, true, samples, scenario.seed)
    onlooker = Observer(times_s, true, scenario.seed)
    history = simulate(scenario, progress, onlooker)
    tried = jobs_that_started_over(history)[:MOST_TRIED].tolist()
    end_if_saved_s = {row: float(simulate(_saving(scenario, history.jobs[row].id)).end_s[row]) for row in tried}
    verdicts = judge(history, onlooker.observations(), true, scenario.seed)
    return Audited(history, [*verdicts, *judge_starting_over(history, end_if_saved_s)])


def _saving(scenario: Scenario, name: str) -> Scenario:
    """The scenario with one job that saves its work."""
    jobs = tuple(replace(job, resumable=True) if job.id == name else job for job in scenario.jobs)
    return replace(scenario, workload=jobs)
