"""A job that loads is not preempted before it has worked, and who would take its GPUs waits for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from horae.core.commands import Decided, Stop, StopWhy
from horae.core.engine import Engine
from horae.core.events import Event, JobProgressed, JobStarted
from horae.core.lifecycle import LONGEST_LOAD_S
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.wishes import Wishes
from horae.policies import POLICIES
from tests.builders import Cell, Script, job
from tests.policies.mixed_jobs import CLUSTER, SETTINGS, some_events, some_jobs

LOAD_S = 100.0


def loading_cell(gpus: int = 1) -> Cell:
    """`long` loads on one of the GPUs."""
    cell = Cell(f"1x{gpus}", "srtf", slow_starts=True)
    cell.submit(0, job("long", work=5000))
    return cell


def start(cell: Cell, name: str, at_s: float) -> Decided:
    """The job has loaded and works; then whatever is decided."""
    return cell.at(at_s, JobStarted(at_s, name, cell.attempt(name)))


def test_a_shorter_job_waits_until_the_other_has_loaded_and_worked_as_long() -> None:
    cell = loading_cell()
    assert not cell.submit(10, job("short")).stops
    assert cell.reason("short") is Reason.LEASED
    assert not start(cell, "long", LOAD_S).stops
    assert cell.engine.wake_s == 2 * LOAD_S
    assert not cell.at(2 * LOAD_S - 1).planned
    assert [stop.job for stop in cell.at(2 * LOAD_S).stops] == ["long"]
    assert cell.running == ["short"]


def test_nobody_is_woken_for_a_job_that_nobody_waits_behind() -> None:
    cell = loading_cell(2)
    cell.submit(10, job("short"))
    start(cell, "long", LOAD_S)
    assert cell.engine.wake_s == float("inf")


def test_loading_protects_for_a_while_only() -> None:
    cell = loading_cell()
    cell.submit(10, job("short"))
    assert cell.engine.wake_s == LONGEST_LOAD_S
    assert [stop.job for stop in cell.at(LONGEST_LOAD_S).stops] == ["long"]


def test_no_other_job_is_preempted_instead() -> None:
    cell = loading_cell(2)
    cell.submit(1, job("middle", work=3000))
    start(cell, "middle", 1)
    # By its work `long` is to go, and it loads: the job that works keeps its GPU.
    assert not cell.submit(10, job("short")).stops
    assert cell.running == ["long", "middle"]
    assert cell.reason("short") is Reason.LEASED


def test_what_a_waiting_job_would_have_got_stays_as_it_is() -> None:
    cell = Cell("1x3", "srtf", slow_starts=True)
    cell.submit(0, job("long", work=5000), job("middle", work=3000))
    start(cell, "middle", 1)
    # It would take both jobs' GPUs and the free one: the job that works goes on, and no later job gets the free GPU.
    assert not cell.submit(10, job("gang", gpus=3)).stops
    assert not cell.submit(11, job("other", work=200)).launches
    assert cell.running == ["long", "middle"]
    assert start(cell, "long", 12).planned is False
    assert {stop.job for stop in cell.at(24).stops} == {"long", "middle"}
    assert cell.running == ["gang"]


def test_jobs_that_others_take_from_still_go() -> None:
    cell = loading_cell(3)
    cell.submit(1, job("middle", gpus=2, work=3000))
    start(cell, "middle", 1)
    # `first` is to have the GPU of the job that loads and `second` one of `middle`, whose other one is then free.
    stops = cell.submit(10, job("first", work=50), job("second", work=100)).stops
    assert [(stop.job, stop.by) for stop in stops] == [("middle", "second")]
    assert cell.running == ["long", "first", "second"]


def test_a_maximum_that_the_loading_job_fills_is_kept() -> None:
    cell = Cell("1x2", "srtf", queues=(Queue("team", gpus_max=1),), slow_starts=True)
    cell.submit(0, job("long", work=5000, queue="team"))
    # The other GPU is free, but the team has its one GPU until `long` may be preempted.
    decided = cell.submit(10, job("short", queue="team"))
    assert not decided.stops
    assert cell.running == ["long"]
    assert start(cell, "long", 20).planned is False
    assert [stop.job for stop in cell.at(40).stops] == ["long"]
    assert cell.running == ["short"]


def test_the_first_in_line_gets_what_can_be_had_now() -> None:
    cell = loading_cell(2)
    cell.submit(1, job("middle", work=3000))
    start(cell, "middle", 1)
    stops = cell.submit(10, job("short"), job("second", work=200)).stops
    assert [(stop.job, stop.by) for stop in stops] == [("middle", "short")]
    assert cell.reason("second") is Reason.LEASED


@pytest.mark.parametrize(
    ("nodes", "loads", "works"),
    [
        ("v100:1x5", {"gpus": 2}, {"gpus": 3}),
        ("v100:1x2,k80:1x2", {"gpus": 2, "gpu_types": ("v100",)}, {"gpus": 2, "gpu_types": ("k80",)}),
        ("v100:1x2,v100:2x1", {"gpus": 2}, {"gpus": 2}),
        ("v100:2x2,v100:1x3,v100:1x1", {"gpus": 4, "nodes": 2}, {"gpus": 4}),
        ("v100:2x3,v100:3x2", {"gpus": 6, "nodes": 2}, {"gpus": 6, "nodes": 3}),
    ],
    ids=["count", "type", "span", "nodes", "other nodes"],
)
def test_the_first_in_line_gets_nothing_unlike_its_own_though_it_can_be_had_now(
    nodes: str, loads: dict[str, Any], works: dict[str, Any]
) -> None:
    """`first` is to have what the job that loads has, and `second` what the job that works has."""
    cell = Cell(nodes, "srtf", slow_starts=True)
    cell.submit(0, job("long", work=5000, **loads))
    cell.submit(1, job("middle", work=3000, **works))
    start(cell, "middle", 1)
    stops = cell.submit(10, job("first", **loads), job("second", work=200, **works)).stops
    assert [(stop.job, stop.by) for stop in stops] == [("middle", "second")]
    assert cell.running == ["long", "second"]
    assert cell.reason("first") is Reason.LEASED


def test_nobody_waits_for_one_job_after_the_other() -> None:
    cell = loading_cell(2)
    cell.submit(1, job("middle", work=3000))
    start(cell, "middle", 1)
    cell.submit(10, job("short"))
    assert cell.reason("short") is Reason.LEASED
    # As if `long` had begun to load when `short` waited for another job already.
    cell.engine.jobs.launched_s[cell.row("long")] = 10.5
    stops = cell.submit(12, job("last", work=9000)).stops
    assert [(stop.job, stop.by) for stop in stops] == [("middle", "short")]
    assert cell.running == ["long", "short"]


def test_wishes_without_some_jobs_are_those_of_all_others() -> None:
    wishes = Wishes(np.array([1, 2, 3]), key=np.array([0.1, 0.2, 0.3]), partner=np.array([-1, -1, 1]))
    rest = wishes.without([1])
    assert (rest.job.tolist(), rest.key.tolist(), rest.partner.tolist()) == ([2], [0.2], [-1])
    assert len(rest.gpu_type) == 0


class Starts:
    """Sees that no attempt is preempted before it has worked as long as it loaded."""

    def __init__(self) -> None:
        self.launched: dict[tuple[str, int], float] = {}
        self.started: dict[tuple[str, int], float] = {}
        self.preempted = 0

    def look(self, engine: Engine, what: Event | Decided) -> None:
        """See an event or a decision."""
        if isinstance(what, JobStarted | JobProgressed):
            self.started.setdefault((what.job, what.attempt), what.at_s)
        if isinstance(what, Decided):
            for stop in what.stops:
                if stop.why in (StopWhy.PREEMPTED, StopWhy.MOVED):
                    self.check(stop, what.at_s)
            self.launched |= {(launch.job, launch.attempt): what.at_s for launch in what.launches}

    def check(self, stop: Stop, at_s: float) -> None:
        """See a preemption."""
        self.preempted += 1
        launched_s = self.launched[stop.job, stop.attempt]
        started_s = self.started.get((stop.job, stop.attempt))
        assert started_s is not None or at_s - launched_s >= LONGEST_LOAD_S, f"{stop} at {at_s} before it worked"
        assert started_s is None or at_s - started_s >= started_s - launched_s - 1e-6, f"{stop} at {at_s}"


@pytest.mark.parametrize("policy", POLICIES)
def test_under_every_policy_a_job_works_as_long_as_it_loaded_before_it_is_preempted(policy: str) -> None:
    starts = Starts()
    queues = [Queue("team", gpus_max=6), Queue("team/a", gpus_max=4)]
    settings = SETTINGS.get(policy, {})
    Script(some_jobs(1), CLUSTER, policy, settings, some_events(1), restart_cost_s=400, queues=queues, look=starts.look)
    assert starts.launched
