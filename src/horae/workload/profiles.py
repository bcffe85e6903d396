"""What a scheduler knows of the speeds: what was profiled, and estimates of the rest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Span
from horae.core.errors import UserError
from horae.core.throughputs import Origin, Setting, Throughputs
from horae.solve.matrix_completion import fill

#: A profile, however noisy, never says that a job which runs stands still.
_LEAST_FACTOR = 0.1

#: A class that this share of its partners did not fit beside is taken to be too large for any other partner, too.
#: (On the published table, of pairs with a class that is new: finds half of those that do not fit, loses 5 % that do.)
_TOO_LARGE = 0.2

_Speeds = Mapping[Setting, float]
_Where = tuple[str, int, Span]
_Key = Callable[[Setting], Any]


class BadProfile(UserError):
    """A share or a noise that no profile can have."""


def hide(truth: Throughputs, share: float, noise: float, seed: int) -> Throughputs:
    """The table of a scheduler that has profiled a share of the truth, with noise, and estimates the rest.

    Every class and size keeps one speed of its own at least: whoever submits a job has run it
    somewhere. A profile of two jobs on the same GPUs tells the speeds of both. Speeds of 0
    (what does not fit) stay known, so that nothing runs that could not. The same seed with
    a larger share profiles the same settings and more.
    """
    _check(share, noise)
    running = {setting: known.steps_per_s for setting, known in truth.settings() if known.steps_per_s > 0}
    profiled = _profile(running, share, noise, seed)
    believed = Throughputs()
    for setting, known in truth.settings():
        if setting not in running:
            believed.put(setting, known.steps_per_s, known.origin)
    _put(believed, profiled, Origin.MEASURED)
    _put(believed, _estimate(profiled, [one for one in running if one not in profiled]), Origin.ESTIMATED)
    return believed


def estimate_missing(table: Throughputs) -> Throughputs:
    """The same table, its holes filled with estimates.

    A class and size with a speed anywhere gets one on every GPU type and span that the table
    knows for that size, and beside every other class where some pair was ever measured. A
    pair with a class that many others did not fit beside gets 0: sharing less costs less
    than two jobs that run out of memory. Older estimates are made anew.
    """
    known = {setting: one.steps_per_s for setting, one in table.settings() if one.origin is not Origin.ESTIMATED}
    running = {setting: speed for setting, speed in known.items() if speed > 0}
    solo = _solo_holes(known)
    pairs = _pair_holes(known, solo)
    large = _too_large(known)
    refused = {pair: 0.0 for pair in pairs if not large.isdisjoint((_place(pair), _place(_mirrored(pair))))}
    filled = Throughputs()
    for setting, one in table.settings():
        filled.put(setting, one.steps_per_s, one.origin)
    _put(filled, {**_estimate(running, solo + pairs), **refused}, Origin.ESTIMATED)
    return filled


def _check(share: float, noise: float) -> None:
    if not 0 < share <= 1:
        raise BadProfile(f"A profile of a share of {share:g} is none: give a share above 0, up to 1.")
    if not (noise >= 0 and math.isfinite(noise)):
        raise BadProfile(f"A profile cannot have a noise of {noise:g}: give 0, or 0.1 for errors of 10 %.")


def _put(table: Throughputs, speeds: _Speeds, origin: Origin) -> None:
    for setting, steps_per_s in speeds.items():
        table.put(setting, steps_per_s, origin)


# What is profiled


def _profile(running: _Speeds, share: float, noise: float, seed: int) -> dict[Setting, float]:
    """A share of the speeds, each off by a random factor that does not depend on the share."""
    choice, error = (np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(2))
    factor = np.maximum(1 + noise * error.standard_normal(len(running)), _LEAST_FACTOR)
    seen = dict(zip(running, factor.tolist(), strict=True))
    chosen = {*_choose_alone(running, share, choice), *_choose_pairs(running, share, choice)}
    return {setting: speed * seen[setting] for setting, speed in running.items() if setting in chosen}


def _choose_alone(running: _Speeds, share: float, rng: np.random.Generator) -> list[Setting]:
    """A share of the speeds of jobs alone, among them one of every class and size."""
    alone = [setting for setting in running if not setting.neighbour]
    order = [alone[k] for k in rng.permutation(len(alone))]
    first = {(setting.job_class, setting.gpus): setting for setting in reversed(order)}
    needed = set(first.values())
    order.sort(key=lambda setting: setting not in needed)
    return order[: max(len(needed), round(share * len(order)))]


def _choose_pairs(running: _Speeds, share: float, rng: np.random.Generator) -> list[Setting]:
    """A share of the pairs of jobs: both speeds of each."""
    pairs: dict[tuple[Any, ...], list[Setting]] = {}
    for setting in running:
        if setting.neighbour:
            pairs.setdefault((_where(setting), *sorted((setting.job_class, setting.neighbour))), []).append(setting)
    both = list(pairs.values())
    chosen = rng.permutation(len(both))[: round(share * len(both))]
    return [setting for k in chosen for setting in both[k]]


# What is missing


def _solo_holes(known: _Speeds) -> list[Setting]:
    """Speeds alone that somebody of the same size has; none where the class is known not to fit the type."""
    alone = {setting: speed for setting, speed in known.items() if not setting.neighbour}
    places = sorted({_where(setting) for setting, speed in alone.items() if speed > 0})
    sizes = sorted({(setting.job_class, setting.gpus) for setting, speed in alone.items() if speed > 0})
    refused = {setting[:3] for setting, speed in alone.items() if speed == 0}
    holes = [Setting(name, *where) for name, gpus in sizes for where in places if where[1] == gpus]
    return [hole for hole in holes if hole not in known and hole[:3] not in refused]


def _pair_holes(known: _Speeds, solo: Sequence[Setting]) -> list[Setting]:
    """Pairs of classes that both run alone at a place where some pair was seen to run."""
    here: dict[_Where, list[str]] = {_where(one): [] for one, speed in known.items() if one.neighbour and speed > 0}
    for setting in (*solo, *(one for one, speed in known.items() if not one.neighbour and speed > 0)):
        if _where(setting) in here:
            here[_where(setting)].append(setting.job_class)
    holes = [Setting(a, *where, b) for where, classes in here.items() for a in classes for b in classes]
    return [hole for hole in holes if hole not in known]


def _too_large(known: _Speeds) -> set[tuple[Any, ...]]:
    """Places of jobs that do not fit beside many of the partners they were tried with."""
    tried = Counter(_place(setting) for setting in known if setting.neighbour)
    refused = Counter(_place(setting) for setting, speed in known.items() if setting.neighbour and speed == 0)
    return {place for place, count in refused.items() if count >= _TOO_LARGE * tried[place]}


def _mirrored(pair: Setting) -> Setting:
    """The same pair, seen by the other job."""
    return pair._replace(job_class=pair.neighbour, neighbour=pair.job_class)


# Estimates


def _place(setting: Setting) -> tuple[Any, ...]:
    """A job on its GPUs, whoever is beside it."""
    return setting[:4]


def _where(setting: Setting) -> _Where:
    """Type, number and span of the GPUs."""
    return setting.gpu_type, setting.gpus, setting.span


def _job_class(setting: Setting) -> str:
    return setting.job_class


def _neighbour(setting: Setting) -> str:
    return setting.neighbour


def _estimate(known: _Speeds, wanted: Sequence[Setting]) -> dict[Setting, float]:
    """Estimates of what is wanted, all above 0, from speeds that are all above 0."""
    solo, pairs = [one for one in wanted if not one.neighbour], [one for one in wanted if one.neighbour]
    # 1. A job that was measured beside others has told most of what it can do alone on the same GPUs.
    seen = {_place(setting) for setting in known if setting.neighbour}
    shared = {setting: speed for setting, speed in known.items() if _place(setting) in seen}
    told = _fill(shared, [setting for setting in solo if _place(setting) in seen], _place, _neighbour)
    # 2. Where it was not, its speeds on other GPUs and those of other classes tell.
    alone = {setting: speed for setting, speed in known.items() if not setting.neighbour} | told
    alone |= _fill(alone, [setting for setting in solo if setting not in told], _job_class, _where)
    # 3. With a speed alone in every row, pairs can be told, even of classes never seen in one. Sharing never helps.
    places = seen | {_place(setting) for setting in pairs}
    together = {setting: speed for setting, speed in {**known, **alone}.items() if _place(setting) in places}
    beside = _fill(together, pairs, _place, _neighbour)
    slower = {pair: min(speed, alone.get(pair._replace(neighbour=""), speed)) for pair, speed in beside.items()}
    return {setting: alone[setting] for setting in solo} | slower


def _fill(known: _Speeds, wanted: Sequence[Setting], row: _Key, column: _Key) -> dict[Setting, float]:
    """Estimates from a matrix of the known speeds with these rows and columns."""
    if not wanted:
        return {}
    settings, count = [*known, *wanted], len(known)
    rows, columns = _numbers([row(one) for one in settings]), _numbers([column(one) for one in settings])
    logs = np.full((rows.max() + 1, columns.max() + 1), np.nan)
    logs[rows[:count], columns[:count]] = np.log(list(known.values()))
    estimates = np.exp(fill(logs))[rows[count:], columns[count:]]
    return dict(zip(wanted, estimates.tolist(), strict=True))


def _numbers(names: Sequence[Any]) -> NDArray[np.int64]:
    """Each name's place among all of them in order."""
    place = {name: k for k, name in enumerate(sorted(set(names)))}
    return np.array([place[name] for name in names])
