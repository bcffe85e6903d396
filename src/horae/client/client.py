"""A service from Python: submit jobs, ask about them, wait for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from horae.client.address import NoService
from horae.client.job_records import find_job, job_path, job_state
from horae.client.service_client import ServiceClient, Strange, records_of, service
from horae.core.errors import UserError

#: States that a job never leaves.
ENDED = ("finished", "failed", "cancelled", "timeout")
#: How often to look at a job that is waited for, and how long a service may be away meanwhile.
_LOOK_S, _AWAY_S = 0.5, 60.0

#: Keywords of `submit` that stand in a section of the job file, and their keys there.
_SECTIONS = {
    "resources": {
        "gpus": "gpus",
        "gpus_min": "gpus_min",
        "gpus_max": "gpus_max",
        "nodes": "nodes",
        "cpus_per_gpu": "cpus_per_gpu",
        "memory_per_gpu": "memory_per_gpu",
        "image": "image",
    },
    "checkpoint": {"stop_signal": "signal", "grace": "grace", "checkpoint_dir": "dir"},
    "recovery": {"max_restarts": "max_restarts", "on_exit_codes": "on_exit_codes"},
    "estimate": {"steps": "steps", "duration": "duration", "throughput": "throughput"},
}


class JobTimeout(UserError):
    """A job that has not ended in time."""


class Job:
    """One job of a service. Every method asks the service."""

    def __init__(self, client: Client, job_id: str) -> None:
        self.id = job_id
        self._client = client

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    @property
    def state(self) -> str:
        """How the job stands: waiting, running, finished, ..."""
        return job_state(self._client.service, self.id)

    def status(self) -> dict[str, Any]:
        """Everything about the job, as `horae status -o json` has it."""
        return find_job(self._client.service, self.id)

    def why(self) -> str:
        """Why the job waits, in one sentence; that it does not, if it does not."""
        record = self.status()
        reason = record.get("why")
        if record["state"] in ("waiting", "placed", "held") and isinstance(reason, Mapping):
            return str(reason.get("sentence") or reason.get("reason"))
        return f"{self.id} does not wait: it is {record['state']}."

    def wait(self, timeout_s: float | None = None) -> str:
        """Stay until the job has ended and return how: finished, failed or cancelled.

        A service that is started anew meanwhile is waited for. After `timeout_s` seconds a `JobTimeout` is raised.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            state = self._state_again()
            if state in ENDED:
                return state
            left_s = _LOOK_S if end_s is None else end_s - time.monotonic()
            if left_s <= 0:
                raise JobTimeout(f"{self.id} is {state} and has not ended within {timeout_s:g} s: wait longer.")
            time.sleep(min(_LOOK_S, left_s))

    def _state_again(self) -> str:
        """The state; a service that is away for a while is asked again."""
        end_s = time.monotonic() + _AWAY_S
        while True:
            try:
                return self.state
            except NoService:
                if time.monotonic() >= end_s:
                    raise
                time.sleep(_LOOK_S)

    def logs(self, attempt: int | None = None, tail: int | None = None) -> str:
        """What the job printed: of its last attempt, or another; all of it (at most 16 MiB), or the last lines."""
        if not self.status().get("attempt"):
            return ""
        return self._client.service.text(f"{job_path(self.id)}/logs", {"attempt": attempt, "tail": tail})

    def follow_logs(self, attempt: int | None = None) -> Iterator[str]:
        """Lines that the job prints, as they come, until it ends."""
        about = {"attempt": attempt, "follow": True}
        for message in self._client.service.follow(f"{job_path(self.id)}/logs", about):
            if message.event == "end":
                return
            if "line" in message.data:
                yield str(message.data["line"])
        raise NoService(f"The service stopped sending the log of {self.id}: follow it again.")

    def events(self) -> list[dict[str, Any]]:
        """What befell the job, the oldest first: when (`at`), what kind of event, and what in words."""
        return records_of(self._client.service.get(f"{job_path(self.id)}/events"), "events")

    def cancel(self) -> str:
        """End the job for good; says `done`, or why it came too late."""
        return self._client.cancel(self)[self.id]

    def hold(self) -> str:
        """Keep the job from running until it is released; says `done`, or why nothing changed."""
        return self._client.hold(self)[self.id]

    def release(self) -> str:
        """Let the job run again; says `done`, or why nothing changed."""
        return self._client.release(self)[self.id]


