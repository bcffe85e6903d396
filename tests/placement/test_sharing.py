"""Two jobs on the same GPUs: who joins whom, who has to leave, and how fast they are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.cluster import Cluster, Span
from horae.core.codec import decode, encode
from horae.core.commands import Decided, Launch, Stop
from horae.core.engine import Engine
from horae.core.events import Event, JobFinished, JobProgressed, JobStarted, JobStopped, JobSubmitted, NodeDraining
from horae.core.invariants import check
from horae.core.memory import Memory, MemorySpec
from horae.core.queues import Queue
from horae.core.snapshot import Snapshot
from horae.core.states import PLACED, RUNNING, STOPPING, State
from horae.core.throughputs import Setting, Throughputs
from horae.core.wishes import Wishes
from horae.placement.rules import make_placement
from tests.builders import cluster, job, run

#: One wish: a job or two, and the GPU type.
Wish = tuple[str, ...]


@dataclass
class Wisher:
    """A policy that wishes what a test tells it."""

    memory: ClassVar = MemorySpec()
    wishes: list[tuple[Wish, int]] = field(default_factory=list)

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        rows = now.table.rows
        there = [(who, kind) for who, kind in self.wishes if all(rows[name] in now.rows for name in who)]
        return Wishes(
            np.array([rows[who[0]] for who, _ in there], np.int64),
            gpu_type=np.array([kind for _, kind in there], np.int64),
            partner=np.array([rows[who[1]] if len(who) > 1 else -1 for who, _ in there], np.int64),
        )


class Bench:
    """An engine whose policy wishes what it is told; stops and starts are answered at once unless told otherwise."""

    def __init__(self, machines: Cluster, placement: str = "best-effort", queues: tuple[Queue, ...] = ()) -> None:
        self.wisher, self.slow_stops = Wisher(), False
        self.machines, self.queues = machines, queues
        self.throughputs = Throughputs()
        for kind in machines.gpu_types:
            for gpus in (1, 2):
                for span in (Span.GPU, Span.NODE):
                    self.throughputs.put(Setting("m", kind, gpus, span), 1.0)
                    self.throughputs.put(Setting("m", kind, gpus, span, "m"), 0.75)
        self.engine = self._engine(placement)
        self.shadow = self._engine(placement)

    def _engine(self, placement: str) -> Engine:
        rule = make_placement(placement)
        return Engine(self.machines, lambda *_: self.wisher, "wisher", {}, rule, self.throughputs, self.queues)

    def tell(self, event: Event) -> None:
        for engine in (self.engine, self.shadow):
            engine.apply(event)
            check(engine)

    def submit(self, **gpus: int) -> None:
        for name, size in gpus.items():
            now_s = self.engine.now_s
            self.tell(JobSubmitted(now_s, job(name, gpus=size, work=1000.0, submit_s=now_s, job_class="m")))

    def wish(self, *wishes: str) -> Decided:
        """Wishes such as "a+b:1" (both on type 1) or "a" (type 0), in order; gives the decision they lead to."""
        self.wisher.wishes = []
        for text in wishes:
            who, _, kind = text.partition(":")
            self.wisher.wishes.append((tuple(who.split("+")), int(kind or 0)))
        # Another look costs an event; a job that nobody knows has no other effect.
        self.engine._state.must_plan = self.shadow._state.must_plan = True
        return self.decide()

    def decide(self) -> Decided:
        record = self.engine.with_evidence(self.engine.decide(self.engine.now_s))
        check(self.engine)
        self.shadow.apply(decode(encode(record)))
        check(self.shadow)
        assert repr(self.shadow.contents()) == repr(self.engine.contents()), "the record does not tell all"
        for command in record.commands:
            if isinstance(command, Stop) and not self.slow_stops:
                self.stopped(command.job)
            if isinstance(command, Launch):
                self.tell(JobStarted(self.engine.now_s, command.job, command.attempt))
        if record.stops and not self.slow_stops and self.engine.due(self.engine.now_s):
            self.decide()
        return record

    def stopped(self, name: str) -> None:
        row = self.row(name)
        done = float(self.engine.jobs.work[row] - self.engine.jobs.work_left[row])
        self.tell(JobStopped(self.engine.now_s, name, int(self.engine.jobs.attempt[row]), done))

    def sharers(self) -> set[frozenset[str]]:
        """Pairs of jobs that share GPUs."""
        specs, holders = self.engine.jobs.specs, self.engine.gpus.holders
        return {frozenset(specs[row].id for row in pair) for pair in holders.T.tolist() if min(pair) >= 0}

    def row(self, name: str) -> int:
        return self.engine.jobs.rows[name]

    def gpus(self, name: str) -> tuple[int, ...]:
        return self.engine.gpus.held.get(self.row(name), ())

    def attempt(self, name: str) -> int:
        return int(self.engine.jobs.attempt[self.row(name)])

    def rate(self, name: str) -> float:
        return float(self.engine.jobs.rate[self.row(name)])

    def state(self, name: str) -> State:
        return State(int(self.engine.jobs.state[self.row(name)]))


def bench(spec: str = "1x2", **more: object) -> Bench:
    return Bench(cluster(spec), **more)  # type: ignore[arg-type]


def test_two_jobs_share_gpus_and_are_as_fast_as_the_table_says() -> None:
    b = bench("1x1")
    b.submit(a=1, b=1)
    b.wish("a+b")
    assert b.gpus("a") == b.gpus("b") == (0,)
    assert (b.rate("a"), b.rate("b")) == (0.75, 0.75)
    b.tell(JobFinished(10.0, "a", 1))
    assert b.rate("b") == 1.0, "it has the GPU to itself"


def test_service_is_half_of_what_two_share_and_all_of_what_one_has_alone() -> None:
    b = bench("1x2")
    b.submit(a=2, b=2)
    b.wish("a+b")
    b.tell(JobProgressed(10.0, "a", 1, 7.0))
    b.tell(JobFinished(40.0, "b", 1))
    b.tell(JobFinished(100.0, "a", 1))
    assert [float(b.engine.jobs.gpu_seconds[b.row(name)]) for name in "ab"] == [2 * (20 + 60), 2 * 20]


def test_a_job_joins_another_where_that_one_runs_and_does_not_disturb_it() -> None:
    b = bench("1x1")
    b.submit(a=1, b=1)
    b.wish("a")
    record = b.wish("b+a", "a", "b")
    assert (record.stops, [launch.job for launch in record.launches]) == ((), ["b"])
    assert (b.attempt("a"), b.rate("a")) == (1, 0.75)


def test_a_job_that_is_to_be_alone_sends_the_other_away_and_stays() -> None:
    b = bench("1x1")
    b.submit(a=1, b=1)
    b.wish("a+b")
    record = b.wish("b")
    assert [(stop.job, stop.by) for stop in record.stops] == [("a", "b")]
    assert (b.attempt("b"), b.rate("b"), b.gpus("a")) == (1, 1.0, ())


def test_partners_change_while_the_first_stays() -> None:
    b = bench("1x1")
    b.slow_stops = True
    b.submit(a=1, b=1, c=1)
    b.wish("a+b")
    record = b.wish("a+c")
    assert [(stop.job, stop.by) for stop in record.stops] == [("b", "c")]
    assert (b.state("c"), b.state("b"), b.state("a")) == (PLACED, STOPPING, RUNNING)
    b.stopped("b")
    b.decide()
    assert (b.gpus("c"), b.attempt("a"), b.rate("c"), b.rate("a")) == (b.gpus("a"), 1, 0.75, 0.75)


def test_a_pair_moves_to_another_type_together() -> None:
    b = bench("x:1x1,y:1x1")
    b.submit(a=1, b=1)
    b.wish("a+b:0")
    b.wish("a+b:1")
    assert b.gpus("a") == b.gpus("b") == (1,)
    assert b.engine.gpus.holders[:, 0].tolist() == [-1, -1]


def test_one_of_a_pair_moves_and_leaves_the_gpus_to_the_other() -> None:
    b = bench("x:1x1,y:1x1")
    b.submit(a=1, b=1)
    b.wish("a+b:0")
    record = b.wish("a:1", "b:0")
    assert (b.gpus("a"), b.gpus("b"), b.attempt("b"), b.rate("b")) == ((1,), (0,), 1, 1.0)
    assert [stop.job for stop in record.stops] == ["a"]


def test_a_job_leaves_its_own_gpus_to_join_another() -> None:
    b = bench("1x2")
    b.submit(a=1, b=1, c=1)
    b.wish("a", "b")
    b.wish("a+b", "c")
    assert b.gpus("a") == b.gpus("b") == (0,)
    assert b.gpus("c") == (1,), "what it left goes to the next"


def test_a_pair_is_displaced_whole_and_placed_whole() -> None:
    b = bench("1x2")
    b.submit(a=2, b=2, c=2)
    b.wish("a+b")
    record = b.wish("c", "a+b")
    assert sorted(stop.job for stop in record.stops) == ["a", "b"]
    assert (b.gpus("c"), b.gpus("a"), b.gpus("b")) == ((0, 1), (), ())


def test_quotas_count_what_each_job_has_though_it_is_shared() -> None:
    b = bench("1x2", queues=(Queue("default", gpus_max=1),))
    b.submit(a=1, b=1)
    b.wish("a+b", "a", "b")
    assert (b.gpus("a"), b.gpus("b")) == ((0,), ()), "two shares of one GPU are two of the queue's"


NAMES = [f"j{k}" for k in range(6)]


@st.composite
def wish_lists(draw: st.DrawFn) -> list[tuple[Wish, int]]:
    """Wishes for single jobs and for pairs of one size, in any order."""
    wishes: list[tuple[Wish, int]] = []
    for _ in range(draw(st.integers(1, 8))):
        one = draw(st.integers(0, 5))
        mates = [k for k in range(6) if k != one and k % 2 == one % 2]
        other = draw(st.sampled_from([-1, *mates]))
        who = (NAMES[one],) if other < 0 else (NAMES[one], NAMES[other])
        wishes.append((who, draw(st.integers(0, 1))))
    return wishes


@settings(max_examples=150, deadline=None)
@given(
    st.lists(wish_lists(), min_size=2, max_size=6),
    st.sampled_from(["anywhere", "best-effort", "consolidated"]),
    st.booleans(),
    st.integers(2, 6),
)
def test_whatever_is_wished_the_first_wish_comes_true_and_nobody_shares_unasked(
    rounds: list[list[tuple[Wish, int]]], placement: str, slow: bool, limit: int
) -> None:
    queues = (Queue("default", gpus_max=limit),) if limit < 6 else ()
    b = Bench(cluster("x:1x2,y:2x2"), placement, queues)
    b.slow_stops = slow
    b.submit(**{name: 1 + k % 2 for k, name in enumerate(NAMES)})
    together: set[frozenset[str]] = set()
    for number, wishes in enumerate(rounds):
        b.engine.advance(float(number))
        b.shadow.advance(float(number))
        b.wish(*("+".join(who) + f":{kind}" for who, kind in wishes))
        who, kind = wishes[0]
        if not queues:
            # Where there are quotas, whoever has GPUs without a wish may stand in the way of the first.
            held = {b.gpus(name) for name in who}
            assert len(held) == 1, f"{who} hold {held}"
            assert () not in held, f"{who} have nothing"
            assert {int(b.machines.gpu_type[gpu]) for gpu in held.pop()} == {kind}
            sharers = {b.row(name) for name in who}
            assert {row for row in b.engine.gpus.holders[:, b.gpus(who[0])[0]].tolist() if row >= 0} == sharers
        wished = {frozenset(who) for who, _ in wishes if len(who) == 2}
        now = b.sharers()
        assert now <= wished | together, f"{now - wished - together} share unasked"
        if slow and number % 2:
            for name in NAMES:
                if b.state(name) is STOPPING:
                    b.stopped(name)
            # What this decision makes of the wishes may be more than the last one could.
            b.decide()
            assert b.sharers() <= wished | now, f"{b.sharers() - wished - now} share unasked"
        together = b.sharers()


@pytest.mark.parametrize("policy", ["max-min", "finish-time", "makespan", "total-throughput"])
def test_sharing_policies_finish_sooner_than_taking_turns_where_sharing_helps(policy: str) -> None:

    table = bench("1x1").throughputs
    machines = cluster("gpu:1x1")
    table = Throughputs()
    table.put(Setting("m", "gpu", 1, Span.GPU), 1.0)
    table.put(Setting("m", "gpu", 1, Span.GPU, "m"), 0.75)
    jobs = [job(name, work=3600.0, unit="steps", job_class="m") for name in "ab"]
    together = run(jobs, machines, policy, throughputs=table, settings={"space-sharing": "true"})
    assert together.end_s == pytest.approx([4800.0, 4800.0])
    alone = run(jobs, machines, policy, throughputs=table)
    assert max(alone.end_s) == pytest.approx(7200.0)


def test_sharing_is_refused_where_no_pair_was_ever_measured() -> None:
    from horae.policies.settings import BadSetting

    table = Throughputs()
    table.put(Setting("m", "gpu", 1, Span.GPU), 1.0)
    jobs = [job(name, work=3600.0, unit="steps", job_class="m") for name in "ab"]
    for known in (table, None):
        own = [replace(one, unit="seconds") for one in jobs] if known is None else jobs
        with pytest.raises(BadSetting, match="--throughputs FILE"):
            run(own, "gpu:1x1", "max-min", throughputs=known, settings={"space-sharing": "true"})
    table.put(Setting("m", "gpu", 1, Span.GPU, "m"), 0.75)
    assert run(jobs, "gpu:1x1", "max-min", throughputs=table, settings={"space-sharing": "true"}).finished.all()


def test_random_pairs_are_drawn_from_the_seed_of_the_run_unless_another_is_set() -> None:

    table = Throughputs()
    for one in "mnop":
        table.put(Setting(one, "gpu", 1, Span.GPU), 1.0)
        for k, other in enumerate("mnop"):
            table.put(Setting(one, "gpu", 1, Span.GPU, other), 0.6 + 0.1 * k)
    jobs = [job(f"{name}{k}", work=3600.0, unit="steps", job_class=name) for name in "mnop" for k in range(3)]

    def ends(seed: int, own: int | None = None) -> list[float]:
        settings = {} if own is None else {"seed": str(own)}
        history = run(jobs, "gpu:1x4", "gandiva", throughputs=table, seed=seed, settings=settings)
        return [float(end) for end in history.end_s]

    assert ends(1) == ends(0, own=1) == ends(7, own=1)
    assert len({tuple(ends(seed)) for seed in range(5)}) > 1


def test_a_job_waits_for_a_sharer_that_is_stopped_when_the_last_other_occupant_has_left() -> None:
    bench = Bench(cluster("1x1"))
    bench.submit(a=1, x=1, b=1)
    bench.wish("a+x")
    bench.slow_stops = True
    assert [stop.job for stop in bench.wish("a+b").stops] == ["x"]
    bench.stopped("x")
    record = bench.wish("b")
    assert ([stop.job for stop in record.stops], record.launches) == (["a"], ())
    bench.stopped("a")
    assert [launch.job for launch in bench.decide().launches] == ["b"]


def test_a_job_does_not_join_one_that_still_has_to_leave_some_of_its_old_gpus() -> None:
    bench = Bench(cluster("3x1"))
    bench.submit(a=2, b=2)
    bench.wish("a")
    bench.slow_stops = True
    bench.tell(NodeDraining(bench.engine.now_s, bench.machines.nodes[1].name, evict=True))
    bench.wish("a")
    assert (bench.gpus("a"), bench.state("a")) == ((0, 2), State.STOPPING)
    assert bench.wish("a+b").launches == (), "a sits on GPUs 0 and 1"
    assert bench.gpus("b") == (0, 2)
    bench.stopped("a")
    assert {launch.job for launch in bench.decide().launches} == {"a", "b"}
