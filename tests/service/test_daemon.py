"""The daemon's loop over a real journal: what is written, what is performed, and what survives a crash.

Tests service/job_file.py, service/loop_counters.py, service/operations.py and
service/recovery.py.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from horae.backends.fake import FakeJob
from horae.core.checkpoint import UnreadableCheckpoint
from horae.core.cluster import Node
from horae.core.commands import Decided
from horae.core.errors import UserError
from horae.core.events import JobCancelled, JobFinished, JobHeld, JobReleased, JobStarted, JobSubmitted, JobTimedOut
from horae.core.states import State
from horae.service.health import what_is_wrong
from horae.service.job_file import BadJobFile, JobFile, read_job
from horae.service.roles import Caller, Forbidden, NotFound
from horae.service.store.connection import StoreTrouble
from horae.service.views.views import Filters
from tests.backends.real import until
from tests.service.stepped_service import ADMIN, ANN, BOB, SteppedService
from tests.simulation.trouble import same

_REQUESTS = (JobHeld, JobReleased, JobCancelled)


@pytest.fixture
def cell(tmp_path: Path) -> SteppedService:
    return SteppedService(tmp_path)


def test_jobs_run_to_their_end_in_the_order_they_came(cell: SteppedService) -> None:
    first, second, third = (cell.submit() for _ in range(3))
    assert [cell.state(job) for job in (first, second, third)] == ["running", "running", "waiting"]
    cell.to(11)
    assert [cell.state(job) for job in (first, second, third)] == ["finished", "finished", "running"]
    cell.to(25)
    assert cell.state(third) == "finished"
    assert cell.world.started == [(first, 1), (second, 1), (third, 1)]


def test_a_decision_is_in_the_journal_before_anything_is_launched(cell: SteppedService) -> None:
    job = cell.submit()
    records = [record for _, record in cell.store.tail()]
    submitted = next(k for k, record in enumerate(records) if isinstance(record, JobSubmitted))
    decided = next(k for k, one in enumerate(records) if isinstance(one, Decided) and one.launches)
    assert submitted < decided
    assert [launch.job for launch in records[decided].launches] == [job]


def test_after_a_crash_running_jobs_are_taken_up_and_none_is_started_twice(cell: SteppedService) -> None:
    jobs = [cell.submit() for _ in range(4)]
    cell.to(3)
    cell.crash()
    cell.reopen()
    assert [cell.state(job) for job in jobs] == ["running", "running", "waiting", "waiting"]
    cell.to(40)
    assert {cell.state(job) for job in jobs} == {"finished"}
    assert sorted(cell.world.started) == sorted((job, 1) for job in jobs)


def test_a_launch_that_was_written_and_not_performed_is_performed_after_the_crash(cell: SteppedService) -> None:
    performed = cell.backend.start
    cell.backend.start = lambda start: None
    job = cell.submit()
    cell.crash()
    assert cell.world.started == []
    cell.reopen()
    assert performed
    cell.to(1)
    assert cell.world.started == [(job, 1)]
    assert cell.state(job) == "running"


def test_a_job_that_ended_while_nobody_watched_has_ended(cell: SteppedService) -> None:
    job = cell.submit()
    cell.to(2)
    cell.crash()
    cell.now_s = 100.0
    cell.reopen()
    cell.daemon._cycle()
    assert cell.state(job) == "finished"


def test_a_job_that_is_simply_gone_runs_again(cell: SteppedService) -> None:
    job = cell.submit(recovery={"max_restarts": 1})
    cell.to(2)
    cell.crash()
    cell.world.running.clear()
    cell.reopen()
    cell.to(30)
    assert cell.state(job) == "finished"
    assert cell.world.started == [(job, 1), (job, 2)]


def test_a_job_whose_node_goes_while_it_is_being_stopped_runs_elsewhere(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, nodes=(Node("one", "v100", 1), Node("two", "v100", 1)))
    cell.world.default = FakeJob(lasts_s=10.0, stop_s=5.0)
    job = cell.submit()
    node = cell.world.running[job, 1].start.places[0].node
    cell.ask(lambda: cell.operations.drain(ADMIN, node, evict=True))
    cell.to(1)
    assert cell.state(job) == "stopping"
    cell.backend.lose(node)
    cell.to(20)
    assert cell.state(job) == "finished"


def test_a_node_that_came_back_smaller_gets_no_job_that_it_has_no_gpus_for(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, gpus=4)
    both, one, large = (cell.submit(resources={"gpus": gpus}) for gpus in (2, 1, 4))
    cell.to(2)
    cell.crash()
    cell.nodes = (Node("v100", "v100", 2),)
    cell.reopen()
    cell.to(60)
    assert [cell.state(job) for job in (both, one, large)] == ["finished", "finished", "waiting"]
    assert sorted(cell.world.started) == [(both, 1), (both, 2), (one, 1), (one, 2)]
    cell.crash()
    cell.nodes = (Node("v100", "v100", 4),)
    cell.reopen()
    cell.to(90)
    assert cell.state(large) == "finished"


def test_a_drained_node_that_came_back_smaller_is_still_drained(cell: SteppedService) -> None:
    cell.ask(lambda: cell.operations.drain(ADMIN, "v100", False))
    cell.crash()
    cell.nodes = (Node("v100", "v100", 1),)
    cell.reopen()
    job = cell.submit()
    cell.to(5)
    assert cell.state(job) == "waiting"


def test_a_node_that_came_back_smaller_takes_jobs_again_as_small_as_it_is(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, gpus=4)
    cell.crash()
    cell.nodes = (Node("v100", "v100", 2),)
    cell.reopen()
    cell.ask(lambda: cell.operations.drain(ADMIN, "v100", False))
    cell.ask(lambda: cell.operations.resume(ADMIN, "v100"))
    small, large = (cell.submit(resources={"gpus": gpus}) for gpus in (2, 4))
    cell.to(5)
    (node,) = cell.views().nodes()
    assert (node["node"], node["gpus"], node["used"], node["state"], node["jobs"]) == ("v100", 2, 2, "up", {small: 2})
    assert cell.views().shares()[0]["entitled_gpus"] == 2
    cell.to(20)
    assert (cell.state(small), cell.state(large)) == ("finished", "waiting")


def test_a_node_that_is_gone_cannot_be_told_to_take_jobs(tmp_path: Path) -> None:
    v100, k80 = Node("v100", "v100", 2), Node("k80", "k80", 2)
    cell = SteppedService(tmp_path, nodes=(v100, k80))
    cell.crash()
    cell.nodes = (v100,)
    cell.reopen()
    with pytest.raises(NotFound, match="is down"):
        cell.ask(lambda: cell.operations.resume(ADMIN, "k80"))
    assert [one["state"] for one in cell.views().nodes()] == ["up", "down"]
    assert cell.views().shares()[0]["entitled_gpus"] == 2


def test_what_a_restarted_backend_tells_again_is_written_once(
    cell: SteppedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That an attempt works; and its end, if the daemon died before the backend was told to forget it."""
    monkeypatch.setattr(cell.backend, "forget", lambda job, attempt: None)
    runs, ends = cell.submit(), cell.submit()
    cell.world.running[runs, 1].end_at_s = 100.0
    cell.to(15)
    assert list(cell.world.ends) == [(ends, 1)]
    cell.crash()
    cell.reopen()
    cell.to(20)
    told = [record for _, record in cell.store.tail() if isinstance(record, JobStarted | JobFinished)]
    assert [(type(one), one.job) for one in told] == [(JobStarted, runs), (JobStarted, ends), (JobFinished, ends)]
    assert (cell.world.ends, cell.world.forgotten) == ({}, {(ends, 1)})


