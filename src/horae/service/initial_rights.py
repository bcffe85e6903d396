"""Rights and limits of a new service, and what the operator of an older one is told."""

from __future__ import annotations

from pathlib import Path

from horae.backends.found_jobs import FindsJobs
from horae.backends.protocol import Backend
from horae.core.engine import Engine
from horae.core.events import SettingsChanged
from horae.core.limits import ALL_TOGETHER, EACH_USER, Limits
from horae.core.queues import UnknownQueues
from horae.service.daemon import Change, Daemon
from horae.service.store.stored_records import Act
from horae.service.tokens import operator

#: Non-preemptible GPUs of each user, and of all users together, as a part of the GPUs of the first start.
_USERS_PART, _TOGETHER_PART = 4, 2
#: GPUs that count if no node is in sight at the first start.
_UNSEEN_GPUS = 16
MIN_RUNTIME_S, GRACE_S = 3600.0, 600.0


def first_limits(gpus: int) -> dict[str, Limits]:
    """Limits of a new service: nobody takes the cluster for ever by jobs that cannot be preempted.

    Half of the GPUs are always left to jobs that share them. Limits on jobs, GPUs and durations are for the operator to
    set, who knows the users.
    """
    gpus = gpus or _UNSEEN_GPUS
    each = Limits(non_preemptible_gpus=max(1, gpus // _USERS_PART), min_runtime_s=MIN_RUNTIME_S, grace_s=GRACE_S)
    return {EACH_USER: each, ALL_TOGETHER: Limits(non_preemptible_gpus=max(1, gpus // _TOGETHER_PART))}


def begin_rights(daemon: Daemon, backend: Backend, is_first: bool) -> list[str]:
    """Set the limits of a new service; of an older one without any, return what its operator should know.

    Jobs that the backend found keep what their cluster manager allowed: nothing is set for them.
    """
    if isinstance(backend, FindsJobs):
        return []
    status = daemon.status
    if not is_first:
        is_bare = not status.limits and status.unknown_queues is UnknownQueues.OPEN
        return [_OLDER] if is_bare else []

    def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
        limits = first_limits(engine.gpus.cluster.gpus)
        event = SettingsChanged(now_s, limits=limits, unknown_queues=UnknownQueues.REFUSE)
        return Change((event,), (), (Act(now_s, operator(), "limit", "service", "of a new service"),)), None

    daemon.ask(prepare)
    return []


_OLDER = (
    "This service has no limits, and everybody may make queues, as before: `horae limits set --non-preemptible-gpus 2` "
    "and `horae settings set --unknown-queues refuse` change that."
)


def secret_notes(folder: Path | None) -> list[str]:
    """What the operator should know about a folder of secrets: files right in it are for jobs of admins."""
    plain = sorted(path.name for path in folder.iterdir() if path.is_file()) if folder and folder.is_dir() else []
    if not plain:
        return []
    names = ", ".join(plain[:3]) + (", ..." if len(plain) > 3 else "")
    where = "move them to all/, users/NAME/ or queues/PATH/ in it for others"
    return [f"Secrets right in {folder} ({names}) are for jobs of admins: {where}."]
