"""Shares by user. Tests report/audit/user_shares.py."""

from __future__ import annotations

import pytest

from horae.core.job import JobSpec
from horae.report.audit.user_shares import user_shares
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.workload.clusters import parse_cluster


def test_a_user_who_splits_is_seen_with_all_their_apps_and_their_share() -> None:
    mine = [JobSpec(f"a{n}", 0.0, 1, 300.0, user="ann", app=f"x{n}", queue=f"q{n % 2}") for n in range(3)]
    jobs = [*mine, JobSpec("b", 0.0, 1, 300.0, user="bob"), JobSpec("c", 0.0, 1, 300.0)]
    first, second = user_shares(simulate(Scenario(jobs, parse_cluster("1x5"), "fifo")))
    assert (first.user, first.jobs, first.apps, first.queues) == ("ann", 3, 3, 2)
    assert (first.share, second.share) == pytest.approx((0.6, 0.2))
    assert second.user == "bob"


def test_jobs_of_nobody_have_no_users() -> None:
    assert user_shares(simulate(Scenario([JobSpec("c", 0.0, 1, 300.0)], parse_cluster("1x1"), "fifo"))) == []
