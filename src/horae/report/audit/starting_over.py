"""Starting over: whether a job that saved nothing gained by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from horae.core.arrays import Ints
from horae.core.counted import counted
from horae.core.history import History
from horae.report.audit.verdict import Verdict, held
from horae.report.formatting import duration, number
from horae.report.metrics.gpu_holdings import Holdings
from horae.report.metrics.job_outcomes import outcomes

#: Jobs that are tried with saving, those that lost most. Each is a run of its own.
MOST_TRIED = 3
#: Smaller differences, as a share of the time that the job took, are rounding.
_TOLERANCE = 1e-6


def jobs_that_started_over(history: History) -> Ints:
    """Rows of the jobs that were preempted and had saved nothing, those that lost most first."""
    if history.attempts.lost is None or not history.attempts.lost.any():
        return np.zeros(0, np.int64)
    lost = outcomes(history, Holdings.of_gangs(history.attempts)).lost_gpu_s
    order = np.argsort(-lost, kind="stable")
    return order[lost[order] > 0]


def judge_starting_over(history: History, end_if_saved_s: Mapping[int, float]) -> list[Verdict]:
    """Compare the ends of jobs that started over with their ends in runs in which they, alone, had saved.

    Gives no verdict on a run in which no job started over.
    """
    rows = jobs_that_started_over(history)
    if not len(rows):
        return []
    result = outcomes(history, Holdings.of_gangs(history.attempts))
    gains = {row: _ended(saved_s) - _ended(history.end_s[row]) for row, saved_s in end_if_saved_s.items()}
    least = {row: _TOLERANCE * max(1.0, end_if_saved_s[row] - history.submit_s[row]) for row in gains}
    gained = [row for row in gains if gains[row] > least[row]]
    worst = max(gained, key=lambda row: gains[row], default=None)
    numbers: dict[str, Any] = {
        "jobs": len(rows),
        "gpu_hours": float(result.gpu_seconds[rows].sum()) / 3600,
        "lost_gpu_hours": float(result.lost_gpu_s[rows].sum()) / 3600,
        "tried": len(gains),
        "gained": len(gained),
        "worst": None if worst is None else {"job": history.jobs[worst].id, "sooner_s": float(gains[worst])},
    }
    return [
        Verdict(
            "not_saving_gains_nothing",
            "no job that lost its work would have ended later had it saved",
            held(len(gains), len(gained)),
            _summary(numbers),
            numbers,
            "" if worst is None else _sentence(numbers["worst"]),
        )
    ]


def _ended(end_s: float) -> float:
    """An end as a time; far away for a job that has none, so that two such ends differ by 0."""
    return 1e300 if np.isnan(end_s) else float(end_s)


def _summary(numbers: Mapping[str, Any]) -> str:
    lost, of_all = number(numbers["lost_gpu_hours"]), number(numbers["gpu_hours"])
    who = counted(numbers["jobs"], "job")
    return f"{who} lost {lost} of {of_all} GPU-hours held; {numbers['gained']} of {numbers['tried']} tried gained"


def _sentence(worst: Mapping[str, Any]) -> str:
    return f"Job {worst['job']} ended {duration(worst['sooner_s'])} sooner than if it had saved its work."
