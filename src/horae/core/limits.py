"""Limits of users and queues, as admins set them. Stored: change by addition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from horae.core.errors import UserError

#: Whom limits are for: each user without limits of their own; one user; one queue; everybody together.
EACH_USER, ALL_TOGETHER = "each-user", "all"
_USER, _QUEUE = "user:", "queue:"


class BadLimits(UserError):
    """Limits that cannot be set."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a user or a queue may have. None is no limit of its own.

    `gpus` and `non_preemptible_gpus` hold at every moment, under every policy: jobs beyond them wait. The others are
    checked when a job is submitted or a request comes.
    """

    #: Jobs that have not ended.
    queued_jobs: int | None = None
    #: GPUs of running jobs at a time; of jobs that are never preempted.
    gpus: int | None = None
    non_preemptible_gpus: int | None = None
    #: Longest `min_runtime`, grace and `max_duration` of a job; the `max_duration` of one that names none.
    min_runtime_s: float | None = None
    grace_s: float | None = None
    max_duration_s: float | None = None
    default_duration_s: float | None = None
    #: Requests in a second, streams and reads of logs at a time, of a user.
    requests_per_s: float | None = None
    streams: int | None = None
    log_reads: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 <= value < float("inf"):
                raise BadLimits(f"The limit {field.name} is {value}; it must be a finite number of at least 0.")
        if self.max_duration_s is not None and (self.default_duration_s or 0) > self.max_duration_s:
            raise BadLimits("The default duration is above the longest one: lower it, or leave it out.")

    def or_else(self, other: Limits) -> Limits:
        """These limits, and those of `other` where there are none."""
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(other, **{name: value for name, value in mine.items() if value is not None})

    @property
    def any(self) -> bool:
        """Whether anything is limited."""
        return self != Limits()


NO_LIMITS = Limits()
#: Limits that are for users only: a queue sends no requests, and its GPUs are `Queue.gpus_max`.
OF_USERS_ONLY = ("gpus", "requests_per_s", "streams", "log_reads")

#: Limits by whom they are for, as `of_user` and `of_queue` write it.
LimitTable = Mapping[str, Limits]


def of_user(name: str) -> str:
    """Whom limits of one user are for."""
    return f"{_USER}{name}"


def of_queue(path: str) -> str:
    """Whom limits of a queue, with the queues below it, are for; the root is everybody together."""
    return f"{_QUEUE}{path}" if path else ALL_TOGETHER


def check_limits(whom: str, limits: Limits) -> None:
    """Refuse limits for nobody, and limits of a queue that only users can have."""
    if whom == EACH_USER or (whom.startswith(_USER) and whom != _USER):
        return
    if whom != ALL_TOGETHER and (not whom.startswith(_QUEUE) or not all(whom.removeprefix(_QUEUE).split("/"))):
        raise BadLimits(f"Limits cannot be for {whom!r}: use {EACH_USER}, user:NAME, queue:PATH or {ALL_TOGETHER}.")
    wrong = [name for name in OF_USERS_ONLY if getattr(limits, name) is not None]
    if wrong:
        instead = " The GPUs of a queue are its gpus_max, in `horae settings set --queues`." if "gpus" in wrong else ""
        raise BadLimits(f"{' and '.join(wrong)} can be limited for users, not for {whom}.{instead}")


def users_limits(table: LimitTable, user: str) -> Limits:
    """What holds for a user: their own limits, else those of each user."""
    return table.get(of_user(user), NO_LIMITS).or_else(table.get(EACH_USER, NO_LIMITS))


def limits_up(table: LimitTable, path: str) -> list[tuple[str, Limits]]:
    """Limits of a queue and of the queues above it, the nearest first, everybody's last, with whom they are for."""
    parts = path.split("/")
    whom = [of_queue("/".join(parts[:depth])) for depth in range(len(parts), -1, -1)]
    return [(name, table[name]) for name in whom if name in table]


def in_words(whom: str) -> str:
    """Whom limits are for, in words."""
    if whom.startswith(_USER):
        return f"user {whom.removeprefix(_USER)}"
    if whom.startswith(_QUEUE):
        return f"queue {whom.removeprefix(_QUEUE)}"
    return "each user" if whom == EACH_USER else "all users together"
