"""Minimum and maximum GPUs of queues, up the tree."""

from __future__ import annotations

import numpy as np

from horae.placement.kernel_args import COUNTER, MINIMUM, USED
from horae.placement.quotas import affordable, charge, use, within_maximum, within_minimum
from tests.placement.plain import plain

#: Rows 0 and 1 are of queue 1, row 2 of queue 2.
QUEUE = np.array([1, 1, 2])


def tree(used: tuple[int, int, int] = (0, 0, 0)) -> np.ndarray:
    """A root with at most 8 GPUs; below it a queue with 2 to 4 GPUs, and one without quotas."""
    parent, counter, minimum, maximum = (-1, 0, 0), (0, 1, 2), (0, 2, 0), (8, 4, 1000)
    return np.array([parent, counter, minimum, maximum, used])


def test_a_queue_may_have_its_maximum_and_no_more() -> None:
    assert plain(within_maximum)(1, 4, tree())
    assert not plain(within_maximum)(1, 5, tree())
    assert not plain(within_maximum)(1, 1, tree((4, 4, 0)))


def test_what_is_above_a_queue_limits_it_too() -> None:
    assert plain(within_maximum)(2, 8, tree())
    assert not plain(within_maximum)(2, 3, tree((6, 0, 0)))


def test_a_queue_is_within_its_minimum_up_to_the_last_gpu_of_it() -> None:
    assert plain(within_minimum)(1, 2, tree())
    assert not plain(within_minimum)(1, 3, tree())
    assert not plain(within_minimum)(2, 1, tree()), "neither it nor what is above it has a minimum"


def test_the_minimum_of_a_queue_above_counts_as_well() -> None:
    quotas = tree()
    quotas[MINIMUM, 0] = 5
    assert plain(within_minimum)(2, 5, quotas)


def test_use_counts_up_the_tree_and_is_given_back_there() -> None:
    quotas = tree()
    plain(use)(1, 3, quotas)
    assert quotas[USED].tolist() == [3, 3, 0]
    plain(use)(1, -3, quotas)
    assert quotas[USED].tolist() == [0, 0, 0]


def test_two_jobs_that_share_gpus_both_count() -> None:
    quotas = tree()
    plain(charge)(0, 2, 2, QUEUE, quotas)
    assert quotas[USED].tolist() == [4, 2, 2]
    plain(charge)(1, -1, 1, QUEUE, quotas)
    assert quotas[USED].tolist() == [5, 3, 2]


def test_two_jobs_of_one_queue_need_room_for_both() -> None:
    assert plain(affordable)(0, 1, 2, QUEUE, tree())
    assert not plain(affordable)(0, 1, 3, QUEUE, tree()), "either fits alone, both do not"
    assert plain(affordable)(0, -1, 4, QUEUE, tree())


def test_asking_what_is_affordable_leaves_nothing_counted() -> None:
    quotas = tree((2, 1, 1))
    plain(affordable)(0, 2, 2, QUEUE, quotas)
    assert quotas[USED].tolist() == [2, 1, 1]


def test_two_nodes_that_share_a_counter_are_limited_together() -> None:
    quotas = tree()
    quotas[COUNTER, 2] = 1
    plain(use)(1, 3, quotas)
    assert plain(within_maximum)(2, 1, quotas)
    assert not plain(within_maximum)(2, 2, quotas)
