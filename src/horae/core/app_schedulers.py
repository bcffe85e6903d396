"""Which trials an app gives up, and which go first: pure functions of what the trials have reported.

An app scheduler is a small frozen dataclass with three methods; `SCHEDULERS` is the registry.
It is asked when a trial of its app has reached a rung or ended, and never looks at the clock.
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
from horae.core.states import CANCELLED, CANCELLING, FAILED, FINISHED


class BadAppScheduler(UserError):
    """An app scheduler that does not exist, or a setting that it cannot take."""


@dataclass(frozen=True)
class AppTrials:
    """All that an app scheduler knows: its own trials, as columns in order of submission."""

    app: str
    #: Work in all, and done by what is known now.
    work: Floats
    work_done: Floats
    #: `State` of each trial.
    state: NDArray[np.uint8]
    #: Work at which each trial (rows) reports to the app; NaN beyond its last rung.
    rungs: Floats
    #: The loss it reported there; NaN where it has not.
    losses: Floats

    @property
    def alive(self) -> Bools:
        """Which trials may still report something."""
        return ~np.isin(self.state, (int(CANCELLING), int(CANCELLED), int(FAILED), int(FINISHED)))


#: The turn of a trial that is to wait.
PAUSED = -1


class AppScheduler(Protocol):
    """How an app treats its trials. Pure."""

    def rungs(self, place: int, work: float) -> tuple[float, ...]:
        """Amounts of work, rising and below all of it, at which the trial in this place of its app reports."""
        ...

    def give_up(self, view: AppTrials) -> Mapping[int, str]:
        """Trials, by position, that are not worth more GPU time, and why: the end of a sentence."""
        ...

    def turns(self, view: AppTrials) -> Ints:
        """A number for each trial: those with a lower one should have GPUs first, those below 0 none for now."""
        ...


@dataclass(frozen=True)
class Halving:
    """Successive halving: at every rung the best 1/eta of the trials go on (Jamieson and Talwalkar, AISTATS '16).

    A rung is decided when all that are left in the race have reported there or ended; until then those that
    have reported pause, so that the work done is the same whoever runs first. Trials that come late join the
    race at the first rung.
    """

    eta: int = 3
    rung_count: int = 3

    def rungs(self, place: int, work: float) -> tuple[float, ...]:
        """At the eta-th part of the work of the next, the last at the eta-th part of all."""
        return tuple(work / self.eta**k for k in range(self.rung_count, 0, -1))

    def give_up(self, view: AppTrials) -> Mapping[int, str]:
        """Whoever is not among the best of a rung that is decided."""
        return _race(view, np.arange(len(view.work)), self.eta).lost

    def turns(self, view: AppTrials) -> Ints:
        """Whoever waits at a rung pauses."""
        turns = np.zeros(len(view.work), np.int64)
        turns[_race(view, np.arange(len(view.work)), self.eta).paused] = PAUSED
        return turns


@dataclass(frozen=True)
class HyperBand:
    """Several races of successive halving, from one with many short tries to one without any (Li et al., JMLR '18).

    Trials are spread over the races in order of submission, in the paper's proportions: the race with s
    rungs has ceil((rungs + 1) / (s + 1) * eta^s) of every so many trials.
    """

    eta: int = 3
    rung_count: int = 3

    def rungs(self, place: int, work: float) -> tuple[float, ...]:
        """Those of its race."""
        race = self._race(place)
        return tuple(work / self.eta**k for k in range(race, 0, -1))

    def give_up(self, view: AppTrials) -> Mapping[int, str]:
        """Whoever is not among the best of its race."""
        return {one: why for race in self._races(view) for one, why in race.lost.items()}

    def turns(self, view: AppTrials) -> Ints:
        """Whoever waits at a rung of its race pauses."""
        turns = np.zeros(len(view.work), np.int64)
        for race in self._races(view):
            turns[race.paused] = PAUSED
        return turns

    def _races(self, view: AppTrials) -> list[_Race]:
        race = np.array([self._race(place) for place in range(len(view.work))], np.int64)
        return [_race(view, np.flatnonzero(race == rungs), self.eta) for rungs in range(self.rung_count, 0, -1)]

    def _race(self, place: int) -> int:
        """How many rungs the race of a trial has."""
        # Found for a power of two of trials, so that few such lists are ever made.
        return _races(self.eta, self.rung_count, 1 << place.bit_length())[place]


@dataclass(frozen=True)
class HyperDrive:
    """Give up poor trials, and run promising ones before the others, by where they will end (Middleware '17).

    Where a trial will end is read off the curve through its last three reports. It is poor if even
    that is worse, by more than `margin`, than what another trial has reached already; it is promising
    if it is among the best `promising` share of those alive. Whoever has too few reports is given the chance.
    """

    rung_count: int = 10
    margin: float = 0.0
    promising: float = 0.25

    def rungs(self, place: int, work: float) -> tuple[float, ...]:
        """Evenly spread."""
        return tuple(work * k / (self.rung_count + 1) for k in range(1, self.rung_count + 1))

    def give_up(self, view: AppTrials) -> Mapping[int, str]:
        """The poor ones."""
        final = final_losses(view)
        reached = np.min(view.losses, where=~np.isnan(view.losses), initial=np.inf)
        poor = np.flatnonzero(view.alive & (final > reached + self.margin))
        return {
            int(
                one
            ): f"because it would end at a loss of {final[one]:.4g} and another trial is at {reached:.4g} already"
            for one in poor
        }

    def turns(self, view: AppTrials) -> Ints:
        """Promising trials, those that nothing is known of, the rest."""
        final, alive = final_losses(view), view.alive
        known = alive & ~np.isnan(final)
        best = np.flatnonzero(known)[np.argsort(final[known], kind="stable")]
        turns = np.where(known, 2, 1)
        turns[best[: ceil(self.promising * int(alive.sum()))]] = 0
        return turns.astype(np.int64)


#: Names that users write. No name is run-all: every trial runs to its end.
SCHEDULERS: dict[str, type[Halving | HyperBand | HyperDrive]] = {
    "halving": Halving,
    "hyperband": HyperBand,
    "hyperdrive": HyperDrive,
}

#: Settings as users write them, and what they may be: the field, from, to.
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
    kind = SCHEDULERS[name]
    settings = dict(_read_setting(name, kind, word) for word in words.split(",")) if words else {}
    return kind(**settings)  # type: ignore[arg-type]


def _read_setting(name: str, kind: type, word: str) -> tuple[str, float]:
    """One `key=value`, as a field of the scheduler and its value."""
    key, _, text = word.partition("=")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    known = [key for key, (field, _, _) in _SETTINGS.items() if field in fields]
    if key not in known:
        raise BadAppScheduler(f"the app scheduler {name!r} has no setting {key!r}; it has {', '.join(known)}")
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
    """Where a race of successive halving stands."""

    #: Trials that are alive and out of it, with the rung they fell at.
    lost: dict[int, str]
    #: Trials that have reported at a rung which others have yet to reach.
    paused: Ints


def _race(view: AppTrials, members: Ints, eta: int) -> _Race:
    """Run a race from its first rung, by all reports there are.

    It is run anew each time, so that the order in which reports came does not matter.
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
        for one in ranked[len(going_on) :][alive[ranked[len(going_on) :]]]:
            lost[int(one)] = (
                f"at rung {rung + 1}: its loss was {view.losses[one, rung]:.4g}, "
                f"and the best {len(going_on)} of {len(ranked)} had {view.losses[going_on[-1], rung]:.4g} or less"
            )
        race = np.sort(going_on)
    return _Race(lost, race[:0])


@cache
def _races(eta: int, most: int, trials: int) -> tuple[int, ...]:
    """The race of each of so many trials that come one after the other, by the number of its rungs."""
    sizes = {race: ceil((most + 1) / (race + 1) * eta**race) for race in range(most, -1, -1)}
    total, given, order = sum(sizes.values()), dict.fromkeys(sizes, 0), []
    for count in range(1, trials + 1):
        # Whoever is farthest behind its share.
        race = max(sizes, key=lambda one: (count * sizes[one] / total - given[one], one))
        given[race] += 1
        order.append(race)
    return tuple(order)


def final_losses(view: AppTrials) -> Floats:
    """Where the curve a + b / (work + c) through the last three reports of each trial ends; NaN with fewer.

    A trial that did not fall ever more slowly is taken to stay where it is.
    """
    final = np.full(len(view.work), np.nan)
    for one in range(len(view.work)):
        known = np.flatnonzero(~np.isnan(view.losses[one]))[-3:]
        if len(known) == 3:
            points = [(float(view.rungs[one, k]), float(view.losses[one, k])) for k in known]
            final[one] = _curve_at(points, float(view.work[one]))
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
