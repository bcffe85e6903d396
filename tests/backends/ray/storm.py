"""A real Ray under jobs of a service, and what befalls both."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from horae.testing.ray_cluster import RayCluster
from tests.backends.real import until
from tests.service.crashes import Cluster, Storm
from tests.service.mortal import CLUSTER_POINTS

#: Seconds for all of Ray to end after its store of state was killed; it takes about a minute.
GCS_S = 150.0


class RaySite:
    """A Ray of three nodes, and what befalls it."""

    def __init__(self, shared: Path, ray: RayCluster, seed: int) -> None:
        self.ray, self._random = ray, random.Random(f"ray {seed}")
        self.cluster = Cluster(
            attempts=shared,
            words=("--backend", "ray", "--address", ray.address, "--shared", str(shared), "--with", "storage-away=12s"),
            points=tuple(sorted(CLUSTER_POINTS)),
            kinds=("train", "plain", "shell", "pair", "gang", "uneven"),
            gpu_types=("v100", "p100"),
            backlog=16,
            short=(200, 350),
            finish_s=900.0,  # gangs of eight GPUs take turns, and a launch takes as long as a turn
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


def make_ray_suffer(site: RaySite, storm: Storm) -> None:
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
