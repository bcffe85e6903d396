"""A fixed reference for workloads that no naive program does: Python objects, small NumPy arrays, a compiled loop.

A scheduler spends its time in the interpreter, in NumPy calls on short arrays and in compiled loops over them. The
calibration does the same in like parts and uses nothing of Horae, so that a faster or slower machine changes both alike
and the ratio stays. Never change it without recording all ratios again.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass, replace

import numba
import numpy as np
from numpy.typing import NDArray

_ROWS = 512
_ROUNDS = 240
#: Times that the arrays are looked at in each round.
_LOOKS = 3
#: Records that are written as JSON and read again in each round.
_WRITTEN = 4


@dataclass(frozen=True)
class _Record:
    """Something small and frozen, as events and commands are."""

    row: int
    at_s: float
    name: str
    gpus: tuple[int, ...] = ()


@numba.njit(cache=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
def _take(order: NDArray[np.int64], wanted: NDArray[np.int64], free: int) -> int:
    """First fit over the jobs in order; the GPUs that are left."""
    for row in order:
        if wanted[row] <= free:
            free -= wanted[row]
    return free


def calibrate(rounds: int = _ROUNDS) -> float:
    """Do the fixed work; the number only keeps it from being skipped."""
    wanted = (np.arange(_ROWS, dtype=np.int64) * 7) % 8 + 1
    service = np.zeros(_ROWS)
    records: dict[int, _Record] = {}
    events: list[tuple[float, int]] = []
    total = 0.0
    for number in range(rounds):
        for turn in range(_LOOKS):
            total += _arrays(service, wanted, number + turn)
        total += _objects(records, events, number)
        total += _written(records, number)
    return total


def _arrays(service: NDArray[np.float64], wanted: NDArray[np.int64], number: int) -> float:
    """Gather, sort, compare and sum columns, as a policy does."""
    active = np.flatnonzero((wanted + number) % 3 > 0)
    service[active] += wanted[active] * 0.25
    order = np.lexsort((active, -wanted[active], service[active] // 16.0))
    left = _take(active[order], wanted, _ROWS)
    ahead = np.cumsum(wanted[active][order])
    return float(left + np.searchsorted(ahead, 100) + service[active].max())


def _objects(records: dict[int, _Record], events: list[tuple[float, int]], number: int) -> float:
    """Make, look up and compare small objects, as an engine does."""
    for row in range(number, number + 40):
        key = row % _ROWS
        before = records.get(key)
        at_s = before.at_s + 1.0 if before is not None else float(row)
        records[key] = _Record(key, at_s, f"job-{key}", tuple(range(key % 4)))
        heapq.heappush(events, (at_s, key))
    earliest = [heapq.heappop(events) for _ in range(36)]
    running = [record for key, record in records.items() if len(record.gpus) > key % 2]
    return sum(at_s for at_s, _ in earliest) + len(running) + len({record.name for record in running[:60]})


def _written(records: dict[int, _Record], number: int) -> float:
    """Write records as JSON and read them, as a journal does."""
    keys = list(records)[-_WRITTEN:]
    texts = [json.dumps(vars(replace(records[key], at_s=float(number)))) for key in keys]
    return sum(float(json.loads(text)["at_s"]) for text in texts)
