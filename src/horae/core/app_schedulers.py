"""App schedulers: which trials an app gives up, and which run first. Pure functions of the reported losses.

An app scheduler is a small frozen dataclass with three methods; `SCHEDULERS` is the registry.
The engine asks it when a trial of the app has reached a rung or ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Bools, Floats, Ints
from horae.core.errors import UserError, did_you_mean
from horae.core.states import ENDED, ENDING


class BadAppScheduler(UserError):
    """An app scheduler that does not exist, or a setting that it cannot take."""


@dataclass(frozen=True)
class AppTrials:
    """What an app scheduler sees: the trials of its app, as columns in order of submission."""

    app: str
    #: Work of each trial, and the work done so far as the engine estimates it.
    work: Floats
    work_done: Floats
    #: `State` of each trial.
    state: NDArray[np.uint8]
    #: Work at which each trial (rows) reports to the app; NaN beyond its last rung.
    rungs: Floats
    #: Loss that each trial reported at each rung; NaN where it has not reported.
    losses: Floats

    @property
    def alive(self) -> Bools:
        """Which trials may still report a loss."""
        return ~np.isin(self.state, [int(state) for state in (*ENDED, *ENDING)])


#: Turn of a trial that pauses until its rung is decided.
PAUSED = -1


class AppScheduler(Protocol):
    """The rule by which an app continues its trials. Pure."""

    def rungs(self, position: int, work: float) -> tuple[float, ...]:
        """Rungs of the app's trial number `position` (from 0): rising amounts of work, all below `work`."""
        ...

    def give_up(self, view: AppTrials) -> Mapping[int, str]:
        """Trials to give up: position to the reason, worded as the end of a sentence."""
        ...

    def turns(self, view: AppTrials) -> Ints:
        """Turn of each trial: a lower turn gets GPUs first, a turn below 0 gets none for now."""
        ...


@dataclass(frozen=True)
class Halving:
    """Successive halving: at every rung the best 1/eta of the trials go on (Jamieson and Talwalkar, AISTATS '16).

    A rung is decided when every trial still in the race has reported there or ended. Until then the trials that
    have reported pause, so that the work done does not depend on which trial runs first. Trials that are submitted
    late join the race at the first rung.
    """

    eta: int = 3
    rung_count: int = 3

    def rungs(self, position: int, work: float) -> tuple[float, ...]:
        """Each rung is 1/eta of the next; the last is 1/eta of all work."""
        return tuple(work / self.eta**k for k in range(self.rung_count, 0, -1))

    def give_up(self, view: AppTrials) -> Mapping[int, str]:
        """Trials that are not among the best 1/eta at a decided rung."""
        return _run_race(view, np.arange(len(view.work)), self.eta).lost

    def turns(self, view: AppTrials) -> Ints:
        """Trials that wait at a rung pause."""
        turns = np.zeros(len(view.work), np.int64)
        turns[_run_race(view, np.arange(len(view.work)), self.eta).paused] = PAUSED
        return turns


@dataclass(frozen=True)
class HyperBand:
    """Several races of successive halving, with `rung_count` down to 0 rungs (Li et al., JMLR '18).

    Trials are distributed over the races in order of submission, in the paper's proportions: the race with s
    rungs gets ceil((rung_count + 1) / (s + 1) * eta^s) trials for every full distribution.
    """

    eta: int = 3
    rung_count: int = 3

    def rungs(self, position: int, work: float) -> tuple[float, ...]:
        """The rungs of the trial's race."""
        return tuple(work / self.eta**k for k in range(self._rungs_of_race(position), 0, -1))

    def give_up(self, view: AppTrials) -> Mapping[int, str]:
        """Trials that are not among the best 1/eta at a decided rung of their race."""
        return {trial: why for race in self._races(view) for trial, why in race.lost.items()}

    def turns(self, view: AppTrials) -> Ints:
        """Trials that wait at a rung of their race pause."""
        turns = np.zeros(len(view.work), np.int64)
        for race in self._races(view):
            turns[race.paused] = PAUSED
        return turns

    def _races(self, view: AppTrials) -> list[_Race]:
        race = np.array([self._rungs_of_race(position) for position in range(len(view.work))], np.int64)
        return [_run_race(view, np.flatnonzero(race == rungs), self.eta) for rungs in range(self.rung_count, 0, -1)]

    def _rungs_of_race(self, position: int) -> int:
        """Number of rungs of a trial's race; it also identifies the race."""
        # The list is made for a power of two of trials, so that few lists are ever made.
        return _distribute_trials(self.eta, self.rung_count, 1 << position.bit_length())[position]


