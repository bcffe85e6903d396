"""Who may do what: the one place that decides about jobs, apps, queues, secrets and limits.

Roles and scopes of tokens are in `roles.py`, members and admins of queues in the queue tree, limits in
`core/limits.py`.
"""

from __future__ import annotations

import grp
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from horae.backends.task import Task
from horae.core.errors import did_you_mean
from horae.core.job import DEFAULT_QUEUE, JobSpec
from horae.core.limits import ALL_TOGETHER, Limits, LimitTable, users_limits
from horae.core.queues import Queue, UnknownQueues
from horae.core.status import ClusterStatus
from horae.service.roles import Caller, Forbidden, NotFound, Role

#: Queues of a user's own are below this one, and the user's name.
USERS_QUEUE = "users"
#: Begins the name of a group of the service's machine, in lists of members and admins.
_GROUP = "@"
_OTHERS_JOB = re.compile(r"\b([Jj])ob ([a-z0-9][a-z0-9._-]*-\d+)( of [A-Za-z0-9._@-]+(?<![.]))?")


@dataclass(frozen=True)
class Rights:
    """What callers may do with the jobs and queues of one cluster status."""

    queues: Mapping[str, Queue]
    unknown_queues: UnknownQueues
    limits: LimitTable

    @staticmethod
    def of(status: ClusterStatus) -> Rights:
        """The rights of a moment."""
        return Rights(status.queues, status.unknown_queues, status.limits)

    # -------------------------------------------------------------------- jobs

    def sees(self, caller: Caller, user: str, spec: JobSpec) -> bool:
        """Whether the caller may see a job: its name, user, queue, state, GPUs and events."""
        if not caller.scope.covers(spec.queue, spec.app_id):
            return False
        return caller.role is not Role.USER or self._owns(caller, user, spec)

    def sees_details(self, caller: Caller, user: str, spec: JobSpec) -> bool:
        """Whether the caller may also see a job's command line, names of variables and secrets, and log."""
        if not caller.scope.covers(spec.queue, spec.app_id):
            return False
        return caller.role in (Role.ADMIN, Role.VIEWER) or self._owns(caller, user, spec)

    def check_act(self, caller: Caller, user: str, spec: JobSpec, what: str) -> None:
        """Refuse a caller who sees a job and may not change it: it is another's, and the queue is not theirs either."""
        if caller.role is not Role.ADMIN and not self._owns(caller, user, spec):
            raise Forbidden(
                f"Job {spec.id} is {user}'s: only {user}, an admin of queue {spec.queue} or an admin may {what} it."
            )

    def _owns(self, caller: Caller, user: str, spec: JobSpec) -> bool:
        """Whether a job is the caller's, or in a queue that the caller is an admin of."""
        return user == caller.user or (caller.role is not Role.VIEWER and self.is_admin_of(caller, spec.queue))

    # ------------------------------------------------------------------ queues

    def is_admin_of(self, caller: Caller, path: str) -> bool:
        """Whether the caller is an admin of a queue or of one above it."""
        return any(is_among(caller.user, queue.admins) for queue in self._up(path))

    def queue_for(self, caller: Caller, path: str) -> str:
        """The queue that a job of the caller goes to; refuses a queue that is unknown, or not the caller's."""
        path = self._resolve(caller, path)
        if not caller.scope.covers(path, caller.scope.app):
            raise Forbidden(
                f"This token is for queue {caller.scope.queue} only: submit with --queue {caller.scope.queue}."
            )
        closed = [queue for queue in self._up(path) if queue.members]
        is_member = any(is_among(caller.user, (*queue.members, *queue.admins)) for queue in self._up(path))
        if closed and not is_member and not caller.is_admin:
            raise Forbidden(
                f"Queue {path} is for the members of queue {closed[0].path}: ask an admin to add you, or use another "
                "queue with --queue."
            )
        return path

    def _resolve(self, caller: Caller, path: str) -> str:
        own = f"{USERS_QUEUE}/{caller.user}"
        if path == DEFAULT_QUEUE or self.unknown_queues is UnknownQueues.OPEN or self._is_configured(path):
            return path
        if self.unknown_queues is UnknownQueues.USERS:
            return path if f"{path}/".startswith(f"{own}/") else f"{own}/{path}"
        raise NotFound(
            f"There is no queue {path!r}.{did_you_mean(path, self.queues)} `horae settings` lists them; leave out "
            "--queue for the default queue, or ask an admin to add it."
        )

    def _is_configured(self, path: str) -> bool:
        return any(f"{configured}/".startswith(f"{path}/") for configured in self.queues)

    def _up(self, path: str) -> Iterator[Queue]:
        """The configured queues from a path up."""
        parts = path.split("/")
        paths = ("/".join(parts[:depth]) for depth in range(len(parts), 0, -1))
        return (self.queues[name] for name in paths if name in self.queues)

    # ------------------------------------------------------------------ limits

    def limits_of(self, caller: Caller) -> Limits:
        """The limits of a caller as a user; none for an admin."""
        return Limits() if caller.is_admin else users_limits(self.limits, caller.user)

    def check_set_limits(self, caller: Caller, whom: str) -> None:
        """Refuse a caller who may not set these limits. Admins of a queue set those of the queues below it."""
        path = whom.removeprefix("queue:") if whom.startswith("queue:") else ""
        above = path.rpartition("/")[0]
        if caller.is_admin or (above and not caller.scope and self.is_admin_of(caller, above)):
            return
        more = "" if whom == ALL_TOGETHER or not above else f", or an admin of queue {above},"
        raise Forbidden(f"Only an admin{more} may set these limits: ask one.")


def is_among(user: str, names: Iterable[str]) -> bool:
    """Whether a user is in a list of users and groups."""
    return any(name == user or (name.startswith(_GROUP) and _is_in_group(user, name[1:])) for name in names)


def _is_in_group(user: str, group: str) -> bool:
    """Whether a user is in a group of this machine."""
    try:
        entry = grp.getgrnam(group)
    except KeyError:
        return False
    try:
        return user in entry.gr_mem or pwd.getpwnam(user).pw_gid == entry.gr_gid
    except KeyError:
        return False


def secret_files(name: str, user: str, queue: str, by_admin: bool) -> list[str]:
    """Where a secret may be for a job, below the folder of secrets: the user's own, the queue's, everybody's.

    Files right in the folder are for jobs of admins.
    """
    parts = queue.split("/")
    above = ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
    places = [f"users/{user}", *(f"queues/{path}" for path in above), "all"]
    return [*(f"{place}/{name}" for place in places), *([name] if by_admin else [])]


def without_others_names(text: str, tasks: Mapping[str, Task], sees: Callable[[str], bool]) -> str:
    """A sentence without the names of jobs that the caller may not see, and of their users."""

    def shown(found: re.Match[str]) -> str:
        if found[2] not in tasks or sees(found[2]):
            return found[0]
        return "Another user's job" if found[1] == "J" else "another user's job"

    return _OTHERS_JOB.sub(shown, text)
