"""Matchings against every schedule there is, against scipy, and the cut of GPUs into slots against its rules.

Tests solve/slots.py.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from horae.solve.matching import Matching, NoMatching, allox, match
from horae.solve.slots import cut_slots
from tests.solve.plain import problem

Instance = tuple[np.ndarray, np.ndarray, np.ndarray]


@st.composite
def instances(draw: st.DrawFn, jobs: int, sizes: tuple[int, ...]) -> Instance:
    """Times (some types cannot be used), gangs and GPUs by type; every gang fits somewhere."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, types = draw(st.integers(1, jobs)), draw(st.integers(1, 3))
    capacity = rng.integers(0, 4, types)
    gpus = rng.choice(sizes, count)
    roomiest = np.argmax(capacity)
    capacity[roomiest] = max(capacity[roomiest], gpus.max())
    whole = draw(st.booleans())
    time_s = rng.integers(1, 8, (count, types)).astype(float) if whole else rng.uniform(1, 1000, (count, types))
    usable = (rng.random((count, types)) < 0.8) & (gpus[:, None] <= capacity)
    usable[:, roomiest] |= ~usable.any(axis=1)
    return np.where(usable, time_s, np.inf), gpus, capacity


def matched(instance: Instance) -> Matching:
    time_s, gpus, capacity = instance
    return match(time_s, gpus, capacity, np.full(len(gpus), -1))


def least_by_trying_everything(time_s: np.ndarray, gpu_type_of_slot: list[int]) -> float:
    """The least sum of completion times over all ways to spread jobs over slots, each in order of time."""
    least = np.inf
    for choice in itertools.product(range(len(gpu_type_of_slot)), repeat=len(time_s)):
        total = 0.0
        for slot, gpu_type in enumerate(gpu_type_of_slot):
            mine = sorted(time_s[m, gpu_type] for m, chosen in enumerate(choice) if chosen == slot)
            total += sum(time * (len(mine) - place) for place, time in enumerate(mine))
        least = min(least, total)
    return float(least)


def slots_of(counts: np.ndarray) -> list[int]:
    """One entry for each slot: its GPU type."""
    return [gpu_type for gpu_type, count in enumerate(counts.tolist()) for _ in range(count)]


def test_the_worked_example() -> None:
    speed = [(2, 1, 0.5), (3, 2, 1), (4, 3, 2), (1, 1, 1)]
    answer = allox(problem(speed, [2, 1, 3], steps_left=[300, 500, 1000, 500]))
    assert answer.objective == 1150
    assert answer.share.sum(axis=0).tolist() == [2, 1, 1]
    assert answer.share[3].tolist() == [0, 0, 1]
    assert answer.certificate["gap"] <= 1e-12
    assert answer.certificate["slots"] == {"t0": {"1": 2}, "t1": {"1": 1}, "t2": {"1": 3}}


def test_of_two_jobs_on_one_gpu_the_shorter_runs_and_the_longer_is_last() -> None:
    answer = allox(problem([[1.0], [1.0]], [1], steps_left=[50, 20]))
    assert answer.objective == 20 + 70
    assert answer.share[:, 0].tolist() == [0, 1]
    assert answer.certificate["queues"] == {
        "0": {"gpu_type": "t0", "position": 1},
        "1": {"gpu_type": "t0", "position": 2},
    }


@settings(max_examples=80, deadline=None)
@given(instances(jobs=5, sizes=(1,)))
def test_single_jobs_cost_as_little_as_in_the_best_of_all_schedules(instance: Instance) -> None:
    time_s, _, capacity = instance
    answer = matched(instance)
    assert answer.cost_s == pytest.approx(least_by_trying_everything(time_s, slots_of(capacity)))
    assert answer.bound_s == pytest.approx(answer.cost_s)


@settings(max_examples=100, deadline=None)
@given(instances(jobs=6, sizes=(1, 1, 2, 3)))
def test_gangs_cost_as_little_as_in_the_best_of_all_schedules_on_their_slots(instance: Instance) -> None:
    time_s, gpus, capacity = instance
    slots, size = cut_slots(time_s, gpus, capacity)
    least = sum(least_by_trying_everything(time_s[size == one], slots_of(slots[one])) for one in np.unique(size))
    answer = matched(instance)
    assert answer.cost_s == pytest.approx(least)
    assert answer.bound_s == pytest.approx(least)