@dataclass(frozen=True)
class HyperDrive:
    """Give up poor trials, and run promising trials first, by their predicted final loss (Middleware '17).

    The final loss of a trial is read off the curve through its last three reports. A trial is poor if its final
    loss exceeds a loss that another trial has already reported by more than `margin`. A trial is promising if its
    final loss is among the best `promising` share of the trials alive. A trial with fewer reports is never poor.
    """

    rung_count: int = 10
    margin: float = 0.0
    promising: float = 0.25

    def rungs(self, position: int, work: float) -> tuple[float, ...]:
        """Rungs at equal distances."""
        return tuple(work * k / (self.rung_count + 1) for k in range(1, self.rung_count + 1))

    def give_up(self, view: AppTrials) -> Mapping[int, str]:
        """The poor trials."""
        final = final_losses(view)
        reached = np.min(view.losses, where=~np.isnan(view.losses), initial=np.inf)
        poor = np.flatnonzero(view.alive & (final > reached + self.margin))
        return {
            trial: f"because it would end at a loss of {final[trial]:.4g} and another trial is at {reached:.4g} already"
            for trial in poor.tolist()
        }

    def turns(self, view: AppTrials) -> Ints:
        """0 for promising trials, 1 for trials without a prediction, 2 for the others."""
        final, alive = final_losses(view), view.alive
        predicted = alive & ~np.isnan(final)
        best = np.flatnonzero(predicted)[np.argsort(final[predicted], kind="stable")]
        turns = np.where(predicted, 2, 1)
        turns[best[: ceil(self.promising * int(alive.sum()))]] = 0
        return turns.astype(np.int64)


#: App schedulers by the name that users write. An app without a scheduler runs every trial to its end.
SCHEDULERS: dict[str, type[Halving | HyperBand | HyperDrive]] = {
    "halving": Halving,
    "hyperband": HyperBand,
    "hyperdrive": HyperDrive,
}

#: Settings by the name that users write: the field, its least and its largest value.
_SETTINGS: dict[str, tuple[str, float, float]] = {
    "eta": ("eta", 2, 1000),
    "rungs": ("rung_count", 1, 20),
    "margin": ("margin", 0, 1e12),
    "promising": ("promising", 0, 1),
}


@cache
def make_app_scheduler(text: str) -> AppScheduler:
    """The app scheduler that a text such as `halving` or `halving:eta=4,rungs=2` names."""
    name, _, words = text.partition(":")
    if name not in SCHEDULERS:
        raise BadAppScheduler(
            f"no app scheduler is called {name!r}.{did_you_mean(name, SCHEDULERS)} "
            f"Choose one of {', '.join(SCHEDULERS)}, or leave it out to run all trials"
        )
    scheduler = SCHEDULERS[name]
    settings = dict(_read_setting(name, scheduler, word) for word in words.split(",")) if words else {}
    return scheduler(**settings)  # type: ignore[arg-type]


