"""Jobs that have GPUs by plan, as columns that are kept up to date: compiled placement reads them as they are."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Ints
from horae.core.gpu_moves import FIRST_GPU, NOBODY


class HolderColumns:
    """The holders, in no order: jobs with GPUs, of which two that share their GPUs are one holder.

    `gpu_moves` keeps the columns. A holder's number changes when another one leaves.
    """

    def __init__(self, gpus: int) -> None:
        self.count = 0
        self.columns: Ints = np.full((4, gpus), NOBODY, np.int64)
        #: By GPU: the next higher GPU of the same holder, -1 after the last one.
        self.next_gpu: Ints = np.full(gpus, NOBODY, np.int64)
        #: By row: the number of the job's holder, -1 where the job has no GPUs.
        self.of_row: Ints = np.full(64, NOBODY, np.int64)

    def cover(self, rows: int) -> bool:
        """Have an entry for every row below `rows`; True if there was none for some."""
        have = len(self.of_row)
        if rows <= have:
            return False
        more = np.full(max(rows, 2 * have) - have, NOBODY, np.int64)
        self.of_row = np.concatenate((self.of_row, more))
        return True

    def extend(self, gpus: int) -> None:
        """Have room for more GPUs, and so for more holders."""
        self.columns = np.concatenate((self.columns, np.full((4, gpus), NOBODY, np.int64)), axis=1)
        self.next_gpu = np.concatenate((self.next_gpu, np.full(gpus, NOBODY, np.int64)))

    def first_gpu_of(self, rows: Ints) -> Ints:
        """The lowest GPU of each of some rows that have GPUs."""
        lowest: Ints = self.columns[FIRST_GPU, self.of_row[rows]]
        return lowest
