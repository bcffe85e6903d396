"""What every store does, whichever database it is in.

Tests service/store/connection.py, service/store/journal_compaction.py, service/store/schema.py,
service/store/store.py and service/store/stored_records.py.
"""

from __future__ import annotations

import math
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError, IntegrityError

from horae.backends.task import Task
from horae.core.bidding import Ask, BidAnswer, BidRow
from horae.core.cluster import Node, Span
from horae.core.commands import Decided, Evidence, GivenUp, Launch, Placed, Stop, StopWhy
from horae.core.compared_by import ComparedBy
from horae.core.events import (
    PRECEDENCE,
    AgentChanged,
    BidReceived,
    Event,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobProgressed,
    JobReleased,
    JobsRetired,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobTimedOut,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    NumbersRaised,
    SettingsChanged,
)
from horae.core.loss_curve import LossCurve
from horae.core.queues import Queue
from horae.service.store.connection import TIMEOUT_S, StoreTrouble
from horae.service.store.schema import SCHEMA, WrongSchema
from horae.service.store.store import Store
from horae.service.store.store_lock import StoreInUse
from horae.service.store.stored_records import Act, TokenRecord
from horae.service.tokens import digest_of
from tests.backends.real import until
from tests.builders import job
from tests.contracts.postgres import Server, owners
from tests.service.stepped_service import SteppedService


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url, own=True, timeout_s=0.3)
    yield store
    store.close()


def task(name: str = "a", **more: object) -> Task:
    return Task(name, "ada", name, ("python", "train.py"), 100.0, **more)


def read(store: Store, after: int = 0, upto: int | None = None) -> list[str]:
    """Records as text, which tells NaN from nothing and a tuple from a list."""
    return [repr(record) for _, record in store.tail(after, upto, whole=True)]


def count(store: Store) -> int:
    return len(read(store))


# ------------------------------------------------------------------ records


