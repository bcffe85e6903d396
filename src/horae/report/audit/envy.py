"""Envy: whether an app would rather have had another's GPUs, over the time both were there.

An app values GPU time by its own speeds: what one GPU of a type, as far from its fellows as they were, brings it in
GPUs of its best type, and never more GPUs at once than its unfinished jobs can use. GPU time can be divided, so this
is exact for policies that give shares of time. GPUs at one instant cannot: there, one gang more or less is no
injustice, and the second verdict leaves one gang of the envious app out of what the other had.

Holdings are scaled by weight: an app of twice the weight may have twice as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.cluster import Span
from horae.core.counted import counted
from horae.core.history import History
from horae.core.throughputs import Speeds
from horae.report.audit.verdict import Verdict
from horae.report.formatting import number, percent
from horae.report.metrics.fairness import AppLives
from horae.report.metrics.gpu_holdings import Holdings
from horae.report.metrics.step_functions import StepFunction, overlap, sums

#: Apps that are asked; of more apps this many are drawn by lot. Each is compared with all others.
MOST_ASKED = 300
#: Smaller differences are rounding.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class EnvyPair:
    """An app, the app it envies, and what each had: GPU-seconds of the first app's best type, scaled by weight."""

    app: int
    other: int
    own: float
    others: float
    common_s: float

    @property
    def envy(self) -> float:
        """How much more the other had."""
        return self.others - self.own


@dataclass(frozen=True)
class Envy:
    """Envy of the apps asked towards all apps that were present with them."""

    asked: int
    pairs: int
    #: Pairs with envy, the worst first; exactly, and up to one gang.
    exact: list[EnvyPair]
    but_one_gang: list[EnvyPair]


def judge_envy(history: History, speeds: Speeds, seed: int) -> list[Verdict]:
    """Envy over the run, exact and up to one gang."""
    ledger = HoldingsLedger(history, speeds)
    found = find_envy(ledger, seed)
    names = [history.jobs[job].app_id for job in ledger.lives.first_job.tolist()]
    exact, claim = found.exact, "no app would rather have had another's GPU time"
    return [
        _verdict("envy_free", claim, found, exact, names),
        _verdict("envy_free_but_one_gang", f"{claim}, less one gang", found, found.but_one_gang, names),
    ]


def find_envy(ledger: HoldingsLedger, seed: int) -> Envy:
    """Compare what every app had, valued by the apps asked."""
    apps = np.arange(len(ledger.lives))
    if len(apps) > MOST_ASKED:
        apps = np.sort(np.random.default_rng((seed, 2)).permutation(apps)[:MOST_ASKED])
    pairs = 0
    exact: list[EnvyPair] = []
    but_one_gang: list[EnvyPair] = []
    for app in apps.tolist():
        others = ledger.beside(app)
        pairs += len(others)
        exact += _envious(ledger, app, others, 0)
        but_one_gang += _envious(ledger, app, others, ledger.gang(app))
    for envied in (exact, but_one_gang):
        envied.sort(key=lambda pair: (-pair.envy, pair.app, pair.other))
    return Envy(len(apps), pairs, exact, but_one_gang)


def _envious(ledger: HoldingsLedger, app: int, others: Ints, spare: int) -> list[EnvyPair]:
    """Pairs in which an app would rather have had the other's GPU time, less `spare` GPUs at every instant."""
    own = ledger.own_value(app, others)
    theirs = ledger.values(app, spare)[others] * ledger.weight[app] / ledger.weight[others]
    common_s = ledger.common_s(app, others)
    envied = theirs - own > _TOLERANCE * np.maximum(common_s, 1.0)
    return [
        EnvyPair(app, int(others[k]), float(own[k]), float(theirs[k]), float(common_s[k]))
        for k in np.flatnonzero(envied).tolist()
    ]


