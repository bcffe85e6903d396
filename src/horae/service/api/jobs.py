"""Endpoints for jobs: submit, list, show, cancel, hold, release, and progress reports of attempts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Path, Query
from fastapi.responses import Response
from pydantic import FailFast
from pydantic_core import to_json

from horae.backends.task import Task
from horae.core.durations import seconds_of
from horae.core.errors import UserError, did_you_mean
from horae.core.states import State
from horae.service.api import schemas
from horae.service.api.auth import CallerGiven, ServiceGiven, check_attempt
from horae.service.job_file import JobFile
from horae.service.views.attempts import attempts_of
from horae.service.views.job_list import STATE_NAMES
from horae.service.views.views import LIVE, Filters

router = APIRouter(prefix="/v1", tags=["jobs"])

#: Most jobs in one submission, and in one list.
MOST_JOBS, LONGEST_LIST = 1000, 100_000

JobId = Annotated[str, Path(max_length=100, description="The job's id, such as train-7.")]
_STATES = {name: state for state, name in STATE_NAMES.items()}
_FIELDS = tuple(schemas.JobRecord.__annotations__)


class BadQuestion(UserError):
    """A list request with a wrong parameter."""


@router.post("/jobs", response_model=schemas.Ids)
def submit(
    service: ServiceGiven,
    caller: CallerGiven,
    # One wrong job is told of: errors of a million would take seconds to collect.
    jobs: Annotated[list[JobFile], FailFast(), Body(min_length=1, max_length=MOST_JOBS)],
    dry_run: Annotated[bool, Query(description="Only check whether the jobs would be accepted.")] = False,
) -> schemas.Ids:
    """Submit jobs, all or none. They are in the journal when this returns."""
    return schemas.Ids(ids=service.operations.submit(caller, jobs, dry_run), notes=service.operations.notes_on(jobs))


@router.get("/jobs", response_model=schemas.JobList)
def jobs(
    service: ServiceGiven,
    caller: CallerGiven,
    state: Annotated[str, Query(max_length=200, description="States, separated by commas.")] = "",
    user: Annotated[str | None, Query(max_length=100)] = None,
    queue: Annotated[str | None, Query(max_length=200, description="A queue, including the queues below it.")] = None,
    app: Annotated[str | None, Query(max_length=100)] = None,
    since: Annotated[str, Query(max_length=30, description="Submitted within this time, such as 7d.")] = "",
    limit: Annotated[
        int, Query(ge=0, le=LONGEST_LIST, description="At most N jobs, those that run and wait; 0 for all.")
    ] = 100,
    fields: Annotated[
        str, Query(max_length=500, description="Only these fields, separated by commas. `why` must be named here.")
    ] = "",
    all: Annotated[bool, Query(description="Also jobs that have ended.")] = False,  # noqa: A002, the API's word
) -> Response:
    """List the jobs that the token may see; without `all` or `state`, jobs that have not ended."""
    views = service.views()
    wanted = Filters(
        states=_states(state, all),
        user=user,
        queue=queue,
        app=app,
        since_s=views.now_s - _seconds(since) if since else 0.0,
        limit=limit,
        fields=_fields(fields),
    )
    shown, by_state = views.jobs(caller, wanted)
    # Not validated against the schema: for 10,000 jobs that would take longer than the list itself.
    content = {"jobs": shown, "total": sum(by_state.values()), "states": by_state}
    return Response(to_json(content), media_type="application/json")


def _states(text: str, everything: bool) -> tuple[State, ...]:
    if not text:
        return tuple(State) if everything else LIVE
    return tuple(_STATES[_check_name("state", name, _STATES)] for name in text.split(","))


def _fields(text: str) -> tuple[str, ...]:
    return tuple(_check_name("field", name, _FIELDS) for name in text.split(",")) if text else ()


def _check_name(what: str, name: str, allowed: Collection[str]) -> str:
    name = name.strip().lower()
    if name not in allowed:
        raise BadQuestion(f"No {what} is called {name!r}.{did_you_mean(name, allowed)} There are {', '.join(allowed)}.")
    return name


def _seconds(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise BadQuestion(f"since: {error}.") from None


@router.get("/jobs/{job}", response_model=schemas.JobDetail)
def job(service: ServiceGiven, caller: CallerGiven, job: JobId) -> dict[str, Any]:
    """Everything about a job: state, why it waits, attempts, task."""
    views = service.views()
    row = views.visible_row(caller, job)
    records = service.daemon.store.job_records(job)
    return {
        **views.job(row),
        "why": views.why(caller, row),
        "attempts": attempts_of(job, records, views.status.cluster, views.timestamp),
        "task": _task(views.tasks[job]) if views.sees_details(caller, row) else None,
    }


def _task(task: Task) -> dict[str, Any]:
    """The task of a job as a record; of variables and secrets only the names."""
    return {
        "run": list(task.run),
        "setup": task.setup,
        "workdir": task.workdir,
        "envs": sorted(task.env),
        "secrets": sorted(task.secrets),
        "processes": task.processes,
        "signal": task.stop_signal,
        "grace_s": task.grace_s,
        "checkpoint_dir": task.checkpoint_dir,
        "max_duration_s": task.max_duration_s,
        "cpus_per_gpu": task.cpus_per_gpu,
        "memory_mb_per_gpu": task.memory_mb_per_gpu,
        "image": task.image,
    }


@router.get("/jobs/{job}/why", response_model=schemas.Why)
def why(service: ServiceGiven, caller: CallerGiven, job: JobId) -> dict[str, Any]:
    """Why a job waits, by the last decision."""
    views = service.views()
    return views.why(caller, views.visible_row(caller, job))


@router.get("/jobs/{job}/events", response_model=schemas.EventList)
def events(service: ServiceGiven, caller: CallerGiven, job: JobId) -> dict[str, Any]:
    """What happened to a job, in sentences: who preempted it and why, where it was launched, how it ended.

    If its app bids for itself, offers and bids during the job's lifetime are included.
    """
    views, event_sentences = service.views(), service.event_sentences()
    row = views.visible_row(caller, job)
    app, lifetime = views.status.spec(row).app_id, views.lifetime(row)
    events = [
        {"seq": seq, "at": views.timestamp(record.at_s), "kind": event.kind, "job": event.job}
        | {"what": views.plain(caller, event.what)}
        for seq, record in service.daemon.store.job_records(job, app)
        for event in event_sentences.sentences_of(record)
        if event.job == job or (event.app == app and lifetime[0] <= record.at_s <= lifetime[1])
    ]
    return {"events": events}


@router.post("/jobs/cancel", response_model=schemas.Done)
def cancel_many(service: ServiceGiven, caller: CallerGiven, body: schemas.JobIds) -> schemas.Done:
    """Cancel many jobs. If a job does not exist, no job is cancelled."""
    return schemas.Done(jobs=service.operations.request(caller, "cancel", body.ids))


@router.post("/jobs/hold", response_model=schemas.Done)
def hold_many(service: ServiceGiven, caller: CallerGiven, body: schemas.JobIds) -> schemas.Done:
    """Hold many jobs. If a job does not exist, no job is held."""
    return schemas.Done(jobs=service.operations.request(caller, "hold", body.ids))


@router.post("/jobs/release", response_model=schemas.Done)
def release_many(service: ServiceGiven, caller: CallerGiven, body: schemas.JobIds) -> schemas.Done:
    """Release many jobs. If a job does not exist, no job is released."""
    return schemas.Done(jobs=service.operations.request(caller, "release", body.ids))


@router.post("/jobs/{job}/{what}", response_model=schemas.Done)
def request(
    service: ServiceGiven, caller: CallerGiven, job: JobId, what: Literal["cancel", "hold", "release"]
) -> schemas.Done:
    """Cancel, hold or release a job."""
    return schemas.Done(jobs=service.operations.request(caller, what, [job]))


@router.post(
    "/attempts/{job}/{attempt}/progress",
    response_model=schemas.Orders,
    dependencies=[Depends(check_attempt)],
    tags=["attempts"],
)
def progress(
    service: ServiceGiven,
    job: JobId,
    attempt: Annotated[int, Path(ge=1, le=2**31)],
    body: schemas.ProgressReport,
) -> schemas.Orders:
    """Progress report of a running attempt, with its own token. The answer says whether it must save and exit."""
    stop = service.operations.progress(job, attempt, body.step, body.total, body.loss)
    return schemas.Orders(stop=stop)
