"""Profiles: the throughputs that were measured before scheduling, and estimates of the others."""

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

#: Noise never makes a profiled speed less than this share of the true speed.
_LEAST_FACTOR = 0.1

#: A class that did not fit beside this share of its partners counts as too large for any other partner.
#: (On the published table, of pairs with a class that is new: finds half of those that do not fit, loses 5 % that do.)
_TOO_LARGE = 0.2

_Speeds = Mapping[Setting, float]
_Where = tuple[str, int, Span]
_Key = Callable[[Setting], Any]


class BadProfile(UserError):
    """A share or a noise that no profile can have."""


def hide(truth: Throughputs, share: float, noise: float, seed: int) -> Throughputs:
    """The table of a scheduler that has profiled a share of the truth, with noise, and estimates the rest.

    Every class and size keeps at least one measured speed, because its user has run it
    somewhere. A profile of two jobs on the same GPUs gives the speeds of both. Speeds of 0
    (jobs that do not fit) are never hidden, so that no job runs where it cannot. The same seed with
    a larger share profiles the same settings and more.
    """
    _check(share, noise)
    running = {
        setting: throughput.steps_per_s for setting, throughput in truth.settings() if throughput.steps_per_s > 0
    }
    profiled = _profile(running, share, noise, seed)
    believed = Throughputs()
    for setting, throughput in truth.settings():
        if setting not in running:
            believed.put(setting, throughput.steps_per_s, throughput.origin)
    _put(believed, profiled, Origin.MEASURED)
    _put(believed, _estimate(profiled, [setting for setting in running if setting not in profiled]), Origin.ESTIMATED)
    return believed


def estimate_missing(table: Throughputs) -> Throughputs:
    """The same table, its holes filled with estimates. Public: no command calls it.

    A class and size with a speed anywhere gets one on every GPU type and span that the table
    knows for that size, and beside every other class where some pair was ever measured. A
    pair with a class that many others did not fit beside gets 0: sharing less costs less
    than two jobs that run out of memory. Older estimates are made anew.
    """
    measured = {
        setting: throughput.steps_per_s
        for setting, throughput in table.settings()
        if throughput.origin is not Origin.ESTIMATED
    }
    running = {setting: speed for setting, speed in measured.items() if speed > 0}
    solo_holes = _solo_holes(measured)
    pair_holes = _pair_holes(measured, solo_holes)
    too_large = _too_large(measured)
    refused = {hole: 0.0 for hole in pair_holes if not too_large.isdisjoint((_place(hole), _place(_mirrored(hole))))}
    filled = Throughputs()
    for setting, throughput in table.settings():
        filled.put(setting, throughput.steps_per_s, throughput.origin)
    _put(filled, {**_estimate(running, solo_holes + pair_holes), **refused}, Origin.ESTIMATED)
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
    factor_of = dict(zip(running, factor.tolist(), strict=True))
    chosen = {*_choose_alone(running, share, choice), *_choose_pairs(running, share, choice)}
    return {setting: speed * factor_of[setting] for setting, speed in running.items() if setting in chosen}


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
    pair_settings = list(pairs.values())
    chosen = rng.permutation(len(pair_settings))[: round(share * len(pair_settings))]
    return [setting for k in chosen for setting in pair_settings[k]]


# What is missing


def _solo_holes(measured: _Speeds) -> list[Setting]:
    """Solo settings without a speed where another class of the same size has one, except on types that do not fit."""
    alone = {setting: speed for setting, speed in measured.items() if not setting.neighbour}
    places = sorted({_where(setting) for setting, speed in alone.items() if speed > 0})
    sizes = sorted({(setting.job_class, setting.gpus) for setting, speed in alone.items() if speed > 0})
    refused = {setting[:3] for setting, speed in alone.items() if speed == 0}
    holes = [Setting(name, *where) for name, gpus in sizes for where in places if where[1] == gpus]
    return [hole for hole in holes if hole not in measured and hole[:3] not in refused]