def test_recovery_gives_the_very_same_engine(cell: SteppedService) -> None:
    for k in range(6):
        cell.submit(resources={"gpus": 1 + k % 2})
    cell.to(13)
    before = cell.daemon.status
    cell.crash()
    cell.reopen()
    after = cell.daemon.status
    for name, column in before.columns.items():
        np.testing.assert_array_equal(column, after.columns[name], name)


def test_a_checkpoint_and_the_tail_give_the_same_as_the_whole_journal(cell: SteppedService) -> None:
    jobs = [cell.submit() for _ in range(3)]
    cell.to(5)
    cell.daemon._save_checkpoint()
    cell.submit()
    cell.to(12)
    cell.crash()
    cell.reopen()
    assert cell.store.newest_checkpoint() is not None
    assert [cell.state(job) for job in jobs] == ["finished", "finished", "running"]


def damage(cell: SteppedService, *checkpoints: int) -> None:
    """Have checkpoints, counted from the newest, end in the middle."""
    with sqlite3.connect(cell.folder / "journal.db") as journal:
        numbers = [row[0] for row in journal.execute("SELECT seq FROM checkpoints ORDER BY seq DESC")]
        for one in checkpoints:
            journal.execute("UPDATE checkpoints SET body = substr(body, 1, 99) WHERE seq = ?", (numbers[one],))


