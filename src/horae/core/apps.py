"""Apps that have a scheduler: the losses their trials reported, trials given up, and turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor
from typing import Any, ClassVar

import numpy as np

from horae.core.app_schedulers import AppScheduler, AppTrials, BadAppScheduler, make_app_scheduler
from horae.core.arrays import Ints
from horae.core.commands import GivenUp
from horae.core.declared import Rows, Stored
from horae.core.job import JobSpec
from horae.core.job_table import JobTable
from horae.core.straight_lines import along


class AppBook:
    """The engine's record of apps with a scheduler. Apps without a scheduler are not recorded here.

    `ask` asks the app schedulers once for all the reports of an instant. The answer is part of the decision's
    record, so that recovery asks no scheduler.
    """

    STORED: ClassVar[dict[str, Stored]] = {
        "losses": Stored(dict[int, tuple[float, ...]], Rows.KEYS),
        "news": Stored(list[int], Rows.APPS),
        "given_up": Stored(dict[int, str], Rows.KEYS),
    }

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._scheduler: dict[int, AppScheduler] = {}
        #: Rows of each app's trials, and the rungs of each trial.
        self._trials: dict[int, list[int]] = {}
        self._rungs: dict[int, tuple[float, ...]] = {}
        #: Loss of each trial at the rungs it has reported, in order.
        self._losses: dict[int, list[float]] = {}
        #: Apps with a report or an ended trial since their scheduler was last asked.
        self._news: dict[int, None] = {}
        #: Rows that were given up, and why.
        self.given_up: dict[int, str] = {}

    def add(self, row: int) -> None:
        """Add a new job. The first job of an app that names a scheduler sets the scheduler of the app."""
        spec, app = self._table.specs[row], int(self._table.app[row])
        if spec.app_scheduler and app not in self._scheduler:
            self._scheduler[app] = make_app_scheduler(spec.app_scheduler)
            self._trials[app] = []
        if app in self._scheduler:
            self._rungs[row] = self._scheduler[app].rungs(len(self._trials[app]), spec.work)
            self._losses[row] = []
            self._trials[app].append(row)

    def report_at(self, row: int, work_done: float) -> tuple[float, ...]:
        """Amounts of work at which an attempt should report its loss: the open rungs, and every `report_every`."""
        spec = self._table.specs[row]
        rungs = self._rungs[row][len(self._losses[row]) :] if row in self._rungs else ()
        if not spec.report_every:
            return rungs
        first = floor(max(work_done, np.nan_to_num(self._table.loss_work[row])) / spec.report_every) + 1
        last = floor(spec.work / spec.report_every)
        regular = (k * spec.report_every for k in range(first, last + 1))
        return tuple(sorted({*rungs, *(amount for amount in regular if amount < spec.work)}))

    def heard(self, row: int, work_done: float, loss: float) -> None:
        """Take the loss that a trial reported. It counts for all rungs passed since the trial's last report."""
        losses, rungs = self._losses.get(row), self._rungs.get(row, ())
        while losses is not None and len(losses) < len(rungs) and work_done >= rungs[len(losses)]:
            losses.append(loss)
            self.notice(row)

    def notice(self, row: int) -> None:
        """Let the next decision ask the scheduler of this job's app, if the app has a scheduler."""
        if row in self._rungs:
            self._news[int(self._table.app[row])] = None

    @property
    def has_news(self) -> bool:
        """Whether the scheduler of any app must be asked."""
        return bool(self._news)

    def ask(self, now_s: float) -> tuple[tuple[GivenUp, ...], tuple[tuple[int, int], ...]]:
        """Trials that the apps with news give up, and (row, new turn) for each row whose turn changes."""
        given_up: list[GivenUp] = []
        turns: list[tuple[int, int]] = []
        for app in self._news:
            rows, view = self._trials[app], self._view(app, now_s)
            for position, why in sorted(self._scheduler[app].give_up(view).items()):
                given_up.append(GivenUp(self._table.specs[rows[position]].id, why))
            wanted = self._scheduler[app].turns(view).tolist()
            turns += [(row, turn) for row, turn in zip(rows, wanted, strict=True) if turn != self._table.turn[row]]
        return tuple(given_up), tuple(turns)

    def less_paused(self, rows: Ints) -> Ints:
        """The given rows without the trials that their apps pause."""
        return rows[self._table.turn[rows] >= 0] if self._scheduler else rows

    def clear_news(self) -> None:
        """Note that the schedulers were asked."""
        self._news.clear()

    def _view(self, app: int, now_s: float) -> AppTrials:
        table, rows = self._table, np.array(self._trials[app], np.int64)
        left = along(now_s, rows, table.work_left, table.rate, table.since_s, -1.0)
        width = max(len(self._rungs[row]) for row in self._trials[app])
        return AppTrials(
            app=table.apps[app],
            work=table.work[rows],
            work_done=table.work[rows] - np.maximum(left, 0.0),
            state=table.state[rows],
            rungs=_padded([self._rungs[row] for row in self._trials[app]], width),
            losses=_padded([self._losses[row] for row in self._trials[app]], width),
        )

    def contents(self) -> dict[str, Any]:
        """Everything here that does not follow from the jobs themselves, as plain values."""
        losses = {row: tuple(losses) for row, losses in self._losses.items() if losses}
        return {"losses": losses, "news": list(self._news), "given_up": dict(self.given_up)}

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Take over what `contents` gave, for the jobs that the table has."""
        for row in range(len(self._table)):
            self.add(row)
        self._losses.update({row: list(losses) for row, losses in contents["losses"].items()})
        self._news = dict.fromkeys(contents["news"])
        self.given_up = dict(contents["given_up"])


def _padded(lists: list[Any], width: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Lists of different lengths as rows of one array, padded with NaN."""
    return np.array([[*values, *[np.nan] * (width - len(values))] for values in lists], np.float64).reshape(-1, width)


def check_apps(jobs: Iterable[JobSpec]) -> None:
    """Refuse an app whose jobs name different schedulers."""
    chosen: dict[str, JobSpec] = {}
    for job in jobs:
        first = chosen.setdefault(job.app, job) if job.app else job
        if first.app_scheduler != job.app_scheduler:
            raise BadAppScheduler(
                f"Jobs {first.id!r} and {job.id!r} of app {job.app!r} name the app schedulers {first.app_scheduler!r} "
                f"and {job.app_scheduler!r}: give all jobs of an app the same."
            )
