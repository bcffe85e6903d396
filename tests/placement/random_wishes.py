"""An engine whose policy wishes at random, in a world that does anything at random: from one seed.

It comes to states that no policy here leads to, and goes through every branch of the walk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from horae.core.cluster import Cluster, Node
from horae.core.engine import Engine
from horae.core.events import (
    JobFailed,
    JobFinished,
    JobHeld,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeDraining,
    NodeJoined,
    NodeLost,
)
from horae.core.job import JobSpec
from horae.core.memory import Memory, MemorySpec
from horae.core.plan import PlacementRule, Plan
from horae.core.policy import Policy
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.states import State
from horae.core.wishes import Wishes
from horae.placement import PLACEMENTS
from horae.placement.rules import make_placement

WAITING = (Reason.NO_FREE_GPUS, Reason.BEHIND_EARLIER, Reason.BEHIND_SHORTER, Reason.BEHIND_TURN)


@dataclass(frozen=True)
class AtRandom:
    """Wishes anything for anybody; most flags keep their values throughout, as those of a policy do."""

    rng: np.random.Generator
    style: dict[str, bool]
    memory: ClassVar = MemorySpec()

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Some jobs, in some order."""
        rng, style = self.rng, self.style
        rows = self._rows(now)
        n = len(rows)
        none = np.empty(0, np.int64)
        least = now.table.gpus_min[rows]
        return Wishes(
            job=rows,
            key=rng.integers(0, 6, n).astype(np.float64) if style["keyed"] else np.empty(0),
            gpu_type=rng.integers(0, len(now.cluster.gpu_types), n) if style["typed"] else none,
            gpus_min=least + rng.integers(0, 2, n) if style["sized"] else none,
            gpus_max=now.table.gpus_max[rows] + 1 if style["sized"] else none,
            partner=self._partners(now, rows) if style["paired"] else none,
            preempt=style["preempt"],
            blocking=style["blocking"],
            reserve_after_s=float(rng.choice([0.0, 200.0, np.inf])) if style["reserving"] else np.inf,
            lease_until_s=now.now_s + 90 if style["leasing"] and rng.random() < 0.7 else -np.inf,
            waiting=WAITING[int(rng.integers(len(WAITING)))] if rng.random() < 0.1 else Reason.BEHIND_EARLIER,
        )

    def _rows(self, now: Snapshot) -> np.ndarray:
        if self.style["whole"]:
            return now.rows
        rows = self.rng.permutation(now.rows)[: self.rng.integers(0, len(now) + 1)]
        return np.repeat(rows, 2) if self.style["typed"] else rows

    def _partners(self, now: Snapshot, rows: np.ndarray) -> np.ndarray:
        """For some wishes another job that has no other wish and the same size: elastic jobs never share."""
        table, free = now.table, [row for row in now.rows.tolist() if row not in set(rows.tolist())]
        partners = np.full(len(rows), -1, np.int64)
        for i, row in enumerate(rows.tolist()):
            alike = [
                other
                for other in free
                if table.gpus_min[row] == table.gpus_max[row] == table.gpus_min[other] == table.gpus_max[other]
                and table.types[row] == table.types[other]
            ]
            if alike and self.rng.random() < 0.5:
                partners[i] = alike[0]
                free.remove(alike[0])
        return partners