class HoldingsLedger:
    """Which app held which GPUs when, valued by the speeds of any app."""

    def __init__(self, history: History, speeds: Speeds) -> None:
        self._history, self._speeds = history, speeds
        self.lives = AppLives.of(history)
        holdings, attempts = Holdings.of(history.attempts), history.attempts
        self._begin_s, self._end_s = holdings.begin_s, holdings.end_s
        self._share = 1.0 / holdings.holders
        self._app = self.lives.of_job[attempts.job[holdings.attempt]]
        self._class = history.cluster.gpu_type[holdings.gpu] * len(Span) + attempts.span[holdings.attempt]
        jobs = np.bincount(self.lives.of_job, minlength=len(self.lives))
        weights = np.array([job.weight for job in history.jobs])
        #: Weight of each app: the mean over its jobs.
        self.weight: Floats = sums(weights, self.lives.of_job, len(self.lives)) / np.maximum(jobs, 1)

    @cached_property
    def _jobs_of(self) -> list[Ints]:
        order = np.argsort(self.lives.of_job, kind="stable")
        return np.split(order, np.searchsorted(self.lives.of_job[order], np.arange(1, len(self.lives))))

    def gang(self, app: int) -> int:
        """GPUs of an app's largest job."""
        return int(max(self._history.jobs[job].gpus for job in self._jobs_of[app].tolist()))

    def beside(self, app: int) -> Ints:
        """Apps that were present at the same time."""
        lives = self.lives
        there = (lives.begin_s < lives.end_s[app]) & (lives.end_s > lives.begin_s[app])
        there[app] = False
        return np.flatnonzero(there)

    def common_s(self, app: int, others: Ints) -> Floats:
        """Seconds in which both apps were present."""
        begin_s, end_s = self._common(app, others)
        return end_s - begin_s

    def _common(self, app: int, others: Ints) -> tuple[Floats, Floats]:
        lives = self.lives
        begin_s = np.maximum(lives.begin_s[app], lives.begin_s[others])
        return begin_s, np.minimum(lives.end_s[app], lives.end_s[others])

    def worth(self, app: int) -> Floats:
        """The value of one GPU of each class (type and span) for an app, in GPUs of its best type."""
        history, types = self._history, self._history.cluster.gpu_types
        brought, needed = np.zeros((2, len(types), len(Span)))
        for job in self._jobs_of[app].tolist():
            spec = history.jobs[job]
            rate = np.array([[self._speeds.rate(spec, t, spec.gpus, _span(spec.gpus, s)) for s in Span] for t in types])
            work = spec.work * spec.gpus / float(rate.max())
            serial = np.divide(spec.work * spec.gpus, rate, out=np.zeros_like(rate), where=rate > 0)
            brought += np.where(rate > 0, work, 0.0)
            needed += serial
        return np.divide(brought, needed, out=np.zeros_like(needed), where=needed > 0).ravel()

    def usable(self, app: int) -> StepFunction:
        """GPUs that an app's unfinished jobs could use, as they come and go."""
        jobs = self._jobs_of[app]
        begin_s = self._history.submit_s[jobs]
        end_s = self._history.end_s[jobs]
        end_s = np.where(np.isnan(end_s), self.lives.end_s[app], end_s)
        return overlap(begin_s, end_s, np.array([self._history.jobs[job].gpus_max for job in jobs.tolist()]))

    def values(self, app: int, spare: int = 0) -> Floats:
        """The value of every app's GPU time during the life of `app`, to `app`, less `spare` GPUs at every instant."""
        _, dt, speed, owner = self._stretches(app, spare)
        return sums(speed * dt, owner, len(self.lives))

    def own_value(self, app: int, others: Ints) -> Floats:
        """The value of an app's own GPU time to it, over the time it was present together with each of `others`."""
        at_s, dt, speed, owner = self._stretches(app, 0)
        mine = np.flatnonzero(owner == app)
        if not len(mine):
            return np.zeros(len(others))
        end_s = at_s[mine[-1]] + dt[mine[-1]]
        steps = StepFunction(np.append(at_s[mine], end_s), np.append(speed[mine], 0.0))
        begin_s, until_s = self._common(app, others)
        return (steps.integral(until_s) - steps.integral(begin_s)).astype(np.float64)

    def _stretches(self, app: int, spare: int) -> tuple[Floats, Floats, Floats, Ints]:
        """Stretches of an app's life in which no app's GPUs change: begin, length, value per second, owner.

        An owner's GPUs count in order of their value for the app: the first `spare` of them are skipped, and no more
        are counted than the app can use.
        """
        worth, usable = self.worth(app), self.usable(app)
        at_s, owner, gpu_class, change = self._changes(app, usable.times)
        order = np.lexsort((at_s, owner))
        at_s, owner, gpu_class, change = at_s[order], owner[order], gpu_class[order], change[order]
        best = np.argsort(-worth, kind="stable")
        changes = np.zeros((len(at_s), len(worth)))
        changes[np.arange(len(at_s)), gpu_class] = change
        # Every owner gives back all it took, so the sum is 0 again where the next owner's changes begin.
        ends = np.round(np.cumsum(np.cumsum(changes, axis=0)[:, best], axis=1), 9)
        begins = np.concatenate((np.zeros((len(at_s), 1)), ends[:, :-1]), axis=1)
        most = spare + usable.values[np.maximum(np.searchsorted(usable.times, at_s, side="right") - 1, 0)]
        counted = np.clip(np.minimum(ends, most[:, None]) - np.maximum(begins, spare), 0.0, None)
        dt = np.zeros(len(at_s))
        dt[:-1] = np.where(owner[1:] == owner[:-1], np.diff(at_s), 0.0)
        return at_s, dt, counted @ worth[best], owner

    def _changes(self, app: int, cuts_s: Floats) -> tuple[Floats, Ints, Ints, Floats]:
        """Changes of holdings during an app's life: time, owner, GPU class, GPUs added. Cuts are changes of 0 GPUs."""
        begin_s = np.maximum(self._begin_s, self.lives.begin_s[app])
        end_s = np.minimum(self._end_s, self.lives.end_s[app])
        there = np.flatnonzero(end_s > begin_s)
        owner, gpu_class, share = self._app[there], self._class[there], self._share[there]
        owners = np.unique(owner)
        cuts_s = cuts_s[1:-1]
        at_s = np.concatenate((begin_s[there], end_s[there], np.tile(cuts_s, len(owners))))
        marks = np.zeros(len(cuts_s) * len(owners))
        return (
            at_s,
            np.concatenate((owner, owner, np.repeat(owners, len(cuts_s)))),
            np.concatenate((gpu_class, gpu_class, marks.astype(np.int64))),
            np.concatenate((share, -share, marks)),
        )


