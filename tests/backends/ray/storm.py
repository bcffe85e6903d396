"""A real service with jobs on a real Ray, while parts of both are killed and frozen; the jobs bear witness."""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from horae.core.commands import Decided, StopWhy
from horae.core.events import JobFailed, JobStarted, LaunchFailed
from horae.service.store.store import Store
from horae.testing.ray_cluster import RayCluster
from tests.backends.real import end_all, until
from tests.service.crashes import ENDED, HERE, Service, Submitter

#: Seconds a step takes; steps of a job; jobs that wait or run at a time.
STEP_S, STEPS, BACKLOG = 0.1, (100, 220), 9
#: Seconds of a turn under `time-slice`, and from one blow to the next.
QUANTUM_S, PAUSE_S = 8, (8.0, 14.0)
#: Seconds for all of Ray to end after its store of state was killed.
GCS_S = 120.0
#: What befalls the service and Ray, in this order.
BLOWS = ("horae", "driver", "raylet", "horae", "freeze", "horae", "driver", "gcs", "horae", "raylet", "horae")


class RayService(Service):
    """`horae serve --backend ray` as a process of its own."""

    def __init__(self, folder: Path, ray: RayCluster) -> None:
        super().__init__(folder)
        self.shared = folder / "shared"
        options = {"backend": "ray", "address": ray.address, "shared": self.shared, "url": self.url}
        self._words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._words += ["--policy", "time-slice", "--set", f"quantum={QUANTUM_S}", "--with", "storage-away=12s"]


@dataclass
class RayStorm:
    """The blows, and what they did."""

    service: RayService
    ray: RayCluster
    seed: int
    blows: Counter[str] = field(default_factory=Counter)
    #: Seconds that the service took for each answer.
    answers_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(f"ray storm {self.seed}")
        self.submitter = Submitter(self.service, self.seed, STEPS)
        self._over = threading.Event()
        self._poller = threading.Thread(target=self._ask_and_ask, daemon=True)
        self._numbers = iter(range(1_000_000))

    def run(self, jobs: int) -> None:
        """Keep a load of at least so many jobs in all, deal all blows, and wait until the last job has ended."""
        self._come_up()
        self._poller.start()
        for blow in BLOWS:
            self._load_for(self._random.uniform(*PAUSE_S))
            getattr(self, f"_{blow}")()
            self.blows[blow] += 1
        while len(self.submitter.acknowledged) < jobs:
            self._load_for(1.0)
        until(lambda: {*self.service.states().values()} <= {*ENDED}, f"for the jobs: {self.left()}", 600.0)
        self._over.set()
        self._poller.join()

    def left(self) -> dict[str, str]:
        return {job: state for job, state in self.service.states().items() if state not in ENDED}

    # --- the load

    def _load_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            submitter = self.submitter
            if len(submitter.acknowledged) - len(self._finished()) < BACKLOG:
                self._submit()
            time.sleep(0.2)

    def _finished(self) -> set[str]:
        with suppress(httpx.HTTPError, AssertionError):
            return {job for job, state in self.service.states().items() if state in ENDED}
        return {*self.submitter.acknowledged}

    def _submit(self) -> None:
        """Every second job is a gang over two nodes."""
        gang = next(self._numbers) % 2 == 0
        steps = self._random.randint(*STEPS)
        words = [sys.executable, "-S", str(HERE / "witness.py"), str(self.submitter.marks), "plain", str(steps)]
        job: dict[str, Any] = {
            "name": "gang" if gang else "small",
            "run": [*words, str(STEP_S)],
            "processes": "node",
            "resources": {"gpus": 6 if gang else self._random.choice((1, 2, 4))},
            "checkpoint": {"grace": 20},
            "recovery": {"max_restarts": 1000},
            "estimate": {"steps": steps, "throughput": {"v100": 1 / STEP_S, "p100": 1 / STEP_S}},
        }
        answer = self.submitter.submit([job])
        if answer is not None and answer.status_code == 200:
            (name,) = answer.json()["ids"]
            self.submitter.acknowledged[name] = (steps, 2 if gang else 1)

    def _ask_and_ask(self) -> None:
        """Ask the service how its nodes are, again and again, while it is there."""
        while not self._over.wait(0.1):
            with suppress(httpx.HTTPError), self.service.client() as client:
                began_s = time.monotonic()
                client.get("/v1/nodes")
                self.answers_s.append(time.monotonic() - began_s)

    # --- the blows

    def _come_up(self) -> None:
        self.service.start()
        assert self.service.ready(), self.service.said()

    def _horae(self) -> None:
        self.service.kill()
        time.sleep(self._random.uniform(0.0, 3.0))
        self._come_up()

    def _driver(self) -> None:
        """Kill the driver of a gang."""

        def drivers() -> list[int]:
            return [pid for pid in self.ray.namespace.process_ids() if _is_driver(pid)]

        os.kill(self._random.choice(until(drivers, "for a gang's driver", 60.0)), signal.SIGKILL)

    def _raylet(self) -> None:
        name = self._random.choice(self.ray.nodes).name
        self.ray.kill_node(name)
        time.sleep(3.0)
        self._start_node(name)

    def _freeze(self) -> None:
        name = self._random.choice(self.ray.nodes).name
        self.ray.freeze(name)
        self._load_for(20.0)
        self.ray.thaw(name)
        until(lambda: self.ray.process_of("raylet", name) is None, "for the raylet that was given up", 60.0)
        self._start_node(name)

    def _gcs(self) -> None:
        """All of Ray ends within about a minute; then there is a new one."""
        self.ray.kill_gcs()
        names = ("head", *(node.name for node in self.ray.nodes))
        until(lambda: not any(self.ray.process_of("raylet", name) for name in names), "for all of Ray to end", GCS_S)
        time.sleep(3.0)
        self.ray.start_head()
        for node in self.ray.nodes:
            self.ray.start_node(node.name)
        self.ray.wait_for_nodes(*(node.name for node in self.ray.nodes))

    def _start_node(self, name: str) -> None:
        time.sleep(1.0)  # the rest of the node's processes ends
        self.ray.start_node(name)
        self.ray.wait_for_nodes(name)

    def close(self) -> None:
        """Leave nothing behind."""
        self._over.set()
        if self.service.alive:
            assert self.service.process is not None
            self.service.process.kill()
            self.service.process.wait()
        end_all(self.service.shared)


