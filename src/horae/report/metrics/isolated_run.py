"""The fluid isolated run: what every job or app would get if the cluster were divided by N at every instant.

Published systems take the isolated completion time from one more simulated run,
so that it depends on that run's rounding. This model has no rounds and no gangs
to place, so it is the same yardstick for every policy.

At every instant each of the M apps active *in this run* owns 1/M of every GPU
type. For the times of jobs, every job is an app of its own. A job m of gang size s
that has g <= s of its app's GPUs, which are of all types in the cluster's
proportion, advances at

    A_m / N * g / s,   A_m = sum_j T[m, j] * n_j

with n_j GPUs of type j and N in all. So it needs length = work * N / A_m seconds
with its whole gang, or s * length GPU-seconds.

An app divides its N / M GPUs so that it ends as soon as it can: the jobs with the
most seconds left go first, and jobs with equally many left advance together. It is
done when, for every k, its k longest jobs could have had their GPU-seconds:

    integral of min(N / M, s_1 + ... + s_k) dt  =  s_1 * length_1 + ... + s_k * length_k

(the maximum flow from instants to jobs; k other jobs ask for less). The left side
depends on the sum of sizes only. So all sets of jobs of one size share a clock that
counts GPU-seconds, and one heap a size gives exact event times. There are as many
events as jobs, and as many clocks as sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from horae.core.arrays import Floats, Ints

#: Jobs of an app: their GPU count by the seconds that they have left with their whole gangs.
_Lengths = dict[float, int]
#: When, an app, and its jobs that are submitted then.
_Arrival = tuple[float, int, _Lengths]


def isolated_jct(submit_s: Floats, gpus: Ints, work: Floats, rates: Floats, gpus_by_type: Ints) -> Floats:
    """Completion time minus submission time of every job in the fluid isolated run of jobs.

    `rates[i, k]` is the work per second of job i on its `gpus[i]` GPUs of type k.
    Jobs need not be in order of submission. A job that no type can run is left
    out of the run, and its time is NaN.
    """
    jobs = len(submit_s)
    return isolated_app_end_s(np.arange(jobs), jobs, submit_s, gpus, work, rates, gpus_by_type) - submit_s


def isolated_app_end_s(
    app: Ints, apps: int, submit_s: Floats, gpus: Ints, work: Floats, rates: Floats, gpus_by_type: Ints
) -> Floats:
    """End of the last job of every app in the fluid isolated run of apps; NaN for an app without a job that can run.

    `app` is the number of each job's app, from 0 to `apps` - 1; the rest is as for `isolated_jct`.
    """
    speed, total = rates @ gpus_by_type, int(gpus_by_type.sum())
    able = np.flatnonzero(speed > 0)
    order = able[np.lexsort((app[able], submit_s[able]))]
    length_s = work[order] * total / speed[order]
    arrivals: list[_Arrival] = []
    columns = (submit_s[order].tolist(), app[order].tolist(), length_s.tolist(), gpus[order].tolist())
    for now_s, number, length, size in zip(*columns, strict=True):
        if not arrivals or arrivals[-1][:2] != (now_s, number):
            arrivals.append((now_s, number, {}))
        lengths = arrivals[-1][2]
        lengths[length] = lengths.get(length, 0) + size
    return np.array(_run(arrivals, apps, total))


def _run(arrivals: Sequence[_Arrival], apps: int, gpus: int) -> list[float]:
    """End of each app, given arrivals in order of time."""
    ends = [math.nan] * apps
    #: The sets of longest jobs of each app that are not done: where the clock of the set's size will be when it is.
    open_sets: list[dict[int, float]] = [{} for _ in range(apps)]
    clocks: dict[int, float] = {}
    heaps: dict[int, list[tuple[float, int]]] = {}
    now, active, arrived = 0.0, 0, 0
    while heaps or arrived < len(arrivals):
        # 1. The size whose first set is done next. A clock runs at min(N / M, size); a call of min would double
        #    the time of the run.
        share = gpus / active if active else math.inf
        wait, ending = math.inf, 0
        for size, heap in heaps.items():
            due = (heap[0][0] - clocks[size]) / (size if size < share else share)  # noqa: FURB136
            if due < wait:
                wait, ending = max(due, 0.0), size
        # 2. Move every clock to the next event; at equal times completions come first.
        arriving = arrived < len(arrivals) and arrivals[arrived][0] < now + wait
        step = arrivals[arrived][0] - now if arriving else wait
        for size in heaps:
            clocks[size] += step * (size if size < share else share)  # noqa: FURB136
        # 3. Let the event happen. A set that a later arrival has replaced is done without effect.
        if arriving:
            now, app, lengths = arrivals[arrived]
            arrived += 1
            if open_sets[app]:
                lengths = _joined(lengths, _lengths_left(open_sets[app], clocks))
            else:
                active += 1
            open_sets[app] = {}
            for size, gpu_s in _longest_sets(lengths, gpus).items():
                # An idle clock restarts from 0, which keeps it precise.
                end = clocks.setdefault(size, 0.0) + gpu_s
                open_sets[app][size] = end
                heappush(heaps.setdefault(size, []), (end, app))
        else:
            now += wait
            clocks[ending], app = heappop(heaps[ending])
            if not heaps[ending]:
                del heaps[ending]
            if open_sets[app].get(ending) == clocks[ending]:
                del open_sets[app][ending]
                if not open_sets[app]:
                    ends[app] = now
                    active -= 1
            if ending not in heaps:
                del clocks[ending]
    return ends


def _longest_sets(lengths: _Lengths, gpus: int) -> dict[int, float]:
    """GPU-seconds of the longest jobs of an app, for each number of them, by the sum of their sizes.

    Sets that could use more than the cluster differ in their GPU-seconds only, so the largest of them is enough.
    """
    sets, size, gpu_s = {}, 0, 0.0
    for length in sorted(lengths, reverse=True):
        size += lengths[length]
        gpu_s += lengths[length] * length
        sets[min(size, gpus)] = gpu_s
    return sets


def _lengths_left(open_sets: dict[int, float], clocks: dict[int, float]) -> _Lengths:
    """The jobs of an app as they are now: jobs between two corners of the concave hull of its sets are level."""
    corners = [(0, 0.0)]
    for size in sorted(open_sets):
        gpu_s = open_sets[size] - clocks[size]
        while len(corners) > 1 and _slope(corners[-2], (size, gpu_s)) >= _slope(*corners[-2:]):
            corners.pop()
        if gpu_s > corners[-1][1]:
            corners.append((size, gpu_s))
    return {_slope(low, high): high[0] - low[0] for low, high in pairwise(corners)}


def _slope(low: tuple[int, float], high: tuple[int, float]) -> float:
    return (high[1] - low[1]) / (high[0] - low[0])


def _joined(lengths: _Lengths, others: _Lengths) -> _Lengths:
    return {length: lengths.get(length, 0) + others.get(length, 0) for length in {**lengths, **others}}
