"""Which job held which GPU when, also where two jobs held the same GPU.

At every instant a GPU is divided equally among the jobs that hold it: half to each of
two. So the GPU-time that jobs held sums to the time in which GPUs were in use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints
from horae.core.gpu_ledger import SEATS
from horae.core.history import Attempts
from horae.report.metrics.step_functions import counting

#: GPU numbers that are looked at together, where all of a run would fill the memory.
_PART = 1 << 17


def parts(first: Ints) -> Iterator[tuple[slice, slice]]:
    """Cut rows, each with the GPUs `first[i]` to `first[i + 1]`, into parts: the rows of each, and their GPUs."""
    edges = np.searchsorted(first, np.arange(_PART, first[-1], _PART))
    for begin, end in pairwise(np.unique((0, *edges.tolist(), len(first) - 1)).tolist()):
        yield slice(begin, end), slice(int(first[begin]), int(first[end]))


@dataclass(frozen=True)
class Holdings:
    """One row for GPUs of an attempt and a stretch of time in which each of them has the same number of holders.

    `gpu[first[i]:first[i + 1]]` are the GPUs of row i; the other columns have one entry for each row. Rows of an
    attempt follow one another, and so do the stretches of each of its GPUs, in order of time.
    """

    attempt: Ints
    begin_s: Floats
    end_s: Floats
    #: Number of attempts that held the GPUs, this attempt included.
    holders: Ints
    first: Ints
    gpu: NDArray[np.int32]

    @staticmethod
    def of(attempts: Attempts) -> Holdings:
        """Attempts, cut where another job began or ended to share their GPUs. Every row has one GPU."""
        whole = _whole(attempts)
        return _cut(whole.each_gpu()) if _overlap(whole) else whole.each_gpu()

    @staticmethod
    def of_gangs(attempts: Attempts) -> Holdings:
        """The same in fewer rows: if no GPU was ever shared, an attempt is one row with all its GPUs."""
        whole = _whole(attempts)
        return _cut(whole.each_gpu()) if _overlap(whole) else whole

    @property
    def gpus(self) -> Ints:
        """GPU count of each row."""
        return np.diff(self.first)

    @property
    def gpu_s(self) -> Floats:
        """GPU-seconds of each GPU of a row: the row's length, divided among the holders."""
        return (self.end_s - self.begin_s) / self.holders

    @property
    def shared(self) -> NDArray[np.bool_]:
        """Whether the attempt shared the GPUs, by row."""
        more: NDArray[np.bool_] = self.holders > 1
        return more

    @property
    def shared_share(self) -> float:
        """Share of the GPU-time held in which several jobs held the same GPU; 0 if no GPU was held."""
        if not self.shared.any():
            return 0.0
        gpu_s, shared = np.repeat(self.gpu_s, self.gpus), np.repeat(self.shared, self.gpus)
        held = float(gpu_s.sum())
        return float(gpu_s[shared].sum()) / held if held > 0 else 0.0

    def inside(self, begin_s: float, end_s: float) -> Holdings:
        """The holdings between two times; rows outside get the length 0."""
        begin, end = np.clip(self.begin_s, begin_s, end_s), np.clip(self.end_s, begin_s, end_s)
        return replace(self, begin_s=begin, end_s=end)

    def sums_by_row(self, values: Floats, group: Ints, groups: int) -> Floats:
        """The sum of each group of rows, where the value of a row counts for each of its GPUs."""
        total = np.zeros(groups)
        for rows, _ in parts(self.first):
            gpus = self.gpus_of(rows)
            np.add.at(total, np.repeat(group[rows], gpus), np.repeat(values[rows], gpus))
        return total

    def sums_by_gpu(self, values: Floats, group: Ints, groups: int) -> Floats:
        """The sum of each group of GPUs, by GPU number, where the value of a row counts for each of its GPUs."""
        total = np.zeros(groups)
        for rows, ids in parts(self.first):
            np.add.at(total, group[self.gpu[ids]], np.repeat(values[rows], self.gpus_of(rows)))
        return total

    def gpus_of(self, rows: slice) -> Ints:
        """GPU count of some rows."""
        return np.diff(self.first[rows.start : rows.stop + 1])

    def each_gpu(self) -> Holdings:
        """The same with a row for each GPU."""
        row = np.repeat(np.arange(len(self.attempt)), self.gpus)
        attempt, holders, first = self.attempt[row], self.holders[row], np.arange(len(row) + 1)
        return Holdings(attempt, self.begin_s[row], self.end_s[row], holders, first, self.gpu)

    def by_begin(self) -> Holdings:
        """The same rows in order of begin; rows that begin together stay in their order."""
        if np.all(self.begin_s[1:] >= self.begin_s[:-1]):
            return self
        order = np.argsort(self.begin_s, kind="stable")
        gpus = self.gpus[order]
        return Holdings(
            attempt=self.attempt[order],
            begin_s=self.begin_s[order],
            end_s=self.end_s[order],
            holders=self.holders[order],
            first=np.append(0, np.cumsum(gpus)),
            gpu=self.gpu[counting(self.first[order], gpus)],
        )