def some(one: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(one, max_size=2).map(tuple)


names = st.sampled_from(["a", "b-1", "ü", "job/with 'quotes' \"and\" \\", "日本"])
texts = st.text(max_size=20)
seconds = st.floats(0, 1e9)
numbers = st.floats(allow_nan=True, allow_infinity=True)
attempts = st.integers(1, 10**6)
counts = st.integers(0, 10**6)
gpu_ids = st.lists(st.integers(0, 10_000), min_size=1, max_size=5).map(tuple)
specs = st.builds(
    job,
    name=names,
    gpus=st.integers(1, 64),
    work=st.floats(1, 1e9),
    submit_s=seconds,
    gpu_types=st.sampled_from([(), ("v100", "k80")]),
    throughput=st.sampled_from([{}, {"v100": 1.5}]),
    skew=st.none() | st.floats(0, 1),
    queue=st.sampled_from(["default", "org/team/ü"]),
    deadline_s=st.none() | seconds,
    retry_exit_codes=st.sampled_from([(), (1, 75)]),
    app=texts,
    app_scheduler=st.sampled_from(["", "halving:eta=2"]),
    loss=st.none() | st.just(LossCurve(3.0, 1.0, 20.0)),
)
nodes = st.builds(Node, names, st.sampled_from(["v100", "k80"]), st.integers(1, 16), names)
reports = {
    JobStarted: {},
    LaunchFailed: {"why": texts},
    JobProgressed: {"work_done": numbers, "loss": st.none() | numbers},
    JobStopped: {"work_done": numbers},
    JobFinished: {},
    JobFailed: {"exit_code": st.integers(-64, 255), "work_done": numbers},
}
rows = st.builds(BidRow, some(st.tuples(names, counts)), numbers)
kinds: dict[type, st.SearchStrategy] = {
    JobSubmitted: st.builds(JobSubmitted, seconds, specs),
    **{kind: st.builds(kind, seconds, names) for kind in (JobCancelled, JobHeld, JobReleased, JobTimedOut)},
    **{kind: st.builds(kind, seconds, names, attempts, **more) for kind, more in reports.items()},
    NodeJoined: st.builds(NodeJoined, seconds, nodes),
    NodeLost: st.builds(NodeLost, seconds, names),
    NodeDraining: st.builds(NodeDraining, seconds, names, st.booleans(), names),
    NodeObserved: st.builds(NodeObserved, seconds, names, st.lists(st.tuples(names, attempts), max_size=3).map(tuple)),
    SettingsChanged: st.builds(
        SettingsChanged,
        seconds,
        st.none() | st.just("themis"),
        st.dictionaries(texts, texts, max_size=2),
        st.lists(st.builds(Queue, st.just("org/a"), gpus_max=st.none() | st.integers(0, 9)), max_size=2).map(tuple),
    ),
    AgentChanged: st.builds(AgentChanged, seconds, names, st.booleans(), names),
    BidReceived: st.builds(
        BidReceived,
        seconds,
        st.builds(
            BidAnswer,
            names,
            counts,
            st.none() | numbers,
            some(st.builds(BidRow, some(st.tuples(names, counts)), numbers)),
            texts,
        ),
    ),
    JobsRetired: st.builds(JobsRetired, seconds, seconds),
    NumbersRaised: st.builds(NumbersRaised, seconds, counts, counts, texts),
}
spans = st.sampled_from(Span)
columns = st.lists(st.integers(0, 1000), max_size=4).map(lambda rows: np.array(rows, np.int64))
writes = columns.map(lambda rows: ("served", rows, rows * 1.1)) | numbers.map(lambda value: ("knob", None, value))


asks = st.builds(
    Ask,
    names,
    counts,
    seconds,
    some(st.tuples(names, counts, names)),
    counts,
    counts,
    numbers,
    seconds,
    seconds,
    counts,
)
evidence = st.builds(
    Evidence,
    seconds,
    columns,
    names,
    jobs_by_type=some(counts),
    gpus_by_type=some(counts),
    measure=st.sampled_from(ComparedBy),
    measured_by_type=some(seconds),
    queue_used=some(counts),
    again_s=seconds | st.just(math.inf),
    unprotected_s=seconds | st.just(math.inf),
)
decisions = st.builds(
    Decided,
    seconds,
    st.booleans(),
    given_up=some(st.builds(GivenUp, names, texts)),
    turns=some(st.tuples(st.integers(0, 99), st.integers(-1, 2))),
    stops=some(st.builds(Stop, names, attempts, st.sampled_from(StopWhy), names | st.just(""))),
    withdrawn=some(names),
    placed=some(st.builds(Placed, names, gpu_ids, spans)),
    launches=some(st.builds(Launch, names, attempts, gpu_ids, spans, seconds, some(seconds))),
    leased=some(st.integers(0, 99)),
    lease_until_s=seconds,
    reason_rows=columns,
    reason_codes=columns.map(lambda rows: (rows % 20).astype(np.uint8)),
    evidence=st.none() | evidence,
    asks=some(asks),
    unanswered=some(names),
    memory=some(writes),
    wake_s=seconds | st.just(math.inf),
    heed_starts=st.booleans(),
)


def test_how_the_service_was_served_last_is_known_the_next_time(url: str) -> None:
    store = Store(url, own=True)
    assert store.serve_options() == {}
    for how in ({"port": 1, "gpus": None}, {"port": 2, "gpus": "v100:4"}):
        store.save_serve_options(how)
        assert store.serve_options() == how
    store.close()
    again = Store(url)
    assert again.serve_options() == {"port": 2, "gpus": "v100:4"}
    again.close()


def test_no_kind_of_event_is_left_out() -> None:
    assert set(kinds) == set(PRECEDENCE)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.one_of(decisions, *kinds.values()), min_size=1, max_size=20))
def test_what_is_read_is_what_was_written(store: Store, records: list[Event | Decided]) -> None:
    before = store.last_seq()
    last = store.append(records)
    assert last == before + len(records)
    assert read(store, after=before) == [repr(record) for record in records]
    assert read(store, upto=before + 1)[-1:] == [repr(records[0])]


