"""Queues in rounds: what each of them gets in GPU time, and who goes first.

Tests policies/gavel/allocation_policy.py and policies/gavel/share_policies.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from horae.core.engine import Engine
from horae.core.events import JobSubmitted
from horae.core.history import History
from horae.core.job import JobSpec
from horae.core.policy import Policy
from horae.core.queues import Queue
from horae.placement.rules import make_placement
from horae.policies.gavel.allocation_policy import AllocationPolicy
from horae.policies.gavel.share_policies import Hierarchical, MaxMin, WaterFilling
from horae.simulator.driver import Driver
from horae.simulator.world import World
from tests.builders import cluster, ends, job
from tests.solve.plain import problem


def run(jobs: Sequence[JobSpec], spec: str, policy: AllocationPolicy, queues: Sequence[Queue] = ()) -> History:
    """Simulate under this very policy; restarts are free."""

    def make(name: str, settings: Mapping[str, str]) -> Policy:
        return policy

    machines = cluster(spec)
    engine = Engine(machines, make, "given", {}, make_placement("best-effort"), queues=queues)
    driver = Driver(
        engine, World(engine.jobs, machines, 0.0, None, 0), [JobSubmitted(one.submit_s, one) for one in jobs]
    )
    driver.run()
    return driver.history({})


def gpu_seconds(history: History, queue: str, until_s: float) -> float:
    """GPU time that the jobs of a queue had."""
    attempts = history.attempts
    held_s = np.minimum(attempts.end_s, until_s) - np.minimum(attempts.begin_s, until_s)
    mine = np.array([history.jobs[row].queue == queue for row in attempts.job.tolist()])
    return float((held_s * attempts.gpus)[mine].sum())


def test_a_queue_of_weight_two_gets_twice_the_gpu_time() -> None:
    """However many jobs: the light queue has four times as many as the heavy one."""
    jobs = [job(f"light-{k}", work=1e5, queue="light") for k in range(12)]
    jobs += [job(f"heavy-{k}", work=1e5, queue="heavy") for k in range(3)]
    history = run(jobs, "1x3", Hierarchical(), [Queue("light", 1), Queue("heavy", 2)])
    day_s = 86_400
    assert gpu_seconds(history, "heavy", day_s) == pytest.approx(2 * gpu_seconds(history, "light", day_s), rel=0.02)
    assert gpu_seconds(history, "heavy", day_s) + gpu_seconds(history, "light", day_s) == pytest.approx(3 * day_s)


def test_a_queue_inside_a_queue_gets_its_part_of_the_part() -> None:
    jobs = [job(f"{queue}-{k}", work=1e5, queue=queue) for k in range(4) for queue in ("a/x", "a/y", "b")]
    history = run(jobs, "1x4", Hierarchical(), [Queue("a/x", 3)])
    had_s = [gpu_seconds(history, queue, 80_000) for queue in ("a/x", "a/y", "b")]
    assert np.array(had_s) / sum(had_s) == pytest.approx([3 / 8, 1 / 8, 1 / 2], abs=0.01)


def test_a_fifo_queue_finishes_its_jobs_in_order() -> None:
    """The longest comes first, and is still first to end; without the rule it is the last."""
    works = [30_000, 20_000, 10_000, 5_000]
    jobs = [job(f"{queue}-{k}", work=work, queue=queue) for queue in ("line", "fair") for k, work in enumerate(works)]
    line = ends(run(jobs, "1x2", Hierarchical(), [Queue("line", rule="fifo")]))
    assert line[:4] == sorted(line[:4])
    assert line[0] == pytest.approx(30_000, abs=720)
    assert line[4:] == sorted(line[4:], reverse=True)


def test_water_filling_and_max_min_give_the_same_shares() -> None:
    p = problem([[40, 10], [12, 4], [100, 50], [5, 0]], [1, 1], weight=[1, 2, 1, 3])
    assert (WaterFilling().allocate(p).share == MaxMin().allocate(p).share).all()
