"""Checks of jobs at submission: queue, secrets, images, size, and the limits of user and queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from horae.backends.protocol import Backend
from horae.core.alike_nodes import lack_of_nodes
from horae.core.cluster import Cluster
from horae.core.counted import counted
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.limits import LimitTable, in_words, limits_up, of_user, users_limits
from horae.core.node_room import lack_of_room
from horae.core.queues import quota_below
from horae.service.job_file import BadJobFile, JobFile
from horae.service.machines import node_numbers
from horae.service.rights import Rights, secret_files
from horae.service.roles import Caller, Forbidden
from horae.service.standby import LogFiles


class OverLimit(UserError):
    """A job beyond a limit of its user or queue."""


def admitted(caller: Caller, jobs: Sequence[JobFile], rights: Rights) -> list[JobFile]:
    """The jobs as the caller may submit them: each in a queue that is the caller's, within the scope and the limits."""
    return [_within_limits(caller, _in_queue(caller, job, rights), rights.limits) for job in jobs]


def _in_queue(caller: Caller, job: JobFile, rights: Rights) -> JobFile:
    wanted = job.queue
    if caller.scope.queue and "queue" not in job.model_fields_set:
        wanted = caller.scope.queue
    queue = rights.queue_for(caller, wanted)
    if caller.scope.app and job.app != caller.scope.app:
        raise Forbidden(f"This token is for app {caller.scope.app} only: submit with --app {caller.scope.app}.")
    return job if queue == job.queue else job.model_copy(update={"queue": queue})


def _within_limits(caller: Caller, job: JobFile, table: LimitTable) -> JobFile:
    """The job, with the duration that limits give it; refused if it is beyond a limit on single jobs."""
    if caller.is_admin:
        return job
    own = (of_user(caller.user), users_limits(table, caller.user))
    gpus = job.resources.gpus_min or job.resources.wanted()[0]
    for whom, limits in (own, *limits_up(table, job.queue)):
        if job.max_duration is None and limits.default_duration_s is not None:
            job = job.model_copy(update={"max_duration": limits.default_duration_s})
        if job.preemptible:
            _check_most("min_runtime", job.min_runtime, limits.min_runtime_s, whom, "s")
        else:
            _check_most("non-preemptible GPUs", gpus, limits.non_preemptible_gpus, whom)
        _check_most("GPUs", gpus, limits.gpus, whom)
        _check_most("checkpoint.grace", job.checkpoint.grace, limits.grace_s, whom, "s")
        if limits.max_duration_s is not None and job.max_duration is None:
            job = job.model_copy(update={"max_duration": limits.max_duration_s})
        _check_most("max_duration", job.max_duration or 0.0, limits.max_duration_s, whom, "s")
    return job


def _check_most(what: str, asked: float, most: float | None, whom: str, unit: str = "") -> None:
    if most is not None and asked > most:
        unit = f" {unit}" if unit else ""
        raise OverLimit(
            f"The job asks for {what} of {asked:g}{unit} and {in_words(whom)} may have at most {most:g}{unit}: ask for "
            "less, or ask an admin for a higher limit (`horae limits` shows them)."
        )


class QueuedJobs:
    """Counts jobs that have not ended against limits. For the daemon's thread only."""

    def __init__(self) -> None:
        #: Jobs that were accepted in this cycle and are not in the engine yet, by whom they count for.
        self._accepted: Counter[str] = Counter()
        self._accepted_s = 0.0

    def check(self, specs: Sequence[JobSpec], engine: Engine, now_s: float) -> Counter[str]:
        """Refuse jobs beyond a limit on queued jobs; returns how many count for whom, for `accept`."""
        if now_s != self._accepted_s:
            self._accepted, self._accepted_s = Counter(), now_s
        table = engine.queues.limits
        if all(limits.queued_jobs is None for limits in table.values()):
            return Counter()
        new = Counter(whom for spec in specs if not spec.exempt for whom in _counts_for(spec, table))
        jobs = engine.jobs
        live = [jobs.specs[row] for row in np.flatnonzero(np.isinf(jobs.ended_s[: len(jobs)])).tolist()]
        there = Counter(whom for spec in live if not spec.exempt for whom in _counts_for(spec, table) if whom in new)
        for whom, count in new.items():
            most = _most_queued(whom, table)
            if there[whom] + self._accepted[whom] + count > most:
                raise OverLimit(
                    f"{in_words(whom).capitalize()} may have at most {counted(most, 'job')} that wait or run, and has "
                    f"{there[whom] + self._accepted[whom]}: wait for some to end, or cancel some."
                )
        return new

    def accept(self, counts: Mapping[str, int]) -> None:
        """Count jobs that were accepted."""
        self._accepted.update(counts)


