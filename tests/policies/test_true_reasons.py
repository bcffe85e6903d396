"""Why a job waits is true under every policy.

What is named is there; without the other jobs the job would run; and what is told of leases, minimum run times and the
preference for jobs that run (`Leased`) is what the same decision would have been without them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import (
    Event,
    JobCancelled,
    JobFinished,
)
from horae.core.explain import explain
from horae.core.gpu_moves import NOBODY
from horae.core.queues import Queue
from horae.core.quotas import QuotaUse
from horae.core.reasons import RULES, Reason
from horae.core.states import ALIVE, ENDED, HELD, PLACED, STATES, STOPPING, WAITING
from horae.policies import POLICIES
from tests.builders import Script
from tests.policies.mixed_jobs import CLUSTER, SETTINGS, some_events, some_jobs

#: Seeds that once failed: a quota was named that jobs of the queue had left by the same decision; one was named though
#: the quota and a GPU had come free; an order was named, and it was a lease or minimum run time, or `stay`.
LEFT_QUOTA = [("isolated", 3), ("strategy-proof", 5)]
SECOND_TURN = [("hierarchical", 4)]
KEPT_GPUS = [("las", 1), ("tiresias", 2), ("highest-rho", 1), ("slaq", 2), ("max-min", 4), ("themis", 2), ("allox", 1)]
#: Reasons of a job that may not wait for protected GPUs alone. A quota stays named if protected jobs fill it, and where
#: jobs take turns the slice is the turn (`BehindTurn`).
ORDERS = {*RULES, Reason.NO_FREE_GPUS, Reason.FRAGMENTED} - {Reason.BEHIND_TURN}
#: Decisions that are asked about without the other jobs, of each run: every so many.
EVERY = 7


def decide_freely(engine: Engine, now_s: float, unkept: bool = False) -> set[int]:
    """Rows with GPUs after a decision without leases, minimum run times and loading, and without `stay` if `unkept`."""
    fork = engine.fork()
    for until_s in (fork.jobs.protected_until_s, fork.jobs.promised_until_s, fork.jobs.lease_until_s):
        until_s[:] = -np.inf
    if unkept:
        fork.policy = replace(cast(Any, fork.policy), stay=0.0)
    fork.decide(now_s)
    return set(fork.gpus.held)


class Doubter:
    """Looks at every waiting job's reason, and asks forks of the engine what would be if things were otherwise."""

    def __init__(self) -> None:
        self.decisions = 0
        self.told: set[Reason] = set()
        #: The engine before the last decision.
        self.before: Engine | None = None

    def look(self, engine: Engine, what: Event | Decided) -> None:
        """See an event or a decision."""
        if isinstance(what, Decided) and what.planned:
            self.decisions += 1
            waiting = [row for row in engine.jobs.active.tolist() if STATES[engine.jobs.state[row]] is WAITING]
            if waiting:
                self.doubt(engine, waiting, what.at_s)
        if self.decisions % 2 == 0:
            self.before = engine.fork()

    def doubt(self, engine: Engine, waiting: list[int], now_s: float) -> None:
        """Check the reasons of the jobs that wait after a decision."""
        jobs = engine.jobs
        reasons = {row: Reason(int(jobs.reason[row])) for row in waiting}
        self.told |= set(reasons.values())
        for row, reason in reasons.items():
            assert self.is_there(engine, row, reason), f"{reason.name} of {jobs.specs[row].id} at {now_s}"
        if self.decisions % 2:
            self.doubt_guarantees(engine, reasons, now_s)
        if self.decisions % EVERY == 0:
            row = waiting[self.decisions % len(waiting)]
            if reasons[row] is not Reason.CLUSTER_TOO_SMALL:
                assert self.runs_alone(engine, row), f"{reasons[row].name} of {jobs.specs[row].id} at {now_s}"

    def doubt_guarantees(self, engine: Engine, reasons: dict[int, Reason], now_s: float) -> None:
        """Without guarantees those that wait for them are placed, and none of those that wait for another reason."""
        assert self.before is not None
        keeps = float(getattr(engine.policy, "stay", 0.0)) > 0
        if not (keeps or (self.before.jobs.protected_until_s > now_s).any()):
            assert Reason.LEASED not in reasons.values()
            return
        free = decide_freely(self.before, now_s)
        unkept = decide_freely(self.before, now_s, unkept=True) if keeps else set()
        for row, reason in reasons.items():
            told = f"{reason.name} of {engine.jobs.specs[row].id} at {now_s}"
            if reason in ORDERS:
                assert row not in free | unkept, told
            if reason is Reason.LEASED:
                # Who would win an auction of leased GPUs nobody knows before it.
                assert row in free | unkept or engine.policy_name == "themis", told
                assert "keeps its own" in explain(engine.status(), engine.jobs.specs[row].id).sentence, told

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
            return bool(guarded) or getattr(engine.policy, "stay", 0.0) > 0
        if reason is Reason.KEPT_FOR_OTHERS:
            free_for_it = most_free >= gpus or not self.is_over_quota(engine, row)
            return bool(guarded) and free_for_it and bool((jobs.reason[jobs.active] == int(Reason.LEASED)).any())
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
        use = QuotaUse(engine.queues)
        for other, gpu_ids in engine.gpus.held.items():
            use.add(int(engine.jobs.quota[other]), len(gpu_ids))
        return not use.allows(int(engine.jobs.quota[row]), int(engine.jobs.gpus_min[row]))

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


ONCE_FAILED = [*LEFT_QUOTA, *SECOND_TURN, *KEPT_GPUS]


@pytest.mark.parametrize(("policy", "seed"), [*((policy, 0) for policy in POLICIES), *ONCE_FAILED])
def test_what_is_named_is_there_and_without_it_the_job_would_run(policy: str, seed: int) -> None:
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
