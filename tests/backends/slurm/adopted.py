"""An adopted job and what Slurm shows of it, of which only the interesting part is named."""

from __future__ import annotations

from typing import Any

from horae.backends.slurm.adopted_job import AdoptedSlurmJob
from horae.backends.slurm.adoption_steps import Moment
from horae.backends.slurm.queue_listing import FAR, QueuedJob

SUBMITTED = "2026-01-01T10:00:00"
KEY = f"slurm:17@{SUBMITTED}"


def adopted(**more: Any) -> AdoptedSlurmJob:
    """A job of ann on one node that the service knows as a.17-1."""
    given: dict[str, Any] = {"job": "a.17-1", "submitted": SUBMITTED, "utc": True, "work": 100.0, **more}
    given = {"duration_s": 1000.0, **given}
    return AdoptedSlurmJob(key=KEY, slurm_id="17", user="ann", document={}, node_count=1, gpus_per_node=4, **given)


def attempt(**more: Any) -> AdoptedSlurmJob:
    """The same job with its first attempt on v1."""
    return adopted(**{"attempt": 1, "nodes": ("v1",), **more})


def shown(state: str = "PENDING", reason: str = "BeginTime", **more: Any) -> QueuedJob:
    """What the list shows: a job that waits and is postponed, or one that runs on v1."""
    runs = state in ("RUNNING", "COMPLETING")
    is_held = "JobHeld" in reason or "requeued" in reason
    given: dict[str, Any] = {
        "priority": 0 if is_held else 1000,
        "hosts": ("v1",) if runs else (),
        "submitted": SUBMITTED,
        "restarts": 0,
        "code": 0,
        "eligible": SUBMITTED if runs else FAR,
        "run_s": 60.0 if runs else 0.0,
        "dependency": "",
        **more,
    }
    return QueuedJob("17", "gpu", "ann", state, "None" if runs and reason == "BeginTime" else reason, **given)


def moment(now_s: float = 1000.0, in_sight_s: float = 500.0, hosts: tuple[str, ...] = ("v1", "v2")) -> Moment:
    """A moment at which the controller and these hosts have been in sight for a while."""
    return Moment(now_s, now_s - in_sight_s, dict.fromkeys(hosts, now_s - in_sight_s))