def _counts_for(spec: JobSpec, table: LimitTable) -> list[str]:
    """Whose limits on queued jobs a job counts for."""
    queues = [whom for whom, limits in limits_up(table, spec.queue) if limits.queued_jobs is not None]
    return [*([of_user(spec.user)] if users_limits(table, spec.user).queued_jobs is not None else []), *queues]


def _most_queued(whom: str, table: LimitTable) -> int:
    limits = users_limits(table, whom.removeprefix("user:")) if whom.startswith("user:") else table[whom]
    assert limits.queued_jobs is not None
    return limits.queued_jobs


def find_secrets(caller: Caller, jobs: Sequence[JobFile], backend: Backend | LogFiles) -> list[dict[str, str]]:
    """For each job, the file of each of its secrets; a secret that is not there for the caller is refused.

    A secret of somebody else is as good as none.
    """
    places = [
        {name: secret_files(name, caller.user, job.queue, caller.is_admin) for name in job.secrets} for job in jobs
    ]
    kept = backend.secrets(dict.fromkeys(path for job in places for paths in job.values() for path in paths))
    found: list[dict[str, str]] = []
    for job in places:
        found.append({})
        for name, paths in job.items():
            path = next((path for path in paths if path in kept), None)
            if path is None:
                raise BadJobFile(
                    f"This service has no secret {name!r} for you: remove it from the job, or ask the operator to add "
                    "it to the folder of `horae serve --secrets`, below users, queues or all."
                )
            found[-1][name] = path
    return found


def check_images(jobs: Sequence[JobFile], backend: Backend | LogFiles) -> None:
    """Refuse jobs with an image if the backend has no containers: another program than the one meant would run."""
    images = [job.resources.image for job in jobs if job.resources.image]
    if images and "image" not in backend.honours:
        raise BadJobFile(
            f"This service's backend has no containers, so that it cannot run the image {images[0]!r}: leave out "
            "resources.image, and install what the job needs on the nodes."
        )


def check_startable(specs: Sequence[JobSpec], cluster: Cluster, engine: Engine) -> None:
    """Refuse jobs that can never run: they need more GPUs or nodes than any GPU type has, or than their queue may."""
    for spec in specs:
        if cluster.nodes:  # a cluster may begin empty, and grow when jobs wait
            _check_size(spec, cluster)
        if queue := quota_below(spec.gpus_min, spec.queue, engine.queues.configured):
            raise BadJobFile(
                f"Queue {queue.path} may use at most {counted(queue.gpus_max or 0, 'GPU')} and the job needs "
                f"{spec.gpus_min}: ask for fewer GPUs, or for a larger quota."
            )


def _check_size(spec: JobSpec, cluster: Cluster) -> None:
    """Refuse a job that needs more GPUs, nodes, CPUs or memory than any GPU type has."""
    types = spec.gpu_types or cluster.gpu_types
    nodes = [cluster.nodes[number] for number in node_numbers(cluster).values()]
    usable = [node for node in nodes if node.gpu_type in types]
    largest = max(sum(node.gpus for node in nodes if node.gpu_type == name) for name in types)
    name = spec.id.rpartition("-")[0]
    if spec.gpus_min > largest:
        raise BadJobFile(
            f"Job {name!r} needs {counted(spec.gpus_min, 'GPU')} of one type, but there are only {largest}: "
            "ask for fewer GPUs."
        )
    if lacking := lack_of_nodes(spec, usable):
        raise BadJobFile(f"Job {name!r} {lacking}: ask for another number of nodes or GPUs.")
    if lacking := lack_of_room(spec, usable):
        raise BadJobFile(f"Job {name!r} {lacking}: ask for less with each GPU, or for fewer GPUs.")
