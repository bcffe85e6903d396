"""The queue tree."""

from __future__ import annotations

import pytest

from horae.core.queues import UNLIMITED, BadQueue, Queue, QueueTree, QueueUse


def test_a_queue_brings_its_parents_along_and_they_come_first() -> None:
    tree = QueueTree([Queue("org/team/user", gpus_max=3)])
    assert tree.paths == ["", "org", "org/team", "org/team/user"]
    parent, low, top = (column.tolist() for column in tree.columns())
    assert (parent, low) == ([-1, 0, 1, 2], [0, 0, 0, 0])
    assert top == [UNLIMITED, UNLIMITED, UNLIMITED, 3]


def test_a_queue_nobody_configured_has_the_defaults() -> None:
    tree = QueueTree()
    assert tree[tree.number("x/y")] == Queue("x/y")
    assert not tree.has_maximum
    assert not tree.has_minimum


def test_settings_replace_those_before_and_leave_other_queues_alone() -> None:
    tree = QueueTree([Queue("a", gpus_max=3), Queue("b", gpus_min=1)])
    tree.configure([Queue("a", gpus_max=5)])
    assert [(queue.path, queue.gpus_max) for queue in tree.configured] == [("a", 5), ("b", None)]
    assert tree.columns()[2].tolist() == [UNLIMITED, 5, UNLIMITED]
    tree.configure([Queue("a")])
    assert not tree.has_maximum


def test_gpus_count_for_a_queue_and_all_above_it_up_to_their_maxima() -> None:
    tree = QueueTree([Queue("org", gpus_max=4), Queue("org/team", gpus_max=2), Queue("other")])
    org, team, beside = tree.number("org"), tree.number("org/team"), tree.number("org/beside")
    use = QueueUse(tree)
    use.add(team, 1)
    assert (use.used[0], use.used[org], use.used[team], use.used[beside]) == (1, 1, 1, 0)
    assert use.allows(team, 1), "just as many as it may have"
    assert use.full(team, 2) == {team}
    assert use.full(team, 4) == {team, org}
    assert use.full(beside, 4) == {org}
    assert (use.within(team, {org}), use.within(org, {team})) == (True, False)


def test_a_minimum_is_guaranteed_up_to_itself_and_within_every_maximum() -> None:
    tree = QueueTree([Queue("org", gpus_max=3), Queue("org/team", gpus_min=2)])
    team, beside = tree.number("org/team"), tree.number("org/beside")
    use = QueueUse(tree)
    assert use.guarantees(team, 2)
    assert not use.guarantees(team, 3)
    use.add(beside, 2)
    assert not use.guarantees(team, 2), "the queue above is full"
    assert use.guarantees(team, 1)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"path": ""}, "is not a path"),
        ({"path": "a//b"}, "is not a path"),
        ({"path": "a", "rule": "random"}, "use fairness or fifo"),
        ({"path": "a", "weight": 0}, "above 0"),
        ({"path": "a", "weight": float("nan")}, "above 0"),
        ({"path": "a", "gpus_min": -1}, "gpus_min <= gpus_max"),
        ({"path": "a", "gpus_min": 3, "gpus_max": 2}, "gpus_min <= gpus_max"),
    ],
)
def test_a_queue_that_contradicts_itself_is_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadQueue, match=complaint):
        Queue(**settings)  # type: ignore[arg-type]


def test_new_settings_change_columns_that_were_read_before() -> None:
    tree = QueueTree([Queue("a", gpus_max=3)])
    assert tree.columns()[2].tolist() == [UNLIMITED, 3]
    tree.configure([Queue("a", gpus_max=5, gpus_min=1)])
    assert [column.tolist() for column in tree.columns()[1:]] == [[0, 1], [UNLIMITED, 5]]
    tree.number("b")
    assert tree.columns()[0].tolist() == [-1, 0, 0]
