"""A service on a real Ray that is killed with its jobs running, while parts of Ray die and freeze.

Nothing may run twice, no step may be lost. HORAE_STORM=1 runs it (`make test-ray`): eight minutes, with figures.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from horae.testing.ray_cluster import NODES, RayCluster
from tests.backends.ray.rig import needs_ray, started
from tests.backends.real import until
from tests.service.cluster_storm import Probe, seconds_to_begin, summary
from tests.service.crashes import Cluster, Storm, examine, service
from tests.service.mortal import CLUSTER_POINTS

pytestmark = [
    *needs_ray,
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("HORAE_STORM"), reason="eight minutes: `make test-ray` runs it"),
]

SEED = int(os.environ.get("HORAE_SEED", "1"))
#: Seconds for all of Ray to end after its store of state was killed; it takes about a minute.
GCS_S = 150.0


class Site:
    """A Ray of three nodes, and what befalls it."""

    def __init__(self, shared: Path, ray: RayCluster) -> None:
        self.ray, self._random = ray, random.Random(f"ray {SEED}")
        self.cluster = Cluster(
            attempts=shared,
            words=("--backend", "ray", "--address", ray.address, "--shared", str(shared), "--with", "storage-away=12s"),
            points=tuple(sorted(CLUSTER_POINTS)),
            kinds=("train", "plain", "shell", "pair", "gang", "uneven"),
            gpu_types=("v100", "p100"),
            backlog=8,
        )

    def kill_gang_driver(self) -> None:
        def drivers() -> list[int]:
            return [pid for pid in self.ray.namespace.process_ids() if _is_driver(pid)]

        os.kill(self._random.choice(until(drivers, "for a gang's driver", 90.0)), signal.SIGKILL)

    def kill_node(self, name: str) -> None:
        """Kill a raylet, and have the node back."""
        self.ray.kill_node(name)
        self._bring_back(name)

    def freeze_node(self, name: str) -> None:
        """Let a raylet hang for 20 s. Ray gives it up before, so that it ends when it wakes."""
        self.ray.freeze(name)
        time.sleep(20)
        self.ray.thaw(name)
        until(lambda: self.ray.process_of("raylet", name) is None, "for the raylet that was given up", 90.0)
        self._bring_back(name)

    def kill_gcs(self) -> None:
        """Kill the store of Ray's state: all of Ray ends. Then there is a new one, which knows nobody."""
        self.ray.kill_gcs()
        names = ("head", *(node.name for node in self.ray.nodes))
        until(lambda: not any(self.ray.process_of("raylet", name) for name in names), "for all of Ray to end", GCS_S)
        time.sleep(5)
        self.ray.start_head()
        for node in self.ray.nodes:
            self.ray.start_node(node.name)
        self.ray.wait_for_nodes(*(node.name for node in self.ray.nodes))

    def _bring_back(self, name: str) -> None:
        time.sleep(5)  # the rest of the node's processes ends
        self.ray.start_node(name)
        self.ray.wait_for_nodes(name)

    def jobs_left(self) -> list[str]:
        jobs = self.ray.dashboard.read("/api/jobs/")
        return [job["submission_id"] for job in jobs if job["status"] in ("PENDING", "RUNNING")]


def _is_driver(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[2:3] == ["drive"]
    except OSError:
        return False


@pytest.fixture
def site() -> Iterator[Site]:
    with TemporaryDirectory(prefix="horae-ray-") as name, started(NODES) as ray:
        yield Site(Path(name).resolve() / "shared", ray)


def make_ray_suffer(site: Site, storm: Storm) -> None:
    """Have parts of Ray die and freeze, and the service beside them."""
    time.sleep(15)
    storm.kill_daemons(1, inside=1.0)
    storm.come_up()
    site.kill_gang_driver()
    time.sleep(10)
    site.kill_node("v2")
    storm.kill_daemons(1)
    storm.come_up()
    time.sleep(10)
    site.freeze_node("v1")
    storm.kill_daemons(1, inside=1.0)
    storm.come_up()
    site.kill_gang_driver()
    time.sleep(10)
    site.kill_gcs()
    time.sleep(15)
    storm.kill_daemons(1)
    storm.come_up()
    site.kill_node("p1")
    storm.kill_daemons(1, inside=1.0)
    storm.come_up()


def test_nothing_runs_twice_and_no_step_is_lost_whoever_dies(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(tmp_path, "time-slice", ("quantum=6",), site.cluster) as running:
        site.ray.let_in(running.port)
        storm = Storm(running, SEED, long=(300, 600))
        storm.begin()
        probe = Probe(running)
        make_ray_suffer(site, storm)
        while len(storm.submitter.acknowledged) < 30:
            time.sleep(1)
        storm.end()
        probe.stop()
        begin_s = seconds_to_begin(running, storm.submitter.marks)
        found = examine(storm)
        assert not site.jobs_left()
    with capsys.disabled():
        print(f"\n{summary(found, probe, begin_s)}")  # noqa: T201
    assert found.daemon_kills >= 5
    assert found.acknowledged >= 30
    assert (found.attempts >= 60, found.preemptions >= 25, found.over_nodes >= 10) == (True, True, True), found
    assert found.failed_attempts == 0
    assert probe.p99_s() < 0.2
