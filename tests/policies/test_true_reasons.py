"""Why a job waits is true under every policy: what is named is there, and without the others the job would run."""

from __future__ import annotations

import random

import numpy as np
import pytest

from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event, JobCancelled, JobFinished, JobHeld, JobReleased, NodeDraining, NodeJoined
from horae.core.gpu_moves import NOBODY
from horae.core.job import JobSpec
from horae.core.queues import Queue, path_up
from horae.core.reasons import RULES, Reason
from horae.core.states import ALIVE, ENDED, HELD, PLACED, STATES, STOPPING, WAITING
from horae.policies import POLICIES
from tests.builders import Script, cluster, job

CLUSTER, PRICES = "v100:2x4,k80:1x4", {"prices": "v100:3,k80:1"}
SETTINGS = {"cost": PRICES, "cost-deadline": PRICES}
#: Once a quota was named that jobs of the queue had left by the same decision.
FAILED_ONCE = [("isolated", 3), ("strategy-proof", 5)]
#: Decisions that are looked at, of each run: every so many.
EVERY = 5


def some_jobs(seed: int) -> list[JobSpec]:
    """Gangs of all sizes, of some apps and two queues; some may not be preempted at once."""
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
    """Holds and releases, and a node that is drained and returns."""
    draw = random.Random(f"events {seed}")
    node = draw.choice(cluster(CLUSTER).nodes)
    events: list[Event] = [NodeDraining(2500.0, node.name, evict=True), NodeJoined(4000.0, node)]
    for _ in range(4):
        name, at_s = f"job-{draw.randrange(24)}", float(draw.randrange(1000, 5000))
        events += [JobHeld(at_s, name), JobReleased(at_s + 1500, name)]
    return events


class Doubter:
    """Looks at every waiting job's reason, and asks a fork of the engine what would be without the others."""

    def __init__(self) -> None:
        self.decisions = 0
        self.told: set[Reason] = set()

    def look(self, engine: Engine, what: Event | Decided) -> None:
        """See a decision."""
        if not (isinstance(what, Decided) and what.planned):
            return
        self.decisions += 1
        waiting = [row for row in engine.jobs.active.tolist() if STATES[engine.jobs.state[row]] is WAITING]
        for row in waiting:
            reason = Reason(int(engine.jobs.reason[row]))
            self.told.add(reason)
            assert self.is_there(engine, row, reason), f"{reason.name} of {engine.jobs.specs[row].id} at {engine.now_s}"
        if waiting and self.decisions % EVERY == 0:
            row = waiting[self.decisions % len(waiting)]
            reason = Reason(int(engine.jobs.reason[row]))
            if reason is not Reason.CLUSTER_TOO_SMALL:
                assert self.runs_alone(engine, row), f"{reason.name} of {engine.jobs.specs[row].id} at {engine.now_s}"

    def is_there(self, engine: Engine, row: int, reason: Reason) -> bool:
        """Whether what the reason names is there, by the GPUs, the quotas and the guarantees of this moment."""
        jobs, ledger, gpus = engine.jobs, engine.gpus, int(engine.jobs.gpus_min[row])
        accepted = [kind for kind in range(len(jobs.gpu_types)) if int(jobs.types[row]) >> kind & 1]
        free = ledger.gpu_open & (ledger.holders[0] == NOBODY)
        most_free = max(int(free[ledger.cluster.gpu_type == kind].sum()) for kind in accepted)
        most_open = max(int(ledger.open_by_type[kind]) for kind in accepted)
        guarded = [other for other in ledger.held if jobs.protected_until_s[other] > engine.now_s]
        if reason is Reason.CLUSTER_TOO_SMALL:
            return most_open < gpus
        if reason is Reason.OVER_QUOTA:
            return self.is_over_quota(engine, row)
        if reason is Reason.LEASED:
            return bool(guarded)
        if reason is Reason.KEPT_FOR_OTHERS:
            free_for_it = most_free >= gpus or not self.is_over_quota(engine, row)
            return bool(guarded) and free_for_it and (jobs.reason[jobs.active] == int(Reason.LEASED)).any()
        if reason is Reason.FRAGMENTED:
            return most_free >= gpus
        if reason is Reason.NO_FREE_GPUS:
            return most_free < gpus
        if reason is Reason.BEHIND_EARLIER:
            in_line = (WAITING, PLACED, STOPPING)
            return most_free < gpus or any(STATES[jobs.state[other]] in in_line for other in range(row))
        return reason in RULES and (bool(ledger.held) or self.is_over_quota(engine, row))

    def is_over_quota(self, engine: Engine, row: int) -> bool:
        """Whether the job would exceed a maximum, of its queue or one above."""
        parent, _, maximum = engine.queues.columns()
        used = np.zeros(len(parent), np.int64)
        for other, gpu_ids in engine.gpus.held.items():
            for queue in path_up(int(engine.jobs.queue[other]), parent):
                used[queue] += len(gpu_ids)
        path = path_up(int(engine.jobs.queue[row]), parent)
        return any(used[queue] + engine.jobs.gpus_min[row] > maximum[queue] for queue in path)

    def runs_alone(self, engine: Engine, row: int) -> bool:
        """Whether the job gets GPUs, at once or when the policy next looks, if no other job is there."""
        fork, now_s = engine.fork(), engine.now_s
        for other, spec in enumerate(fork.jobs.specs):
            state = STATES[fork.jobs.state[other]]
            if other != row and state in ALIVE:
                fork.apply(JobFinished(now_s, spec.id, int(fork.jobs.attempt[other])))
            elif other != row and state not in (*ENDED, HELD):
                fork.apply(JobCancelled(now_s, spec.id))
        for _ in range(3):
            while fork.due(now_s):
                fork.decide(now_s)
            if row in fork.gpus.held:
                return True
            now_s = fork.wake_s
            if now_s == np.inf:
                return False
        return False


@pytest.mark.parametrize(("policy", "seed"), [*((policy, 0) for policy in POLICIES), *FAILED_ONCE])
def test_what_is_named_is_there_and_without_the_others_the_job_would_run(policy: str, seed: int) -> None:
    doubter = Doubter()
    queues = [Queue("team", gpus_max=6), Queue("team/a", gpus_max=4)]
    Script(
        some_jobs(seed),
        CLUSTER,
        policy,
        SETTINGS.get(policy, {}),
        some_events(seed),
        restart_cost_s=30.0,
        queues=queues,
        look=doubter.look,
    )
    assert len(doubter.told) > 1
