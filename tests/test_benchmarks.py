"""The naive loop that benchmarks compare with is right, so that a ratio compares like with like."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from horae.core.job import JobSpec
from horae.simulate.run import simulate
from horae.workload.clusters import parse_cluster


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmarks are not installed; they stand beside the tests."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1]))
    return importlib.import_module("benchmarks.reference")


def random_jobs(seed: int, count: int = 150) -> list[JobSpec]:
    """Jobs in whole seconds, often at the same one, that keep eight GPUs overloaded for a while."""
    rng = np.random.default_rng(seed)
    columns = rng.integers(0, 400, count), rng.choice([1, 2, 4, 8], count), rng.integers(1, 40, count)
    return [
        JobSpec(f"{n}", float(submit_s), int(gpus), float(work))
        for n, (submit_s, gpus, work) in enumerate(zip(*columns, strict=True))
    ]


@pytest.mark.parametrize("policy", ["fifo-backfill", "srtf"])
@pytest.mark.parametrize("seed", range(3))
def test_the_naive_loop_gives_every_job_the_start_and_end_that_horae_does(
    reference: ModuleType, policy: str, seed: int
) -> None:
    jobs = random_jobs(seed)
    history = simulate(jobs, parse_cluster("2x4"), policy=policy, placement="anywhere", restart_cost_s=0.0)
    reference.check_same(history, reference.naive.run(jobs, 8, policy))


def test_a_difference_between_the_two_is_told_by_job(reference: ModuleType) -> None:
    jobs = random_jobs(0)
    history = simulate(jobs, parse_cluster("2x4"), policy="fifo", placement="anywhere", restart_cost_s=0.0)
    with pytest.raises(AssertionError, match=r"job \d+: horae ran it from .* jobs differ"):
        reference.check_same(history, reference.naive.run(jobs, 8, "srtf"))
