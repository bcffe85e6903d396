"""How an app divides the GPUs that it won among its jobs.

1. A job whose present GPUs are among them stays.
2. The other jobs come in the app's order. Each goes to the machine of its fastest GPU type that it fills best, or
   else over the fewest machines.
3. A job that stays moves if much faster GPUs are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from horae.core.arrays import Bools, Ints
from horae.core.snapshot import Snapshot

#: GPU count by machine.
Counts = dict[int, int]

#: A job moves only to GPUs that are faster by more than this factor.
WORTH_MOVING = 1.1


def divide(now: Snapshot, jobs: Ints, won: Mapping[int, int], leased: Bools) -> dict[int, Counts]:
    """GPU count by machine for some jobs (positions in the snapshot) of one app; jobs that get nothing are left out.

    `leased[i]`: job i of the snapshot has GPUs that are not among those won, and moves only to much faster GPUs.
    """
    left = Counter(won)
    given: dict[int, Counts] = {}
    for i in jobs.tolist():
        has = {} if leased[i] else held_by(now, i)
        if has and all(left[machine] >= gpus for machine, gpus in has.items()):
            given[i] = has
            left.subtract(has)
    for i in jobs.tolist():
        if i not in given and (places := _fastest_places(now, i, left, rate_now(now, i) if leased[i] else 0.0)):
            given[i] = places
            left.subtract(places)
    for i, has in list(given.items()):
        if has == held_by(now, i) and (places := _fastest_places(now, i, left, rate_now(now, i))):
            given[i] = places
            left.update(has)
            left.subtract(places)
    return given


def rate_now(now: Snapshot, i: int) -> float:
    """Work per second of a job on the GPU type that it has, if its GPUs were on one machine; 0 without GPUs."""
    return float(now.rates[i, now.last_type[i]]) if now.last_type[i] >= 0 and now.has_gpus[i] else 0.0


def held_by(now: Snapshot, i: int) -> Counts:
    """GPU count by machine of a job; empty if some of its GPUs are closed (drained or down)."""
    gpu_ids = list(now.gpu_ledger.held.get(int(now.rows[i]), ()))
    if not gpu_ids or not now.gpu_ledger.gpu_open[gpu_ids].all():
        return {}
    return dict(Counter(now.machines.of_gpu[gpu_ids].tolist()))


def _fastest_places(now: Snapshot, i: int, left: Mapping[int, int], rate: float) -> Counts:
    """GPU count by machine for a job, on the fastest GPU type with enough left; much faster than `rate`, or empty."""
    gpus, machine_type = int(now.gpus[i]), now.machines.gpu_type
    if sum(left.values()) < gpus:
        return {}
    for gpu_type in np.argsort(-now.rates[i], kind="stable").tolist():
        free = {m: count for m, count in sorted(left.items()) if count > 0 and machine_type[m] == gpu_type}
        if now.rates[i, gpu_type] <= WORTH_MOVING * rate or sum(free.values()) < gpus:
            continue
        large_enough = [m for m, count in free.items() if count >= gpus]
        if large_enough:
            return {min(large_enough, key=lambda m: (free[m], m)): gpus}
        return _spread(now, free, gpus)
    return {}


def _spread(now: Snapshot, free: Mapping[int, int], gpus: int) -> Counts:
    """The machines with most free GPUs, in one rack that has enough, or else in all racks."""
    by_rack: Counter[int] = Counter()
    for machine, count in free.items():
        by_rack[int(now.machines.rack[machine])] += count
    racks = [rack for rack, count in sorted(by_rack.items()) if count >= gpus]
    candidates = [m for m in free if not racks or int(now.machines.rack[m]) == racks[0]]
    taken: Counts = {}
    for machine in sorted(candidates, key=lambda m: (-free[m], m)):
        taken[machine] = min(gpus, free[machine])
        gpus -= taken[machine]
        if not gpus:
            break
    return taken