def _read_setting(name: str, scheduler: type, word: str) -> tuple[str, float]:
    """One `key=value`, as a field of the scheduler and its value."""
    key, _, text = word.partition("=")
    fields = {field.name: field for field in dataclasses.fields(scheduler)}
    allowed = [key for key, (field, _, _) in _SETTINGS.items() if field in fields]
    if key not in allowed:
        raise BadAppScheduler(f"the app scheduler {name!r} has no setting {key!r}; it has {', '.join(allowed)}")
    field, least, most = _SETTINGS[key]
    wanted = int if isinstance(fields[field].default, int) else float
    try:
        value = wanted(text)
    except ValueError:
        value = np.nan
    if not least <= value <= most:
        what = "a whole number" if wanted is int else "a number"
        raise BadAppScheduler(f"{key}={text} of the app scheduler {name!r} must be {what} from {least:g} to {most:g}")
    return field, value


@dataclass(frozen=True)
class _Race:
    """The result of a race of successive halving so far."""

    #: Trials that are alive but lost the race: position to the reason.
    lost: dict[int, str]
    #: Trials that have reported at a rung which other trials have yet to reach.
    paused: Ints


def _run_race(view: AppTrials, members: Ints, eta: int) -> _Race:
    """Run the race of the trials `members` from its first rung, with all reports so far.

    The race is run anew each time, so that the order in which reports came does not matter.
    """
    race, alive = members, view.alive
    lost: dict[int, str] = {}
    for rung in range(view.losses.shape[1]):
        loss = view.losses[race, rung]
        reported = ~np.isnan(loss)
        if (alive[race] & ~reported & ~np.isnan(view.rungs[race, rung])).any():
            return _Race(lost, race[alive[race] & reported])
        ranked = race[np.argsort(loss, kind="stable")][: int(reported.sum())]
        going_on = ranked[: max(1, len(ranked) // eta)]
        for trial in ranked[len(going_on) :][alive[ranked[len(going_on) :]]].tolist():
            lost[trial] = (
                f"at rung {rung + 1}: its loss was {view.losses[trial, rung]:.4g}, "
                f"and the best {len(going_on)} of {len(ranked)} had {view.losses[going_on[-1], rung]:.4g} or less"
            )
        race = np.sort(going_on)
    return _Race(lost, race[:0])


@cache
def _distribute_trials(eta: int, most_rungs: int, trials: int) -> tuple[int, ...]:
    """The race of each trial in order of submission. A race is named by its number of rungs."""
    sizes = {rungs: ceil((most_rungs + 1) / (rungs + 1) * eta**rungs) for rungs in range(most_rungs, -1, -1)}
    total, given, order = sum(sizes.values()), dict.fromkeys(sizes, 0), []
    for count in range(1, trials + 1):
        # The race that is farthest behind its share of the trials.
        race = max(sizes, key=lambda rungs: (count * sizes[rungs] / total - given[rungs], rungs))
        given[race] += 1
        order.append(race)
    return tuple(order)


def final_losses(view: AppTrials) -> Floats:
    """Predicted loss of each trial at its end; NaN with fewer than three reports.

    The prediction is the curve a + b / (work + c) through the last three reports. A trial whose loss did not fall
    ever more slowly is predicted to keep its last loss.
    """
    final = np.full(len(view.work), np.nan)
    for trial in range(len(view.work)):
        reported = np.flatnonzero(~np.isnan(view.losses[trial]))[-3:]
        if len(reported) == 3:
            points = [(float(view.rungs[trial, k]), float(view.losses[trial, k])) for k in reported]
            final[trial] = _curve_at(points, float(view.work[trial]))
    return final


def _curve_at(points: list[tuple[float, float]], work: float) -> float:
    """The loss at `work` of the curve through three points."""
    (w1, l1), (w2, l2), (w3, l3) = points
    if not l1 > l2 > l3:
        return l3
    bend = (l1 - l2) * (w3 - w2) / ((l2 - l3) * (w2 - w1))
    if bend <= 1:
        return l3
    c = (w3 - bend * w1) / (bend - 1)
    b = (l2 - l3) * (w2 + c) * (w3 + c) / (w3 - w2)
    return l3 + b / (work + c) - b / (w3 + c)
