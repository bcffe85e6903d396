"""Half of the models suffer when spread: consolidating those alone is as fast as all, and keeps people waiting less."""

from __future__ import annotations

import numpy as np
import pytest

from horae.workload.clusters import parse_cluster
from horae.workload.generator import PRESETS, generate
from tests.builders import run

SEEDS = 4


@pytest.fixture(scope="module")
def measured() -> dict[str, tuple[float, float]]:
    """Mean queueing delay and mean running time by placement."""
    machines, found = parse_cluster("8x8"), {}
    workloads = [generate(PRESETS["tiresias"], machines, None, seed) for seed in range(SEEDS)]
    for placement in ("tiresias", "consolidated", "best-effort", "least-fragmentation"):
        histories = [run(jobs, machines, "fifo-backfill", placement=placement) for jobs in workloads]
        waited = np.mean([(one.start_s - one.submit_s).mean() for one in histories])
        ran = np.mean([(one.end_s - one.start_s).mean() for one in histories])
        found[placement] = (float(waited), float(ran))
    return found


def test_by_skew_people_wait_less_than_if_all_are_consolidated(measured: dict[str, tuple[float, float]]) -> None:
    assert measured["tiresias"][0] < 0.95 * measured["consolidated"][0]


@pytest.mark.parametrize("spread", ["best-effort", "least-fragmentation"])
def test_by_skew_jobs_are_faster_than_if_all_are_spread(measured: dict[str, tuple[float, float]], spread: str) -> None:
    assert measured["tiresias"][1] < 0.95 * measured[spread][1]
    assert measured["tiresias"][1] == pytest.approx(measured["consolidated"][1])
