"""Jobs that ended long ago leave: the engine goes on as if they were still there, and a journal folds to the same.

Tests core/retired_jobs.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core import retired_jobs
from horae.core.checkpoint import load, save
from horae.core.codec import decode, encode
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import (
    Event,
    JobFailed,
    JobFinished,
    JobProgressed,
    JobsRetired,
    JobSubmitted,
    LaunchFailed,
    SettingsChanged,
)
from horae.core.explain import explain
from horae.core.invariants import check
from horae.core.throughputs import Origin
from horae.simulator.driver import Driver
from horae.simulator.world import World
from tests.builders import Cell, job
from tests.simulation.trouble import FAULTS, Trouble, difference, same


def named(record: Decided, engine: Engine) -> dict[str, Any]:
    """A decision with names in the place of rows and of apps' numbers: as it can be compared with another engine's."""
    ids, apps, memory = [spec.id for spec in engine.jobs.specs], engine.jobs.apps, engine.policy.memory
    body = encode(record)
    for key in ("leased", "reason_rows"):
        body[key] = [ids[row] for row in body[key]]
    body["turns"] = [(ids[row], turn) for row, turn in record.turns]
    writes = []
    for name, rows, values in body["memory"]:
        names = apps if name in memory.by_app else ids
        if name in memory.naming_rows:
            values = [ids[int(value) - 1] if value else None for value in values]
        writes.append((name, rows if rows is None else [names[row] for row in rows], values))
    return {**body, "memory": writes}


def apart(chosen: Mapping[str, str]) -> dict[str, str]:
    """Settings under which jobs share no GPUs: their kinds are numbered anew, and so pairs add up in another order."""
    return {**chosen, **({"space-sharing": "false"} if "space-sharing" in chosen else {})}


@dataclass
class Aged:
    """Trouble that is watched by an engine which lets jobs leave every so often, as soon as they have ended."""

    trouble: Trouble
    every: int
    seen: int = 0
    left: int = 0

    def __post_init__(self) -> None:
        # Who comes under the name of an app that has left is another: here all of an app come together.
        self.trouble.specs = [replace(one, submit_s=0.0) if one.app else one for one in self.trouble.specs]
        self.trouble.settings = apart(self.trouble.settings)
        self.aged, self.recovering = self.trouble.engine(), self.trouble.engine()

    def watch(self, live: Engine, record: Event | Decided) -> None:
        if isinstance(record, Decided):
            mine = self.aged.with_evidence(self.aged.decide(record.at_s))
            there, here = named(record, live), named(mine, self.aged)
            assert here == there, f"seed {self.trouble.seed}: decided {here}, was {there}"
            self.note(mine)
        else:
            self.aged.apply(record)
            self.note(record)
        self.seen += 1
        if self.seen % self.every == 0:
            before = len(self.aged.jobs)
            retired = JobsRetired(live.now_s, live.now_s)
            self.aged.apply(retired)
            self.left += before - len(self.aged.jobs)
            check(self.aged, quotas_fixed=False)
            self.note(retired)
            assert self.aged.outstanding() == live.outstanding()
            for spec in self.aged.jobs.specs:
                assert explain(self.aged.status(), spec.id) == explain(live.status(), spec.id)

    def note(self, record: Event | Decided) -> None:
        """The journal of the engine that lets jobs leave folds, and can be saved, as any other."""
        self.recovering.apply(decode(json.loads(json.dumps(encode(record)))))
        if isinstance(record, JobsRetired):
            mine, other = self.aged.contents(), self.recovering.contents()
            assert same(mine, other), f"seed {self.trouble.seed}: {difference(mine, other)}"
            self.recovering = self.trouble.engine()
            load(self.recovering, save(self.aged))
            assert same(self.aged.contents(), self.recovering.contents())

    def run(self) -> Engine:
        trouble, engine = self.trouble, self.trouble.engine()
        truth = trouble._speeds(Origin.GIVEN, 1.0)
        world = World(engine.jobs, trouble.cluster, trouble.restart_cost_s, FAULTS, trouble.seed, truth)
        script = [
            replace(one, settings=apart(one.settings)) if isinstance(one, SettingsChanged) else one
            for one in trouble.script()
        ]
        Driver(engine, world, script, self.watch).run()
        return engine


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), every=st.integers(5, 60))
def test_an_engine_without_its_old_jobs_decides_as_one_that_has_them(seed: int, every: int) -> None:
    aged = Aged(Trouble(seed), every)
    engine = aged.run()
    assert aged.aged.jobs.past.jobs == aged.left
    assert len(aged.aged.jobs) + aged.left == len(engine.jobs)


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("tiresias", {"thresholds": "100,1500", "promote-knob": "8"}),
        ("tiresias-gittins", {}),
        ("themis", {"lease": "300"}),
        ("highest-rho", {}),
        ("max-min", {"round": "300", "aware": "true"}),
        ("gandiva", {"round": "300"}),
        ("finish-time", {"round": "300"}),
    ],
)
def test_policies_go_on_as_if_nobody_had_left(policy: str, chosen: dict[str, str]) -> None:
    # Gittins' index needs a hundred jobs that finished.
    trouble = Trouble(3, jobs=130 if policy == "tiresias-gittins" else 30)
    trouble.policy, trouble.settings = policy, chosen
    aged = Aged(trouble, every=150)
    aged.run()
    assert aged.left > 5


def done(cell: Cell, name: str, now_s: float, **more: Any) -> None:
    """A job that comes and finishes."""
    cell.submit(now_s, job(name, work=10.0, **more))
    cell.at(now_s + 10.0, JobFinished(now_s + 10.0, name, 1))


def left(cell: Cell) -> list[str]:
    return [spec.id for spec in cell.engine.jobs.specs]


def test_only_who_ended_before_that_moment_leaves() -> None:
    cell = Cell()
    done(cell, "old", 0.0)
    done(cell, "young", 100.0)
    cell.submit(200.0, job("running"), job("newest"))
    assert cell.engine.retires(50.0)
    assert not cell.engine.retires(10.0)
    cell.tell(JobsRetired(200.0, 50.0))
    assert left(cell) == ["young", "running", "newest"]
    assert "old" not in cell.engine.jobs.rows
    assert not cell.engine.retires(50.0)


def test_an_app_leaves_as_a_whole() -> None:
    cell = Cell()
    cell.submit(0.0, job("second", work=1e6, app="search"))
    done(cell, "first", 0.0, app="search")
    done(cell, "alone", 0.0)
    cell.submit(20.0, job("newest"))
    cell.tell(JobsRetired(1000.0, 1000.0))
    assert left(cell) == ["second", "first", "newest"]
    cell.at(2000.0, JobFinished(2000.0, "second", 1))
    cell.tell(JobsRetired(3000.0, 3000.0))
    assert left(cell) == ["newest"]


def test_the_newest_job_stays_so_that_the_next_is_numbered_after_it() -> None:
    cell = Cell()
    done(cell, "a-1", 0.0)
    done(cell, "a-2", 100.0)
    cell.tell(JobsRetired(1e6, 1e6))
    assert left(cell) == ["a-2"]
    assert cell.engine.jobs.past.contents()["counts"] == (1, 1)


def test_what_a_class_taught_stays_and_what_a_job_taught_goes_with_it() -> None:
    trouble = Trouble(0)
    engine = trouble.engine()
    kinds = engine.gpus.cluster.gpu_types
    cell = Cell()
    cell.engine = Engine(
        engine.gpus.cluster, engine._make_policy, "fifo", {}, engine._placement, learn=True, least_measured_s=1.0
    )
    rates = dict.fromkeys(kinds, 1.0)
    specs = [
        job("own", unit="steps", job_class="own", throughput=rates, work=1000.0),
        job("shared", unit="steps", job_class="ann/net", throughput=rates, work=1000.0),
    ]
    for number, spec in enumerate(specs):
        now_s = 100.0 * number
        cell.submit(now_s, spec)
        cell.tell(JobProgressed(now_s + 10.0, spec.id, 1, 50.0))
        cell.tell(JobProgressed(now_s + 20.0, spec.id, 1, 100.0))
        cell.at(now_s + 30.0, JobFinished(now_s + 30.0, spec.id, 1))
    assert {setting.job_class for setting in cell.engine.learnt} == {"own", "ann/net"}
    cell.submit(300.0, job("newest"))
    cell.tell(JobsRetired(1000.0, 1000.0))
    assert left(cell) == ["newest"]
    assert {setting.job_class for setting in cell.engine.learnt} == {"ann/net"}
    cell.tell(JobSubmitted(1001.0, job("next", unit="steps", job_class="ann/net", throughput=rates, work=1000.0)))
    row = cell.engine.jobs.rows["next"]
    assert cell.engine.jobs.rates[row].max() == max(cell.engine.learnt.values())


def test_of_the_service_that_jobs_had_so_much_is_kept_as_tells_how_long_jobs_take(monkeypatch) -> None:
    monkeypatch.setattr(retired_jobs, "MOST", 3)
    cell = Cell()
    for number in range(6):
        done(cell, f"a-{number}", 100.0 * number, gpus=1 + number % 2)
    cell.tell(JobsRetired(1e6, 1e6))
    kept = cell.engine.jobs.past
    assert (kept.jobs, kept.finished) == (5, 5)
    np.testing.assert_allclose(kept.service(False), [10.0, 20.0, 10.0])
    np.testing.assert_allclose(kept.service(False, finished_before_s=320.0), [10.0, 20.0])


def test_the_service_of_jobs_that_failed_is_no_sample_of_finished_ones() -> None:
    cell = Cell()
    done(cell, "good", 0.0)
    cell.submit(20.0, job("bad"))
    cell.at(50.0, JobFailed(50.0, "bad", 1, 1))
    cell.submit(60.0, job("newest"))
    cell.tell(JobsRetired(1e6, 100.0))
    kept = cell.engine.jobs.past
    assert (kept.jobs, kept.finished) == (2, 1)
    assert kept.service(False).tolist() == [10.0, 30.0]
    assert kept.service(False, finished_before_s=1e9).tolist() == [10.0]


def test_a_job_that_backs_off_keeps_its_time_under_its_new_number() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0.0, job("old", work=10.0))
    cell.tell(JobFinished(10.0, "old", 1))
    cell.submit(20.0, job("fails"), job("newest"))
    cell.tell(LaunchFailed(20.0, "fails", 1))
    cell.tell(JobsRetired(20.5, 15.0))
    assert cell.engine._state.backoff == {0: 21.0}
