"""Quotas: queues, users and non-preemptible jobs along one chain. Tests core/quotas.py and core/limits.py."""

from __future__ import annotations

import pytest

from horae.core.limits import ALL_TOGETHER, EACH_USER, BadLimits, Limits, check_limits, limits_up, users_limits
from horae.core.queues import Queue, QueueTree
from horae.core.quotas import UNLIMITED, QuotaUse


def test_without_limits_of_users_the_nodes_are_the_queues() -> None:
    tree = QueueTree([Queue("org", gpus_max=4), Queue("org/team", gpus_min=1, gpus_max=2)])
    quotas = tree.quotas
    nodes = [quotas.node(queue, user, keeps) for queue in range(3) for user in ("", "ann") for keeps in (False, True)]
    assert len(set(nodes)) == len(quotas.columns().parent) == 3
    assert quotas.columns().maximum.tolist() == [UNLIMITED, 4, 2]
    assert quotas.columns().minimum.tolist() == [0, 0, 1]
    tree.configure([Queue("org", gpus_max=5)])
    assert quotas.columns().maximum.tolist() == [UNLIMITED, 5, 2], "settings are read anew"


def test_gpus_count_for_a_queue_and_all_above_it_up_to_their_maxima() -> None:
    tree = QueueTree([Queue("org", gpus_max=4), Queue("org/team", gpus_max=2), Queue("other")])
    org, team, beside = (tree.quotas.node(tree.number(path), "", False) for path in ("org", "org/team", "org/beside"))
    use = QuotaUse(tree)
    use.add(team, 1)
    assert use.used_by_queue(tree) == (1, 1, 1, 0, 0)
    assert use.allows(team, 1), "just as many as it may have"
    assert len(use.full(team, 2)) == 1
    assert len(use.full(team, 4)) == 2
    assert (use.room(team), use.room(beside)) == (1, 3)
    assert (use.within(team, use.full(org, 4)), use.within(org, use.full(team, 2))) == (True, False)


def test_a_minimum_is_guaranteed_up_to_itself_and_within_every_maximum() -> None:
    tree = QueueTree([Queue("org", gpus_max=3), Queue("org/team", gpus_min=2)])
    team, beside = (tree.quotas.node(tree.number(path), "", False) for path in ("org/team", "org/beside"))
    use = QuotaUse(tree)
    assert use.guarantees(team, 2)
    assert not use.guarantees(team, 3)
    use.add(beside, 2)
    assert not use.guarantees(team, 2), "the queue above is full"
    assert use.guarantees(team, 1)


def test_a_user_has_one_counter_over_all_queues() -> None:
    tree = QueueTree([Queue("a", gpus_max=4), Queue("b")])
    tree.configure(limits={EACH_USER: Limits(gpus=3), "user:bob": Limits(gpus=1)})
    a, b = tree.number("a"), tree.number("b")
    who = ((a, "ann"), (b, "ann"), (b, "bob"), (a, ""))
    ann_a, ann_b, bob_b, in_a = (tree.quotas.node(queue, user, False) for queue, user in who)
    use = QuotaUse(tree)
    use.add(ann_a, 2)
    assert use.room(ann_b) == 1, "two of three are in use, in another queue"
    assert use.room(bob_b) == 1, "his own limit, and nobody else's use"
    assert use.room(in_a) == 2, "the queue counts them, too"


def test_jobs_that_are_never_preempted_are_limited_by_user_queue_and_together() -> None:
    tree = QueueTree()
    tree.configure(
        limits={
            EACH_USER: Limits(non_preemptible_gpus=2),
            "queue:a": Limits(non_preemptible_gpus=3),
            ALL_TOGETHER: Limits(non_preemptible_gpus=4),
        }
    )
    who = (("a/b", "ann", True), ("a/b", "ann", False), ("a/b", "bob", True), ("c", "bob", True))
    ann, anns_other, bob, bob_outside = (tree.quotas.node(tree.number(path), *rest) for path, *rest in who)
    use = QuotaUse(tree)
    use.add(ann, 2)
    assert use.room(ann) == 0
    assert use.room(anns_other) > 100, "what can be preempted is not limited"
    assert use.room(bob) == 1, "the queue has room for one more"
    assert use.room(bob_outside) == 2, "and everybody together for two"


def test_a_users_own_limits_come_before_everybodys_one_by_one() -> None:
    table = {EACH_USER: Limits(gpus=4, streams=5), "user:ann": Limits(gpus=8)}
    assert users_limits(table, "ann") == Limits(gpus=8, streams=5)
    assert users_limits(table, "bob") == Limits(gpus=4, streams=5)
    tree = QueueTree()
    tree.configure(limits=table)
    tree.configure(limits={"user:ann": Limits()})
    assert list(tree.limits) == [EACH_USER], "limits without a value are dropped"


def test_limits_of_queues_are_found_from_the_nearest_up() -> None:
    table = {"queue:org": Limits(grace_s=1.0), "queue:org/a": Limits(grace_s=2.0), ALL_TOGETHER: Limits(grace_s=3.0)}
    assert [whom for whom, _ in limits_up(table, "org/a/x")] == ["queue:org/a", "queue:org", ALL_TOGETHER]
    assert [whom for whom, _ in limits_up(table, "organ")] == [ALL_TOGETHER]


@pytest.mark.parametrize(
    ("whom", "limits", "complaint"),
    [
        ("ann", Limits(gpus=1), "use each-user, user:NAME"),
        ("user:", Limits(gpus=1), "use each-user, user:NAME"),
        ("queue:a//b", Limits(grace_s=1.0), "use each-user, user:NAME"),
        ("queue:a", Limits(gpus=1), "are its gpus_max"),
        ("all", Limits(streams=1), "streams can be limited for users"),
    ],
)
def test_limits_that_nobody_could_have_are_refused(whom: str, limits: Limits, complaint: str) -> None:
    with pytest.raises(BadLimits, match=complaint):
        check_limits(whom, limits)


def test_limits_must_be_numbers_that_agree() -> None:
    with pytest.raises(BadLimits, match="at least 0"):
        Limits(gpus=-1)
    with pytest.raises(BadLimits, match="at least 0"):
        Limits(grace_s=float("nan"))
    with pytest.raises(BadLimits, match="above the longest"):
        Limits(max_duration_s=1.0, default_duration_s=2.0)