@pytest.mark.parametrize("damaged", [(0,), (0, 1)])
def test_without_the_newest_checkpoints_older_records_will_do(
    cell: SteppedService, damaged: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    for moment in (5, 12, 14):
        cell.submit()
        cell.to(moment)
        cell.daemon._save_checkpoint()
    before = cell.daemon.engine.contents()
    cell.crash()
    damage(cell, *damaged)
    cell.reopen()
    assert same(before, {**cell.daemon.engine.contents(), "now_s": before["now_s"]})
    assert caplog.text.count("cannot be read") == len(damaged)


def test_without_any_checkpoint_a_journal_whose_beginning_is_gone_is_refused(cell: SteppedService) -> None:
    for moment in (5, 12):
        cell.to(moment)
        cell.submit()
        cell.daemon._save_checkpoint()
    assert cell.store.compact(cell.daemon.seq, 10.0) > 0
    cell.crash()
    damage(cell, 0, 1)
    with pytest.raises(UnreadableCheckpoint, match="damaged"):
        cell.reopen()


def test_a_stop_that_fails_is_no_trouble_with_the_journal(cell: SteppedService) -> None:
    job, stop = cell.submit(), cell.backend.stop

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    cell.backend.stop = full
    cell.ask(lambda: cell.operations.request(ANN, "cancel", [job]))
    cell.to(1)
    assert not cell.daemon.counters.trouble
    assert what_is_wrong(cell.daemon) == "The backend failed to stop a job: No space left on device."
    cell.backend.stop = stop
    cell.to(2)
    assert cell.state(job) == "cancelled"
    assert what_is_wrong(cell.daemon) == ""


def test_without_room_in_the_journal_requests_are_refused_and_reports_kept(cell: SteppedService) -> None:
    job = cell.submit()
    cell.to(1)
    append = cell.store.append

    def full(*records: object) -> int:
        raise StoreTrouble("The disk is full: make room.")

    cell.store.append = full
    with pytest.raises(StoreTrouble, match="make room"):
        cell.submit()
    cell.to(20, step_s=5)
    assert cell.state(job) == "running", "its end is not written yet"
    cell.store.append = append
    cell.to(21)
    assert cell.state(job) == "finished"
    assert len(cell.daemon.engine.jobs) == 1


def test_that_the_journal_can_be_read_ends_no_trouble(cell: SteppedService) -> None:
    cell.daemon._pause = lambda: None
    away = sqlite3.connect(cell.folder / "journal.db", isolation_level=None)
    away.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreTrouble, match="locked"):
        cell.submit()
    cell.to(2, step_s=2)
    cell.to(14, step_s=6)
    assert what_is_wrong(cell.daemon) == "The journal cannot be written."
    away.execute("ROLLBACK")
    cell.to(15)
    assert cell.submit()
    assert what_is_wrong(cell.daemon) == ""
    away.close()


