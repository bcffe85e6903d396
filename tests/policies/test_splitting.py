"""Inventing queues or apps gains a user nothing: the same jobs get as much GPU time in one app and queue as in many."""

from __future__ import annotations

import random

import pytest

from horae.core.history import History
from horae.core.job import JobSpec
from horae.core.queues import Queue
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.workload.clusters import parse_cluster

#: Seconds that are looked at: some 16 leases, rounds or slices. No job ends before.
HORIZON_S = 20_000.0
#: GPUs of 4 that a user may get more, as an average over the horizon: one GPU for a few rounds.
GRANULARITY = 0.35

#: Policies that mean to be fair. Those that compare jobs, not apps or queues, cannot tell how jobs are spread.
FAIR = "themis highest-rho hierarchical max-min water-filling finish-time time-slice las tiresias".split()


def jobs_of(user: str, seed: int, parts: int, way: str) -> list[JobSpec]:
    """The jobs of a user, alike for every number of apps or queues that they are spread over."""
    rng = random.Random(f"{user} {seed}")
    jobs = []
    for number in range(8):
        app = f"{user}-{number % parts if way == 'app' else 0}"
        queue = f"users/{user}/{number % parts if way == 'queue' else 0}"
        gpus, submit_s = rng.choice((1, 1, 2)), rng.choice((0.0, 500.0))
        jobs.append(JobSpec(f"{user}{number}", submit_s, gpus, 60_000.0, user=user, app=app, queue=queue))
    return jobs


def gpu_time(history: History, user: str) -> float:
    """GPUs that the jobs of a user held, as an average over the horizon."""
    attempts, held = history.attempts, 0.0
    for job, begin_s, end_s in zip(attempts.job, attempts.begin_s, attempts.end_s, strict=True):
        if history.jobs[job].user == user:
            held += history.jobs[job].gpus * max(0.0, min(end_s, HORIZON_S) - begin_s)
    return held / HORIZON_S


def share_of_ann(policy: str, seed: int, parts: int, way: str, **settings: str) -> float:
    """GPUs that ann gets beside bob, who has one app and one queue."""
    jobs = [*jobs_of("ann", seed, parts, way), *jobs_of("bob", seed, 1, way)]
    queues = (Queue("users/ann"), Queue("users/bob"))
    run = Scenario(jobs, parse_cluster("1x4"), policy, settings, restart_cost_s=0.0, queues=queues, seed=seed)
    return gpu_time(simulate(run), "ann")


@pytest.mark.parametrize(("policy", "way"), [("themis", "app"), ("highest-rho", "app"), ("hierarchical", "queue")])
def test_a_user_gains_nothing_by_spreading_jobs_over_apps_or_queues(policy: str, way: str) -> None:
    """The policies that look at apps or queues."""
    assert share_of_ann(policy, 0, 8, way) <= share_of_ann(policy, 0, 1, way) + GRANULARITY


@pytest.mark.long
@pytest.mark.parametrize("way", ["app", "queue"])
@pytest.mark.parametrize("policy", FAIR)
def test_under_every_fair_policy_a_user_gains_nothing_by_spreading_jobs(policy: str, way: str) -> None:
    for seed in range(2):
        alone = share_of_ann(policy, seed, 1, way)
        for parts in (2, 8):
            assert share_of_ann(policy, seed, parts, way) <= alone + GRANULARITY, f"seed {seed}, {parts} parts"


@pytest.mark.parametrize("policy", ["themis", "highest-rho"])
def test_where_every_app_has_its_own_share_as_in_the_paper_splitting_does_gain(policy: str) -> None:
    settings = {"by-user": "false"}
    assert share_of_ann(policy, 0, 8, "app", **settings) > share_of_ann(policy, 0, 1, "app", **settings) + 1.0


@pytest.mark.parametrize("policy", ["themis", "highest-rho"])
def test_where_every_app_has_its_own_user_nothing_changes(policy: str) -> None:
    jobs = [JobSpec(f"j{n}", 100.0 * n, 1 + n % 2, 9_000.0, user=f"u{n % 3}", app=f"a{n % 3}") for n in range(9)]
    runs = [
        simulate(Scenario(jobs, parse_cluster("1x4"), policy, {"by-user": by_user})) for by_user in ("true", "false")
    ]
    assert runs[0].end_s.tolist() == runs[1].end_s.tolist()
