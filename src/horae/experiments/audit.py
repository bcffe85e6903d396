"""An audit: a run with an onlooker, judged."""

from __future__ import annotations

from dataclasses import dataclass

from horae.core.history import History
from horae.core.throughputs import Throughputs
from horae.report.audit.audit import judge
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
    return Audited(history, judge(history, onlooker.observations(), true, scenario.seed))