def test_trouble_that_nobody_asked_after_is_over_after_a_while(cell: SteppedService) -> None:
    cell.daemon._pause = lambda: None
    away = sqlite3.connect(cell.folder / "journal.db", isolation_level=None)
    away.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreTrouble, match="locked"):
        cell.submit()
    away.execute("ROLLBACK")
    cell.to(9)
    assert what_is_wrong(cell.daemon) == "The journal cannot be written.", "there may be no room for what was refused"
    cell.to(11)
    assert what_is_wrong(cell.daemon) == ""
    away.close()


def test_a_job_over_its_time_is_ended_once_however_long_the_journal_was_full(cell: SteppedService) -> None:
    cell.world.default = FakeJob(lasts_s=1000.0)
    job = cell.submit(max_duration="2s")
    append = cell.store.append

    def full(*records: object) -> int:
        raise StoreTrouble("The disk is full: make room.")

    cell.store.append = full
    cell.to(20)
    cell.store.append = append
    cell.to(22)
    assert cell.state(job) == "timeout"
    assert sum(isinstance(record, JobTimedOut) for _, record in cell.store.tail()) == 1


def test_a_decision_that_cannot_be_written_is_not_performed_and_made_again_later(cell: SteppedService) -> None:
    cell.world.default = FakeJob(lasts_s=100.0)
    append = cell.store.append
    cell.daemon._pause = lambda: None

    def refuses_decisions(records, *more):
        if isinstance(records[0], Decided):
            raise StoreTrouble("The disk is full: make room.")
        return append(records, *more)

    cell.store.append = refuses_decisions
    job = cell.submit()
    assert cell.state(job) == "waiting"
    assert cell.world.started == []
    cell.store.append = append
    cell.to(2)
    assert cell.state(job) == "running"


def lose_sight(cell: SteppedService, of: type) -> None:
    """The next time something of a kind is written, the database writes it and its answer is lost on the way."""
    append = cell.store.append

    def unconfirmed(records, *more):
        seq = append(records, *more)
        if isinstance(records[0], of):
            cell.store.append = append
            raise StoreTrouble("The journal cannot be reached: mend that.")
        return seq

    cell.store.append = unconfirmed


def test_what_was_written_and_not_confirmed_has_happened(cell: SteppedService) -> None:
    cell.daemon._pause = lambda: None
    lose_sight(cell, of=JobSubmitted)
    with pytest.raises(StoreTrouble, match="cannot be reached"):
        cell.submit(name="unsure")
    second = cell.submit(name="sure")
    cell.to(30)
    assert [cell.state("unsure-1"), cell.state(second)] == ["finished", "finished"]
    before = cell.daemon.engine.contents()
    cell.crash()
    cell.reopen()
    assert same(before, {**cell.daemon.engine.contents(), "now_s": before["now_s"]})


def test_a_decision_that_was_written_and_not_confirmed_is_performed_once(cell: SteppedService) -> None:
    cell.daemon._pause = lambda: None
    lose_sight(cell, of=Decided)
    job = cell.submit()
    cell.to(1)
    assert cell.world.started == [(job, 1)]
    assert cell.state(job) == "running"


def test_while_the_journal_cannot_even_be_read_requests_are_refused_and_nothing_is_believed(
    cell: SteppedService,
) -> None:
    cell.daemon._pause = lambda: None
    append, try_writing, tail = cell.store.append, cell.store.try_writing, cell.store.tail

    def fails(*_: object) -> int:
        raise StoreTrouble("The journal cannot be reached: mend that.")

    def refuses_decisions(records, *more):
        return fails() if isinstance(records[0], Decided) else append(records, *more)

    cell.store.append, cell.store.try_writing, cell.store.tail = refuses_decisions, fails, fails
    job = cell.submit()
    with pytest.raises(StoreTrouble, match="cannot be reached"):
        cell.submit()
    assert cell.state(job) == "waiting"
    cell.store.append, cell.store.try_writing, cell.store.tail = append, try_writing, tail
    cell.to(2)
    assert cell.state(job) == "running"


