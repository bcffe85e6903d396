"""Twenty real processes through the same engine by the wall clock, crashed at every record of the journal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from horae.core.cluster import Cluster
from horae.core.job import JobSpec
from tests.scenarios.wall_clock import Crash, Machine, WallClockDriver

CLUSTER = Cluster.of([("gpu", 2, 4)])
JOBS = [JobSpec(id=f"sleep-{k}", submit_s=0, gpus=1 + k % 4, work=0.01 * (1 + k % 3)) for k in range(20)]


def run(log: Path, policy: str, crash_at: int | None = None) -> tuple[Counter[str], int]:
    """Run all jobs, crashing once when the journal has so many records.

    Gives how often each job ended well, and how long the journal was when the (first) driver left.
    """
    machine, journal = Machine(str(log)), []
    try:
        WallClockDriver(machine, CLUSTER, journal, policy, crash_at).run(JOBS)
        length = len(journal)
    except Crash:
        length = len(journal)
        WallClockDriver(machine, CLUSTER, journal, policy, crash_at=None).run(JOBS)
    assert set(log.read_text().split()) == {job.id for job in JOBS}
    return Counter(job for (job, _), process in machine.processes.items() if process.returncode == 0), length


# Preempted jobs are stopped, too: that policy is crashed at every record, the other at every third.
@pytest.mark.parametrize(("policy", "every"), [("fifo-backfill", 3), ("smallest-first", 1)])
def test_every_job_is_done_once_wherever_the_driver_crashed(tmp_path: Path, policy: str, every: int) -> None:
    done, length = run(tmp_path / "undisturbed", policy)
    assert done == Counter(job.id for job in JOBS)
    assert length > 3 * len(JOBS)
    crashed = 0
    crashes = range(0, length, every)
    for crash_at in crashes:
        done, left_at = run(tmp_path / str(crash_at), policy, crash_at)
        assert done == Counter(job.id for job in JOBS), f"crashed at record {crash_at}"
        crashed += left_at == crash_at
    # Processes end when they like, so that a run may be over a few records sooner than the first one.
    assert crashed > 0.9 * len(crashes)
