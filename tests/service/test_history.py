"""What a journal tells of the past is what happened.

Tests service/history/journal_history.py, service/history/replay.py and service/history/simulation_costs.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.backends.fake import FakeJob
from horae.client.journal import JournalReader
from horae.core.cluster import Cluster, Node, Span
from horae.core.codec import decode, encode
from horae.core.commands import Decided, Launch, Stop, StopWhy
from horae.core.engine import Engine
from horae.core.events import (
    Event,
    JobFinished,
    JobHeld,
    JobProgressed,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeChange,
    NodeDraining,
    NodeJoined,
    NodeLost,
)
from horae.core.history import Attempts, History, NodePresence
from horae.core.job import JobSpec
from horae.core.states import State
from horae.experiments.replay import replay_scenario, replayed
from horae.report.metrics.fairness import finish_time_fairness
from horae.report.metrics.measure import measure
from horae.service.history.journal_history import read_history, worked_by_type
from horae.service.history.replay import align_with_past, complete_changes
from horae.service.history.simulation_costs import Calibration, Costs, calibrate, replayable
from horae.service.initial_settings import InitialSettings
from horae.service.store.store import Store
from horae.simulator.run import simulate
from horae.simulator.scenario import PolicyChoice, Scenario
from horae.workload.clusters import parse_cluster
from tests.service.stepped_service import ADMIN, SteppedService

CLUSTER = parse_cluster("v100:2x4,k80:1x4")


class Journal:
    """An onlooker who writes everything down, as text."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def expect(self, engine: Engine, now_s: float) -> None:
        pass

    def see(self, engine: Engine, what: Event | Decided) -> None:
        self.lines.append(json.dumps(encode(what)))

    def records(self) -> list[Event | Decided]:
        return [decode(json.loads(line)) for line in self.lines]


def attempts_of(history: History) -> list[tuple[float, ...]]:
    """Job, begin, work, stop and end of every attempt, and whether it was preempted."""
    a = history.attempts
    columns = (a.job, a.begin_s, a.work_s, a.stop_s, a.end_s, a.preempted)
    return [tuple(row) for row in np.column_stack(columns).tolist()]


def read_cell(cell: SteppedService, after: int = 0, whole: bool = True, until_s: float | None = None) -> History:
    records = (record for _, record in cell.store.tail(after))
    return read_history(cell.daemon.initial_settings, records, until_s, whole)


# ------------------------------------------------------------------- by hand


@pytest.fixture
def turns(tmp_path: Path) -> SteppedService:
    """Two jobs that take turns of 5 s on the same GPUs; each works for 10 s, loads for 1 s and saves for 0.5 s."""
    cell = SteppedService(tmp_path, "time-slice", gpus=2, quantum="5")
    cell.world.default = FakeJob(lasts_s=10.0, ready_s=1.0, stop_s=0.5)
    for name in "ab":
        cell.submit(name=name, resources={"gpus": 2}, estimate={"steps": 100, "duration": 10.0})
    return cell


def test_a_history_has_every_attempt_as_it_was(turns: SteppedService) -> None:
    turns.to(30.0)
    history = read_cell(turns)
    assert [job.id for job in history.jobs] == ["a-1", "b-2"]
    assert attempts_of(history) == [
        (0, 0.0, 1.0, 5.0, 5.5, True),
        (1, 5.5, 6.5, 10.0, 10.5, True),
        (0, 10.5, 11.5, 15.0, 15.5, True),
        (1, 15.5, 16.5, 20.0, 20.5, True),
        (0, 20.5, 21.5, 23.0, 23.0, False),
        (1, 23.0, 24.0, 26.0, 26.0, False),
    ]
    assert (history.start_s.tolist(), history.end_s.tolist()) == ([1.0, 6.5], [23.0, 26.0])
    assert history.finished.all()
    assert calibrate(history).costs["a-1"] == Costs(start_s=1.0, restore_s=1.0, checkpoint_s=0.5, finish_s=0.0)
    assert np.isnan(history.leave.notice_s).all(), "who reports nothing does not say how long it worked on"


def test_what_still_runs_is_cut_at_the_end(turns: SteppedService) -> None:
    turns.to(13.0)
    history = read_cell(turns, until_s=14.0)
    assert attempts_of(history)[-1] == (0, 10.5, 11.5, 14.0, 14.0, False)
    assert np.isnan(history.end_s).all()
    assert not history.finished.any()


def test_a_history_after_a_restart_is_the_same(turns: SteppedService) -> None:
    turns.to(12.0)
    turns.crash()
    turns.reopen()
    turns.to(30.0)
    history = read_cell(turns)
    assert history.end_s.tolist() == [23.0, 26.0]
    assert len(attempts_of(history)) == 6


