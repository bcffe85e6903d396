"""The fluid isolated run: what every job would get if the cluster were divided by N at every instant.

Published systems take the isolated completion time from one more simulated run,
so that it depends on that run's rounding. This model has no rounds and no gangs
to place, so it is the same yardstick for every policy.

At every instant each of the M jobs active *in this run* owns 1/M of every GPU
type: job m, of gang size s, runs for the share (n_j / M) / s of the time on type
j, scaled down so that its shares sum to at most 1. It advances at

    sum_j T[m, j] * (n_j / M) / s   =   A_m * min(1 / (M s), 1 / N),   A_m = sum_j T[m, j] * n_j

with N GPUs in all. Only A_m belongs to the job; the other factor belongs to its
size. So all jobs of one size share a virtual clock that runs at min(1 / (M s), 1 / N),
a job is done when its clock has moved by work / A_m, and one heap a size gives
exact event times in O(n log n).
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

import numpy as np

from horae.core.arrays import Floats, Ints


def isolated_jct(submit_s: Floats, gpus: Ints, work: Floats, rates: Floats, gpus_by_type: Ints) -> Floats:
    """Completion time minus submission time of every job in the fluid isolated run.

    `rates[i, k]` is the work per second of job i on its `gpus[i]` GPUs of type k.
    Jobs need not be in order of submission. A job that no type can run is left
    out of the run, and its time is NaN.
    """
    speed = rates @ gpus_by_type
    able = np.flatnonzero(speed > 0)
    order = able[np.argsort(submit_s[able], kind="stable")]
    sizes, size_number = np.unique(gpus[order], return_inverse=True)
    ends = _run(
        submit_s[order].tolist(),
        size_number.tolist(),
        (work[order] / speed[order]).tolist(),
        sizes.tolist(),
        int(gpus_by_type.sum()),
    )
    jct = np.full(len(submit_s), math.nan)
    jct[order] = np.array(ends) - submit_s[order]
    return jct


def _run(submit_s: list[float], size_of: list[int], need: list[float], sizes: list[int], gpus: int) -> list[float]:
    """End of each job, given in order of submission; `need` is how far its clock must move."""
    count = len(submit_s)
    ends = [math.nan] * count
    clocks = [0.0] * len(sizes)
    heaps: list[list[tuple[float, int]]] = [[] for _ in sizes]
    busy: list[int] = []
    now, active, arrived = 0.0, 0, 0
    while active or arrived < count:
        # 1. The size whose first job ends next. A clock runs at 1 / max(M s, N).
        wait, ending = math.inf, -1
        for k in busy:
            due = (heaps[k][0][0] - clocks[k]) * max(active * sizes[k], gpus)
            if due < wait:
                wait, ending = max(due, 0.0), k
        # 2. Move every clock to the next event; at equal times completions come first.
        arriving = arrived < count and submit_s[arrived] < now + wait
        step = submit_s[arrived] - now if arriving else wait
        for k in busy:
            clocks[k] += step / max(active * sizes[k], gpus)
        # 3. Let the event happen. An idle clock may restart from 0, which keeps it precise.
        if arriving:
            now = submit_s[arrived]
            k = size_of[arrived]
            if not heaps[k]:
                busy.append(k)
                clocks[k] = 0.0
            heappush(heaps[k], (clocks[k] + need[arrived], arrived))
            arrived += 1
            active += 1
        else:
            now += wait
            clocks[ending], job = heappop(heaps[ending])
            ends[job] = now
            active -= 1
            if not heaps[ending]:
                busy.remove(ending)
    return ends