def _pair_holes(measured: _Speeds, solo: Sequence[Setting]) -> list[Setting]:
    """Pair settings without a speed, of classes that both run alone at a place where some pair was measured."""
    classes_by_place: dict[_Where, list[str]] = {
        _where(setting): [] for setting, speed in measured.items() if setting.neighbour and speed > 0
    }
    for setting in (*solo, *(setting for setting, speed in measured.items() if not setting.neighbour and speed > 0)):
        if _where(setting) in classes_by_place:
            classes_by_place[_where(setting)].append(setting.job_class)
    holes = [Setting(a, *where, b) for where, classes in classes_by_place.items() for a in classes for b in classes]
    return [hole for hole in holes if hole not in measured]


def _too_large(measured: _Speeds) -> set[tuple[Any, ...]]:
    """Jobs on their GPUs that did not fit beside many of the partners they were measured with."""
    tried = Counter(_place(setting) for setting in measured if setting.neighbour)
    refused = Counter(_place(setting) for setting, speed in measured.items() if setting.neighbour and speed == 0)
    return {place for place, count in refused.items() if count >= _TOO_LARGE * tried[place]}


def _mirrored(pair: Setting) -> Setting:
    """The same pair, seen by the other job."""
    return pair._replace(job_class=pair.neighbour, neighbour=pair.job_class)


# Estimates


def _place(setting: Setting) -> tuple[Any, ...]:
    """A job class on its GPUs, without the neighbour."""
    return setting[:4]


def _where(setting: Setting) -> _Where:
    """Type, number and span of the GPUs."""
    return setting.gpu_type, setting.gpus, setting.span


def _job_class(setting: Setting) -> str:
    return setting.job_class


def _neighbour(setting: Setting) -> str:
    return setting.neighbour


def _estimate(speeds: _Speeds, wanted: Sequence[Setting]) -> dict[Setting, float]:
    """Speeds of the wanted settings, estimated from known speeds. All are above 0."""
    solo, pairs = (
        [setting for setting in wanted if not setting.neighbour],
        [setting for setting in wanted if setting.neighbour],
    )
    # 1. Solo speeds of jobs that were measured beside others on the same GPUs, from those pairs.
    seen = {_place(setting) for setting in speeds if setting.neighbour}
    shared = {setting: speed for setting, speed in speeds.items() if _place(setting) in seen}
    solo_from_pairs = _fill(shared, [setting for setting in solo if _place(setting) in seen], _place, _neighbour)
    # 2. All other solo speeds, from the class on other GPUs and from other classes.
    alone = {setting: speed for setting, speed in speeds.items() if not setting.neighbour} | solo_from_pairs
    alone |= _fill(alone, [setting for setting in solo if setting not in solo_from_pairs], _job_class, _where)
    # 3. Pairs, also of classes never measured in one: every row now has a solo speed. A pair is never faster than solo.
    places = seen | {_place(setting) for setting in pairs}
    together = {setting: speed for setting, speed in {**speeds, **alone}.items() if _place(setting) in places}
    beside = _fill(together, pairs, _place, _neighbour)
    slower = {pair: min(speed, alone.get(pair._replace(neighbour=""), speed)) for pair, speed in beside.items()}
    return {setting: alone[setting] for setting in solo} | slower


def _fill(speeds: _Speeds, wanted: Sequence[Setting], row: _Key, column: _Key) -> dict[Setting, float]:
    """Estimates from a matrix of the known speeds with these rows and columns."""
    if not wanted:
        return {}
    settings, count = [*speeds, *wanted], len(speeds)
    rows, columns = (
        _numbers([row(setting) for setting in settings]),
        _numbers([column(setting) for setting in settings]),
    )
    logs = np.full((rows.max() + 1, columns.max() + 1), np.nan)
    logs[rows[:count], columns[:count]] = np.log(list(speeds.values()))
    estimates = np.exp(fill(logs))[rows[count:], columns[count:]]
    return dict(zip(wanted, estimates.tolist(), strict=True))


def _numbers(names: Sequence[Any]) -> NDArray[np.int64]:
    """The number of each name among all names in sorted order."""
    place = {name: k for k, name in enumerate(sorted(set(names)))}
    return np.array([place[name] for name in names])
