"""Jobs that have GPUs by plan, as columns that are kept up to date: compiled placement reads them as they are."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Ints

_NONE = -1
#: Columns by holder: its job, the job that shares the GPUs or -1, GPU count, lowest GPU.
LEAD, GUEST, SIZE, FIRST_GPU = 0, 1, 2, 3


class HolderColumns:
    """The holders, in no order: jobs with GPUs, of which two that share their GPUs are one holder.

    A holder's number changes when another one leaves.
    """

    def __init__(self, gpus: int) -> None:
        self.count = 0
        self.columns: Ints = np.full((4, gpus), _NONE, np.int64)
        #: By GPU: the next higher GPU of the same holder, -1 after the last one.
        self.next_gpu: Ints = np.full(gpus, _NONE, np.int64)
        #: By row: the number of the job's holder, -1 where the job has no GPUs.
        self.of_row: Ints = np.full(64, _NONE, np.int64)

    def cover(self, rows: int) -> None:
        """Have an entry for every row below `rows`."""
        have = len(self.of_row)
        if rows > have:
            more = np.full(max(rows, 2 * have) - have, _NONE, np.int64)
            self.of_row = np.concatenate((self.of_row, more))

    def extend(self, gpus: int) -> None:
        """Have room for more GPUs, and so for more holders."""
        self.columns = np.concatenate((self.columns, np.full((4, gpus), _NONE, np.int64)), axis=1)
        self.next_gpu = np.concatenate((self.next_gpu, np.full(gpus, _NONE, np.int64)))

    def first_gpu_of(self, rows: Ints) -> Ints:
        """The lowest GPU of each of some rows that have GPUs."""
        lowest: Ints = self.columns[FIRST_GPU, self.of_row[rows]]
        return lowest

    def add(self, row: int, gpu_ids: tuple[int, ...]) -> None:
        """A job has GPUs that no other job has."""
        self.cover(row + 1)
        in_order = sorted(gpu_ids)
        self.columns[:, self.count] = row, _NONE, len(in_order), in_order[0]
        for gpu, following in zip(in_order, (*in_order[1:], _NONE), strict=True):
            self.next_gpu[gpu] = following
        self.of_row[row] = self.count
        self.count += 1

    def join(self, row: int, host: int) -> None:
        """A job shares the GPUs of another."""
        self.cover(row + 1)
        h = self.of_row[host]
        assert self.columns[GUEST, h] == _NONE, f"rows {host} and {self.columns[GUEST, h]} share GPUs; {row} cannot"
        self.columns[GUEST, h] = row
        self.of_row[row] = h

    def remove(self, row: int) -> None:
        """A job has its GPUs no more; the job that shared them keeps them."""
        h = int(self.of_row[row])
        assert h != _NONE, f"row {row} has no GPUs"
        self.of_row[row] = _NONE
        guest = self.columns[GUEST, h]
        if guest == _NONE:
            self._close_gap(h)
            return
        if self.columns[LEAD, h] == row:
            self.columns[LEAD, h] = guest
        self.columns[GUEST, h] = _NONE

    def _close_gap(self, h: int) -> None:
        """The last holder takes the number of one that left."""
        self.count -= 1
        if h != self.count:
            self.columns[:, h] = self.columns[:, self.count]
            for row in self.columns[:2, h].tolist():
                if row != _NONE:
                    self.of_row[row] = h