def test_progress_makes_a_job_ready_and_tells_it_to_stop(cell: SteppedService) -> None:
    cell.world.default = FakeJob(lasts_s=100.0, ready_s=50.0)
    job = cell.submit(estimate={"steps": 1000})
    assert cell.state(job) == "launching"
    answers: list[bool] = []
    cell.ask(lambda: answers.append(cell.operations.progress(job, 1, 0, 1000)))
    assert cell.state(job) == "running"
    cell.to(6)
    cell.ask(lambda: answers.append(cell.operations.progress(job, 1, 250, 1000, loss=0.5)))
    view = cell.views()
    record = view.job(view.visible_row(ANN, job))
    assert record["progress"] == pytest.approx(0.25)
    assert record["loss"] == 0.5
    cell.ask(lambda: cell.operations.request(ANN, "hold", [job]))
    cell.ask(lambda: answers.append(cell.operations.progress(job, 1, 260, 1000)))
    assert answers == [False, False, True]


def test_a_job_that_runs_longer_than_it_may_is_ended(cell: SteppedService) -> None:
    job = cell.submit(max_duration="4s")
    cell.to(3)
    assert cell.state(job) == "running"
    cell.to(6)
    assert cell.state(job) == "timeout"
    answers: dict[str, str] = {}
    cell.ask(lambda: answers.update(cell.operations.request(ANN, "cancel", [job])))
    assert answers == {job: "has reached its time limit already"}


def test_the_time_in_which_a_job_only_comes_up_counts(cell: SteppedService) -> None:
    cell.world.default = FakeJob(lasts_s=100.0, ready_s=50.0)
    job = cell.submit(max_duration="4s")
    cell.to(3)
    assert cell.state(job) == "launching"
    cell.to(6)
    assert cell.state(job) == "timeout"


def test_others_see_nothing_and_viewers_change_nothing(cell: SteppedService) -> None:
    job = cell.submit(ANN)
    with pytest.raises(NotFound):
        cell.ask(lambda: cell.operations.request(BOB, "cancel", [job]))
    with pytest.raises(NotFound):
        cell.views().visible_row(BOB, job)
    with pytest.raises(Forbidden):
        cell.ask(lambda: cell.operations.drain(ANN, "v100", False))
    cell.ask(lambda: cell.operations.request(ADMIN, "cancel", [job]))
    cell.to(1)
    assert cell.state(job) == "cancelled"
    assert [(act.actor, act.action, act.target) for act in cell.store.acts(10)] == [
        ("root", "cancel", job),
        ("ann", "submit", job),
    ]


def test_one_bad_job_of_many_keeps_all_out(cell: SteppedService) -> None:
    good, bad = read_job({"run": "true"}), read_job({"run": "true", "resources": {"gpus": 9}})
    with pytest.raises(BadJobFile, match="9 GPUs"):
        cell.ask(lambda: cell.operations.submit(ANN, [good, bad]))
    assert len(cell.daemon.engine.jobs) == 0


def test_a_wrong_policy_is_refused_before_it_is_written(cell: SteppedService) -> None:
    before = cell.daemon.seq
    with pytest.raises(Exception, match="No policy"):
        cell.ask(lambda: cell.operations.configure(ADMIN, "fiffo", {}))
    assert cell.daemon.seq == before
    cell.ask(lambda: cell.operations.configure(ADMIN, "las", {}))
    assert cell.daemon.status.policy == "las"


def test_a_job_without_reports_shows_no_progress_and_lends_nobody_its_speed(cell: SteppedService) -> None:
    cell.world.default = FakeJob(lasts_s=100.0)
    job, other = cell.submit(estimate={"duration": 100}), cell.submit(estimate={"duration": 100})
    cell.to(50)
    shown = [cell.views().job(cell.views().visible_row(ANN, one))["progress"] for one in (job, other)]
    assert shown == [0.0, 0.0]
    cell.ask(lambda: cell.operations.progress(job, 1, 10, 100))
    before = cell.daemon.engine.jobs.rates[1].copy()
    cell.to(60)
    cell.ask(lambda: cell.operations.progress(job, 1, 90, 100))
    shown = [cell.views().job(cell.views().visible_row(ANN, one))["progress"] for one in (job, other)]
    assert shown == [0.9, 0.0]
    np.testing.assert_array_equal(cell.daemon.engine.jobs.rates[1], before)
    cell.to(200)
    assert cell.views().job(cell.views().visible_row(ANN, other))["progress"] == 1.0


