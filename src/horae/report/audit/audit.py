"""All verdicts on a run."""

from __future__ import annotations

from horae.core.audit_observations import Observations
from horae.core.history import History
from horae.core.throughputs import Speeds, Throughputs
from horae.report.audit.envy import judge_envy
from horae.report.audit.pareto_efficiency import judge_exchanges, judge_idleness
from horae.report.audit.sharing_incentive import judge_isolated_rho, judge_rho
from horae.report.audit.strategy_proofness import judge_probes
from horae.report.audit.verdict import Verdict
from horae.report.metrics.gpu_holdings import Holdings
from horae.report.metrics.job_outcomes import outcomes


def judge(history: History, observed: Observations, true: Throughputs, seed: int = 0) -> list[Verdict]:
    """Judge a run by true speeds: sharing incentive, Pareto efficiency, envy, strategy-proofness."""
    result, speeds = outcomes(history, Holdings.of_gangs(history.attempts)), Speeds(true)
    return [
        judge_rho(history, result),
        judge_isolated_rho(history, result),
        judge_idleness(history, observed),
        judge_exchanges(history, observed, speeds),
        *judge_envy(history, speeds, seed),
        judge_probes(history, observed),
    ]