def report(cell: SteppedService, job: str, attempt: int, *points: tuple[float, float]) -> None:
    """An attempt tells how far it is, at some moments."""
    for at_s, step in points:
        cell.to(at_s)
        cell.ask(partial(cell.operations.progress, job, attempt, step, 100))


def test_speeds_come_from_reports_on_the_way_and_the_rest_of_the_time_was_spent_to_leave(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, "fifo", gpus=2)
    cell.world.default = FakeJob(lasts_s=12.0, ready_s=1.0)
    job = cell.submit(name="a", estimate={"steps": 100, "duration": 50.0})
    # Its first report comes late; 10 steps/s from then on, so that it is done after 11 s and leaves after 13.
    report(cell, job, 1, (1.5, 0), (2.0, 10), (3.0, 20), (9.0, 80), (11.5, 100))
    cell.to(20.0)
    history = read_cell(cell)
    assert history.end_s.tolist() == [13.0]
    assert history.rates.tolist() == [[10.0]]
    known = calibrate(history)
    assert dict(known.speeds_of(job, 1)) == {"v100": 10.0}
    # Nobody was ever stopped: to come back takes as long as to start, and to stop as long as to leave.
    assert known.costs[job] == Costs(1.0, restore_s=1.0, checkpoint_s=pytest.approx(2.0), finish_s=pytest.approx(2.0))


def test_a_job_that_reports_nothing_was_as_fast_as_its_work_over_its_time(turns: SteppedService) -> None:
    turns.to(30.0)
    # Until they were told to stop they worked for 9 and 9.5 s; what they did while they stopped is theirs, too.
    assert read_cell(turns).rates == pytest.approx(np.array([[100 / 9.0], [100 / 9.0]]))


def test_a_job_that_is_over_before_it_says_that_it_began_was_as_fast_as_its_life_was_short(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, "fifo")
    cell.world.default = FakeJob(lasts_s=1.0, ready_s=1.0)
    job = cell.submit(run=["true"])
    cell.to(2.0, step_s=2.0)
    assert cell.state(job) == "finished"
    history = read_cell(cell)
    assert attempts_of(history) == [(0, 0.0, 0.0, 2.0, 2.0, False)]
    (again,) = replayable(history)
    assert again.work / again.throughput["v100"] == pytest.approx(2.0), "and not the hour that was guessed"
    assert finish_time_fairness(history).rho == pytest.approx([1.0])


def test_work_that_was_lost_does_not_make_a_job_slow() -> None:
    """It is preempted after 60 s and has saved nothing; then it does all its work in 50 s."""
    launches = [
        Decided(at_s, planned=False, launches=(Launch("a", n, (0,), Span.GPU, 0.0),))
        for n, at_s in ((1, 0.0), (2, 70.0))
    ]
    stop = Decided(60.0, planned=False, stops=(Stop("a", 1, StopWhy.PREEMPTED),))
    records = [JobSubmitted(0.0, JobSpec("a", 0.0, 1, 100.0, "steps", throughput={"v100": 1.0}))]
    records += [launches[0], JobStarted(0.0, "a", 1), stop, JobStopped(61.0, "a", 1, 0.0)]
    records += [launches[1], JobStarted(70.0, "a", 2), JobFinished(120.0, "a", 2)]
    history = read_history(InitialSettings((Node("v100", "v100", 1),), "fifo"), records)
    assert history.rates == pytest.approx(np.array([[2.0]]))
    assert finish_time_fairness(history).rho == pytest.approx([120.0 / 50.0])


def test_a_job_on_other_gpus_than_it_asked_for_is_measured_and_counted_as_on_those() -> None:
    spec = JobSpec("a", 0.0, 2, 3600.0, "steps", gpus_min=1, gpus_max=4, throughput={"v100": 1.0})
    launch = Decided(0.0, planned=False, launches=(Launch("a", 1, (0, 1, 2, 3), Span.NODE, 0.0),))
    records = [JobSubmitted(0.0, spec), launch, JobStarted(0.0, "a", 1), JobFinished(900.0, "a", 1)]
    history = read_history(InitialSettings((Node("v100", "v100", 4),), "fifo"), records)
    # 4 steps/s on four GPUs are 2 steps/s on two, and 900 s there as much as 1,800.
    assert history.rates == pytest.approx(np.array([[2.0]]))
    assert worked_by_type(history) == pytest.approx(np.array([[1800.0]]))