def _whole(attempts: Attempts) -> Holdings:
    """Attempts as if no GPU were shared."""
    count = len(attempts.job)
    return Holdings(
        attempt=np.arange(count),
        begin_s=attempts.begin_s,
        end_s=attempts.end_s,
        holders=np.ones(count, dtype=np.int64),
        first=attempts.first,
        gpu=attempts.gpu_ids,
    )


def seats(attempts: Attempts) -> Ints:
    """The seat that each attempt has on its GPUs, from 0: a new attempt takes the first seat that is free.

    Jobs that share one GPU share all of theirs, so the first GPU of an attempt is enough to look at.
    """
    seat = np.zeros(len(attempts.job), dtype=np.int64)
    begin_s, end_s, gpu = attempts.begin_s.tolist(), attempts.end_s.tolist(), attempts.gpu_ids[attempts.first[:-1]]
    taken_until: dict[int, list[float]] = {number: [-math.inf] * SEATS for number in gpu.tolist()}
    for attempt in np.argsort(attempts.begin_s, kind="stable").tolist():
        until = taken_until[int(gpu[attempt])]
        free = [number for number in range(SEATS) if until[number] <= begin_s[attempt]]
        seat[attempt] = free[0] if free else SEATS - 1
        until[seat[attempt]] = end_s[attempt]
    return seat


def _overlap(whole: Holdings) -> bool:
    """Whether two attempts ever held the same GPU at the same time.

    It is enough to look at attempts that began one after the other on a GPU.
    """
    ordered, numbers = whole.by_begin(), int(whole.gpu.max(initial=0)) + 1
    small = np.min_scalar_type(numbers)
    last_end_s = np.full(numbers, -math.inf)
    for rows, ids in parts(ordered.first):
        gpu = ordered.gpu[ids]
        order = np.argsort(gpu.astype(small), kind="stable")
        gpu, row = gpu[order], np.repeat(np.arange(rows.start, rows.stop), ordered.gpus_of(rows))[order]
        end_s = ordered.end_s[row]
        first = np.flatnonzero(np.diff(gpu, prepend=-1))
        before_s = np.append(0.0, end_s[:-1])
        before_s[first] = last_end_s[gpu[first]]
        if np.any(ordered.begin_s[row] < before_s):
            return True
        last_end_s[gpu] = end_s
    return False


def _cut(whole: Holdings) -> Holdings:
    """Entries of whole attempts, cut so that the number of holders is the same throughout each."""
    # 1. The moments at which an attempt began or ended on a GPU, GPU by GPU.
    gpu = np.concatenate((whole.gpu, whole.gpu))
    time_s = np.concatenate((whole.begin_s, whole.end_s))
    order = np.lexsort((time_s, gpu))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(gpu[order]) != 0) | (np.diff(time_s[order]) != 0)
    moment_s = time_s[order][new]
    moment = np.empty(len(order), dtype=np.int64)
    moment[order] = np.cumsum(new) - 1
    came, left = np.split(moment, 2)
    # 2. The number of holders from each moment to the next.
    count = len(moment_s)
    holders = np.cumsum(np.bincount(came, minlength=count) - np.bincount(left, minlength=count))
    # 3. Every entry from moment to moment, joined again where the number of holders did not change.
    entry = np.repeat(np.arange(len(came)), left - came)
    since = counting(came, left - came)
    new = np.ones(len(entry), dtype=bool)
    new[1:] = (np.diff(entry) != 0) | (np.diff(holders[since]) != 0)
    last = np.append(np.flatnonzero(new)[1:], len(entry)) - 1
    entry = entry[new]
    return Holdings(
        attempt=whole.attempt[entry],
        begin_s=moment_s[since[new]],
        end_s=moment_s[since[last] + 1],
        holders=holders[since[new]],
        first=np.arange(len(entry) + 1),
        gpu=whole.gpu[entry],
    )
