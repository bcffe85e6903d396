"""Owners of apps: an app belongs to the user of its oldest job that has not ended."""

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
    """Owner and scheduler of an app, the same for all its jobs."""

    owner: str
    scheduler: str

    def check(self, user: str, spec: JobSpec) -> None:
        """Refuse a job of another user or with another app scheduler."""
        if user != self.owner:
            raise Forbidden(f"App {spec.app!r} belongs to another user while it has jobs: choose another name.")
        if spec.app_scheduler != self.scheduler:
            raise BadAppScheduler(
                f"App {spec.app!r} has the scheduler {self.scheduler or 'run-all'!r}, not "
                f"{spec.app_scheduler or 'run-all'!r}: use the same for all its jobs."
            )


class AppOwners:
    """Current owners of apps, updated as jobs come, so that a submission need not read all jobs.

    For the daemon's thread only.
    """

    def __init__(self) -> None:
        #: Rows of the jobs of each named app, oldest first. Ended jobs at the front are dropped on access.
        self._rows: dict[str, deque[int]] = {}
        #: The job table of these rows, and the number of rows read. Retirement replaces the table.
        self._table: JobTable | None = None
        self._rows_read = 0
        #: Apps of jobs that were accepted in this cycle and are not in the engine yet.
        self._claimed: dict[str, _App] = {}
        self._claimed_s = 0.0

    def catch_up(self, engine: Engine, now_s: float) -> None:
        """Read the jobs submitted since the last call."""
        if engine.jobs is not self._table:
            self._table, self._rows, self._rows_read = engine.jobs, {}, 0
        specs = engine.jobs.specs
        for row in range(self._rows_read, len(specs)):
            if specs[row].app:
                self._rows.setdefault(specs[row].app, deque()).append(row)
        self._rows_read = len(specs)
        if now_s != self._claimed_s:
            self._claimed, self._claimed_s = {}, now_s

    def has_app(self, app: str) -> bool:
        """Whether an app of this name exists or existed recently."""
        return app in self._rows or app in self._claimed

    def owner(self, app: str, engine: Engine, tasks: Mapping[str, Task]) -> str | None:
        """The owner of an app; None if all its jobs have ended."""
        app_state = self._active_app(app, engine, tasks)
        return app_state.owner if app_state else None

    def check(self, user: str, specs: Sequence[JobSpec], engine: Engine, tasks: Mapping[str, Task]) -> dict[str, _App]:
        """Refuse jobs for apps of other users or with another app scheduler; returns the apps, for `claim`."""
        apps: dict[str, _App] = {}
        for spec in specs:
            app = apps.get(spec.app_id) or self._claimed.get(spec.app_id)
            app = app or self._active_app(spec.app_id, engine, tasks)
            apps[spec.app_id] = app or _App(user, spec.app_scheduler)
            apps[spec.app_id].check(user, spec)
        return apps

    def claim(self, apps: Mapping[str, _App]) -> None:
        """Record the apps of jobs that were accepted."""
        self._claimed.update(apps)

    def _active_app(self, app: str, engine: Engine, tasks: Mapping[str, Task]) -> _App | None:
        jobs, rows = engine.jobs, self._rows.get(app, deque())
        while rows and STATES[jobs.state[rows[0]]] in ENDED:
            rows.popleft()
        first = jobs.specs[rows[0]] if rows else self._app_of_its_own(app, engine)
        return _App(tasks[first.id].user, first.app_scheduler) if first else None

    def _app_of_its_own(self, app: str, engine: Engine) -> JobSpec | None:
        """The job with this id that is an app of its own; None if it has ended."""
        jobs, row = engine.jobs, engine.jobs.rows.get(app, -1)
        is_active = row >= 0 and not jobs.specs[row].app and STATES[jobs.state[row]] not in ENDED
        return jobs.specs[row] if is_active else None


class AppOwnerHistory:
    """Owners of apps over time: a name may pass from user to user. Updated as jobs come; thread-safe."""

    def __init__(self) -> None:
        #: By app: times (s) at which the app passed to another user, and these users, in order.
        self._since: dict[str, tuple[list[float], list[str]]] = {}
        #: Identity of the job table that was read, and the number of rows read. Retirement replaces the table.
        self._jobs: object = None
        self._rows_read = 0
        self._lock = threading.Lock()

    def owner(self, app: str, at_s: float, status: ClusterStatus, tasks: Mapping[str, Task]) -> str | None:
        """The owner of an app at `at_s`, or its last owner before; None if the app did not exist yet."""
        with self._lock:
            if status.jobs is not self._jobs:
                self._jobs, self._since, self._rows_read = status.jobs, {}, 0
            for row in range(self._rows_read, len(status)):
                self._add_job(status.spec(row), tasks)
            self._rows_read = max(self._rows_read, len(status))
            since, users = self._since.get(app, ((), ()))
            number = bisect_right(since, at_s)
            return users[number - 1] if number else None

    def _add_job(self, spec: JobSpec, tasks: Mapping[str, Task]) -> None:
        since, users = self._since.setdefault(spec.app_id, ([], []))
        user = tasks[spec.id].user
        if not users or users[-1] != user:
            since.append(spec.submit_s)
            users.append(user)