class RandomWalks:
    """One seed: a cluster, jobs, a policy at random, and events at random between decisions."""

    def __init__(self, seed: int, make: Callable[[str], PlacementRule] = make_placement) -> None:
        self.rng = rng = np.random.default_rng(seed)
        names = ("keyed", "typed", "sized", "paired", "preempt", "blocking", "reserving", "leasing", "whole")
        self.style = {name: bool(rng.random() < 0.4) for name in names}
        self.style["preempt"] = bool(rng.random() < 0.7)
        if self.style["typed"] or self.style["paired"]:
            self.style["whole"] = False
        self.placement = str(rng.choice([*PLACEMENTS, "tiresias:0.2"]))
        self.plans: list[Plan] = []
        self.rule = rule = make(self.placement)
        self.engine = Engine(self._cluster(), self._policy, "random", {}, self._watched(rule), queues=self._queues())
        self.jobs = 0

    def run(self, steps: int) -> list[Plan]:
        """Let things happen, and decide after each."""
        for step in range(steps):
            now_s = 10.0 * (step + 1)
            self._happen(now_s)
            while self.engine.due(now_s):
                self.engine.decide(now_s)
        return self.plans

    def _policy(self, name: str, settings: object) -> Policy:
        return AtRandom(self.rng, self.style)

    def _watched(self, rule: PlacementRule) -> PlacementRule:
        plans = self.plans

        class Watched:
            flat = rule.flat

            def fit(self, now: Snapshot, wishes: Wishes) -> Plan:
                plans.append(rule.fit(now, wishes))
                return plans[-1]

        return Watched()

    def _cluster(self) -> Cluster:
        rng, types = self.rng, int(self.rng.integers(1, 3))
        nodes = [
            Node(f"n{k}", f"t{rng.integers(types)}", int(rng.integers(1, 5)), f"r{rng.integers(2)}")
            for k in range(int(rng.integers(2, 6)))
        ]
        return Cluster(tuple(nodes))

    def _queues(self) -> tuple[Queue, ...]:
        if self.rng.random() < 0.6:
            return ()
        top = int(self.rng.integers(2, 9))
        return (Queue("a", gpus_min=int(self.rng.integers(0, top)), gpus_max=top), Queue("a/b", gpus_max=top // 2))

    def _happen(self, now_s: float) -> None:
        """One to three events."""
        for _ in range(int(self.rng.integers(1, 4))):
            dice = self.rng.random()
            if dice < 0.45 and self.jobs < 200:
                self.engine.apply(JobSubmitted(now_s, self._job()))
            elif dice < 0.95:
                self._answer(now_s)
            else:
                self._change_node(now_s)

    def _job(self) -> JobSpec:
        rng, self.jobs = self.rng, self.jobs + 1
        gpus = int(rng.choice([1, 1, 2, 3, 4]))
        elastic = rng.random() < 0.25
        types = self.engine.gpus.cluster.gpu_types
        return JobSpec(
            id=str(self.jobs),
            submit_s=0.0,
            gpus=gpus,
            gpus_min=int(rng.integers(1, gpus + 1)) if elastic else gpus,
            gpus_max=gpus + 2 if elastic else gpus,
            work=float(rng.integers(50, 900)),
            gpu_types=(str(rng.choice(types)),) if rng.random() < 0.3 else (),
            skew=float(rng.random()),
            queue=str(rng.choice(["a", "a/b", "c"])),
            min_runtime_s=float(rng.choice([0.0, 0.0, 60.0])),
        )

    def _answer(self, now_s: float) -> None:
        """What a backend, or the user, says of a job that was chosen at random."""
        table = self.engine.jobs
        rows = np.flatnonzero(table.state[: len(table)] < int(State.FINISHED))
        if not len(rows):
            return
        row = int(self.rng.choice(rows))
        name, attempt, state = table.specs[row].id, int(table.attempt[row]), State(int(table.state[row]))
        if state is State.LAUNCHING:
            self.engine.apply(JobStarted(now_s, name, attempt))
        elif state is State.RUNNING and self.rng.random() < 0.6:
            self.engine.apply(JobFinished(now_s, name, attempt))
        elif state is State.RUNNING:
            self.engine.apply(JobFailed(now_s, name, attempt, 1, 10.0))
        elif state in (State.STOPPING, State.HOLDING, State.CANCELLING):
            self.engine.apply(JobStopped(now_s, name, attempt, 20.0))
        elif state is State.HELD:
            self.engine.apply(JobReleased(now_s, name))
        elif self.rng.random() < 0.1:
            self.engine.apply(JobHeld(now_s, name))

    def _change_node(self, now_s: float) -> None:
        node = self.engine.gpus.cluster.nodes[int(self.rng.integers(len(self.engine.gpus.cluster.nodes)))]
        dice = self.rng.random()
        if dice < 0.5:
            self.engine.apply(NodeJoined(now_s, node))
        elif dice < 0.6:
            self.engine.apply(NodeJoined(now_s, Node(f"late{self.jobs}", "t0", 2, "r0")))
        elif dice < 0.85:
            self.engine.apply(NodeDraining(now_s, node.name, evict=bool(self.rng.random() < 0.5)))
        else:
            self.engine.apply(NodeLost(now_s, node.name))