def _is_driver(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
    return len(words) > 2 and words[2] == "drive"


@dataclass(frozen=True)
class RayFindings:
    """What a storm came to."""

    jobs: int
    launches: int
    preemptions: int
    gangs_over_nodes: int
    failed: int
    blows: dict[str, int]
    up_median_s: float
    answer_p99_s: float
    answer_median_s: float


def findings(storm: RayStorm, store: Store) -> RayFindings:
    """Count what happened, from the journal."""
    with closing(store):
        records = [record for _, record in store.tail()]
    decided = [one for one in records if isinstance(one, Decided)]
    launches = {(launch.job, launch.attempt): one.at_s for one in decided for launch in one.launches}
    gangs = {job for job, (_, processes) in storm.submitter.acknowledged.items() if processes > 1}
    up_s = {
        (one.job, one.attempt): one.at_s - one.up_s - launches[one.job, one.attempt]
        for one in records
        if isinstance(one, JobStarted) and (one.job, one.attempt) in launches
    }
    answers_s = sorted(storm.answers_s)
    return RayFindings(
        jobs=len(storm.submitter.acknowledged),
        launches=len(launches),
        preemptions=sum(stop.why in (StopWhy.PREEMPTED, StopWhy.MOVED) for one in decided for stop in one.stops),
        gangs_over_nodes=sum(job in gangs for job, _ in launches),
        failed=sum(isinstance(one, JobFailed | LaunchFailed) for one in records),
        blows=dict(storm.blows),
        up_median_s=round(statistics.median(up_s.values()), 2),
        answer_p99_s=round(answers_s[int(0.99 * len(answers_s))], 3),
        answer_median_s=round(statistics.median(answers_s), 4),
    )


def pieces_left(ray: RayCluster) -> list[str]:
    """Ray jobs that are not over."""
    return [job["submission_id"] for job in ray.dashboard.read("/api/jobs/") if job["status"] in ("PENDING", "RUNNING")]
