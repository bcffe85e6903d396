"""The attempts of a job, one after the other, as the journal has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from horae.core.cluster import Cluster
from horae.core.commands import Decided
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed
from horae.service.places import describe

_ENDS = {JobFinished: "finished", JobFailed: "failed", JobStopped: "stopped", LaunchFailed: "launch failed"}
_Records = Iterable[tuple[int, Event | Decided]]


def attempts_of(
    job: str, records: _Records, cluster: Cluster, moment: Callable[[float], str | None]
) -> list[dict[str, Any]]:
    """Every attempt of a job: where, when, and how it ended."""
    found: dict[int, dict[str, Any]] = {}
    for _, record in records:
        if isinstance(record, Decided):
            _decision(found, job, record, cluster, moment)
        elif isinstance(record, JobStarted | JobFinished | JobFailed | JobStopped | LaunchFailed):
            _report(found.get(record.attempt), record, moment)
    return list(found.values())


def _decision(
    found: dict[int, dict[str, Any]],
    job: str,
    record: Decided,
    cluster: Cluster,
    moment: Callable[[float], str | None],
) -> None:
    for stop in record.stops:
        attempt = found.get(stop.attempt) if stop.job == job else None
        if attempt:
            attempt["stopping"], attempt["stopped_because"] = moment(record.at_s), stop.why.value
    for launch in record.launches:
        if launch.job == job:
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


def _report(
    attempt: dict[str, Any] | None,
    record: JobStarted | JobFinished | JobFailed | JobStopped | LaunchFailed,
    moment: Callable[[float], str | None],
) -> None:
    """What was reported of an attempt; a second report of the same changes nothing."""
    if attempt is None:
        return
    if isinstance(record, JobStarted):
        attempt["started"] = attempt["started"] or moment(record.at_s - record.up_s)
    elif attempt["ended"] is None:
        attempt["ended"], attempt["end"] = moment(record.at_s), _ENDS[type(record)]
        attempt["exit_code"] = record.exit_code if isinstance(record, JobFailed) else None
