"""Where the runs of a batch are performed: in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import os

from horae.core.errors import UserError
from horae.experiments import parallel
from horae.experiments.parallel import Executor

_RAY = "ray:"
#: Seconds for an answer of a cluster: nobody else waits, and a busy cluster is slow.
_PATIENCE_S = 60.0


def executor_for(workers: int) -> Executor:
    """Processes of this machine; with one worker, this process."""
    if workers <= 1:
        return parallel.run_in_turn
    return lambda batch, advance: parallel.run_all(batch, workers, advance)


def executor_on(on: str | None, workers: int | None) -> Executor:
    """What `--on` and `--workers` ask for: by default as many processes of this machine as it has cores.

    On a cluster, `workers` limits how many runs it performs at once.
    """
    if on is None:
        count = workers or os.cpu_count() or 1
        return lambda batch, advance: parallel.run_all(batch, count, advance)
    if not on.startswith(_RAY):
        raise UserError(f"--on {on!r} is not known: write it like --on ray:http://head:8265, or leave it out.")
    from horae.backends.ray.dashboard import Dashboard
    from horae.experiments.ray_study import RayStudy

    return RayStudy(Dashboard(on.removeprefix(_RAY), _PATIENCE_S), workers).run
