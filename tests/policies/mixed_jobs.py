"""Jobs and events of all kinds, for runs under every policy."""

from __future__ import annotations

import random

from horae.core.events import Event, JobHeld, JobReleased, NodeDraining, NodeJoined, NodeLost
from horae.core.job import JobSpec
from tests.builders import cluster, job

CLUSTER, PRICES = "v100:2x4,k80:1x4", {"prices": "v100:3,k80:1"}
#: Settings without which a policy cannot run.
SETTINGS = {"cost": PRICES, "cost-deadline": PRICES}


def some_jobs(seed: int) -> list[JobSpec]:
    """Gangs of all sizes, of some apps and three queues; some may not be preempted at once, one never."""
    draw = random.Random(f"jobs {seed}")
    jobs = [
        job(
            f"job-{number}",
            gpus=draw.choice([1, 1, 2, 4]),
            work=draw.uniform(300, 5000),
            submit_s=float(draw.randrange(0, 6000)),
            min_runtime_s=draw.choice([0.0, 0.0, 900.0]),
            queue=draw.choice(["team/a", "team/b", "other"]),
            app=draw.choice(["", "", "search"]),
        )
        for number in range(24)
    ]
    return sorted(jobs, key=lambda one: one.submit_s)


def some_events(seed: int) -> list[Event]:
    """Holds and releases, a node that is drained and returns, and one that is lost and returns."""
    draw = random.Random(f"events {seed}")
    drained = draw.choice(cluster(CLUSTER).nodes)
    lost = draw.choice(cluster(CLUSTER).nodes)
    events: list[Event] = [
        NodeDraining(2500.0, drained.name, evict=True),
        NodeJoined(4000.0, drained),
        NodeLost(4600.0, lost.name),
        NodeJoined(5500.0, lost),
    ]
    for _ in range(4):
        name, at_s = f"job-{draw.randrange(24)}", float(draw.randrange(1000, 5000))
        events += [JobHeld(at_s, name), JobReleased(at_s + 1500, name)]
    return events
