"""Sharing incentive: no app or job would have been faster alone on its part of the cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from horae.core.arrays import Floats
from horae.core.counted import counted
from horae.core.history import History
from horae.report.audit.verdict import Verdict, held
from horae.report.formatting import duration, number
from horae.report.metrics.fairness import TOLERANCE, Fairness
from horae.report.metrics.job_outcomes import Outcomes

#: Apps or jobs that are named, the worst first.
_NAMED = 5


def judge_rho(history: History, result: Outcomes) -> Verdict:
    """Against a fair share: rho = T_sh / T_id of every app, T_id on 1/N of the GPUs of its best type."""
    apps = result.apps
    names = [history.jobs[job].app_id for job in apps.first_job.tolist()]
    shared_s = _last_end_s(result) - result.submit_s[apps.first_job]
    return _verdict(
        "sharing_incentive",
        "no app is slower than alone on 1/N of the GPUs (rho <= 1)",
        "app",
        "rho",
        names,
        apps.rho,
        shared_s,
    )


def judge_isolated_rho(history: History, result: Outcomes) -> Verdict:
    """Against an isolated run: JCT over the JCT with 1/N of every GPU type, of every job."""
    return _verdict(
        "sharing_incentive_isolated",
        "no job is slower than with 1/N of every GPU type (isolated_rho <= 1)",
        "job",
        "isolated_rho",
        [job.id for job in history.jobs],
        result.isolated_rho,
        result.jct_s,
    )


def _last_end_s(result: Outcomes) -> Floats:
    last_s = np.full(len(result.apps.rho), -np.inf)
    np.fmax.at(last_s, result.apps.of_job, result.end_s)
    return last_s


def _verdict(name: str, claim: str, unit: str, symbol: str, names: list[str], rho: Floats, took_s: Floats) -> Verdict:
    slower = np.flatnonzero(rho > 1 + TOLERANCE)
    worst = slower[np.argsort(-rho[slower], kind="stable")][:_NAMED].tolist()
    measured = int((~np.isnan(rho)).sum())
    offenders = [_offender(names[k], symbol, float(rho[k]), float(took_s[k])) for k in worst]
    numbers: dict[str, Any] = {
        "measured": measured,
        "unfinished": len(rho) - measured,
        "above_1": len(slower),
        symbol: vars(Fairness.of(rho)),
        "worst": offenders,
    }
    worst_of_all = f"worst {symbol} {number(float(np.nanmax(rho)))}" if measured else ""
    summary = (
        f"above 1: {len(slower):,} of {counted(measured, unit)}; {worst_of_all}"
        if measured
        else f"nothing to judge: no {unit} finished"
    )
    return Verdict(name, claim, held(measured, len(slower)), summary, numbers, _sentence(unit, symbol, offenders))


def _offender(name: str, symbol: str, rho: float, took_s: float) -> dict[str, Any]:
    return {"name": name, symbol: rho, "took_s": took_s, "alone_s": took_s / rho}


def _sentence(unit: str, symbol: str, offenders: list[dict[str, Any]]) -> str:
    if not offenders:
        return ""
    worst = offenders[0]
    took, alone = duration(worst["took_s"]), duration(worst["alone_s"])
    return f"{unit.capitalize()} {worst['name']} took {took} instead of {alone}: {symbol} {number(worst[symbol])}."