def _span(gpus: int, span: Span) -> Span:
    """The span that speeds are looked up by: one GPU has span GPU, a gang at least NODE."""
    return Span.GPU if gpus == 1 else max(span, Span.NODE)


def _verdict(name: str, claim: str, found: Envy, pairs: list[EnvyPair], names: list[str]) -> Verdict:
    envious = len({pair.app for pair in pairs})
    numbers: dict[str, Any] = {
        "apps_asked": found.asked,
        "pairs": found.pairs,
        "pairs_with_envy": len(pairs),
        "envious_apps": envious,
        "worst": _record(pairs[0], names) if pairs else None,
    }
    asked, of_pairs = counted(found.asked, "app"), counted(found.pairs, "pair")
    if not found.pairs:
        return Verdict(name, claim, None, "nothing to judge: no two apps were there at once", numbers)
    if not pairs:
        return Verdict(name, claim, True, f"no envy among {asked}, {of_pairs}", numbers)
    share = percent(len(pairs) / found.pairs)
    return Verdict(
        name,
        claim,
        False,
        f"envious: {envious:,} of {asked}; {share} of {of_pairs}",
        numbers,
        _sentence(numbers["worst"]),
    )


def _record(pair: EnvyPair, names: list[str]) -> dict[str, Any]:
    return {
        "app": names[pair.app],
        "envies": names[pair.other],
        "common_s": pair.common_s,
        "own_gpu_s": pair.own,
        "others_gpu_s": pair.others,
    }


def _sentence(worst: dict[str, Any]) -> str:
    own, others, hours = (number(worst[key] / 3600) for key in ("own_gpu_s", "others_gpu_s", "common_s"))
    return (
        f"In the {hours} h that both were there app {worst['app']} had {own} GPU-hours, and what "
        f"app {worst['envies']} had would have been worth {others} to it."
    )