def test_who_does_not_say_when_it_began_has_worked_since_it_was_up_unless_its_first_report_says_otherwise() -> None:
    specs = [JobSpec(name, 0.0, 1, 100.0, "steps", throughput={"v100": 1.0}) for name in ("silent", "slow", "early")]
    launches = tuple(Launch(spec.id, 1, (gpu,), Span.GPU, 0.0) for gpu, spec in enumerate(specs))
    records: list[Event | Decided] = [JobSubmitted(0.0, spec) for spec in specs]
    records.append(Decided(1.0, planned=False, launches=launches))
    records += [JobStarted(7.0, spec.id, 1, up_s=5.0) for spec in specs]
    records += [JobProgressed(20.0, "slow", 1, 0.0), JobProgressed(21.0, "early", 1, 30.0)]
    records += [JobProgressed(22.0, "slow", 1, 10.0)]
    records += [JobFinished(42.0, spec.id, 1) for spec in specs]
    history = read_history(InitialSettings((Node("v100", "v100", 3),), "fifo"), records)
    assert history.attempts.work_s.tolist() == [2.0, 20.0, 2.0]


def test_a_job_is_as_fast_where_it_never_was_as_others_of_its_class_were() -> None:
    def runs(name: str, gpu: int, rate: float) -> list[Event | Decided]:
        launch = Launch(name, 1, (gpu,), Span.GPU, 0.0)
        ways: list[Event | Decided] = [Decided(1.0, planned=False, launches=(launch,)), JobStarted(2.0, name, 1)]
        return [*ways, JobFinished(2.0 + 100.0 / rate, name, 1)]

    believed = {"v100": 1.0, "k80": 1.0}
    names = {"here": "net", "there": "net", "alone": "other"}
    specs = [JobSpec(n, 0.0, 1, 100.0, "steps", job_class=kind, throughput=believed) for n, kind in names.items()]
    records = [JobSubmitted(0.0, spec) for spec in specs]
    ran = sorted([*runs("here", 0, 10.0), *runs("there", 1, 4.0)], key=lambda record: record.at_s)
    beginning = InitialSettings((Node("v100", "v100", 1), Node("k80", "k80", 1)), "fifo")
    history = read_history(beginning, [*records, *ran])
    assert history.rates == pytest.approx(np.array([[10.0, 4.0], [10.0, 4.0], [1.0, 1.0]]))


def test_of_a_journal_whose_beginning_is_gone_later_jobs_are_whole(turns: SteppedService) -> None:
    turns.to(30.0)
    before = turns.daemon.seq
    turns.submit(name="c", resources={"gpus": 1}, estimate={"steps": 100, "duration": 10.0})
    turns.to(50.0)
    submitted = next(seq for seq, record in turns.store.tail(before))
    for after in range(submitted):
        history = read_cell(turns, after, whole=False)
        assert history.jobs[-1].id == "c-3"
        last = len(history.jobs) - 1
        assert [row[1:] for row in attempts_of(history) if row[0] == last] == [(30.0, 31.0, 41.0, 41.0, False)]


@pytest.mark.parametrize("policy", [("fifo", {}), ("time-slice", {"quantum": "9"})])
def test_a_journal_tells_the_same_before_and_after_compaction(
    tmp_path: Path, policy: tuple[str, dict[str, str]]
) -> None:
    cell = SteppedService(tmp_path, policy[0], nodes=(Node("v100", "v100", 1), Node("k80", "k80", 1)), **policy[1])
    cell.world.default = FakeJob(lasts_s=20.0, ready_s=1.0, stop_s=0.5)
    speeds = {"v100": 9.0, "k80": 3.0}
    jobs = [cell.submit(name=name, estimate={"steps": 100, "throughput": speeds}) for name in "abc"]
    for moment in range(2, 90):
        cell.to(float(moment))
        for job in jobs:
            row = cell.daemon.engine.jobs.rows[job]
            attempt, done = int(cell.daemon.engine.jobs.attempt[row]), min(100.0, 0.04 * moment**2 + moment % 3)
            cell.ask(partial(cell.operations.progress, job, attempt, done, 100))
    assert {cell.state(job) for job in jobs} == {"finished"}
    before, records = read_cell(cell), cell.daemon.seq
    for _ in range(2):
        cell.daemon._save_checkpoint()
        cell.submit()
    assert cell.store.last_seq() > records
    dropped = cell.store.compact(cell.daemon.seq, 0.0)
    after = read_history(cell.daemon.initial_settings, [record for _, record in cell.store.tail(0, records)], 90.0)
    assert sum(1 for _ in cell.store.tail(0, records)) < records, dropped
    assert np.array_equal(after.rates, before.rates)
    assert replayable(after) == replayable(before)


