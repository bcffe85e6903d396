"""The same semantics, written a second time in plain Python, on random workloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import job, run, times

GPUS = 6


@dataclass
class Plain:
    """A job as the plain loop sees it."""

    name: str
    arrival: int
    gpus: int
    left: int
    start: int = -1
    end: int = -1
    running: bool = False


ORDERS: dict[str, Callable[[Plain], int]] = {
    "fifo": lambda _: 0,
    "fifo-backfill": lambda _: 0,
    "smallest-first": lambda one: one.gpus,
    "srtf": lambda one: one.left,
    "srsf": lambda one: one.left * one.gpus,
}


def plain_loop(jobs: list[Plain], policy: str) -> dict[str, tuple[float, float]]:
    """At each arrival and completion: end the done, sort the rest, take each that fits."""
    now, preemptive = 0, policy in ("smallest-first", "srtf", "srsf")
    while any(one.end < 0 for one in jobs):
        present = [one for one in jobs if one.arrival <= now and one.end < 0]
        free = GPUS if preemptive else GPUS - sum(one.gpus for one in present if one.running)
        chosen: list[Plain] = [] if preemptive else [one for one in present if one.running]
        for one in sorted(present, key=ORDERS[policy]):
            if one in chosen:
                continue
            if one.gpus <= free:
                chosen.append(one)
                free -= one.gpus
            elif policy == "fifo":
                break
        for one in present:
            one.running = any(one is other for other in chosen)
            one.start = now if one.running and one.start < 0 else one.start
        later = [one.arrival for one in jobs if one.arrival > now] + [now + one.left for one in present if one.running]
        step = min(later) - now
        for one in present:
            if one.running:
                one.left -= step
        now += step
        for one in present:
            if one.left == 0:
                one.end, one.running = now, False
    return {one.name: (one.start, one.end) for one in jobs}


#: Few distinct times, so that arrivals and completions often coincide.
workloads = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, GPUS), st.integers(1, 12)), min_size=1, max_size=25
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


@pytest.mark.parametrize("policy", ORDERS)
@given(rows=workloads)
@settings(max_examples=80, deadline=None)
def test_random_workloads_go_as_the_plain_loop_says(policy: str, rows: list[tuple[int, int, int]]) -> None:
    jobs = [job(str(n), gpus, work, submit_s=arrival) for n, (arrival, gpus, work) in enumerate(rows)]
    plain = [Plain(str(n), arrival, gpus, work) for n, (arrival, gpus, work) in enumerate(rows)]
    assert times(run(jobs, "3x2", policy, placement="anywhere")) == plain_loop(plain, policy)
