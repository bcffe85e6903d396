"""Pins of policies from outside: every mistake is one sentence, and what placement can do is not refused."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.events import NodeDraining
from horae.core.job import JobSpec
from horae.core.memory import Memory
from horae.core.queues import Queue
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.outside import BadPolicy
from horae.testing import Cell, job, run, times

MACHINES = "v100:2x4,k80:1x4"


class Pinned:
    """Pins the jobs that are named to GPUs by machine, and no others."""

    def __init__(self, pins: Mapping[str, Mapping[Any, Any]], leases_s: float = -np.inf) -> None:
        self.pins, self.leases_s = pins, leases_s

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        names = [now.table.specs[row].id for row in now.rows]
        pinned = [k for k, name in enumerate(names) if name in self.pins]
        pins = tuple(self.pins[names[k]] for k in pinned)
        return Wishes(now.rows[pinned], pins=pins, lease_until_s=now.now_s + self.leases_s)


def steps(name: str, gpus: int = 4, submit_s: float = 0.0, *gpu_types: str, **more: Any) -> JobSpec:
    speeds = dict.fromkeys(gpu_types or ("v100", "k80"), 1.0)
    return job(name, gpus, submit_s=submit_s, unit="steps", throughput=speeds, **more)


_NO_COUNT = "have pins that are no whole numbers: use numbers of now.machines, and whole GPUs"


@pytest.mark.parametrize(
    ("pins", "told"),
    [
        (
            {"picky": {2: 4}},
            "pin job 'picky' to machine k80-0, and it cannot run on GPUs of type k80: pin machines of v100",
        ),
        (
            {"a": {0: 2, 2: 2}},
            "pin job 'a' to GPUs of several types (v100-0 with v100, k80-0 with k80): pin machines of one type",
        ),
        ({"a": {0: 3}}, "pin job 'a' to 3 GPUs (v100-0), and it needs 4: pin as many as now.gpus says"),
        ({"a": {}}, "pin job 'a' to 0 GPUs (no machine), and it needs 4: pin as many as now.gpus says"),
        ({"c": {0: 1}}, "pin job 'c' to 1 GPUs (v100-0), and it needs 2 to 8: pin as many as now.gpus says"),
        ({"c": {0: 6}}, "pin job 'c' to 6 GPUs of machine v100-0, which has 4: spread the job over machines"),
        (
            {"a": {1: 4}, "b": {1: 4}},
            "pin jobs 'a' and 'b' to more GPUs of machine v100-1 than the 4 it has: pin no GPU twice, leave a job out",
        ),
        ({"a": {"v100-0": 4}}, _NO_COUNT),
        ({"a": {0: 4.0}}, _NO_COUNT),
    ],
)
def test_a_pin_that_cannot_be_is_told_with_job_and_machine(pins: dict[str, dict[Any, Any]], told: str) -> None:
    jobs = [steps("a"), steps("b"), steps("picky", 4, 0.0, "v100"), steps("c", gpus_min=2, gpus_max=8)]
    with pytest.raises(BadPolicy) as error:
        run(jobs, MACHINES, Pinned(pins))
    assert str(error.value) == f"Policy 'Pinned' returned wishes that {told}."


@pytest.mark.parametrize("how", ["lease", "min_runtime"])
def test_gpus_of_a_protected_job_cannot_be_pinned(how: str) -> None:
    first = steps("first", min_runtime_s=100.0 if how == "min_runtime" else 0.0, work=1e4)
    policy = Pinned({"first": {0: 4}}, leases_s=100.0 if how == "lease" else -np.inf)
    cell = Cell(MACHINES, policy)
    cell.submit(0, first)
    policy.pins = {"second": {0: 4}}
    with pytest.raises(
        BadPolicy, match=r"pin job 'second' to 4 GPUs of machine v100-0, where job 'first' keeps its GPUs"
    ):
        cell.submit(40, steps("second"))
    cell.engine.advance(101)
    assert cell.at(101).placed, "the lease is over"


def test_gpus_that_another_wish_keeps_cannot_be_pinned_again() -> None:
    jobs = [steps("first", work=1e4), steps("second", 4, 10.0)]
    with pytest.raises(
        BadPolicy, match="pin jobs 'second' and 'first' to more GPUs of machine v100-0 than the 4 it has"
    ):
        run(jobs, MACHINES, Pinned({"first": {0: 4}, "second": {0: 4}}))


def test_gpus_of_a_drained_machine_cannot_be_pinned() -> None:
    cell = Cell(MACHINES, Pinned({"a": {0: 4}}))
    cell.at(0, NodeDraining(0, "v100-0"))
    with pytest.raises(BadPolicy, match="pin job 'a' to 4 GPUs of machine v100-0, of which 0 take jobs"):
        cell.submit(1, steps("a"))


def test_a_job_with_two_wishes_and_a_partner_are_no_pins() -> None:
    class Twice(Pinned):
        def plan(self, now: Snapshot, memory: Memory) -> Wishes:
            return Wishes(np.repeat(now.rows, 2), pins=({0: 4}, {1: 4}) * len(now))

    class Shared(Pinned):
        def plan(self, now: Snapshot, memory: Memory) -> Wishes:
            return super().plan(now, memory)._replace(partner=now.rows)

    with pytest.raises(BadPolicy, match="pin job 'a' twice: give each job one wish"):
        run([steps("a")], MACHINES, Twice({}))
    with pytest.raises(BadPolicy, match="both pins and partners: leave one of them out"):
        run([steps("a")], MACHINES, Shared({"a": {0: 4}}))


def test_pins_that_can_be_are_done() -> None:
    jobs = [steps("first", work=1e3), steps("large", 8, 10.0, "v100")]
    pins = {"first": {2: 4}, "large": {0: 4, 1: 4}}
    assert times(run(jobs, MACHINES, Pinned(pins)))["large"][0] == 10.0
    moved = Pinned({"first": {2: 4}, "second": {0: 4}}, leases_s=500.0)
    cell = Cell(MACHINES, moved)
    cell.submit(0, steps("first", work=1e4), steps("second", work=1e4))
    moved.pins = {"first": {0: 4}, "second": {2: 4}}
    assert len(cell.submit(1, steps("third")).placed) == 2, "jobs that change places make room for each other"


class Random:
    """Pins some jobs, without more GPUs in all than a machine has, to GPUs that other jobs may keep."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        room, pins = [4, 4, 4], {}
        for k in self.rng.permutation(len(now)).tolist():
            gpus = int(self.rng.integers(now.table.gpus_min[now.rows[k]], now.gpus[k] + 1))
            machine = int(self.rng.integers(0, 3 if now.rates[k, 1] > 0 else 2))
            if room[machine] >= gpus and self.rng.random() < 0.7:
                pins[k] = {machine: gpus}
                room[machine] -= gpus
        return Wishes(
            now.rows[list(pins)],
            pins=tuple(pins.values()),
            lease_until_s=now.now_s + float(self.rng.choice([-1.0, 20.0])),
            wake_s=now.now_s + 40.0,
        )


def random_jobs(rng: np.random.Generator) -> list[JobSpec]:
    return [
        steps(
            f"job-{k}",
            int(rng.integers(1, 5)),
            float(rng.integers(0, 200)),
            *(("v100",) if rng.random() < 0.3 else ()),
            gpus_min=1 if rng.random() < 0.3 else 0,
            queue=str(rng.choice(["default", "org/a"])),
            min_runtime_s=float(rng.choice([0.0, 0.0, 50.0])),
            work=float(rng.integers(50, 400)),
        )
        for k in range(6)
    ]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_whatever_a_policy_pins_the_run_ends_well_or_with_a_sentence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with suppress(BadPolicy):
        run(random_jobs(rng), MACHINES, Random(rng), queues=(Queue("org/a", gpus_max=4),))