class Client:
    """A service, found as the command line finds it: by `url`, HORAE_URL, or the one on this machine; so is the token.

    Use it in a `with` statement, or close it. It is for one thread at a time.
    """

    def __init__(self, url: str | None = None) -> None:
        self._ending = ExitStack()
        #: The service itself, for what has no method here: `client.service.get("/v1/nodes")`.
        self.service: ServiceClient = self._ending.enter_context(service(url))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._ending.close()

    def __repr__(self) -> str:
        return f"<Client of {self.service.address.url}>"

    # ------------------------------------------------------------------ submit

    def submit(
        self,
        run: str | Sequence[str],
        *,
        name: str | None = None,
        gpus: int | str | Sequence[str] | None = None,
        gpus_min: int | None = None,
        gpus_max: int | None = None,
        nodes: int | None = None,
        cpus_per_gpu: int | None = None,
        memory_per_gpu: str | None = None,
        image: str | None = None,
        queue: str | None = None,
        app: str | None = None,
        app_scheduler: str | None = None,
        processes: str | None = None,
        envs: Mapping[str, str] | None = None,
        secrets: Sequence[str] | None = None,
        workdir: str | Path | None = None,
        setup: str | None = None,
        max_duration: float | str | None = None,
        min_runtime: float | str | None = None,
        preemptible: bool | None = None,
        deadline: float | str | None = None,
        weight: float | None = None,
        stop_signal: str | None = None,
        grace: float | str | None = None,
        checkpoint_dir: str | Path | None = None,
        max_restarts: int | None = None,
        on_exit_codes: Sequence[int] | None = None,
        steps: float | None = None,
        duration: float | str | None = None,
        throughput: Mapping[str, float] | None = None,
        job_class: str | None = None,
    ) -> Job:
        """Submit a job. The keywords are the keys of a job file (docs/reference/job-file.md), without its sections.

        A list of words is started as it stands, a text by the shell. `gpus` is a number, `"v100:4"`, or a list of such
        texts of which any will do. Lengths of time are seconds or texts such as `"90m"`. The job runs in the current
        folder unless `workdir` names another.
        """
        given = {key: value for key, value in locals().items() if key != "self" and value is not None}
        (job,) = self.submit_all([_job_file(given)])
        return job

    def submit_all(self, jobs: Sequence[Mapping[str, Any]]) -> list[Job]:
        """Submit jobs that are written as in job files (maps of keys), all or none."""
        ids = self.service.post("/v1/jobs", [dict(job) for job in jobs]).get("ids")
        if not isinstance(ids, list) or len(ids) != len(jobs):
            raise Strange("The service did not say which ids the jobs have: look for them with `horae queue`.")
        return [Job(self, str(job_id)) for job_id in ids]

    # ---------------------------------------------------------------- the jobs

    def job(self, job_id: str) -> Job:
        """A job by its id; one that the service does not know is an error."""
        job = Job(self, job_id)
        _ = job.state
        return job

    def jobs(
        self,
        *,
        all: bool = False,  # noqa: A002, as the option of `horae queue`
        user: str | None = None,
        state: str | Sequence[str] | None = None,
        queue: str | None = None,
        app: str | None = None,
        since: str | None = None,
        limit: int = 0,
    ) -> list[Job]:
        """The jobs that have not ended, oldest first; with `all`, those that have, too."""
        asked = {"all": all, "user": user, "queue": queue, "app": app, "since": since, "limit": limit}
        return [Job(self, str(record["id"])) for record in self._listed(state, {**asked, "fields": "id"})]

    def queue(
        self,
        *,
        all: bool = False,  # noqa: A002
        user: str | None = None,
        state: str | Sequence[str] | None = None,
        queue: str | None = None,
        app: str | None = None,
        since: str | None = None,
        limit: int = 0,
    ) -> list[dict[str, Any]]:
        """One record a job, as `horae queue -o json` lists them: state, GPUs, progress, and why it waits."""
        asked = {"all": all, "user": user, "queue": queue, "app": app, "since": since, "limit": limit}
        return self._listed(state, asked)

    def _listed(self, state: str | Sequence[str] | None, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        states = state if state is None or isinstance(state, str) else ",".join(state)
        return records_of(self.service.get("/v1/jobs", {**asked, "state": states}), "jobs")

    def wait(self, *jobs: Job | str, timeout_s: float | None = None) -> dict[str, str]:
        """Stay until jobs have ended; how each ended, by its id."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        ended: dict[str, str] = {}
        for job in map(self._job, jobs):
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            ended[job.id] = job.wait(left_s)
        return ended

    def cancel(self, *jobs: Job | str) -> dict[str, str]:
        """End jobs for good: those that run are told to save and go. Says of each `done`, or why not."""
        return self._request("cancel", jobs)

    def hold(self, *jobs: Job | str) -> dict[str, str]:
        """Keep jobs from running until they are released. Says of each `done`, or why not."""
        return self._request("hold", jobs)

    def release(self, *jobs: Job | str) -> dict[str, str]:
        """Let jobs that are held run again. Says of each `done`, or why not."""
        return self._request("release", jobs)

    def _request(self, what: str, jobs: Sequence[Job | str]) -> dict[str, str]:
        ids = [self._job(job).id for job in jobs]
        if not ids:
            raise UserError(f"Name at least one job to {what}.")
        response = self.service.post(f"/v1/jobs/{what}", {"ids": ids}).get("jobs")
        return {str(job): str(answer) for job, answer in dict(response or {}).items()}

    def _job(self, job: Job | str) -> Job:
        return job if isinstance(job, Job) else Job(self, job)

    # ------------------------------------------------------------- the service

    def status(self) -> dict[str, Any]:
        """The policy, its settings and the queues of the service, as `horae settings -o json` shows them."""
        return self.service.get("/v1/settings")


def _job_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as the keys of a job file. Folders begin from the current one: the service has another."""
    job: dict[str, Any] = {key: given[key] for key in given if not any(key in keys for keys in _SECTIONS.values())}
    for section, keys in _SECTIONS.items():
        inner = {theirs: given[ours] for ours, theirs in keys.items() if ours in given}
        if inner:
            job[section] = inner
    gpus = given.get("gpus")
    if isinstance(gpus, Sequence) and not isinstance(gpus, str):
        job["resources"]["gpus"] = {"any_of": list(gpus)}
    if "job_class" in job:
        job["class"] = job.pop("job_class")
    if not isinstance(job["run"], str):
        job["run"] = [str(word) for word in job["run"]]
    workdir = Path(job.get("workdir", ".")).expanduser().resolve()
    job["workdir"] = str(workdir)
    if "checkpoint_dir" in given:
        job["checkpoint"]["dir"] = str((workdir / Path(given["checkpoint_dir"]).expanduser()).resolve())
    return job
