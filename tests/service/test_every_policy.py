"""Every policy, in a service, over the same hard day: all kinds of jobs, people who change their minds, a node that is
drained, a crash in the middle, and another policy halfway through."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from horae.backends.fake import FakeJob
from horae.core.cluster import Node
from horae.core.invariants import check
from horae.core.states import STATES, WAITING
from horae.policies import POLICIES, describe
from horae.service.recovery import recover
from horae.service.views.views import Filters
from tests.service.stepped_service import ADMIN, SteppedService
from tests.simulation.trouble import difference, same

NODES = (Node("v100", "v100", 2), Node("k80", "k80", 2))
#: Turns, leases and rounds short enough that a day has many.
SHORT = {"quantum": "4", "lease": "4", "round": "4", "stay": "4", "chance": "4", "thresholds": "5,20", "gain": "2"}
#: A job may lose its GPUs in each of the day's turns, and be moved besides; more would be thrashing.
MOST_ATTEMPTS = 15

#: Name, seconds of work, and what is said of each job.
JOBS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("train", 9, {"estimate": {"steps": 90, "throughput": {"v100": 10, "k80": 5}}, "queue": "a"}),
    ("pair", 6, {"resources": {"gpus": 2}, "queue": "b/x", "deadline": 20}),
    ("over", 12, {"estimate": {"duration": 2}, "queue": "b/y"}),
    ("wide", 6, {"resources": {"gpus": 8, "gpus_min": 1, "gpus_max": 8}, "estimate": {"steps": 60}}),
    ("kind", 4, {"resources": {"gpus": "k80:2"}}),
    ("any", 4, {"resources": {"gpus": {"any_of": ["v100:1", "k80:1"]}}, "class": "alike"}),
    ("trial", 6, {"app": "grid", "app_scheduler": "halving:eta=2", "estimate": {"steps": 60}}),
    ("trial", 6, {"app": "grid", "app_scheduler": "halving:eta=2", "estimate": {"steps": 60}}),
    ("fixed", 5, {"preemptible": False}),
    ("fails", 1, {"recovery": {"max_restarts": 1}}),
    ("unwanted", 50, {}),
    ("later", 4, {"min_runtime": 2, "weight": 0.1}),
)
ENDS = {"fails": "failed", "unwanted": "cancelled"}


def settings(policy: str) -> dict[str, str]:
    return {one.name: SHORT[one.name] for one in describe(policy).parameters if one.name in SHORT}


class Day:
    """A service, and what is done to it, by the clock."""

    def __init__(self, folder: Path, policy: str, other: str) -> None:
        self.cell, self.other = SteppedService(folder, policy, nodes=NODES, **settings(policy)), other
        self.jobs: dict[str, str] = {}
        for name, lasts_s, said in JOBS:
            job = f"{name}-{len(self.jobs) + 1}"
            self.cell.world.jobs[job] = FakeJob(lasts_s, 3 if name == "fails" else 0, ready_s=0.5, stop_s=0.5)
            assert self.cell.submit(ADMIN, name=name, **said) == job
            self.jobs[job] = name

    def job(self, name: str) -> str:
        return next(job for job, its in self.jobs.items() if its == name)

    def act(self) -> None:
        """What people do at this moment."""
        operations = self.cell.operations
        match round(self.cell.now_s):
            case 3:
                self.cell.ask(lambda: operations.request(ADMIN, "hold", [self.job("later")]))
            case 6:
                self.cell.ask(lambda: operations.drain(ADMIN, "v100", evict=True))
            case 9:
                self.cell.crash()
                self.cell.reopen()
            case 12:
                self.cell.ask(lambda: operations.resume(ADMIN, "v100"))
            case 15:
                self.cell.ask(lambda: operations.request(ADMIN, "cancel", [self.job("unwanted")]))
                self.cell.ask(lambda: operations.request(ADMIN, "release", [self.job("later")]))
            case 18:
                self.cell.ask(lambda: operations.configure(ADMIN, self.other, settings(self.other)))

    def report(self) -> None:
        """Jobs that train say how far they have come."""
        for (job, attempt), life in list(self.cell.world.running.items()):
            if self.jobs[job] in ("train", "trial", "wide") and self.cell.now_s >= life.ready_at_s:
                said = self.progress(job, life.script.lasts_s, life.ready_at_s, life.start.task.work)
                self.cell.ask(lambda job=job, attempt=attempt, said=said: self.say(job, attempt, said))

    def progress(self, job: str, lasts_s: float, ready_s: float, work: float) -> tuple[float, float, float]:
        done = self.cell.world.saved.get(job, 0.0) + (self.cell.now_s - ready_s) / lasts_s * work
        step = int(min(done, work))
        return step, work, 1.0 / (1 + step)

    def say(self, job: str, attempt: int, said: tuple[float, float, float]) -> None:
        self.cell.operations.progress(job, attempt, *said)

    def look(self) -> bool:
        """Nothing is on a GPU twice, whoever waits is told why, and everybody can look; False if all is over."""
        check(self.cell.daemon.engine)
        used = Counter(
            (place.node, gpu)
            for life in self.cell.world.running.values()
            for place in life.start.places
            for gpu in place.gpus
        )
        # Live, nobody knows of two jobs that would go well together.
        assert max(used.values(), default=0) <= 1, used
        views, jobs = self.cell.views(), self.cell.daemon.engine.jobs
        views.nodes(), views.shares()
        for row in range(len(jobs)):
            if STATES[jobs.state[row]] is WAITING:
                check_reason(views.why(ADMIN, row))
        return sum(views.jobs(ADMIN, Filters())[1].values()) > 0


def check_reason(told: dict[str, Any]) -> None:
    """There is a reason; nothing is counted below nothing; and whoever is said to be ahead is there."""
    reason, numbers = told["reason"], told["numbers"]
    assert reason != "None", told
    assert all(number >= 0 for number in numbers.values() if not isinstance(number, str)), told
    if reason == "Leased" or reason.startswith("Behind"):
        assert min(numbers["holders"], numbers["taken"]) > 0, told
    if reason == "NoFreeGpus":
        assert numbers["free"] < numbers["gpus"], told
    if reason == "ClusterTooSmall":
        assert numbers["capacity"] < numbers["gpus"], told


@pytest.mark.parametrize(("policy", "other"), list(pairwise([*POLICIES, *list(POLICIES)[:1]])))
def test_a_hard_day_ends_well(tmp_path: Path, policy: str, other: str) -> None:
    day = Day(tmp_path, policy, other)
    cell = day.cell
    while day.look():
        assert cell.now_s < 200, {job: cell.state(job) for job in day.jobs}
        cell.to(cell.now_s + 1.0, step_s=1.0)
        day.act()
        if round(cell.now_s) % 2:
            day.report()
    for job, name in day.jobs.items():
        ends = ("finished", "cancelled") if name == "trial" else (ENDS.get(name, "finished"),)
        assert cell.state(job) in ends, job
    attempts = Counter(job for job, _ in cell.world.started)
    assert max(attempts.values()) <= MOST_ATTEMPTS, attempts
    assert attempts[day.job("fixed")] <= 2, "only the drain stops it"
    engine, _ = recover(cell.store, cell._beginning)
    assert same(engine.contents(), cell.daemon.engine.contents()), difference(
        engine.contents(), cell.daemon.engine.contents()
    )
    cell.crash()
