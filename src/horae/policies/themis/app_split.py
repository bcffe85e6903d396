"""How an app divides the GPUs it won among its jobs.

A job whose old GPUs are among them stays where it is. The others come in the app's order; each goes to the
machine of its fastest type that it fills best, or else over the fewest machines. If GPUs are left then that are much
faster than what somebody has, it moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from horae.core.arrays import Bools, Ints
from horae.core.snapshot import Snapshot

Counts = dict[int, int]

#: GPUs must be so many times faster before a job moves to them.
WORTH_MOVING = 1.1


def divide(now: Snapshot, jobs: Ints, won: Mapping[int, int], leased: Bools) -> dict[int, Counts]:
    """GPUs by machine for some jobs (positions in the snapshot) of one app; jobs that get nothing are left out.

    `leased` says, for every job of the snapshot, who has GPUs that are not among those won: it moves only to much
    faster ones.
    """
    left = Counter(won)
    given: dict[int, Counts] = {}
    for i in jobs.tolist():
        has = {} if leased[i] else held_by(now, i)
        if has and all(left[machine] >= gpus for machine, gpus in has.items()):
            given[i] = has
            left.subtract(has)
    for i in jobs.tolist():
        if i not in given and (places := _places(now, i, left, rate_now(now, i) if leased[i] else 0.0)):
            given[i] = places
            left.subtract(places)
    for i, has in list(given.items()):
        if has == held_by(now, i) and (places := _places(now, i, left, rate_now(now, i))):
            given[i] = places
            left.update(has)
            left.subtract(places)
    return given


def rate_now(now: Snapshot, i: int) -> float:
    """Work per second that a job does on the type it has, or had last, as close together as can be; 0 if on none."""
    return float(now.rates[i, now.last_type[i]]) if now.last_type[i] >= 0 and now.has_gpus[i] else 0.0


def held_by(now: Snapshot, i: int) -> Counts:
    """GPUs by machine that a job has; none if some of them take no jobs any more."""
    gpu_ids = now.gpu_ledger.held.get(int(now.rows[i]), ())
    usable = now.gpu_ledger.gpu_open[list(gpu_ids)].all()
    return dict(Counter(now.machines.of_gpu[list(gpu_ids)].tolist())) if gpu_ids and usable else {}


def _places(now: Snapshot, i: int, left: Mapping[int, int], rate: float) -> Counts:
    """Machines for a job, of the fastest type that has enough; if it has a rate already, of a much faster one."""
    gpus, machine_type = int(now.gpus[i]), now.machines.gpu_type
    for gpu_type in np.argsort(-now.rates[i], kind="stable").tolist():
        here = {m: count for m, count in sorted(left.items()) if count > 0 and machine_type[m] == gpu_type}
        if now.rates[i, gpu_type] <= WORTH_MOVING * rate or sum(here.values()) < gpus:
            continue
        enough = [m for m, count in here.items() if count >= gpus]
        if enough:
            return {min(enough, key=lambda m: (here[m], m)): gpus}
        return _spread(now, here, gpus)
    return {}


def _spread(now: Snapshot, here: Mapping[int, int], gpus: int) -> Counts:
    """The fullest machines of a rack that has enough, or else of all."""
    by_rack: Counter[int] = Counter()
    for machine, count in here.items():
        by_rack[int(now.machines.rack[machine])] += count
    racks = [rack for rack, count in sorted(by_rack.items()) if count >= gpus]
    among = [m for m in here if not racks or int(now.machines.rack[m]) == racks[0]]
    taken: Counts = {}
    for machine in sorted(among, key=lambda m: (-here[m], m)):
        taken[machine] = min(gpus, here[machine])
        gpus -= taken[machine]
        if not gpus:
            break
    return taken
