"""From wishes to GPUs: preemption, protection, quotas, reservations, elastic gangs, types.

Tests placement/holders.py, placement/marks.py, placement/reservation.py, placement/gpu_numbers.py,
placement/waiting_reasons.py, placement/kernel_args.py and placement/rules.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.commands import Decided, StopWhy
from horae.core.engine import Engine
from horae.core.events import Event, JobFinished, JobStopped, JobSubmitted, NodeDraining, NodeJoined, SettingsChanged
from horae.core.job import JobSpec
from horae.core.plan import Plan
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.states import State
from horae.core.wishes import Wishes
from horae.placement.rules import make_placement
from horae.policies import make_policy
from tests.builders import Cell, Script, cluster, job, run, times

PREEMPTIVE = ["smallest-first", "srtf", "srsf", "las", "time-slice", "isolated"]


# ----------------------------------------------------------------- preemption


def test_a_job_that_cannot_be_placed_takes_nobodys_gpus() -> None:
    cell = Cell("2x2", "srtf", placement="consolidated")
    cell.submit(0, job("one", gpus=2, work=20), job("two", gpus=2, work=500))
    record = cell.submit(1, job("wide", gpus=4, work=100))
    assert (record.stops, cell.running) == ((), ["one", "two"])
    assert cell.reason("wide") is Reason.BEHIND_SHORTER


def test_nobody_is_stopped_for_a_gang_that_only_jobs_ahead_of_it_could_make_room_for() -> None:
    cell = Cell("1x4", "srtf")
    cell.submit(0, job("a", gpus=2, work=10), job("b", gpus=2, work=1000))
    assert cell.submit(1, job("c", gpus=3, work=100)).stops == ()


def test_a_job_is_stopped_only_for_one_that_is_launched_when_its_gpus_are_free() -> None:
    cell = Cell("1x2", "srtf", slow_stops=True)
    cell.submit(0, job("a", gpus=2, work=1000))
    record = cell.submit(5, job("b", gpus=2, work=10))
    assert [(stop.job, stop.why, stop.by) for stop in record.stops] == [("a", StopWhy.PREEMPTED, "b")]
    assert (record.placed[0].job, record.launches, cell.reason("b")) == ("b", (), Reason.VACATING)
    answer = cell.at(9, JobStopped(9, "a", 1, 5.0))
    assert [launch.job for launch in answer.launches] == ["b"]
    assert not answer.planned, "the plan was made when the stop was decided"


@pytest.mark.parametrize("placement", ["anywhere", "best-effort", "least-fragmentation"])
def test_jobs_that_fit_into_free_gpus_one_by_one_and_not_together_take_those_of_jobs_after_them(placement: str) -> None:
    cell = Cell("1x4", "srtf", placement=placement)
    cell.submit(0, job("long", gpus=2, work=1000))
    record = cell.submit(1, job("a", gpus=2, work=10), job("b", gpus=2, work=20))
    assert ([stop.job for stop in record.stops], cell.running) == (["long"], ["a", "b"])


def test_what_a_stopped_job_leaves_over_serves_the_next_gang_of_the_size_that_found_nothing_before() -> None:
    cell = Cell("4x4", "srtf", placement="consolidated")
    cell.submit(0, job("first", gpus=2, work=5), job("fill", gpus=3, work=6), job("up", gpus=3, work=7))
    cell.submit(0, job("middle", gpus=2, work=900), job("last", gpus=4, work=1000))
    record = cell.submit(1, job("one", gpus=2, work=10), job("two", gpus=2, work=20))
    assert [stop.job for stop in record.stops] == ["last"]
    assert cell.running == ["first", "fill", "up", "middle", "one", "two"]


@pytest.mark.parametrize("placement", ["anywhere", "best-effort", "consolidated", "least-fragmentation"])
def test_the_last_in_order_lose_their_gpus_first(placement: str) -> None:
    cell = Cell("1x4", "srtf", placement=placement)
    cell.submit(0, *(job(name, work=work) for name, work in (("d", 400), ("b", 200), ("c", 300), ("a", 100))))
    record = cell.submit(1, job("new", gpus=2, work=10))
    assert sorted(stop.job for stop in record.stops) == ["c", "d"]
    assert cell.running == ["b", "a", "new"]


@pytest.mark.parametrize("placement", ["anywhere", "best-effort", "consolidated", "least-fragmentation"])
def test_the_last_in_order_loses_its_gpus_wherever_it_sits_and_nobody_else_moves(placement: str) -> None:
    cell = Cell("8x1", "srtf", placement=placement)
    cell.submit(0, *(job(f"p{n}", work=50 + n) for n in range(8)))
    record = cell.submit(1, job("new", work=10))
    assert [stop.job for stop in record.stops] == ["p7"]


def test_the_gpus_a_preemption_leaves_over_are_used_in_the_same_decision() -> None:
    cell = Cell("1x4", "srtf")
    cell.submit(0, job("wide", gpus=4, work=1000))
    cell.submit(1, job("a", gpus=2, work=10), job("b", gpus=2, work=2000))
    assert cell.running == ["a", "b"]


def test_a_running_job_that_would_get_its_gpus_back_is_not_touched() -> None:
    cell = Cell("1x4", "srsf")
    cell.submit(0, job("keeps", gpus=1, work=50), job("goes", gpus=3, work=100))
    record = cell.submit(1, job("new", gpus=3, work=10))
    assert [stop.job for stop in record.stops] == ["goes"]
    assert cell.attempt("keeps") == 1


def test_one_that_lost_its_gpus_first_and_was_not_needed_in_the_end_is_not_touched_either() -> None:
    cell = Cell("1x4", "srtf")
    cell.submit(0, job("last", gpus=1, work=1000), job("goes", gpus=3, work=500))
    record = cell.submit(1, job("new", gpus=2, work=10))
    assert [stop.job for stop in record.stops] == ["goes"]
    assert (cell.running, cell.attempt("last")) == (["last", "new"], 1)


@pytest.mark.parametrize("policy", ["fifo", "fifo-backfill"])
def test_policies_that_do_not_preempt_stop_nobody(policy: str) -> None:
    jobs = [job(str(n), gpus=1 + n % 4, work=50 - n, submit_s=n) for n in range(30)]
    assert not run(jobs, "2x2", policy).attempts.preempted.any()


@pytest.mark.parametrize("policy", PREEMPTIVE)
@given(rows=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 4), st.integers(1, 80)), min_size=2, max_size=12))
@settings(max_examples=25, deadline=None)
def test_every_stop_names_a_job_that_is_then_placed(policy: str, rows: list[tuple[int, int, int]]) -> None:
    jobs = [job(str(n), gpus, work, submit_s=arrival) for n, (arrival, gpus, work) in enumerate(rows)]
    setting = {"isolated": {"round": "20"}, "las": {"quantum": "20"}, "time-slice": {"quantum": "20"}}.get(policy, {})
    script = Script(jobs, "2x2", policy, setting)
    for record in script.records:
        served = {placed.job for placed in record.placed} | {launch.job for launch in record.launches}
        assert {stop.by for stop in record.stops if stop.why is StopWhy.PREEMPTED} <= served
    assert script.history.finished.all()


# ----------------------------------------------------------------- protection


def test_a_job_within_its_minimum_runtime_keeps_its_gpus_until_that_is_over() -> None:
    jobs = [job("long", work=1000, min_runtime_s=60), job("short", work=10, submit_s=5)]
    assert times(run(jobs, "1x1", "srtf"))["short"] == (60, 70)


def test_the_engine_asks_to_be_woken_when_the_first_protection_ends() -> None:
    cell = Cell("1x2", "srtf")
    cell.submit(0, job("a", work=1000, min_runtime_s=90), job("b", work=900, min_runtime_s=60))
    assert cell.submit(5, job("c", work=10)).wake_s == 60
    assert [stop.job for stop in cell.at(60).stops] == ["b"]


def test_nobody_needs_waking_while_everybody_runs() -> None:
    cell = Cell("1x2", "srtf")
    assert cell.submit(0, job("a", min_runtime_s=60), job("b")).wake_s == float("inf")


def test_the_minimum_runtime_counts_from_the_start_of_work_not_from_the_launch() -> None:
    jobs = [job("long", work=1000, min_runtime_s=60), job("s1", work=10, submit_s=70), job("s2", work=10, submit_s=90)]
    history = run(jobs, "1x1", "srtf", restart_cost_s=30)
    # s1 takes over at 70 and ends at 80; long loads until 110 and is safe until 170.
    assert times(history)["s2"] == (170, 180)


def test_a_lease_protects_until_the_slice_ends() -> None:
    jobs = [job("a", work=1000), job("b", work=10, submit_s=100)]
    assert times(run(jobs, "1x1", "time-slice", settings={"quantum": "300"}))["b"] == (300, 310)


# --------------------------------------------------------------------- quotas


def test_no_queue_gets_more_than_its_maximum() -> None:
    cell = Cell("1x4", queues=[Queue("team", gpus_max=2)])
    cell.submit(0, job("a", queue="team"), job("b", gpus=2, queue="team"), job("c", queue="team"), job("d"))
    assert cell.running == ["a", "c", "d"]
    assert cell.reason("b") is Reason.OVER_QUOTA


def test_a_maximum_covers_everything_below_it() -> None:
    cell = Cell("1x4", queues=[Queue("org", gpus_max=2), Queue("org/x/y", gpus_max=4)])
    cell.submit(0, job("a", queue="org/x/y"), job("b", queue="org/z"), job("c", queue="org/x/y"), job("d", queue="o"))
    assert (cell.running, cell.reason("c")) == (["a", "b", "d"], Reason.OVER_QUOTA)


def test_a_job_over_its_quota_does_not_block_the_line() -> None:
    cell = Cell("1x4", "fifo", queues=[Queue("team", gpus_max=1)])
    cell.submit(0, job("a", gpus=2, queue="team"), job("b"))
    assert cell.running == ["b"]


@pytest.mark.parametrize("policy", ["fifo", "fifo-backfill", *PREEMPTIVE])
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 3), st.integers(1, 60), st.sampled_from(["o/a", "o/b", "c"])),
        min_size=2,
        max_size=12,
    )
)
@settings(max_examples=20, deadline=None)
def test_quotas_hold_after_every_decision_of_every_policy(policy: str, rows: list[tuple[int, int, int, str]]) -> None:
    tops = {"o": 4, "o/a": 3, "c": 3}
    queues = [Queue(path, gpus_max=most) for path, most in tops.items()]
    jobs = [job(str(n), g, work, submit_s=at, queue=path) for n, (at, g, work, path) in enumerate(rows)]
    setting = {"isolated": {"round": "20"}, "las": {"quantum": "20"}, "time-slice": {"quantum": "20"}}.get(policy, {})

    def look(engine: Engine, _: Event | Decided) -> None:
        for path, most in tops.items():
            below = [len(ids) for row, ids in engine.gpus.held.items() if is_below(engine.jobs.specs[row], path)]
            assert sum(below) <= most

    script = Script(jobs, "3x2", policy, setting, queues=queues, look=look)
    assert script.history.finished.all()


def is_below(spec: JobSpec, path: str) -> bool:
    return f"{spec.queue}/".startswith(f"{path}/")


def test_what_a_queue_is_guaranteed_is_served_before_earlier_jobs_of_others() -> None:
    cell = Cell("1x2", queues=[Queue("team", gpus_min=1)])
    cell.submit(0, job("a"), job("b"), job("mine", queue="team"), job("mine too", queue="team"))
    assert cell.running == ["a", "mine"]


def test_a_guarantee_takes_gpus_back_under_a_policy_that_preempts() -> None:
    cell = Cell("1x2", "srtf", queues=[Queue("team", gpus_min=1)])
    cell.submit(0, job("a", work=10), job("b", work=20))
    cell.submit(1, job("mine", work=1000, queue="team"), job("mine too", work=1000, queue="team"))
    assert cell.running == ["a", "mine"]


def test_a_guarantee_above_covers_the_queues_below() -> None:
    cell = Cell("1x2", "srtf", queues=[Queue("org", gpus_min=1)])
    cell.submit(0, job("a", work=10), job("b", work=20), job("mine", work=1000, queue="org/team"))
    assert cell.running == ["a", "mine"]


def test_quotas_do_not_care_for_weights_and_neither_do_ordering_policies() -> None:
    jobs = [job("a", work=50), job("b", work=50, weight=100), job("c", work=40, weight=0.01)]
    light = [job(one.id, work=one.work) for one in jobs]
    for policy in ("fifo", "fifo-backfill", "smallest-first", "srtf", "srsf", "las"):
        heavy_queue = [Queue("default", weight=9)]
        assert times(run(jobs, "1x1", policy, queues=heavy_queue)) == times(run(light, "1x1", policy))


# ----------------------------------------------------------------- reservation


def busy_line() -> list[JobSpec]:
    """Four GPUs, half of them busy until 100; a gang of four; then a stream of small jobs that never ends in time."""
    small = [job(f"s{n}", work=80, submit_s=10 + 20 * n) for n in range(40)]
    return [job("first", gpus=2, work=100), job("gang", gpus=4, work=50, submit_s=5), *small]


def test_without_a_reservation_small_jobs_starve_a_big_gang() -> None:
    assert times(run(busy_line(), "1x4"))["gang"][0] > 800


def test_with_a_reservation_it_starts_when_the_known_schedule_says() -> None:
    history = run(busy_line(), "1x4", settings={"reserve": "0"})
    assert times(history)["gang"][0] == 100
    assert times(history)["s0"] == (10, 90), "a job that ends before the gang starts may pass"
    assert times(history)["s1"][0] >= 150, "one that would still run at 100 may not"


def test_a_long_job_may_pass_on_gpus_that_the_gang_will_not_need() -> None:
    jobs = [
        job("first", gpus=3, work=100),
        job("gang", gpus=3, work=50, submit_s=1),
        job("long", gpus=1, work=1000, submit_s=2),
        job("late", gpus=1, work=1000, submit_s=3),
    ]
    starts = {name: start for name, (start, _) in times(run(jobs, "1x4", settings={"reserve": "0"})).items()}
    assert starts == {"first": 0, "gang": 100, "long": 2, "late": 150}


def test_a_job_that_waits_behind_a_reservation_is_told_for_whom() -> None:
    cell = Cell("1x4", settings={"reserve": "0"})
    cell.submit(0, job("first", gpus=2, work=100))
    cell.submit(1, job("gang", gpus=4, work=50))
    cell.submit(2, job("long", work=500))
    assert cell.reason("long") is Reason.RESERVED_FOR_LARGER
    assert cell.engine.evidence is not None
    assert cell.engine.evidence.head == "gang"


def test_nobody_is_preempted_on_behalf_of_a_job_behind_a_reservation() -> None:
    cell = Cell("1x4", "srtf", {"reserve": "0"})
    cell.submit(0, job("runs", gpus=2, work=30), job("longest", gpus=2, work=900))
    record = cell.submit(1, job("gang", gpus=4, work=100), job("behind", gpus=2, work=500))
    assert (record.stops, cell.running) == ((), ["runs", "longest"])


def test_a_reservation_comes_only_after_the_wait_that_was_set() -> None:
    jobs = [
        job("first", gpus=2, work=100),
        job("gang", gpus=4, work=50, submit_s=5),
        job("early", work=500, submit_s=30),
        job("late", work=500, submit_s=70),
    ]
    starts = times(run(jobs, "1x4", settings={"reserve": "60"}))
    assert (starts["early"][0], starts["gang"][0], starts["late"][0]) == (30, 530, 580)


@given(
    rows=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4), st.integers(1, 40)), min_size=3, max_size=14).map(
        sorted
    ),
    placement=st.sampled_from(["anywhere", "best-effort", "consolidated"]),
)
@settings(max_examples=80, deadline=None)
def test_the_job_with_a_reservation_never_starts_later_than_first_promised(
    rows: list[tuple[int, int, int]], placement: str
) -> None:
    """Jobs run exactly as long as known, so what was true when GPUs were first held back is a bound."""
    jobs = [job(str(n), gpus, work, submit_s=at) for n, (at, gpus, work) in enumerate(rows)]
    promised: dict[str, float] = {}

    def look(engine: Engine, what: Event | Decided) -> None:
        head = what.evidence.head if isinstance(what, Decided) and what.evidence else ""
        if head and head not in promised:
            wanted = 4 if placement == "consolidated" else engine.jobs.gpus[engine.jobs.rows[head]]
            promised[head] = free_at(engine, int(wanted))

    script = Script(jobs, "2x2", "fifo-backfill", {"reserve": "0"}, placement=placement, look=look)
    starts = {name: start for name, (start, _) in times(script.history).items()}
    assert {name: starts[name] for name in promised if starts[name] > promised[name]} == {}


def test_jobs_that_start_up_do_not_put_a_reservation_off() -> None:
    """A job that never reports its start may be starting up for all its life."""
    cell = Cell("1x2", "fifo-backfill", {"reserve": "5"}, slow_starts=True)
    cell.submit(0, job("a", work=10), job("b", work=10))
    cell.submit(0, job("gang", gpus=2, work=10))
    cell.at(6, JobFinished(6, "a", 1), JobSubmitted(6, job("same", work=10)), JobSubmitted(6, job("short", work=3)))
    assert cell.state("same") is State.WAITING, "it would end after b, which began 6 s ago"
    assert cell.state("short") is State.LAUNCHING


def free_at(engine: Engine, gpus: int) -> float:
    """When so many GPUs will be free, if nothing new starts."""
    table, now_s, free = engine.jobs, engine.now_s, 4 - sum(map(len, engine.gpus.occupied.values()))
    ends = []
    for row, ids in engine.gpus.occupied.items():
        left = table.work_left[row] - table.rate[row] * (now_s - table.since_s[row])
        ends.append((now_s + float(left), len(ids)))
    for end_s, freed in sorted(ends):
        free += freed
        if free >= gpus:
            return end_s
    raise AssertionError(f"{gpus} GPUs are never free")


# -------------------------------------------------------------------- elastic


def test_an_elastic_job_grows_into_what_is_free_up_to_its_maximum() -> None:
    cell = Cell("1x8")
    cell.submit(0, job("e", gpus=2, gpus_min=1, gpus_max=6))
    assert len(cell.gpus("e")) == 6


def test_elastic_jobs_take_their_minimum_before_anybody_grows() -> None:
    cell = Cell("1x4")
    cell.submit(0, *(job(name, gpus=2, gpus_min=1, gpus_max=4) for name in "abc"))
    assert [len(cell.gpus(name)) for name in "abc"] == [2, 1, 1]


def test_an_elastic_job_starts_on_less_than_it_asked_for_but_not_on_less_than_its_minimum() -> None:
    cell = Cell("1x4")
    cell.submit(0, job("r", gpus=2), job("e", gpus=4, gpus_min=2, gpus_max=8), job("f", gpus=4, gpus_min=3))
    assert (cell.running, len(cell.gpus("e")), cell.reason("f")) == (["r", "e"], 2, Reason.NO_FREE_GPUS)


def test_an_elastic_job_on_more_gpus_is_as_much_faster() -> None:
    history = run([job("e", gpus=2, gpus_min=1, gpus_max=4, work=100)], "1x4")
    assert history.end_s.tolist() == [50]


def test_growth_stops_at_the_quota() -> None:
    cell = Cell("1x8", queues=[Queue("team", gpus_max=3)])
    cell.submit(0, job("e", gpus=2, gpus_min=1, gpus_max=8, queue="team"))
    assert len(cell.gpus("e")) == 3


# ---------------------------------------------------------------------- types


def test_a_job_takes_its_fastest_type_that_has_room() -> None:
    cell = Cell("k80:1x1,v100:1x1,p100:1x1", "fifo")
    speeds = {"k80": 1.0, "p100": 2.0, "v100": 3.0}
    cell.submit(0, *(job(name, throughput=speeds) for name in "abc"))
    types = [cell.engine.gpus.cluster.nodes[cell.gpus(name)[0]].gpu_type for name in "abc"]
    assert types == ["v100", "p100", "k80"]


def test_a_job_runs_only_on_types_it_accepts() -> None:
    cell = Cell("k80:1x2,v100:1x1")
    cell.submit(0, job("a", gpu_types=("v100",)), job("b", gpu_types=("v100",)))
    assert (cell.running, cell.reason("b")) == (["a"], Reason.NO_FREE_GPUS)


# --------------------------------------------------------------------- reasons


def test_free_gpus_too_far_apart_are_called_fragmented_with_the_numbers() -> None:
    cell = Cell("2x2", placement="consolidated")
    cell.submit(0, *(job(name) for name in "abcd"))
    cell.at(1, JobFinished(1, "a", 1), JobFinished(1, "c", 1))
    cell.submit(2, job("gang", gpus=2))
    assert cell.reason("gang") is Reason.FRAGMENTED
    assert cell.engine.evidence is not None
    assert cell.engine.evidence.node_free.tolist() == [1, 1]


def test_behind_a_blocked_head_everybody_else_waits_for_those_that_came_earlier() -> None:
    cell = Cell("1x4", "fifo")
    cell.submit(0, job("a", gpus=2), job("head", gpus=3), job("small", gpus=1))
    assert (cell.reason("a"), cell.reason("head"), cell.reason("small")) == (
        Reason.NONE, Reason.NO_FREE_GPUS, Reason.BEHIND_EARLIER,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("fifo", Reason.BEHIND_EARLIER),
        ("fifo-backfill", Reason.NO_FREE_GPUS),
        ("smallest-first", Reason.BEHIND_SMALLER),
        ("srtf", Reason.BEHIND_SHORTER),
        ("srsf", Reason.BEHIND_SHORTER),
        ("las", Reason.BEHIND_LESS_SERVED),
        ("time-slice", Reason.BEHIND_TURN),
        ("isolated", Reason.BEHIND_SHARE),
    ],
)
def test_a_job_behind_others_is_told_by_what_order(policy: str, reason: Reason) -> None:
    cell = Cell("1x1", policy)
    cell.submit(0, job("a", work=10), job("b", work=20), job("c", work=30))
    assert (cell.running, cell.reason("c")) == (["a"], reason)


def test_a_job_not_looked_at_yet_says_so_and_one_that_runs_waits_for_nothing() -> None:
    cell = Cell("1x1")
    cell.tell(JobSubmitted(0, job("a")))
    assert cell.reason("a") is Reason.NOT_YET_CONSIDERED
    cell.at(0)
    assert cell.reason("a") is Reason.NONE


def test_a_job_that_moves_is_vacating_until_its_new_gpus_are_its_own() -> None:
    cell = Cell(cluster("2x2"), "srtf", placement="consolidated", slow_stops=True)
    cell.submit(0, job("x", gpus=2, work=60), job("y", gpus=1, work=50))
    cell.submit(1, job("new", gpus=2, work=10))
    assert cell.state("new") is State.PLACED
    assert cell.reason("new") is Reason.VACATING


# ------------------------------------------------------------- drain and quota


def test_a_gang_half_on_a_draining_node_keeps_running_under_every_policy() -> None:
    for policy in ("fifo", *PREEMPTIVE):
        cell = Cell("2x2", policy)
        cell.submit(0, job("a", gpus=4, work=10_000))
        cell.at(1, NodeDraining(1, cell.engine.gpus.cluster.nodes[0].name))
        assert cell.running == ["a"], policy


def test_a_lowered_quota_takes_gpus_back_under_a_policy_that_preempts() -> None:
    cell = Cell("1x4", "srtf", quotas_fixed=False)
    cell.submit(0, job("a", work=10, queue="team"), job("b", work=20, queue="team"))
    cell.at(1, SettingsChanged(1, queues=(Queue("team", gpus_max=1),)))
    assert (cell.running, cell.reason("b")) == (["a"], Reason.OVER_QUOTA)


# ----------------------------------------------------------------- long lines


class BothWays:
    """Places wishes in their given order, and shuffled with keys for the same order: the plans must be the same."""

    flat = False

    def __init__(self, placement: str) -> None:
        self._rule, self.lengths, self._rng = make_placement(placement), list[int](), np.random.default_rng(1)

    def fit(self, now: Snapshot, wishes: Wishes) -> Plan:
        place = self._rng.permutation(len(wishes.job))
        by_key = self._rule.fit(now, wishes._replace(job=wishes.job[place], key=place.astype(np.float64)))
        given = self._rule.fit(now, wishes)
        assert (given.stopped, given.placed) == (by_key.stopped, by_key.placed)
        assert reasons(given) == reasons(by_key)
        self.lengths.append(len(wishes.job))
        return given


def reasons(plan: Plan) -> dict[int, int]:
    """Reasons that change, by row."""
    return dict(zip(plan.reason_rows.tolist(), plan.reason_codes.tolist(), strict=True))


@pytest.mark.parametrize("placement", ["anywhere", "consolidated", "best-effort"])
@pytest.mark.parametrize("widest", [1, 4, 8])
def test_the_end_of_a_long_line_waits_for_the_reasons_that_looking_at_each_job_would_give(
    placement: str, widest: int
) -> None:
    """A walk in given order looks at a long line part by part, and hardly at those behind the last GPU."""
    rng, rule = np.random.default_rng(widest), BothWays(placement)
    engine = Engine(cluster("v100:4x4,k80:2x4"), make_policy, "fifo-backfill", {}, rule)
    running: dict[str, int] = {}
    for step in range(120):
        for k in range(int(rng.integers(0, 300 if step < 30 else 3))):
            wants = [(), (), ("v100",), ("k80",)][rng.integers(4)]
            engine.apply(JobSubmitted(step, job(f"{step}-{k}", gpus=int(rng.integers(1, widest + 1)), gpu_types=wants)))
        for name in [name for name in running if rng.random() < 0.2]:
            engine.apply(JobFinished(step, name, running.pop(name)))
        if step in (60, 70):
            node = engine.gpus.cluster.nodes[1 if widest < 8 else 4]
            engine.apply(NodeDraining(step, node.name) if step == 60 else NodeJoined(step, node))
        running |= {launch.job: launch.attempt for launch in engine.decide(step).launches}
    assert max(rule.lengths) > 3000 > 1024 > min(rule.lengths)


def test_jobs_behind_thousands_that_run_find_the_gpus_that_are_free() -> None:
    engine = Engine(cluster("1x2200"), make_policy, "fifo-backfill", {}, make_placement("anywhere"))
    for k in range(2100):
        engine.apply(JobSubmitted(0, job(str(k))))
    assert len(engine.decide(0).launches) == 2100
    engine.apply(JobSubmitted(1, job("wide", gpus=101)))
    engine.apply(JobSubmitted(1, job("fits", gpus=100)))
    assert [launch.job for launch in engine.decide(1).launches] == ["fits"]
