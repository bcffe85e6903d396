"""What a policy says: which jobs should run, in which order, on what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.bidding import Ask
from horae.core.compared_by import ComparedBy
from horae.core.reasons import Reason

_NO_INTS = np.empty(0, np.int64)
_NO_FLOATS = np.empty(0, np.float64)
#: Columns of wishes.
_COLUMNS = "job key gpu_type gpus_min gpus_max partner wake_if_stopped_s unkept_key key_per_s".split()


class Wishes(NamedTuple):
    """Which jobs should run, as columns: position i is a wish for GPUs for the job in row `job[i]`.

    The wish with the lowest `key` goes first; equal keys, or no keys at all, keep
    the given order. A job may have several wishes; the first wish that can be placed
    counts. An empty column takes the job's own values. A wish with a partner is for two
    jobs of the same GPU count on the same GPUs: both are placed, or neither.
    """

    job: Ints
    key: Floats = _NO_FLOATS
    gpu_type: Ints = _NO_INTS
    gpus_min: Ints = _NO_INTS
    gpus_max: Ints = _NO_INTS
    #: Row of the job that shares the GPUs, or -1.
    partner: Ints = _NO_INTS
    #: For policies that choose the machines themselves: GPU count by machine, one mapping for each wish. Jobs without a
    #: wish keep their GPUs unless a wish needs them.
    pins: tuple[Mapping[int, int], ...] | None = None
    #: Whether running jobs may lose their GPUs to wishes that go before theirs.
    preempt: bool = True
    #: Whether all wishes after the first wish that cannot be placed are dropped.
    blocking: bool = False
    #: A job that has waited this many seconds gets a reservation: jobs that pass it must not delay it.
    reserve_after_s: float = np.inf
    #: Jobs that get or keep GPUs have a lease until this time.
    lease_until_s: float = -np.inf
    #: Reason of a job that waits because jobs ahead of it took the GPUs.
    waiting: Reason = Reason.NO_FREE_GPUS
    #: What jobs are compared by, for the sentence behind the reason.
    compared_by: ComparedBy = ComparedBy.NOTHING
    #: When the policy is asked again even without an event.
    wake_s: float = np.inf
    #: Whether the policy is asked again as soon as any launched job begins to work.
    wake_on_start: bool = False
    #: Bids that apps' own agents are asked for. The policy is asked again after the last answer or the deadline.
    asks: tuple[Ask, ...] = ()
    #: When the policy is asked again for each wish's job, if the job loses its GPUs by this decision.
    wake_if_stopped_s: Floats = _NO_FLOATS
    #: For policies by which jobs stay where they are unless others go before them by far: keys without that preference.
    #: A job that waits only because of it is told so.
    unkept_key: Floats = _NO_FLOATS
    #: How much `key` changes in a second if the same jobs go on to run; empty if that is not known.
    key_per_s: Floats = _NO_FLOATS

    def without(self, rows: Iterable[int]) -> Wishes:
        """The wishes of all other jobs; not for wishes with pins."""
        assert self.pins is None, "pins are not wished for one by one"
        gone = np.isin(self.job, list(rows))
        if len(self.partner):
            gone |= np.isin(self.partner, list(rows))
        columns = {name: getattr(self, name) for name in _COLUMNS}
        return self._replace(**{name: column[~gone] for name, column in columns.items() if len(column)})

    def check_lengths(self) -> None:
        """Fail if a column is neither empty nor as long as the others."""
        wishes = len(self.job)
        for name in _COLUMNS:
            column = getattr(self, name)
            assert len(column) in (0, wishes), f"a column of {len(column)} for {wishes} wishes"
        assert self.pins is None or len(self.pins) == wishes, f"{len(self.pins)} pins for {wishes} wishes"
