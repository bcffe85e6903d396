"""A service with a thousand nodes and ten thousand jobs behind the reconciler, and one whose nodes come and go."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from horae.backends.attempt_round import ReconcilerSettings
from horae.backends.reconcile import Reconciler
from horae.core.states import State
from horae.service.clock import wall_clock
from horae.service.daemon import Daemon
from horae.service.initial_settings import InitialSettings
from horae.service.job_file import JobFile
from horae.service.operations import Operations
from horae.service.roles import Caller, Role
from horae.service.store.store import Store
from horae.service.warm_up import warm_up
from tests.backends.real import until
from tests.backends.scripted_cluster import ScriptedCluster


class TimedDaemon(Daemon):
    """A daemon that notes how long each pass of its loop took, from waking up until it waits again.

    During a pass the loop takes no command: all that it does, writing the journal included, is in it. Also noted is
    the processor time of the loop's thread, which others on the machine cannot lengthen by much.
    """

    cycles_s: list[float]
    cycles_cpu_s: list[float]

    def _cycle(self) -> None:
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        super()._cycle()
        self.cycles_s.append(time.perf_counter() - began_s)
        self.cycles_cpu_s.append(time.thread_time() - began_cpu_s)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder on another file system than the journal, as shared folders are, if there is one.

    On the same one, each write of the journal would wait until thousands of small files are on disk, too.
    """
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@contextmanager
def served(folder: Path, cluster: ScriptedCluster, policy: str, shared: Path | None = None) -> Iterator[TimedDaemon]:
    """A daemon with its journal, on a cluster behind the reconciler."""
    beginning = InitialSettings((), policy, {})
    warm_up(beginning)
    backend = Reconciler(cluster, shared or folder / "shared", settings=ReconcilerSettings(ready_s=0.0))
    store = Store(f"sqlite:///{folder}/journal.db", own=True)
    daemon = TimedDaemon(store, backend, beginning, wall_clock(store.epoch), lambda job, attempt: {})
    daemon.cycles_s, daemon.cycles_cpu_s = [], []
    daemon.start()
    try:
        yield daemon
        assert daemon.crashed is None
    finally:
        daemon.close()
        backend.close()
        store.close()


def submit(daemon: Daemon, jobs: int, **more: Any) -> None:
    """Submit jobs, a hundred at a time."""
    operations, caller = Operations(daemon), Caller("ann", Role.ADMIN)
    job = JobFile.model_validate({"run": ["true"], "preemptible": True, **more})
    for first in range(0, jobs, 100):
        operations.submit(caller, [job] * min(100, jobs - first))


def ended(daemon: Daemon) -> int:
    states = daemon.engine.jobs.state[: len(daemon.engine.jobs)]
    return int((states == int(State.FINISHED)).sum())


def nodes_up(daemon: Daemon) -> int:
    return sum(daemon.status.node_up)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["fifo-backfill", "tiresias"])
def test_a_thousand_nodes_and_ten_thousand_jobs(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ScriptedCluster((f"n{number}" for number in range(1000)), lasts_s=20.0)
    with shared_folder() as shared, served(tmp_path, cluster, policy, shared) as daemon:
        until(lambda: nodes_up(daemon) == 1000, "for the nodes")
        daemon.cycles_s.clear()
        daemon.cycles_cpu_s.clear()
        began_s = time.monotonic()
        submit(daemon, 10_000, resources={"gpus": 1})
        until(lambda: ended(daemon) == 10_000, "for the jobs to end", patience_s=400.0)
        took_s = time.monotonic() - began_s
    cycles_s, cpu_s, rounds_s = sorted(daemon.cycles_s), sorted(daemon.cycles_cpu_s), sorted(cluster.rounds_s)
    look_s, pieces = max(cluster.looks)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{policy}: 10,000 jobs in {took_s:.0f} s; {len(cycles_s)} passes, p99 {_p99(cycles_s) * 1e3:.0f} ms, "
            f"most {cycles_s[-1] * 1e3:.0f} ms; processor p99 {_p99(cpu_s) * 1e3:.0f} ms, "
            f"most {cpu_s[-1] * 1e3:.0f} ms; "
            f"{len(rounds_s)} rounds, median {rounds_s[len(rounds_s) // 2]:.2f} s, most {rounds_s[-1]:.2f} s; "
            f"the longest look: {look_s:.3f} s, at {pieces} pieces"
        )
    assert look_s < 0.5
    assert _p99(cpu_s) < 0.1
    assert _p99(cycles_s) < 0.4, "a machine that others use, too; alone it takes less than .1 s"


def _p99(sorted_s: Sequence[float]) -> float:
    return sorted_s[int(0.99 * len(sorted_s))]


@pytest.mark.long
def test_a_cluster_grows_from_nothing_to_a_hundred_nodes_and_back(tmp_path: Path) -> None:
    cluster = ScriptedCluster((), lasts_s=0.5)
    with served(tmp_path, cluster, "fifo-backfill") as daemon:
        assert nodes_up(daemon) == 0
        for count in (1, 100, 20, 0, 40, 0):
            cluster.resize(f"n{number}" for number in range(count))
            until(lambda count=count: nodes_up(daemon) == count, f"for {count} nodes")
            if count:
                before = ended(daemon)
                submit(daemon, 3 * count, resources={"gpus": 4})
                until(lambda: ended(daemon) == before + 3 * count, "for the jobs")  # noqa: B023, waited for at once
        assert len(daemon.engine.gpus.cluster.nodes) == 100