def test_a_journal_whose_oldest_records_were_dropped_tells_of_the_later_jobs(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, "time-slice", quantum="5")
    cell.world.default = FakeJob(lasts_s=12.0, ready_s=1.0)
    for number in range(8):
        if number == 2:
            cell.backend.join(Node("k80", "k80", 2))
        cell.submit(name=f"x{number}", resources={"gpus": 1 + number % 2}, estimate={"steps": 100, "duration": 12.0})
        cell.to(cell.now_s + 7.0)
    whole = read_cell(cell)
    for _ in range(2):
        cell.daemon._save_checkpoint()
        cell.submit()
    seen = []
    for cut_s in np.arange(0.0, 63.0, 2.0):
        cell.store.compact(cell.daemon.seq, float(cut_s))
        history = read_cell(cell, whole=next(cell.store.tail())[0] == 1, until_s=whole.submit_s[-1] + 7.0)
        assert history.cluster.gpu_types == whole.cluster.gpu_types
        later = whole.submit_s >= cut_s
        assert [job.id for job in history.jobs[: later.sum()]] == [
            job.id for job in whole.jobs if job.submit_s >= cut_s
        ]
        assert np.array_equal(history.end_s[: later.sum()], whole.end_s[later], equal_nan=True)
        assert {job.id for job in replayable(history)} <= {job.id for job in history.jobs}
        seen.append(len(history.jobs))
    assert seen == sorted(seen, reverse=True)
    assert seen[0] > seen[-1]


# ----------------------------------------------------- nodes that come and go

#: What happens to one of three hosts after so many seconds.
Happening = tuple[float, str, str]
HAPPENINGS = st.lists(
    st.tuples(
        st.floats(1, 60).map(lambda value: round(value, 1)),
        st.sampled_from(["v100-0", "v100-1", "k80-0"]),
        st.sampled_from(["lost", "lost", "back", "smaller", "larger", "drained"]),
    ),
    max_size=12,
)


def node_events(nodes: Sequence[Node], happenings: Sequence[Happening]) -> list[NodeChange]:
    """What the daemon writes down when these things happen to hosts, of which `nodes` are there in the beginning."""
    events: list[NodeChange] = []
    newest, there, now_s = {node.host: node for node in CLUSTER.nodes}, {node.name for node in nodes}, 0.0
    for after_s, host, what in happenings:
        node, now_s = newest[host], now_s + after_s
        if what in ("lost", "smaller", "larger") and node.name in there:
            events.append(NodeLost(now_s, node.name))
            there.discard(node.name)
        if what == "larger":
            name = f"{host}~{int(node.name.partition('~')[2] or 1) + 1}"
            newest[host] = Node(name, node.gpu_type, node.gpus + 1)
        if what in ("smaller", "larger") or (what == "back" and node.name not in there):
            gpus = 1 if what == "smaller" else newest[host].gpus
            events.append(NodeJoined(now_s, Node(newest[host].name, node.gpu_type, gpus)))
            there.add(newest[host].name)
        if what == "drained" and node.name in there:
            events += [NodeDraining(now_s, node.name), NodeJoined(now_s + 0.5, node)]
            now_s += 0.5
    return events


def gpus_over_time(presence: NodePresence | None, times_s: Sequence[float]) -> list[list[float]]:
    """GPUs of each of two types on average between each two of some times."""
    assert presence is not None
    return [(presence.gpu_seconds(2, a, b) / (b - a)).tolist() for a, b in pairwise(times_s)]


@settings(max_examples=25, deadline=None)
@given(first=st.integers(0, 3), happenings=HAPPENINGS, cut=st.floats(0, 1))
def test_compaction_changes_nothing_about_how_many_gpus_there_were(
    first: int, happenings: list[Happening], cut: float
) -> None:
    nodes = CLUSTER.nodes[:first]
    events = [*node_events(nodes, happenings), NodeJoined(900.0, Node("late", "v100", 2)), NodeLost(901.0, "late")]
    others = [JobHeld(float(at_s), "nobody") for at_s in range(0, 1000, 50)]
    records = sorted([*events, *others], key=lambda record: record.at_s)
    initial = InitialSettings(nodes, "fifo")
    with TemporaryDirectory() as folder, closing(Store(f"sqlite:///{folder}/journal.db", own=True)) as store:
        store.append(records)
        for seq in (len(records) - 1, len(records)):
            store.save_checkpoint(seq, b"engine")
        before = [record for _, record in store.tail()]
        assert store.compact(len(records), 50.0 + 900.0 * cut) > 0
        after = [record for _, record in store.tail()]
    was, told = (read_history(initial, some, 1000.0, whole) for some, whole in ((before, True), (after, False)))
    times_s = sorted({0.0, 1000.0, *(event.at_s for event in events)})
    assert gpus_over_time(told.presence, times_s) == gpus_over_time(was.presence, times_s)
    assert told.gpus_by_type.tolist() == was.gpus_by_type.tolist()


