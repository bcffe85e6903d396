"""The queue tree."""

from __future__ import annotations

import pytest

from horae.core.queues import BadQueue, Queue, QueueTree


def test_a_queue_brings_its_parents_along_and_they_come_first() -> None:
    tree = QueueTree([Queue("org/team/user", gpus_max=3)])
    assert tree.paths == ["", "org", "org/team", "org/team/user"]
    assert tree.parents().tolist() == [-1, 0, 1, 2]
    assert tree[3].gpus_max == 3


def test_a_queue_nobody_configured_has_the_defaults() -> None:
    tree = QueueTree()
    assert tree[tree.number("x/y")] == Queue("x/y")
    assert not tree.has_maximum
    assert not tree.has_minimum


def test_settings_replace_those_before_and_leave_other_queues_alone() -> None:
    tree = QueueTree([Queue("a", gpus_max=3), Queue("b", gpus_min=1)])
    tree.configure([Queue("a", gpus_max=5)])
    assert [(queue.path, queue.gpus_max) for queue in tree.configured] == [("a", 5), ("b", None)]
    tree.configure([Queue("a")])
    assert not tree.has_maximum


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


def test_a_new_queue_is_in_the_column_of_parents() -> None:
    tree = QueueTree([Queue("a")])
    assert tree.parents().tolist() == [-1, 0]
    tree.number("b")
    assert tree.parents().tolist() == [-1, 0, 0]