def test_what_is_left_is_told_of_jobs_that_run_and_report(cell: SteppedService) -> None:
    cell.world.default = FakeJob(lasts_s=100.0)
    job, silent = cell.submit(estimate={"duration": 3}), cell.submit(estimate={"duration": 3})
    cell.ask(lambda: cell.operations.progress(job, 1, 0, 100))
    cell.to(20)

    def left() -> list[float | None]:
        jobs, _ = cell.views().jobs(ADMIN, Filters(states=tuple(State), fields=("left_s",)))
        return [record["left_s"] for record in jobs]

    assert left() == [None, None], "the one has done nothing, the other says nothing"
    cell.ask(lambda: cell.operations.progress(job, 1, 40, 100))
    assert left() == [pytest.approx(30.0, abs=1.0), None]
    cell.ask(lambda: cell.operations.request(ANN, "cancel", [job, silent]))
    cell.to(30)
    assert left() == [None, None]


def test_only_a_class_or_an_app_of_one_user_makes_jobs_alike(cell: SteppedService) -> None:
    for who, said in ((ANN, {"class": "net"}), (BOB, {"class": "net"}), (ANN, {"app": "tune"}), (BOB, {}), (BOB, {})):
        cell.submit(who, **said)
    classes = [spec.job_class for spec in cell.daemon.engine.jobs.specs]
    assert classes == ["ann/net", "bob/net", "ann/tune", "job-4", "job-5"]


def test_an_app_is_its_first_users_until_its_last_job_has_ended(cell: SteppedService) -> None:
    first, second = cell.submit(ANN, app="tune"), cell.submit(ANN, app="tune")
    cell.ask(lambda: cell.operations.request(ANN, "hold", [second]))
    cell.to(12)
    assert [cell.state(first), cell.state(second)] == ["finished", "held"]
    for who in (BOB, ADMIN):
        with pytest.raises(Forbidden, match="'tune' belongs to another user"):
            cell.submit(who, app="tune")
    cell.submit(ANN, app="tune", name="more")
    cell.ask(lambda: cell.operations.request(ANN, "cancel", [second]))
    cell.to(30)
    cell.submit(BOB, app="tune")
    with pytest.raises(Forbidden):
        cell.submit(ANN, app="tune")


def test_of_two_who_want_an_app_at_once_one_gets_it(cell: SteppedService) -> None:
    job, took = [read_job({"run": "true", "app": "tune"})], []
    asked = [threading.Thread(target=lambda who=who: _try(cell, who, job, took)) for who in (ANN, BOB)]
    for one in asked:
        one.start()
    while len(cell.daemon._inbox) < 2:
        time.sleep(0.001)
    cell.daemon._cycle()
    for one in asked:
        one.join()
    assert len(took) == 1
    assert len(cell.daemon.engine.jobs) == 1


@pytest.mark.parametrize("settings_first", [True, False])
def test_a_job_and_a_policy_that_does_not_know_its_nodes_do_not_meet_in_one_cycle(
    cell: SteppedService, settings_first: bool
) -> None:
    gang = [read_job({"run": "true", "resources": {"gpus": 1, "nodes": 1}})]
    asks = [lambda: cell.operations.configure(ADMIN, "themis", {}), lambda: cell.operations.submit(ANN, gang)]
    refused: list[str] = []

    def ask(what: Callable[[], object]) -> None:
        try:
            what()
        except UserError as why:
            refused.append(str(why))

    threads = [threading.Thread(target=ask, args=(what,)) for what in (asks if settings_first else asks[::-1])]
    for number, thread in enumerate(threads, 1):
        thread.start()
        until(lambda number=number: len(cell.daemon._inbox) == number, "for the request")
    cell.daemon._cycle()
    for thread in threads:
        thread.join()
    assert [("the policy themis chooses nodes itself" in why) for why in refused] == [True]
    assert len(cell.daemon.engine.jobs) == (0 if settings_first else 1)