def test_numbers_rise_by_one_and_a_tail_starts_and_ends_where_it_is_told(store: Store) -> None:
    assert store.last_seq() == 0
    assert store.append([JobHeld(1.0, "a"), JobHeld(2.0, "b")]) == 2
    assert store.append([]) == 2
    assert store.append([JobHeld(3.0, "c")]) == 3
    assert [seq for seq, _ in store.tail()] == [1, 2, 3]
    assert [seq for seq, _ in store.tail(after=1, upto=2)] == [2]
    assert list(store.tail(after=3)) == []


def test_long_tails_come_in_pages_without_gaps(store: Store) -> None:
    store.append([JobHeld(float(k), f"job-{k}") for k in range(4500)])
    assert [record.at_s for _, record in store.tail(after=100)] == [float(k) for k in range(100, 4500)]


def test_a_record_that_cannot_be_written_leaves_nothing_of_the_others(store: Store) -> None:
    with pytest.raises(Exception, match=r"."):
        store.append([JobHeld(1.0, "a"), "no record", JobHeld(2.0, "b")], [task()], [Act(1.0, "ada", "hold", "a")])
    # The database refuses the second task when the first rows are in.
    with pytest.raises(IntegrityError):
        store.append([JobHeld(1.0, "a")], [task(), task()], [Act(1.0, "ada", "hold", "a")])
    assert (count(store), store.tasks(), store.acts(), list(store.job_records("a"))) == (0, {}, [], [])
    assert store.append([JobHeld(1.0, "a")], [task()]) == 1


