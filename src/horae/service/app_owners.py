"""Whose each app is: the user's whose job is the first of it that has not ended."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horae.backends.task import Task
from horae.core.app_schedulers import BadAppScheduler
from horae.core.engine import Engine
from horae.core.job import JobSpec
from horae.core.job_table import JobTable
from horae.core.states import ENDED, STATES
from horae.core.status import ClusterStatus
from horae.service.roles import Forbidden


@dataclass(frozen=True)
class _App:
    """What all jobs of an app have in common."""

    owner: str
    scheduler: str

    def check(self, user: str, spec: JobSpec) -> None:
        """Refuse a job that does not belong here."""
        if user != self.owner:
            raise Forbidden(f"App {spec.app!r} is somebody else's until its last job has ended: choose another name.")
        if spec.app_scheduler != self.scheduler:
            raise BadAppScheduler(
                f"App {spec.app!r} has the scheduler {self.scheduler or 'run-all'!r}, not "
                f"{spec.app_scheduler or 'run-all'!r}: give all its jobs the same."
            )


class AppOwners:
    """Apps and their jobs, kept up as jobs come, so that no submission looks at all jobs. For the daemon's thread."""

    def __init__(self) -> None:
        #: Rows of each app that has a name; from the front, those that have ended are dropped when somebody asks.
        self._rows: dict[str, deque[int]] = {}
        #: The table that the rows are of, and how many of it are known: when jobs leave, there is a new one.
        self._table: JobTable | None = None
        self._seen = 0
        #: Apps of jobs that were taken at this very moment, and that the engine does not have yet.
        self._claimed: dict[str, _App] = {}
        self._claimed_s = 0.0

    def catch_up(self, engine: Engine, now_s: float) -> None:
        """Learn of the jobs that came since."""
        if engine.jobs is not self._table:
            self._table, self._rows, self._seen = engine.jobs, {}, 0
        specs = engine.jobs.specs
        for row in range(self._seen, len(specs)):
            if specs[row].app:
                self._rows.setdefault(specs[row].app, deque()).append(row)
        self._seen = len(specs)
        if now_s != self._claimed_s:
            self._claimed, self._claimed_s = {}, now_s

    def knows(self, app: str) -> bool:
        """Whether a name is, or was not long ago, an app's."""
        return app in self._rows or app in self._claimed

    def owner(self, app: str, engine: Engine, tasks: Mapping[str, Task]) -> str | None:
        """The user whose app this is, if it has jobs that have not ended."""
        found = self._living(app, engine, tasks)
        return found.owner if found else None

    def check(self, user: str, specs: Sequence[JobSpec], engine: Engine, tasks: Mapping[str, Task]) -> dict[str, _App]:
        """Refuse jobs of apps that are others', or have another scheduler; returns the apps, for `claim`."""
        apps: dict[str, _App] = {}
        for spec in specs:
            app = apps.get(spec.app_id) or self._claimed.get(spec.app_id) or self._living(spec.app_id, engine, tasks)
            apps[spec.app_id] = app or _App(user, spec.app_scheduler)
            apps[spec.app_id].check(user, spec)
        return apps

    def claim(self, apps: Mapping[str, _App]) -> None:
        """The jobs of these apps are taken."""
        self._claimed.update(apps)

    def _living(self, app: str, engine: Engine, tasks: Mapping[str, Task]) -> _App | None:
        jobs, rows = engine.jobs, self._rows.get(app, deque())
        while rows and STATES[jobs.state[rows[0]]] in ENDED:
            rows.popleft()
        first = jobs.specs[rows[0]] if rows else self._alone(app, engine)
        return _App(tasks[first.id].user, first.app_scheduler) if first else None

    def _alone(self, app: str, engine: Engine) -> JobSpec | None:
        """The job of that name which is an app of its own, if it has not ended."""
        jobs, row = engine.jobs, engine.jobs.rows.get(app, -1)
        there = row >= 0 and not jobs.specs[row].app and STATES[jobs.state[row]] not in ENDED
        return jobs.specs[row] if there else None


class Tenures:
    """Whose each app was, and since when: a name goes from hand to hand. Kept up as jobs come; for any thread."""

    def __init__(self) -> None:
        #: Moments at which an app went to another user, and these users, in order.
        self._since: dict[str, tuple[list[float], list[str]]] = {}
        #: The jobs that this was learnt from, and how many of them are known: when jobs leave, these are others.
        self._jobs: object = None
        self._seen = 0
        self._lock = threading.Lock()

    def owner(self, app: str, at_s: float, standing: ClusterStatus, tasks: Mapping[str, Task]) -> str | None:
        """The user whose app it was at a moment, or had been last; None if it was nobody's yet."""
        with self._lock:
            if standing.jobs is not self._jobs:
                self._jobs, self._since, self._seen = standing.jobs, {}, 0
            for row in range(self._seen, len(standing)):
                self._learn(standing.spec(row), tasks)
            self._seen = max(self._seen, len(standing))
            since, users = self._since.get(app, ((), ()))
            number = bisect_right(since, at_s)
            return users[number - 1] if number else None

    def _learn(self, spec: JobSpec, tasks: Mapping[str, Task]) -> None:
        since, users = self._since.setdefault(spec.app_id, ([], []))
        user = tasks[spec.id].user
        if not users or users[-1] != user:
            since.append(spec.submit_s)
            users.append(user)