# --------------------------------------------------------------- by simulation


def made_up(kinds: Iterable[tuple[str, int, float, float]]) -> list[JobSpec]:
    """Jobs of two classes, with costs that are the same for all."""
    speeds = {"small": {"v100": 10.0, "k80": 4.0}, "large": {"v100": 3.0, "k80": 2.0}}
    return [
        JobSpec(
            f"{name}-{number}",
            at_s,
            gpus,
            work,
            unit="steps",
            job_class=f"{name}{gpus}",
            throughput=speeds[name],
            start_s=2.0,
            restore_s=3.0,
            checkpoint_s=1.0,
        )
        for number, (name, gpus, at_s, work) in enumerate(kinds)
    ]


JOBS = st.lists(
    st.tuples(
        st.sampled_from(["small", "large"]),
        st.sampled_from([1, 2, 4]),
        st.floats(0, 200).map(lambda value: round(value, 1)),
        st.integers(50, 2000).map(float),
    ),
    min_size=1,
    max_size=14,
).map(lambda kinds: made_up(sorted(kinds, key=lambda kind: kind[2])))

POLICIES = [
    ("fifo-backfill", {}),
    ("srtf", {}),
    ("time-slice", {"quantum": "20"}),
    ("tiresias", {"thresholds": "100"}),
    ("las", {"quantum": "30"}),
    ("max-min", {}),
    ("themis", {"lease": "30"}),
]


def simulated(
    jobs: list[JobSpec],
    policy: str,
    chosen: dict[str, str],
    nodes: Sequence[Node] = CLUSTER.nodes,
    changes: Sequence[NodeChange] = (),
) -> tuple[History, History]:
    """What a simulation tells of itself, and what its journal tells."""
    journal = Journal()
    scenario = Scenario(jobs, Cluster(tuple(nodes)), policy, chosen, restart_cost_s=0.0, node_changes=tuple(changes))
    told = simulate(scenario, onlooker=journal)
    return told, read_history(InitialSettings(tuple(nodes), policy, chosen), journal.records())


