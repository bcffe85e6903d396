"""Jobs that load a checkpoint are left in peace until they have worked for as long as that took."""

from __future__ import annotations

import numpy as np

from builders import job, run, times


def test_gaps_in_a_stream_of_short_jobs_are_not_wasted_on_loading() -> None:
    """In every gap the long job is given the GPU; were it preempted while it loads, it would never get anywhere."""
    stream = [job(f"s{k}", work=50.0, submit_s=4000.0 + 100 * k) for k in range(300)]
    history = run([job("long", work=5000.0), *stream], "1x1", "srsf", restart_cost_s=60.0)
    attempts = history.attempts
    mine = attempts.job == 0
    assert (attempts.preempted[mine] & np.isnan(attempts.work_s[mine])).sum() <= 1
    assert times(history)["long"][1] < 10_000