@pytest.mark.parametrize("seed", range(5))
def test_many_jobs_cost_what_an_assignment_to_single_places_costs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    time_s = rng.lognormal(3, 2, (60, 1)) * rng.uniform(1, 6, (60, 3))
    capacity = np.array([3, 4, 5])
    places = np.concatenate([np.repeat(k * time_s, capacity, axis=1) for k in range(1, 21)], axis=1)
    rows, columns = linear_sum_assignment(places)
    answer = match(time_s, np.ones(60, np.int64), capacity, np.full(60, -1))
    assert answer.cost_s == pytest.approx(places[rows, columns].sum())


@settings(max_examples=100, deadline=None)
@given(instances(jobs=12, sizes=(1, 1, 2, 3)))
def test_whoever_is_first_heads_a_queue_of_those_that_are_not(instance: Instance) -> None:
    time_s, gpus, capacity = instance
    answer = matched(instance)
    _, size = cut_slots(time_s, gpus, capacity)
    for gpu_type, one in itertools.product(range(len(capacity)), np.unique(size)):
        here = (answer.gpu_type == gpu_type) & (size == one)
        for k in range(1, len(gpus) + 1):
            behind = here & (answer.position == k) & ~answer.first
            ahead = here & (answer.position > k) & answer.first
            assert behind.sum() == ahead.sum()
    assert (gpus[answer.first] @ (answer.gpu_type[answer.first, None] == np.arange(len(capacity))) <= capacity).all()
    assert np.isfinite(time_s[np.arange(len(gpus)), answer.gpu_type]).all()


@settings(max_examples=100, deadline=None)
@given(instances(jobs=12, sizes=(1, 1, 2, 3, 4)))
def test_gpus_are_cut_so_that_everybody_has_a_slot_and_nothing_of_use_is_left(instance: Instance) -> None:
    time_s, gpus, capacity = instance
    slots, size = cut_slots(time_s, gpus, capacity)
    left = capacity - np.arange(len(slots)) @ slots
    assert (left >= 0).all()
    usable = np.isfinite(time_s)
    for m in range(len(gpus)):
        assert size[m] >= gpus[m]
        assert (usable[m] & (slots[size[m]] > 0)).any()
        users = usable[size == size[m]].sum(axis=0)
        assert not (usable[m] & (left >= size[m]) & (slots[size[m]] < users)).any()


@settings(max_examples=50, deadline=None)
@given(instances(jobs=12, sizes=(1,)))
def test_for_single_jobs_every_gpu_is_a_slot_as_far_as_there_are_jobs(instance: Instance) -> None:
    time_s, gpus, capacity = instance
    slots, _ = cut_slots(time_s, gpus, capacity)
    assert slots[1].tolist() == np.minimum(capacity, np.isfinite(time_s).sum(axis=0)).tolist()


def test_short_small_jobs_are_given_slots_before_long_large_ones_beyond_the_first() -> None:
    time_s = np.array([[10.0]] * 4 + [[1000.0]] * 2)
    slots, _ = cut_slots(time_s, np.array([1, 1, 1, 1, 4, 4]), np.array([8]))
    assert (slots[1, 0], slots[4, 0]) == (4, 1)


def test_a_job_that_larger_gangs_left_no_room_queues_for_one_of_their_slots() -> None:
    time_s = np.array([[10.0, np.inf], [5.0, np.inf], [7.0, 7.0]])
    slots, size = cut_slots(time_s, np.array([4, 1, 1]), np.array([4, 2]))
    assert size.tolist() == [4, 4, 1]
    assert slots[4].tolist() == [1, 0]
    answer = match(time_s, np.array([4, 1, 1]), np.array([4, 2]), np.full(3, -1))
    assert answer.position.tolist() == [1, 2, 1]
    assert answer.first.tolist() == [False, True, True]


@pytest.mark.parametrize("running", [0, 1, 2])
def test_of_jobs_that_could_as_well_be_first_the_running_one_is(running: int) -> None:
    runs_on = np.full(3, -1)
    runs_on[running] = 0
    answer = match(np.array([[9.0], [9.0], [9.0]]), np.ones(3, np.int64), np.array([2]), runs_on)
    assert answer.first.sum() == 2
    assert answer.first[running]


def test_a_problem_that_makes_no_sense_is_refused_in_words() -> None:
    with pytest.raises(NoMatching, match="'0' can run on no GPU type"):
        allox(problem([[1.0]], [2], gpus=[4]))
    with pytest.raises(NoMatching, match="'1' has no steps left"):
        allox(problem([[1.0], [1.0]], [2], steps_left=[1, 0]))
