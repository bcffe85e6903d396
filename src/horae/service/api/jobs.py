"""Jobs: submit, list, look into, cancel, hold, release, and what running ones report."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Path, Query
from fastapi.responses import Response
from pydantic_core import to_json

from horae.backends.task import Task
from horae.core.errors import UserError, did_you_mean
from horae.core.states import State
from horae.service.api import schemas
from horae.service.api.auth import PersonGiven, ServiceGiven, check_attempt
from horae.service.job_file import JobFile, seconds
from horae.service.operations import Progress
from horae.service.views.attempts import attempts_of
from horae.service.views.job_list import STATE_NAMES
from horae.service.views.views import LIVE, Filters

router = APIRouter(prefix="/v1", tags=["jobs"])

#: Jobs in one submission, and in one list.
MOST_JOBS, LONGEST_LIST = 1000, 100_000

JobId = Annotated[str, Path(max_length=100, description="The job's id, such as train-7.")]
_STATES = {name: state for state, name in STATE_NAMES.items()}
_FIELDS = tuple(schemas.JobRecord.__annotations__)


class BadQuestion(UserError):
    """A list that cannot be made as asked."""


@router.post("/jobs", response_model=schemas.Ids)
def submit(
    service: ServiceGiven,
    who: PersonGiven,
    jobs: Annotated[list[JobFile], Body(min_length=1, max_length=MOST_JOBS)],
    dry_run: Annotated[bool, Query(description="Only say whether they would be taken.")] = False,
) -> schemas.Ids:
    """Submit jobs, all or none. They are in the journal when this answers."""
    return schemas.Ids(ids=service.operations.submit(who, jobs, dry_run))


@router.get("/jobs", response_model=schemas.JobList)
def jobs(
    service: ServiceGiven,
    who: PersonGiven,
    state: Annotated[str, Query(max_length=200, description="States, with commas between.")] = "",
    user: Annotated[str | None, Query(max_length=100)] = None,
    queue: Annotated[str | None, Query(max_length=200, description="A queue, with those below it.")] = None,
    app: Annotated[str | None, Query(max_length=100)] = None,
    since: Annotated[str, Query(max_length=30, description="Submitted within this time, such as 7d.")] = "",
    limit: Annotated[int, Query(ge=0, le=LONGEST_LIST, description="The newest so many; 0 for all.")] = 100,
    fields: Annotated[
        str, Query(max_length=500, description="Only these, with commas between; `why` is only there if it is named.")
    ] = "",
    all: Annotated[bool, Query(description="Also jobs that have ended.")] = False,  # noqa: A002, the API's word
) -> Response:
    """List the jobs that the token may see: those that have not ended, unless asked otherwise."""
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
    shown, total = views.jobs(who, wanted)
    # Made by hand: to check every field of 10,000 jobs against the form takes longer than to find them.
    return Response(to_json({"jobs": shown, "total": total}), media_type="application/json")


def _states(text: str, everything: bool) -> tuple[State, ...]:
    if not text:
        return tuple(State) if everything else LIVE
    return tuple(_STATES[_one_of("state", name, _STATES)] for name in text.split(","))


def _fields(text: str) -> tuple[str, ...]:
    return tuple(_one_of("field", name, _FIELDS) for name in text.split(",")) if text else ()


def _one_of(what: str, name: str, known: Collection[str]) -> str:
    name = name.strip().lower()
    if name not in known:
        raise BadQuestion(f"No {what} is called {name!r}.{did_you_mean(name, known)} There are {', '.join(known)}.")
    return name


def _seconds(text: str) -> float:
    try:
        return float(seconds(text))
    except ValueError as error:
        raise BadQuestion(f"since: {error}.") from None


@router.get("/jobs/{job}", response_model=schemas.JobDetail)
def job(service: ServiceGiven, who: PersonGiven, job: JobId) -> dict[str, Any]:
    """Everything about a job: how it stands, why it waits, its attempts, what it runs."""
    views = service.views()
    row = views.find(who, job)
    records = service.daemon.store.job_records(job)
    return {
        **views.job(row),
        "why": views.why(row),
        "attempts": attempts_of(job, records, views.standing.cluster, views.moment),
        "task": _task(views.tasks[job]),
    }


def _task(task: Task) -> dict[str, Any]:
    """What a job runs, with names alone of whatever may be secret."""
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
    }


@router.get("/jobs/{job}/why", response_model=schemas.Why)
def why(service: ServiceGiven, who: PersonGiven, job: JobId) -> dict[str, Any]:
    """Why a job waits, as the last decision has it."""
    views = service.views()
    return views.why(views.find(who, job))


@router.get("/jobs/{job}/events", response_model=schemas.EventList)
def events(service: ServiceGiven, who: PersonGiven, job: JobId) -> dict[str, Any]:
    """What happened to a job, in sentences: who preempted it and why, where it was launched, how it ended.

    If its app bids for itself, what the app was offered and answered while the job had not ended is told, too.
    """
    views, teller = service.views(), service.teller()
    row = views.find(who, job)
    app, life = views.standing.spec(row).app_id, views.life(row)
    told = [
        {"seq": seq, "at": views.moment(record.at_s), "kind": one.kind, "job": one.job, "what": one.what}
        for seq, record in service.daemon.store.job_records(job, app)
        for one in teller.tell(record)
        if one.job == job or (one.app == app and life[0] <= record.at_s <= life[1])
    ]
    return {"events": told}


@router.post("/jobs/cancel", response_model=schemas.Done)
def cancel_many(service: ServiceGiven, who: PersonGiven, asked: schemas.JobIds) -> schemas.Done:
    """Cancel many jobs; if one of them is not there, none is cancelled."""
    return schemas.Done(jobs=service.operations.request(who, "cancel", asked.ids))


@router.post("/jobs/hold", response_model=schemas.Done)
def hold_many(service: ServiceGiven, who: PersonGiven, asked: schemas.JobIds) -> schemas.Done:
    """Hold many jobs; if one of them is not there, none is held."""
    return schemas.Done(jobs=service.operations.request(who, "hold", asked.ids))


@router.post("/jobs/release", response_model=schemas.Done)
def release_many(service: ServiceGiven, who: PersonGiven, asked: schemas.JobIds) -> schemas.Done:
    """Release many jobs; if one of them is not there, none is released."""
    return schemas.Done(jobs=service.operations.request(who, "release", asked.ids))


@router.post("/jobs/{job}/{what}", response_model=schemas.Done)
def request(
    service: ServiceGiven, who: PersonGiven, job: JobId, what: Literal["cancel", "hold", "release"]
) -> schemas.Done:
    """Cancel a job, hold it, or release it again."""
    return schemas.Done(jobs=service.operations.request(who, what, [job]))


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
    said: schemas.ProgressReport,
) -> schemas.Orders:
    """What a running attempt reports, with its own token; the answer says whether it is to save and go."""
    stop = service.operations.progress(job, attempt, Progress(said.step, said.total, said.loss))
    return schemas.Orders(stop=stop)
