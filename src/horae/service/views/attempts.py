"""The attempts of a job, in order, from the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isnan
from typing import Any

from horae.core.cluster import Cluster
from horae.core.commands import Decided
from horae.core.events import Event, JobFailed, JobFinished, JobStopped, LaunchFailed
from horae.core.history import Recorder
from horae.service.history.journal_history import restricted_to_jobs

_ENDS = {JobFinished: "finished", JobFailed: "failed", JobStopped: "stopped", LaunchFailed: "launch failed"}
_Records = Iterable[tuple[int, Event | Decided]]


def attempts_of(
    job: str, records: _Records, cluster: Cluster, timestamp: Callable[[float], str | None]
) -> list[dict[str, Any]]:
    """Every attempt of a job as a record: GPUs, times, and how it ended. `timestamp` converts seconds to text."""
    found: dict[int, dict[str, Any]] = {}
    recorder, rows = Recorder(), {job: 0}
    for _, record in records:
        if isinstance(record, Decided):
            record = restricted_to_jobs(record, rows, cluster.gpus)
            _decision(found, record, cluster, timestamp)
        elif isinstance(record, JobFinished | JobFailed | JobStopped | LaunchFailed):
            _ended(found.get(record.attempt), record, timestamp)
        recorder.see(record, rows)
    for attempt, work_s in zip(found.values(), recorder.attempts(0.0).work_s.tolist(), strict=True):
        attempt["started"] = None if isnan(work_s) else timestamp(work_s)
    return list(found.values())


def _decision(
    found: dict[int, dict[str, Any]], record: Decided, cluster: Cluster, timestamp: Callable[[float], str | None]
) -> None:
    for stop in record.stops:
        if attempt := found.get(stop.attempt):
            attempt["stopping"], attempt["stopped_because"] = timestamp(record.at_s), stop.why.value
    for launch in record.launches:
        found[launch.attempt] = {
            "attempt": launch.attempt,
            "on": cluster.gpu_labels(launch.gpu_ids),
            "launched": timestamp(record.at_s),
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
    timestamp: Callable[[float], str | None],
) -> None:
    """Note the end of an attempt. A second end event changes nothing."""
    if attempt is not None and attempt["ended"] is None:
        attempt["ended"], attempt["end"] = timestamp(record.at_s), _ENDS[type(record)]
        attempt["exit_code"] = record.exit_code if isinstance(record, JobFailed) else None
