"""The jobs that are run: the Philly trace where it is at hand, else a generated one of like size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from horae.core.job import JobSpec
from horae.workload.clusters import parse_cluster
from horae.workload.generator import generate, preset
from horae.workload.traces import load_trace, save_trace

#: 448 GPUs: the load of the Philly trace is 0.84 on average, with weeks above 1.5.
CLUSTER = "56x8"

#: Jobs in the Philly trace.
PHILLY_JOBS = 82_247
PHILLY = "philly/philly_pollux.csv"

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    lengths: tuple[int, ...] = (10_000, 40_000, PHILLY_JOBS)
    naive: tuple[int, ...] = (10_000, 20_000)
    queued: tuple[int, ...] = (1_000, 5_000, 12_000)
    #: Queued jobs, nodes: the scale to plan for.
    large: tuple[int, int] = (10_000, 1_000)
    steps: int = 40
    #: Generated jobs, and the nodes of the clusters that run them.
    scale: tuple[int, tuple[int, ...]] = (100_000, (1_250, 12_500))
    #: Jobs of one allocation problem: at most, and of those that all differ.
    solved: int = 1_000_000
    differing: int = 50_000
    #: Jobs in the queue of a service, and records in its journal.
    service: int = 10_000
    records: int = 100_000
    #: Apps and GPUs of auctions.
    auctions: tuple[tuple[int, int], ...] = (
        (8, 64),
        (20, 128),
        (50, 256),
        (200, 2_048),
        (1_000, 8_192),
        (2_000, 16_384),
    )


#: A minute's worth.
QUICK = Sizes(
    lengths=(1_000, 3_000, 10_000),
    naive=(3_000,),
    queued=(1_000,),
    large=(2_000, 200),
    steps=10,
    scale=(2_000, (125, 1_250)),
    solved=100_000,
    differing=5_000,
    service=2_000,
    records=20_000,
    auctions=((8, 64), (50, 256), (200, 2_048)),
)


@dataclass(frozen=True)
class Workload:
    """A trace file, its jobs, and what it is in words."""

    about: str
    path: Path
    jobs: Sequence[JobSpec]
    #: Whether it is the trace that limits are set for.
    limited: bool = False


def find_data(path: str) -> Path:
    """Where a file of the published data is, if it is at hand at all."""
    return Path(os.environ.get("HORAE_DATA", _BESIDE)) / path


def find_workload(sizes: Sizes, folder: Path) -> Workload:
    """The longest trace to run; files it needs are written into the folder."""
    philly = find_data(PHILLY)
    most = sizes.lengths[-1]
    if not philly.is_file():
        jobs = _generated(most)
        about = f"generated, {most:,} jobs: {philly} does not exist; set HORAE_DATA to the folder of the traces"
        return Workload(about, write_prefix(jobs, most, folder), jobs)
    jobs = load_trace(philly).jobs
    if most < len(jobs):
        return Workload(f"the first {most:,} jobs of Philly", write_prefix(jobs, most, folder), jobs[:most])
    return Workload(f"Philly, {len(jobs):,} jobs", philly, jobs, limited=True)


def write_prefix(jobs: Sequence[JobSpec], count: int, folder: Path) -> Path:
    """The first jobs by submission, as a trace file."""
    path = folder / f"first-{count}.csv"
    save_trace(path, jobs[:count])
    return path


def write_generated(count: int, cluster: str, folder: Path) -> Path:
    """Jobs as `horae trace generate plain --load 0.9` draws them, as a trace file."""
    path = folder / f"generated-{count}.csv"
    save_trace(path, generate(preset("plain", jobs=count, load=0.9), parse_cluster(cluster), None, seed=0))
    return path


def _generated(count: int) -> Sequence[JobSpec]:
    """Jobs in Philly's sizes, a little more than the cluster can bear, so that thousands of them queue.

    Times are whole seconds, as in Philly: sums of them are exact, so that two schedulers can be compared.
    """
    settings = preset("plain", jobs=count, sizes="philly", load=1.1)
    drawn = generate(settings, parse_cluster(CLUSTER), None, seed=0)
    return [replace(job, submit_s=float(round(job.submit_s)), work=float(round(job.work) or 1)) for job in drawn]
