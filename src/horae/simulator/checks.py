"""Checks of a workload before a run: jobs that the cluster could never run are refused in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from horae.core.alike_nodes import lack_of_nodes
from horae.core.apps import check_apps
from horae.core.cluster import Cluster
from horae.core.counted import counted
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.node_room import lack_of_room
from horae.core.queues import Queue, quota_below
from horae.core.throughputs import Throughputs


class CannotRun(UserError):
    """A job that this cluster could never run."""


def check_fit(jobs: Sequence[JobSpec], cluster: Cluster, throughputs: Throughputs) -> None:
    """Refuse a job that no GPU type of the cluster could ever run, by name, and a name that is used twice."""
    checked: set[tuple[object, ...]] = set()
    names: set[str] = set()
    for job in jobs:
        if job.id in names:
            raise CannotRun(f"Two jobs are called {job.id!r}: give each an id of its own.")
        names.add(job.id)
        room = (job.cpus_per_gpu, job.memory_mb_per_gpu)
        alike = (job.job_class, job.gpus, job.gpus_min, job.nodes, room, job.gpu_types, job.unit, bool(job.throughput))
        if alike in checked and not job.throughput:
            continue
        rates = throughputs.rates(job, cluster.gpu_types)
        if not (rates > 0).any():
            raise CannotRun(_no_speed(job, cluster))
        most = int(cluster.gpus_by_type[rates > 0].max())
        if most < job.gpus_min:
            raise CannotRun(
                f"Job {job.id!r} needs {counted(job.gpus_min, 'GPU')} of one type and the cluster has {most}: "
                "give a larger --cluster, or take the job out of the trace."
            )
        types = {name for name, rate in zip(cluster.gpu_types, rates.tolist(), strict=True) if rate > 0}
        if lacking := lack_of_nodes(job, [node for node in cluster.nodes if node.gpu_type in types]):
            raise CannotRun(
                f"Job {job.id!r} {lacking}: give another --cluster, or another number of nodes in the trace."
            )
        if lacking := lack_of_room(job, [node for node in cluster.nodes if node.gpu_type in types]):
            raise CannotRun(f"Job {job.id!r} {lacking}: give nodes with more, or let the job ask for less.")
        checked.add(alike)


def check_quotas(jobs: Sequence[JobSpec], queues: Sequence[Queue]) -> None:
    """Refuse a gang that is larger than its queue, or one above it, may ever have."""
    limited = [queue for queue in queues if queue.gpus_max is not None]
    for job in jobs if limited else ():
        if queue := quota_below(job.gpus_min, job.queue, limited):
            raise CannotRun(
                f"Job {job.id!r} needs {counted(job.gpus_min, 'GPU')} and queue {queue.path} may have "
                f"{queue.gpus_max}: raise gpus_max, or take the job out of the trace."
            )


def check_trials(jobs: Sequence[JobSpec]) -> None:
    """Refuse apps that cannot agree on a scheduler, and trials whose loss nobody could ever report."""
    check_apps(jobs)
    for job in jobs:
        if job.loss is None and (job.app_scheduler or job.report_every):
            raise CannotRun(
                f"Job {job.id!r} is to report its loss (app scheduler {job.app_scheduler!r}, every "
                f"{job.report_every:g}) and has none: give the trace a column loss, or leave these columns out."
            )


def _no_speed(job: JobSpec, cluster: Cluster) -> str:
    types = ", ".join(cluster.gpu_types)
    if job.gpu_types and not set(job.gpu_types) & set(cluster.gpu_types):
        return (
            f"Job {job.id!r} accepts only {', '.join(job.gpu_types)} and the cluster has {types}: change one of them."
        )
    what = (
        f"class {job.job_class!r} on {counted(job.gpus, 'GPU')}" if job.job_class else f"its {counted(job.gpus, 'GPU')}"
    )
    return (
        f"Job {job.id!r} counts its work in steps, and no throughput is known for {what} of type {types}: "
        "give --throughputs FILE, or a cluster whose type names the table knows."
    )