@settings(max_examples=25, deadline=None)
@given(jobs=JOBS, policy=st.sampled_from(POLICIES))
def test_a_journal_tells_the_same_as_the_run_that_wrote_it(
    jobs: list[JobSpec], policy: tuple[str, dict[str, str]]
) -> None:
    told, read = simulated(jobs, *policy)
    assert (read.jobs, read.policy) == (told.jobs, told.policy)
    for column in fields(Attempts):
        one, other = getattr(read.attempts, column.name), getattr(told.attempts, column.name)
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), column.name
    for name in ("state", "start_s", "end_s"):
        assert np.array_equal(getattr(read, name), getattr(told, name)), name
    assert read.rates == pytest.approx(told.rates, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(jobs=JOBS, policy=st.sampled_from(POLICIES))
def test_replayed_under_its_own_policy_a_run_is_the_same_again(
    jobs: list[JobSpec], policy: tuple[str, dict[str, str]]
) -> None:
    _, read = simulated(jobs, *policy)
    again, _ = simulated(replayable(read), *policy)
    assert [job.id for job in again.jobs] == [job.id for job in read.jobs]
    assert np.allclose(attempts_of(again), attempts_of(read), rtol=0.0, atol=1e-3, equal_nan=True)


@settings(max_examples=40, deadline=None)
@given(
    jobs=JOBS,
    policy=st.sampled_from(POLICIES),
    first=st.integers(0, 3),
    happenings=HAPPENINGS,
    saved_every_s=st.sampled_from([0.0, 20.0]),
)
def test_a_run_whose_nodes_come_and_go_is_the_same_again_when_it_is_replayed(
    jobs: list[JobSpec],
    policy: tuple[str, dict[str, str]],
    first: int,
    happenings: list[Happening],
    saved_every_s: float,
) -> None:
    nodes, jobs = CLUSTER.nodes[:first], [replace(one, checkpoint_every_s=saved_every_s) for one in jobs]
    # In the end every host is there, as large as it became.
    changes = node_events(nodes, [*happenings, *((1.0, node.host, "back") for node in CLUSTER.nodes)])
    told, read = simulated(jobs, *policy, nodes, changes)
    assert told.finished.all()
    again, _ = simulated(replayable(read), *policy, nodes, changes)
    assert [job.id for job in again.jobs] == [job.id for job in read.jobs]
    assert np.allclose(attempts_of(again), attempts_of(read), rtol=0.0, atol=1e-3, equal_nan=True)


def test_a_live_run_whose_nodes_come_and_go_is_the_same_again_when_it_is_replayed(tmp_path: Path) -> None:
    """It begins empty. The node is lost while b loads, comes back larger, is drained, and leaves when all is done."""
    cell = SteppedService(tmp_path, "fifo", nodes=())
    cell.world.default = FakeJob(lasts_s=10.0, ready_s=3.0)
    for name, gpus in (("a", 2), ("b", 2), ("c", 4), ("d", 1)):
        cell.submit(name=name, resources={"gpus": gpus}, estimate={"steps": 100, "duration": 10.0})
    cell.to(5.0)
    cell.backend.join(Node("v1", "v100", 2))
    cell.to(20.0)
    cell.backend.lose("v1")
    cell.to(25.0)
    cell.backend.join(Node("v1", "v100", 4))
    cell.to(45.0)
    cell.ask(lambda: cell.operations.drain(ADMIN, "v1", evict=False))
    cell.to(60.0)
    cell.ask(lambda: cell.operations.resume(ADMIN, "v1"))
    cell.to(80.0)
    cell.backend.lose("v1")
    cell.to(85.0)
    was, records = read_cell(cell), [record for _, record in cell.store.tail()]
    assert [node.name for node in was.cluster.nodes] == ["v1", "v1~2"]
    assert was.finished.all()
    changes = tuple(record for record in records if isinstance(record, NodeChange))
    past = JournalReader(was, cell.daemon.initial_settings, 0.0, cell.now_s, (), changes)
    again, waiting = replayed(past, replay_scenario(past, PolicyChoice("fifo")))
    assert not waiting
    same, told = np.array(attempts_of(again)), np.array(attempts_of(was))
    assert (same[1, 4], told[1, 4]) == (20.5, 21.0), (
        "a lost attempt ends with its node; live, when somebody has seen it"
    )
    same[1, 4] = told[1, 4]
    assert np.allclose(same, told, rtol=0.0, atol=1e-3, equal_nan=True)
    assert (again.gpus_by_type.tolist(), again.attempts.gpu_ids.tolist()) == ([4], was.attempts.gpu_ids.tolist())
    always, _ = replayed(past, replay_scenario(past, PolicyChoice("fifo"), cluster="v100:1x4"))
    assert always.end_s.max() < was.end_s.max(), "on another cluster the nodes are always there"


def test_in_a_replay_a_host_has_one_node_at_a_time_even_if_its_loss_was_dropped() -> None:
    nodes, larger, back = [Node("v1", "v100", 2)], Node("v1~2", "v100", 4), Node("v1~2", "v100", 3)
    joined = NodeJoined(5.0, larger), NodeJoined(7.0, back), NodeJoined(8.0, Node("v2", "v100", 1))
    assert [*complete_changes(nodes, joined)] == [NodeLost(5.0, "v1"), *joined]


def test_who_was_stopped_before_it_worked_had_nothing_to_restore_when_it_came_back() -> None:
    def launch(attempt: int, at_s: float) -> Decided:
        return Decided(at_s, planned=False, launches=(Launch("a", attempt, (0,), Span.GPU, 0.0),))

    def stop(attempt: int, at_s: float) -> list[Event | Decided]:
        told = Decided(at_s, planned=False, stops=(Stop("a", attempt, StopWhy.PREEMPTED),))
        return [told, JobStopped(at_s + 1.0, "a", attempt, 5.0 * (attempt - 1))]

    records = [JobSubmitted(0.0, JobSpec("a", 0.0, 1, 100.0, "steps", throughput={"v100": 1.0}))]
    records += [launch(1, 0.0), *stop(1, 1.0), launch(2, 5.0), JobStarted(7.0, "a", 2), *stop(2, 12.0)]
    records += [launch(3, 20.0), JobStarted(29.0, "a", 3), JobFinished(124.0, "a", 3)]
    history = read_history(InitialSettings((Node("v100", "v100", 1),), "fifo"), records)
    assert calibrate(history).overall == Costs(start_s=2.0, restore_s=9.0, checkpoint_s=1.0, finish_s=0.0)


def single_runs(starts_s: Sequence[float]) -> History:
    """Jobs of one class, one after the other, that take these times to start."""
    records: list[Event | Decided] = []
    for number, start_s in enumerate(starts_s):
        name, at_s = f"j{number}", 100.0 * number
        spec = JobSpec(name, at_s, 1, 10.0, "steps", job_class="c", throughput={"v100": 1.0})
        launch = Decided(at_s, planned=False, launches=(Launch(name, 1, (0,), Span.GPU, 0.0),))
        ran = JobStarted(at_s + start_s, name, 1), JobFinished(at_s + start_s + 10.0, name, 1)
        records += [JobSubmitted(at_s, spec), launch, *ran]
    return read_history(InitialSettings((Node("v100", "v100", 1),), "fifo"), records)


def test_a_start_takes_as_long_as_starts_do_on_average_and_one_that_hung_is_no_start() -> None:
    assert calibrate(single_runs([1.0, 1.0, 4.0])).costs["c"].start_s == 2.0
    assert calibrate(single_runs([1.0, 1.0, 4.0, 60.0])).costs["c"].start_s == 2.0
    assert calibrate(single_runs([0.0, 0.0])).costs["c"].start_s == 0.0


def test_an_attempt_that_reported_too_little_does_not_blur_the_speed_of_one_that_did() -> None:
    records: list[Event | Decided] = [
        JobSubmitted(0.0, JobSpec("a", 0.0, 1, 100.0, "steps", throughput={"v100": 1.0})),
        Decided(0.0, planned=False, launches=(Launch("a", 1, (0,), Span.GPU, 0.0),)),
        JobStarted(1.0, "a", 1),
        *(JobProgressed(1.0 + at_s, "a", 1, 2.0 * at_s) for at_s in (0.0, 1.0, 9.0)),
        Decided(11.0, planned=False, stops=(Stop("a", 1, StopWhy.PREEMPTED),)),
        JobStopped(12.0, "a", 1, 20.0),
        Decided(20.0, planned=False, launches=(Launch("a", 2, (0,), Span.GPU, 20.0),)),
        JobStarted(21.0, "a", 2),
        # It saves what it did after it was told to stop, too: 6 steps in one second.
        Decided(22.0, planned=False, stops=(Stop("a", 2, StopWhy.PREEMPTED),)),
        JobStopped(24.0, "a", 2, 26.0),
    ]
    history = read_history(InitialSettings((Node("v100", "v100", 1),), "fifo"), records)
    assert history.rates.tolist() == [[2.0]]


def test_types_that_are_alike_to_a_job_are_so_when_it_is_run_again() -> None:
    """A speed that was measured, and the same carried over to another type, must not differ by rounding."""
    kinds = (Node("v100", "v100", 1), Node("k80", "k80", 1))
    for tenths in range(1, 60):
        spec = JobSpec("a", 0.0, 1, 1e6, "steps", throughput={"v100": 1e6 / 3600, "k80": 1e6 / 3600})
        launch = Decided(0.3, planned=False, launches=(Launch("a", 1, (0,), Span.GPU, 0.0),))
        ran = [JobSubmitted(0.1, spec), launch, JobStarted(0.7, "a", 1), JobFinished(0.7 + tenths / 10, "a", 1)]
        (speeds,) = read_history(InitialSettings(kinds, "fifo"), ran).rates.tolist()
        assert speeds[0] == speeds[1], tenths


# ------------------------------------------------------------------ calibration


def test_a_class_that_nobody_has_seen_costs_what_others_do_and_keeps_its_speed() -> None:
    known = Calibration({}, Costs(1.0, 2.0, 3.0, 4.0), {("seen", 2): {"v100": 7.0}})
    unseen = known.applied(JobSpec("a", 0.0, 2, 10.0, unit="steps", job_class="new", throughput={"v100": 5.0}))
    assert (unseen.start_s, unseen.restore_s, unseen.checkpoint_s, unseen.finish_s) == (1.0, 2.0, 3.0, 4.0)
    assert unseen.throughput == {"v100": 5.0}


@pytest.mark.parametrize(("gpus", "types", "speeds"), [(2, (), {"v100": 7.0, "k80": 3.0}), (4, (), {"v100": 5.0})])
def test_speeds_are_those_of_the_class_and_size(gpus: int, types: tuple[str, ...], speeds: dict[str, float]) -> None:
    known = Calibration({}, Costs(0.0, 0.0, 0.0, 0.0), {("seen", 2): {"v100": 7.0, "k80": 3.0}})
    spec = JobSpec("a", 0.0, gpus, 10.0, unit="steps", job_class="seen", gpu_types=types, throughput={"v100": 5.0})
    assert known.applied(spec).throughput == speeds


def test_a_type_that_a_job_does_not_accept_stays_out() -> None:
    known = Calibration({}, Costs(0.0, 0.0, 0.0, 0.0), {("seen", 1): {"v100": 7.0, "k80": 3.0}})
    spec = JobSpec("a", 0.0, 1, 10.0, unit="steps", job_class="seen", gpu_types=("k80",), throughput={"k80": 5.0})
    assert known.applied(spec).throughput == {"k80": 3.0}


def test_a_cancelled_job_is_replayed_as_far_as_it_came_and_one_that_never_ran_not_at_all(turns: SteppedService) -> None:
    turns.to(3.0)
    never: Any = turns.submit(name="c", resources={"gpus": 2}, estimate={"steps": 100, "duration": 10.0})
    turns.ask(lambda: turns.operations.request(ADMIN, "cancel", ["a-1", never]))
    turns.to(30.0)
    jobs = {job.id: job for job in replayable(read_cell(turns))}
    assert set(jobs) == {"a-1", "b-2"}
    assert jobs["b-2"].work == 100.0
    assert 15 <= jobs["a-1"].work <= 30, "it worked for 2 s, and half a second more while it stopped"


def test_a_race_of_trials_is_replayed_as_it_went(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, "fifo", gpus=2)
    cell.world.default = FakeJob(lasts_s=20.0, ready_s=0.5)
    race = {"app": "race", "app_scheduler": "halving:eta=2,rungs=1", "estimate": {"steps": 100, "duration": 20.0}}
    good, bad = (cell.submit(name=name, **race) for name in ("good", "bad"))
    cell.to(10.0)
    for job, loss in ((good, 0.1), (bad, 0.9)):
        cell.ask(partial(cell.operations.progress, job, 1, 50, 100, loss))
    cell.to(40.0)
    assert (cell.state(good), cell.state(bad)) == ("finished", "cancelled"), "or this tests nothing"
    jobs = replayable(read_cell(cell))
    assert {job.id: job.app_scheduler for job in jobs} == {good: "", bad: ""}
    again = simulate(Scenario(jobs, CLUSTER, policy="las", restart_cost_s=0.0))
    assert again.finished.all()
    assert again.jobs[1].work < again.jobs[0].work == 100


def test_run_again_the_same_jobs_count_as_finished_as_did_then(turns: SteppedService) -> None:
    turns.world.jobs["there-3"] = FakeJob(lasts_s=1000.0)
    turns.submit(name="there", resources={"gpus": 2}, estimate={"steps": 100, "duration": 1000.0})
    never = turns.submit(name="never", resources={"gpus": 2})
    turns.to(12.0)
    turns.ask(lambda: turns.operations.request(ADMIN, "cancel", ["a-1", never]))
    turns.to(40.0)
    was = read_cell(turns)
    assert [State(one).name for one in was.state.tolist()] == ["CANCELLED", "FINISHED", "RUNNING", "CANCELLED"]
    again = simulate(Scenario(replayable(was), parse_cluster("v100:1x4"), policy="las", restart_cost_s=0.0))
    assert (len(again.jobs), int(again.finished.sum())) == (3, 3), "or this tests nothing"
    told = align_with_past(was, again)
    assert [job.id for job in told.jobs] == [job.id for job in was.jobs]
    assert (told.state.tolist(), told.given_up) == (was.state.tolist(), was.given_up)
    assert attempts_of(told) == attempts_of(again)
    assert np.isnan(told.end_s).tolist() == [False, False, True, False]
    assert told.end_s[3] == was.end_s[3]
    for report in (measure(was), measure(told)):
        assert (report.jobs, report.finished, report.cancelled) == (4, 1, 2)
    assert measure(told).avg_jct_s == again.end_s[1] - again.submit_s[1]


def test_a_host_that_came_back_larger_counts_once_and_absent_nodes_do_not_count() -> None:
    spec = JobSpec("a-1", 0.0, 2, 100.0, throughput={"v100": 1.0})
    larger = Node("v1~2", "v100", 4)
    placed = Decided(0.0, True, launches=(Launch("a-1", 1, (0, 1), Span(1), 0.0),))
    again = Decided(60.0, True, launches=(Launch("a-1", 2, (2, 3, 4, 5), Span(1), 50.0),))
    records: list[Event | Decided] = [
        JobSubmitted(0.0, spec),
        placed,
        JobStarted(0.0, "a-1", 1),
        NodeLost(50.0, "v1"),
        JobStopped(50.0, "a-1", 1, 50.0),
        NodeJoined(60.0, larger),
        again,
        JobStarted(60.0, "a-1", 2),
        JobFinished(100.0, "a-1", 2),
    ]
    history = read_history(InitialSettings((Node("v1", "v100", 2),), "fifo"), records)
    report = measure(history)
    assert (history.cluster.gpus, report.gpus, report.by_gpu_type["v100"].gpus) == (6, 4, 4)
    # 2 GPUs for 50 s and 4 for 40 s were there, and held all the time.
    assert report.utilization == pytest.approx(1.0)