def test_several_threads_may_append(store: Store) -> None:
    def work(name: str) -> None:
        for k in range(10):
            store.append([JobHeld(float(k), name), JobReleased(float(k), name)])

    threads = [Thread(target=work, args=(f"job-{k}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [seq for seq, _ in store.tail()] == list(range(1, 81))
    by_pairs = [record.job for _, record in store.tail()]
    assert by_pairs[::2] == by_pairs[1::2]


def test_records_of_a_job_are_found_by_its_name(store: Store) -> None:
    launch = Launch("b", 1, (0,), Span.GPU, 0.0)
    store.append(
        [
            JobSubmitted(0.0, job("a")),
            JobSubmitted(0.0, job("b")),
            Decided(1.0, True, launches=(replace(launch, job="a"),)),
            JobStarted(2.0, "a", 1),
            Decided(3.0, True, stops=(Stop("a", 1, StopWhy.PREEMPTED, "b"),), placed=(Placed("b", (0,), Span.GPU),)),
            JobStopped(4.0, "a", 1, 50.0),
            Decided(4.0, False, launches=(launch,)),
            NodeLost(5.0, "a"),
            Decided(6.0, True, withdrawn=("c",), given_up=(GivenUp("d", "at rung 1"),)),
        ]
    )
    found = {name: [seq for seq, _ in store.job_records(name)] for name in "abcdx"}
    assert found == {"a": [1, 3, 4, 5, 6], "b": [2, 5, 7], "c": [9], "d": [9], "x": []}


def test_records_of_a_jobs_app_are_found_with_it_and_each_once(store: Store) -> None:
    ask = Ask("own", 1, 9.0, (("n", 1, "v100"),), 1, 1, 2.0, asked_s=2.0)
    launch = Launch("a", 1, (0,), Span.GPU, 0.0)
    store.append(
        [
            JobSubmitted(0.0, job("a")),
            AgentChanged(1.0, "own", True, "ann"),
            Decided(2.0, True, asks=(ask,), launches=(launch,)),
            Decided(3.0, True, asks=(ask,)),
            BidReceived(4.0, BidAnswer("own", 1)),
            BidReceived(4.0, BidAnswer("a", 1)),
            Decided(5.0, False, unanswered=("own", "other")),
        ]
    )
    assert [seq for seq, _ in store.job_records("a")] == [1, 3]
    assert [seq for seq, _ in store.job_records("a", "own")] == [1, 2, 3, 5, 7]
    assert [seq for seq, _ in store.job_records("a", "a")] == [1, 3, 6], "an app may have the name of a job"


# ------------------------------------------------------------- what is kept


def test_the_last_two_checkpoints_are_kept(store: Store) -> None:
    assert store.newest_checkpoint() is None
    for seq, body in ((5, b"five"), (9, bytes(range(256)) * 4000), (12, b"twelve"), (12, b"twelve again")):
        store.save_checkpoint(seq, body)
    assert store.newest_checkpoint() == (12, b"twelve again")
    assert store.newest_checkpoint(before=12) == (9, bytes(range(256)) * 4000)
    assert store.newest_checkpoint(before=9) is None


def progress(at_s: float, name: str, work_done: float) -> JobProgressed:
    return JobProgressed(at_s, name, 1, work_done)


def test_compaction_drops_what_recovery_can_do_without(store: Store) -> None:
    old = [JobSubmitted(1.0, job("a")), NodeJoined(2.0, Node("n", "v100", 1)), JobHeld(4.0, "a")]
    reports = [progress(50.0 + k, "a", float(k)) for k in range(6)]
    other = [progress(58.0, "b", 1.0), JobReleased(59.0, "a")]
    store.append([*old, *reports, *other, progress(60.0, "a", 9.0), progress(61.0, "a", 10.0)])

    assert store.compact(100, keep_since_s=100.0) == 0, "no checkpoint covers anything"
    store.save_checkpoint(11, b"engine")
    assert store.compact(9, keep_since_s=0.0) == 3, "only before the number given, and only what is superseded"
    assert [seq for seq, _ in store.tail()] == [1, 2, 3, 4, 5, 9, 10, 11, 12, 13]
    assert store.compact(100, keep_since_s=10.0) == 2
    # Which nodes there are is told for ever; of what no checkpoint covers everything stays.
    assert [seq for seq, _ in store.tail()] == [2, 4, 5, 9, 10, 11, 12, 13]
    assert [seq for seq, _ in store.job_records("a")] == [4, 5, 9, 11, 12, 13]


def test_of_the_reports_of_an_attempt_those_stay_that_tell_its_speed_and_where_it_is(store: Store) -> None:
    done = [0.0, 1.0, 2.0, 3.0, 9.0, 10.0, 10.0, 10.0]
    store.append([JobProgressed(float(k), "a", attempt, value) for attempt in (1, 2) for k, value in enumerate(done)])
    store.append([JobHeld(20.0, "a")])
    store.save_checkpoint(17, b"engine")
    for _ in range(2):
        store.compact(100, keep_since_s=0.0)
        assert [seq for seq, _ in store.tail()] == [1, 2, 5, 8, 9, 10, 13, 16, 17]


def test_when_nodes_came_and_went_is_kept_for_ever(store: Store) -> None:
    nodes = [NodeJoined(1.0, Node("n", "v100", 1)), NodeLost(2.0, "n"), NodeJoined(3.0, Node("m", "v100", 2))]
    store.append([*nodes, NodeDraining(3.0, "m"), JobHeld(4.0, "a"), JobHeld(50.0, "a")])
    store.save_checkpoint(6, b"engine")
    store.save_checkpoint(7, b"engine")
    store.compact(6, keep_since_s=40.0)
    assert [seq for seq, _ in store.tail()] == [1, 2, 3, 4, 6]


def test_compacting_often_leaves_no_more_than_compacting_once(url: str) -> None:
    often, at_s = Store(url, own=True), 0.0
    for step in range(6):
        # One that goes on, some that come and go, one that is seen now and then.
        names = ["long", *[f"short-{step}"] * 3, *["rare"] * (step % 2)]
        reports = [progress(at_s + k, name, 10.0 * step + k) for k, name in enumerate(names * 3)]
        at_s += 100.0
        seq = often.append([JobHeld(at_s - 100.0, "long"), *reports])
        often.save_checkpoint(seq, b"engine")
        often.compact(seq, keep_since_s=at_s - 250.0)
    left = list(often.tail())
    often.close()
    once = Store(url, own=True)
    assert once.compact(seq, keep_since_s=at_s - 250.0) == 0
    assert list(once.tail()) == left
    assert min(record.at_s for _, record in left) >= at_s - 250.0
    assert 10 < len(left) < 40
    assert [seq for seq, _ in once.job_records("long")] == [seq for seq, one in left if one.job == "long"]
    once.close()


def test_what_follows_from_an_old_journal_is_not_written(store: Store) -> None:
    assert store.append([JobHeld(1.0, "a")], after=0) == 1
    with pytest.raises(StoreTrouble, match="Another service"):
        store.append([JobHeld(2.0, "b")], [task("b")], after=0)
    assert (count(store), store.tasks()) == (1, {})
    assert store.append([JobHeld(2.0, "b")], after=1) == 2


def test_compaction_heeds_the_older_checkpoint_and_numbers_go_on(store: Store) -> None:
    store.append([JobHeld(float(k), "a") for k in range(10)])
    store.save_checkpoint(4, b"older")
    store.save_checkpoint(10, b"newer")
    assert store.compact(100, keep_since_s=math.inf) == 4
    store.save_checkpoint(11, b"as if")
    store.save_checkpoint(12, b"as if")
    assert store.compact(100, keep_since_s=math.inf) == 5
    assert [seq for seq, _ in store.tail()] == [10]
    assert store.append([JobHeld(10.0, "a")]) == 11


def test_tasks_come_back_whole(store: Store) -> None:
    full = Task(
        job="b-1",
        user="ada",
        name="b",
        run=("bash", "-c", "echo 'ü' && exit 1"),
        work=1e6,
        setup="cd x\n",
        workdir="/tmp",
        env={"A": "1", "B": ""},
        secrets=("key",),
        processes="gpu",
        stop_signal="SIGTERM",
        grace_s=1.5,
        checkpoint_dir="/c",
        max_duration_s=60.0,
    )
    store.append([], [task("a"), full])
    assert store.tasks() == {"a": task("a"), "b-1": full}
    assert repr(store.tasks()["b-1"]) == repr(full)
    assert store.tasks(["a", "nobody"]) == {"a": task("a")}
    store.append([], [task(f"many-{k}") for k in range(1200)])
    assert len(store.tasks(f"many-{k}" for k in range(1200))) == 1200


def test_progress_is_counted_in_the_work_of_the_job() -> None:
    assert [task().work_done(step, 50) for step in (-1, 0, 10, 50, 60)] == [0, 0, 20, 100, 100]
    assert [task().work_done(step, None) for step in (-1, 10, 1000)] == [0, 10, 100]


def token(name: str, secret: str, **more: object) -> TokenRecord:
    return TokenRecord(name, digest_of(secret), "ada", "user", 5.0, **more)


def test_tokens_are_good_until_revoked_or_expired(store: Store) -> None:
    mine, its = token("t1", "my secret", expires_s=10.0), token("t2", "its secret", job="a")
    store.add_token(mine)
    store.add_token(its)
    assert store.tokens() == [mine, its]
    assert [mine.usable(now_s) for now_s in (9.0, 10.0)] == [True, False]

    assert (store.revoke("t1"), store.revoke("t1"), store.revoke("nobody")) == (1, 0, 0)
    assert [(one.revoked, one.usable(0.0)) for one in store.tokens()] == [(True, False), (False, True)]
    with pytest.raises(IntegrityError):
        store.add_token(token("t9", "my secret"))
    with pytest.raises(AssertionError, match="SHA-256 only"):
        TokenRecord("t", "my secret", "ada", "user", 5.0)


def test_the_audit_trail_can_be_added_to_and_read_but_not_changed(store: Store) -> None:
    acts = [Act(float(k), ("ada", "bob")[k % 2], "cancel", f"job-{k}", f"{k}") for k in range(6)]
    store.append([], acts=acts[:4])
    store.append([JobHeld(1.0, "a")], acts=acts[4:])
    assert store.acts() == acts[::-1]
    assert store.acts(2) == acts[:3:-1]
    for change in ("UPDATE acts SET actor = 'eve'", "DELETE FROM acts"):
        with pytest.raises(DBAPIError, match="append-only"), store._engine.begin() as connection:
            connection.exec_driver_sql(change)
    assert store.acts() == acts[::-1]


# ------------------------------------------------------------ opening, locks


def test_a_store_opened_again_is_the_same(url: str) -> None:
    before = time.time()
    with_one = Store(url, own=True)
    with_one.append([JobHeld(1.0, "a")], [task()], [Act(1.0, "ada", "hold", "a")])
    with_one.close()
    again = Store(url, own=True)
    assert again.epoch == with_one.epoch
    assert before <= again.epoch <= time.time()
    assert (count(again), again.tasks()["a"], len(again.acts())) == (1, task(), 1)
    again.close()


def test_a_second_daemon_is_refused_and_onlookers_are_not(url: str, store: Store) -> None:
    store.append([JobHeld(1.0, "a")])
    with pytest.raises(StoreInUse, match=r"Another service.*stop it first"):
        Store(url, own=True, timeout_s=0.3)
    onlooker = Store(url)
    onlooker.add_token(token("t", "secret"))
    assert count(onlooker) == 1
    onlooker.close()
    assert store.append([JobHeld(2.0, "a")]) == 2
    store.close()
    Store(url, own=True).close()


def test_a_newer_store_is_refused(url: str, store: Store) -> None:
    with store._engine.execution_options(writes=True).begin() as connection:
        connection.exec_driver_sql(f"UPDATE facts SET value = '{SCHEMA + 1}' WHERE name = 'schema'")
    store.close()
    with pytest.raises(WrongSchema, match=f"version {SCHEMA + 1} .* versions up to {SCHEMA}"):
        Store(url, own=True)
    # A refusal gives the lock back.
    with pytest.raises(WrongSchema):
        Store(url, own=True, timeout_s=0.3)


@pytest.mark.parametrize("url", ["", "journal.db", "sqlite://", "sqlite:///:memory:", "mysql://me:secret@host/x"])
def test_what_is_no_url_of_a_database_is_refused(url: str) -> None:
    with pytest.raises(StoreTrouble, match="such as sqlite:") as refused:
        Store(url)
    assert "secret" not in str(refused.value)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk " * 100)
    with pytest.raises(StoreTrouble, match="not a database"):
        Store(f"sqlite:///{path}")
    assert path.read_text() == "remember the milk " * 100


def test_nobody_else_can_read_the_files(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/journal.db", own=True)
    store.add_token(token("t", "a very secret token"))
    files = list(tmp_path.iterdir())
    assert len(files) >= 3, files
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert not any(b"a very secret token" in path.read_bytes() for path in files)
    store.close()


def test_commits_are_on_disk_when_they_return(store: Store) -> None:
    ask = {"sqlite": ("PRAGMA synchronous", "PRAGMA journal_mode"), "postgresql": ("SHOW synchronous_commit",)}
    with store._engine.begin() as connection:
        said = [connection.exec_driver_sql(question).scalar() for question in ask[connection.dialect.name]]
    assert said in ([2, "wal"], ["on"])


# ------------------------------------------------------------------ trouble


def test_what_was_acknowledged_survives_a_kill(url: str) -> None:
    """Three daemons, one after the other, die in the middle of their work."""
    acknowledged: list[tuple[int, str]] = []
    for life, moment in (("first", 0.0), ("second", 0.03), ("third", 0.1)):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.contracts.appender", url, life], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        lines = [child.stdout.readline()]
        time.sleep(moment)
        child.kill()
        lines += child.stdout.read().splitlines()
        child.wait()
        acknowledged += [(int(seq), name) for seq, name in (line.split() for line in lines if line.strip())]

    store = Store(url, own=True)
    records = dict(store.tail())
    assert list(records) == list(range(1, len(records) + 1))
    assert len(records) % 2 == 0, "a transaction was torn"
    assert {name for _, name in acknowledged} <= store.tasks().keys()
    assert len(store.tasks()) == len(store.acts(10**6)) == len(records) / 2
    for seq, name in acknowledged:
        assert records[seq] == JobCancelled(2.0, name)
    assert store.append([JobHeld(3.0, "a")]) == len(records) + 1
    store.close()


def test_a_locked_database_is_told_soon(url: str, store: Store) -> None:
    assert TIMEOUT_S <= 5
    store.append([JobHeld(1.0, "a")])
    with locked(url):
        began = time.monotonic()
        with pytest.raises(StoreTrouble, match=r"Another program has locked the journal"):
            store.append([JobHeld(2.0, "b")])
        assert time.monotonic() - began < 30, "a lock is waited for for a second, however busy the machine"
        assert count(store) == 1, "readers are in nobody's way"
    assert store.append([JobHeld(2.0, "b")]) == 2


def locked(url: str):
    """Another program in the middle of a transaction."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        return connection
    connection = psycopg.connect(url)
    connection.execute("LOCK TABLE journal IN SHARE ROW EXCLUSIVE MODE")
    return connection


def test_a_write_that_fails_half_way_is_undone(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/journal.db", own=True)
    store.append([JobHeld(1.0, "a")])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = max(path.stat().st_size for path in tmp_path.iterdir()) + 50_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(StoreTrouble, match="cannot be used"):
            store.append([JobHeld(2.0, f"job-{k}") for k in range(5000)], [task()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (count(store), store.tasks()) == (1, {})
    assert store.append([JobHeld(2.0, "b")], [task()]) == 2
    store.close()


@dataclass
class SmallDisk:
    """A file system of a few megabytes with a database on it."""

    folder: Path
    url: str

    def fill(self) -> None:
        """Leave no room; a little less than none, so that the database has some to begin with."""
        with (self.folder / "filler").open("wb", buffering=0) as filler:
            while True:
                try:
                    filler.write(bytes(65536))
                except OSError:
                    return

    def make_room(self) -> None:
        (self.folder / "filler").unlink()


@contextmanager
def small_folder(folder: Path) -> Iterator[Path]:
    """A folder with a small file system of its own."""
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True)
    if mount.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@pytest.fixture(params=["sqlite", "postgresql"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    if request.param == "sqlite":
        with small_folder(tmp_path / "small") as folder:
            yield SmallDisk(folder, f"sqlite:///{folder}/journal.db")
    else:
        yield from _small_database(request.getfixturevalue("postgres"))


def _small_database(server: Server) -> Iterator[SmallDisk]:
    # In the server's own folder: every run of pytest closes the folders of all others to other users than its own.
    with small_folder(server.folder / "small") as folder:
        space = folder / "space"
        space.mkdir()
        os.chown(space, server.folder.stat().st_uid, -1)
        server.do(f"CREATE TABLESPACE small LOCATION '{space}'")
        url = server.new_database("TABLESPACE small")
        yield SmallDisk(folder, url)
        name = url.removeprefix("postgresql://horae@/").partition("?")[0]
        server.do(f"DROP DATABASE {name} WITH (FORCE)", "DROP TABLESPACE small")


def append_for_ever(store: Store) -> None:
    while True:
        store.append([JobHeld(2.0, f"job-{k}") for k in range(200)])


def test_a_full_disk_is_told_and_forgotten_when_there_is_room_again(small_disk: SmallDisk) -> None:
    store = Store(small_disk.url, own=True)
    store.append([JobHeld(1.0, "a")])
    small_disk.fill()
    with pytest.raises(StoreTrouble, match=r"No space is left for the journal .*: free some space"):
        append_for_ever(store)
    written = store.last_seq()
    assert written % 200 == 1, "a transaction was torn"
    assert count(store) == written
    with pytest.raises(StoreTrouble, match="No space"):
        store.append([JobHeld(2.0, f"job-{k}") for k in range(20_000)])
    small_disk.make_room()
    assert store.try_writing() == written
    assert store.append([JobHeld(3.0, "b")]) == written + 1
    assert count(store) == written + 1
    store.close()
    again = Store(small_disk.url, own=True)
    assert count(again) == written + 1
    again.close()


def test_a_server_that_is_away_is_told_and_found_again(postgres: Server) -> None:
    url = postgres.new_database()
    store, looking = Store(url, own=True, timeout_s=1.0), Store(url)
    store.append([JobHeld(1.0, "a")])
    assert count(looking) == 1
    postgres.stop()
    try:
        calls = (
            lambda: store.append([JobHeld(2.0, "b")]),
            store.try_writing,
            lambda: count(looking),
            lambda: Store(url),
        )
        for call in calls:
            with pytest.raises(StoreTrouble, match="cannot be reached"):
                call()
    finally:
        postgres.start()
    assert store.append([JobHeld(2.0, "b")]) == 2
    assert count(looking) == 2
    until(lambda: owners(postgres) == 1, "for the lock")
    with pytest.raises(StoreInUse):
        Store(url, own=True, timeout_s=0.3)
    store.close()
    looking.close()


def test_a_service_outlives_a_restart_of_its_database(postgres: Server, tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, url=postgres.new_database())
    cell.daemon._pause = lambda: None
    jobs = [cell.submit() for _ in range(3)]
    cell.to(2)
    postgres.stop()
    try:
        with pytest.raises(StoreTrouble, match="cannot be reached"):
            cell.submit()
        cell.to(12, step_s=2.0)
        assert [cell.state(job) for job in jobs] == ["running", "running", "waiting"], "no end is written yet"
    finally:
        postgres.start()
    cell.to(30)
    jobs.append(cell.submit())
    cell.to(45)
    assert {cell.state(job) for job in jobs} == {"finished"}
    assert sorted(cell.world.started) == sorted((job, 1) for job in jobs)
    assert not cell.daemon.counters.trouble
    cell.crash()


def test_a_password_never_shows() -> None:
    with pytest.raises(StoreTrouble, match="cannot be reached") as told:
        Store("postgresql://me:hush-hush@127.0.0.1:1/x")
    assert "hush" not in str(told.value)


@pytest.mark.parametrize(
    "url", ["postgresql://ada:hunter2@host:port/db", "ada:hunter2@host", "mysql://ada:hunter2@host/db"]
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StoreTrouble, match="postgresql://user@host/database") as refused:
        Store(url)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_what_jobs_that_have_left_ran_is_dropped(store: Store) -> None:
    names = [f"a-{number}" for number in range(1200)]
    store.append((), [Task(name, "ann", name, ("true",), 1.0) for name in names])
    store.drop_tasks(names[:1100])
    assert sorted(store.tasks()) == sorted(names[1100:])
    store.drop_tasks(["never-was-1"])


def test_compaction_spares_what_names_a_job_that_is_still_there(store: Store) -> None:
    names = [f"job-{number}" for number in range(1300)]
    store.append([JobHeld(1.0, name) for name in names])
    store.append([JobReleased(2.0, "job-7"), JobHeld(50.0, "late-1")])
    store.save_checkpoint(1302, b"engine")
    assert store.compact(2000, keep_since_s=10.0, jobs=("job-7", "never-was")) == 1299
    assert [seq for seq, _ in store.job_records("job-7")] == [8, 1301]
    assert [seq for seq, _ in store.tail()] == [8, 1301, 1302]
