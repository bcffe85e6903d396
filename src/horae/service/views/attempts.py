"""The attempts of a job, one after the other, as the journal has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isnan
from typing import Any

from horae.core.cluster import Cluster
from horae.core.commands import Decided
from horae.core.events import Event, JobFailed, JobFinished, JobStopped, LaunchFailed
from horae.core.history import Recorder
from horae.service.gpu_locations import describe
from horae.service.history.journal_history import of_known_jobs

_ENDS = {JobFinished: "finished", JobFailed: "failed", JobStopped: "stopped", LaunchFailed: "launch failed"}
_Records = Iterable[tuple[int, Event | Decided]]


def attempts_of(
    job: str, records: _Records, cluster: Cluster, moment: Callable[[float], str | None]
) -> list[dict[str, Any]]:
    """Every attempt of a job: where, when, and how it ended."""
    found: dict[int, dict[str, Any]] = {}
    recorder, rows = Recorder(), {job: 0}
    for _, record in records:
        if isinstance(record, Decided):
            record = of_known_jobs(record, rows, cluster.gpus)
            _decision(found, record, cluster, moment)
        elif isinstance(record, JobFinished | JobFailed | JobStopped | LaunchFailed):
            _ended(found.get(record.attempt), record, moment)
        recorder.see(record, rows)
    for attempt, work_s in zip(found.values(), recorder.attempts(0.0).work_s.tolist(), strict=True):
        attempt["started"] = None if isnan(work_s) else moment(work_s)
    return list(found.values())


def _decision(
    found: dict[int, dict[str, Any]], record: Decided, cluster: Cluster, moment: Callable[[float], str | None]
) -> None:
    for stop in record.stops:
        if attempt := found.get(stop.attempt):
            attempt["stopping"], attempt["stopped_because"] = moment(record.at_s), stop.why.value
    for launch in record.launches:
        found[launch.attempt] = {
            "attempt": launch.attempt,
            "on": describe(cluster, launch.gpu_ids),
            "launched": moment(record.at_s),
            "started": None,
            "stopping": None,
            "stopped_because": "",
            "ended": None,
            "end": "",
            "exit_code": None,
        }


def _ended(
    attempt: dict[str, Any] | None,
    record: JobFinished | JobFailed | JobStopped | LaunchFailed,
    moment: Callable[[float], str | None],
) -> None:
    """How an attempt ended; a second report of the same changes nothing."""
    if attempt is not None and attempt["ended"] is None:
        attempt["ended"], attempt["end"] = moment(record.at_s), _ENDS[type(record)]
        attempt["exit_code"] = record.exit_code if isinstance(record, JobFailed) else None
