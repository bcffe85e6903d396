"""A history that was run again, told so that it can be laid beside what really happened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from horae.core.arrays import Floats
from horae.core.history import History
from horae.core.states import ENDED, State


def counted_alike(was: History, again: History) -> History:
    """A run of what is replayable of a history, with the same jobs as this, and the same of them finished at most.

    A job that was cancelled, failed, or has not ended takes GPUs from the others when it is run again, but did not
    finish: whatever counts finished jobs would compare two sets of jobs. One that was left out is as it was.
    """
    rows = {job.id: row for row, job in enumerate(was.jobs)}
    row_of = np.array([rows[job.id] for job in again.jobs], np.int64)
    jobs, rates = list(was.jobs), _rates(was, again)
    for row, job in zip(row_of.tolist(), again.jobs, strict=True):
        jobs[row] = job
    rates[row_of] = again.rates
    state, start_s, end_s = was.state.copy(), was.start_s.copy(), was.end_s.copy()
    start_s[row_of] = again.start_s
    end_s[row_of] = np.where(np.isin(was.state[row_of], [int(one) for one in ENDED]), again.end_s, np.nan)
    finished = row_of[was.state[row_of] == State.FINISHED]
    state[finished] = again.state[was.state[row_of] == State.FINISHED]
    return replace(
        again,
        jobs=tuple(jobs),
        state=state,
        start_s=start_s,
        end_s=end_s,
        rates=rates,
        attempts=replace(again.attempts, job=row_of[again.attempts.job]),
        given_up=was.given_up,
    )


def _rates(was: History, again: History) -> Floats:
    """What was true, for the GPU types of the machines that the jobs were run on again."""
    columns = [was.cluster.gpu_types.index(kind) for kind in again.cluster.gpu_types]
    rates: Floats = was.rates[:, columns].copy()
    return rates