def _try(cell: SteppedService, who: Caller, jobs: list[JobFile], took: list[Caller]) -> None:
    with suppress(Forbidden):
        cell.operations.submit(who, jobs)
        took.append(who)


def test_a_job_of_its_own_is_nobodys_trial(cell: SteppedService) -> None:
    job = cell.submit(ANN)
    with pytest.raises(Forbidden):
        cell.submit(BOB, app=job)
    cell.submit(BOB, app="job-3")
    assert cell.submit(ANN) == "job-4", "job-3 is the name of an app of somebody else"


def test_only_admins_give_weight(cell: SteppedService) -> None:
    with pytest.raises(Forbidden, match="weight above 1"):
        cell.submit(ANN, weight=2)
    cell.submit(ANN, weight=0.5)
    cell.submit(ADMIN, weight=2)
    assert cell.daemon.engine.jobs.weight[:2].tolist() == [0.5, 2.0]


def test_who_is_refused_or_only_tries_uses_up_no_number(cell: SteppedService) -> None:
    with pytest.raises(BadJobFile):
        cell.submit(resources={"gpus": 9})
    said: list[str] = []
    cell.ask(lambda: said.extend(cell.operations.submit(ANN, [read_job({"run": "true"})], dry_run=True)))
    assert said == ["job-1"]
    assert cell.submit() == "job-1"


def test_what_changes_nothing_is_said_and_not_written(cell: SteppedService) -> None:
    job = cell.submit()
    answers: list[str] = []
    for what in ("release", "hold", "hold", "release", "cancel", "cancel", "hold"):
        cell.ask(lambda what=what: answers.append(cell.operations.request(ANN, what, [job])[job]))
    assert answers == ["is not held", "done", "is held already", "done", "done", *answers[5:]]
    assert answers[5:] == ["is cancelled already"] * 2
    written = [type(record).__name__ for _, record in cell.store.tail() if isinstance(record, _REQUESTS)]
    assert written == ["JobHeld", "JobReleased", "JobCancelled"]


@pytest.mark.parametrize(
    "said",
    [
        {"max_duration": 0},
        {"queue": "../x"},
        {"queue": "a/."},
        {"workdir": "here"},
        {"weight": 1e-300},
        {"estimate": {"steps": 1e-300}},
        {"estimate": {"duration": 1e-300}},
    ],
)
def test_what_makes_no_sense_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(BadJobFile):
        read_job({"run": "true", **said})


@pytest.mark.parametrize("rate", [1e-300, 1e15])
def test_steps_and_a_throughput_that_no_job_has_are_refused(cell: SteppedService, rate: float) -> None:
    with pytest.raises(BadJobFile, match=r"the job takes \S+ s on v100: steps divided by throughput must be 0\.001 to"):
        cell.submit(estimate={"steps": 100, "throughput": {"v100": rate}})
    cell.submit(estimate={"steps": 1e15, "throughput": {"v100": 1000}})


def test_a_job_that_says_only_the_least_gpus_wants_these() -> None:
    assert read_job({"run": "true", "resources": {"gpus_min": 2, "gpus_max": 4}}).resources.wanted() == (2, ())
    assert read_job({"run": "true", "resources": {"gpus": 3, "gpus_min": 2}}).resources.wanted() == (3, ())


@pytest.mark.parametrize(
    ("policy", "said", "noted"),
    [
        ("las", {}, True),
        ("las", {"preemptible": False}, False),
        ("las", {"checkpoint": {"grace": "10s"}}, False),
        ("fifo", {}, False),
        ("fifo-backfill", {}, False),
    ],
)
def test_who_submits_a_job_that_may_start_over_is_told_so(
    policy: str, said: dict[str, Any], noted: bool, tmp_path: Path
) -> None:
    cell = SteppedService(tmp_path, policy)
    jobs = [read_job({"run": "true", **said}) for _ in range(3)]
    notes = cell.operations.notes_on(jobs)
    cell.crash()
    assert len(notes) == int(noted)
    assert all(note.startswith("The policy las preempts jobs: a job that has saved nothing by then") for note in notes)
