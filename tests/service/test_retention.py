"""What is older than is kept goes: from the engine, from the journal and from disk, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.backends.fake import FakeJob
from horae.backends.local.backend import LocalBackend
from horae.core.cluster import Node
from horae.core.commands import Decided
from horae.core.events import Event, JobProgressed, JobsRetired, JobStarted, JobStopped, JobSubmitted
from horae.core.job import JobSpec
from horae.core.states import CANCELLED, STATES, State
from horae.service.api.auth import _is_over
from horae.service.daemon import DAY_S, KEEP_S, Change
from horae.service.history.journal_history import read_history
from horae.service.initial_settings import InitialSettings
from horae.service.listening import CannotServe
from horae.service.recovery import recover
from horae.service.roles import NotFound
from horae.service.server import _keep_s
from horae.service.views.event_sentences import EventSentences
from horae.service.views.views import Filters
from tests.backends.real import NODES, end_all, task
from tests.service.stepped_service import ADMIN, ANN, BOB, SteppedService
from tests.simulation.trouble import same

LATER_S = KEEP_S + 2 * DAY_S


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[SteppedService]:
    made = SteppedService(tmp_path, keep_s=KEEP_S)
    yield made
    made.store.close()


def listed(cell: SteppedService) -> list[str]:
    shown, _ = cell.views().jobs(ADMIN, Filters(states=tuple(State), limit=0))
    return [str(job["id"]) for job in shown]


def later(cell: SteppedService, now_s: float) -> None:
    """Come to a moment, and let a cycle or two go by."""
    cell.now_s = now_s
    cell.daemon._cycle()
    cell.daemon._cycle()


def retire(cell: SteppedService, before_s: float) -> None:
    """Let jobs leave, and keep their records."""
    cell.daemon._record(Change((JobsRetired(cell.now_s, before_s),)))
    cell.daemon._publish()


def test_a_job_that_ended_long_ago_is_forgotten_and_one_that_runs_or_waits_is_not(cell: SteppedService) -> None:
    old = cell.submit()
    held = cell.submit()
    cell.ask(lambda: cell.operations.request(ADMIN, "hold", [held]))
    cell.to(12.0)
    assert cell.state(old) == "finished"
    cell.now_s = LATER_S - DAY_S
    young = cell.submit()
    later(cell, LATER_S)
    newest = cell.submit()
    assert listed(cell) == [held, young, newest]
    with pytest.raises(NotFound):
        cell.state(old)
    assert cell.state(held) == "held"
    cell.ask(lambda: cell.operations.request(ADMIN, "release", [held]))
    cell.to(LATER_S + 30.0)
    assert cell.state(held) == cell.state(newest) == "finished"


def test_a_service_that_comes_back_has_forgotten_the_same(cell: SteppedService) -> None:
    old, other = cell.submit(), cell.submit()
    cell.to(12.0)
    later(cell, LATER_S)
    assert old not in cell.daemon.engine.jobs.rows
    cell.submit()
    assert same(recover(cell.store, cell.daemon.initial_settings)[0].contents(), cell.daemon.engine.contents())
    cell.crash()
    cell.reopen()
    assert old not in cell.daemon.engine.jobs.rows
    assert other in cell.daemon.engine.jobs.rows, "the newest of before was there to count from"


def test_the_token_of_a_job_that_was_forgotten_opens_nothing(cell: SteppedService) -> None:
    old = cell.submit()
    assert not _is_over(cell.daemon, old, 1)
    cell.to(12.0)
    cell.submit()
    later(cell, LATER_S)
    assert old not in cell.daemon.engine.jobs.rows
    assert _is_over(cell.daemon, old, 1)
    assert _is_over(cell.daemon, "never-was-1", 1)


def test_numbers_go_on_where_they_were(cell: SteppedService) -> None:
    names = [cell.submit(name="train") for _ in range(3)]
    cell.to(12.0)
    later(cell, LATER_S)
    cell.crash()
    cell.reopen()
    assert cell.submit(name="train") == "train-4"
    assert names[-1] == "train-3"


def test_an_app_that_was_forgotten_is_anybodys(cell: SteppedService) -> None:
    cell.submit(ANN, app="search")
    cell.to(12.0)
    cell.submit(ANN)
    cell.to(24.0)
    assert cell.operations.sees_app(ANN, "search", cell.now_s)
    later(cell, LATER_S)
    assert not cell.operations.sees_app(ANN, "search", cell.now_s)
    job = cell.submit(BOB, app="search")
    assert cell.operations.sees_app(BOB, "search", cell.now_s)
    assert cell.views().visible_row(BOB, job) == cell.daemon.engine.jobs.rows[job]


def test_what_jobs_ran_is_dropped_a_day_after_them(cell: SteppedService) -> None:
    old = cell.submit()
    cell.to(12.0)
    newest = cell.submit()
    later(cell, LATER_S)
    assert set(cell.store.tasks()) == {old, newest}, "somebody may still look at the last standing"
    later(cell, LATER_S + DAY_S)
    assert set(cell.store.tasks()) == set(cell.daemon.tasks) == {newest}


def test_what_jobs_wrote_stays_unless_somebody_said_for_how_long(tmp_path: Path) -> None:
    for keep_s in (None, KEEP_S):
        (folder := tmp_path / str(keep_s)).mkdir()
        cell = SteppedService(folder, keep_s=keep_s)
        old = cell.submit()
        cell.to(12.0)
        newest = cell.submit()
        later(cell, LATER_S)
        later(cell, LATER_S + DAY_S)
        assert set(cell.store.tasks()) == {newest}
        assert ((old, 1) in cell.world.forgotten) is (keep_s is None)
        cell.store.close()


def test_what_the_backend_does_not_let_go_is_tried_again(cell: SteppedService, monkeypatch: pytest.MonkeyPatch) -> None:
    old = cell.submit()
    cell.to(12.0)
    newest = cell.submit()
    later(cell, LATER_S)
    with monkeypatch.context() as patched:
        patched.setattr(cell.backend, "discard", lambda jobs, kept: [])
        later(cell, LATER_S + DAY_S)
    assert set(cell.store.tasks()) == {old, newest}
    cell.crash()
    cell.reopen()
    later(cell, LATER_S + DAY_S + 1.0)
    assert set(cell.store.tasks()) == {newest}


def test_a_report_counts_everybody_that_the_journal_tells_of(cell: SteppedService) -> None:
    jobs = [cell.submit() for _ in range(5)]
    cell.to(40.0)
    retire(cell, before_s=35.0)
    assert len(cell.daemon.engine.jobs) == 1
    jobs.append(cell.submit())
    cell.to(60.0)
    records = [record for _, record in cell.store.tail()]
    history = read_history(cell.daemon.initial_settings, records)
    assert [spec.id for spec in history.jobs] == jobs
    assert history.finished.all()


def test_who_preempted_whom_by_what_order_is_told_the_same_when_rows_are_others(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, policy="las", gpus=1)
    cell.world.default = FakeJob(lasts_s=500.0)
    gone = cell.submit()
    cell.ask(lambda: cell.operations.request(ADMIN, "cancel", [gone]))
    cell.to(1.0)
    long = cell.submit()
    cell.to(400.0, step_s=50.0)
    cell.submit()
    cell.to(410.0)

    def told() -> list[str]:
        teller = EventSentences(cell.daemon.status, cell.daemon.tasks)
        return [one.what for _, record in cell.store.job_records(long) for one in teller.sentences_of(record)]

    before = told()
    assert any("preempted" in one for one in before)
    retire(cell, before_s=100.0)
    assert gone not in cell.daemon.engine.jobs.rows
    assert told() == before
    cell.store.close()


def test_how_long_is_as_last_time_unless_asked_and_a_day_at_least() -> None:
    assert _keep_s(None, None) is None
    assert _keep_s(None, 5 * DAY_S) == 5 * DAY_S
    assert _keep_s(2 * DAY_S, 5 * DAY_S) == 2 * DAY_S
    with pytest.raises(CannotServe, match="--keep 1d"):
        _keep_s(3600.0, KEEP_S)


def test_folders_of_others_links_and_what_is_spoken_of_stay(tmp_path: Path) -> None:
    state, mine = tmp_path / "state", tmp_path / "mine"
    backend = LocalBackend(state, NODES)
    mine.mkdir()
    (mine / "model").write_text("precious")
    for job in ("old-1", "used-2", "link-3"):
        (state / "jobs" / job / "1").mkdir(parents=True)
        (state / "jobs" / job / "1" / "log.txt").write_text("hello")
    (state / "jobs" / "old-1" / "checkpoint").symlink_to(mine)
    next_one = task(("train", f"--from={state}/jobs/used-2/checkpoint/last"), job="next-9")
    assert backend.discard(["old-1", "used-2", "never-ran-4"], [next_one]) == ["old-1", "never-ran-4"]
    backend._bin_thread.join()
    assert sorted(one.name for one in (state / "jobs").iterdir()) == ["link-3", "used-2"]
    (state / "bin").rmdir()
    assert (mine / "model").read_text() == "precious"
    assert backend.discard(["used-2"], []) == ["used-2"]
    backend._bin_thread.join()
    backend.close()
    end_all(state)


def test_what_happened_to_a_job_that_is_still_there_is_told_however_long_ago(cell: SteppedService) -> None:
    cell.world.jobs["job-2"] = FakeJob(lasts_s=LATER_S + 10.0)
    old, long = cell.submit(), cell.submit()
    cell.to(12.0)
    for moment_s in (LATER_S, LATER_S + 20.0):
        later(cell, moment_s)
        cell.submit()
        cell.daemon._save_checkpoint()
    assert not list(cell.store.job_records(old))
    teller = EventSentences(cell.daemon.status, cell.daemon.tasks)
    told = [
        one.kind for _, record in cell.store.job_records(long) for one in teller.sentences_of(record) if one.job == long
    ]
    assert told == ["submitted", "launched", "started", "finished"]
    history = read_history(cell.daemon.initial_settings, [record for _, record in cell.store.tail()], complete=False)
    assert history.jobs[0].id == long
    assert history.finished[0]


def test_trials_that_were_given_up_are_so_in_the_report_of_an_old_journal() -> None:
    beginning = InitialSettings((Node("v100", "v100", 2),), "fifo")
    engine = beginning.engine()
    records: list[Event | Decided] = []

    def happen(*events: Event) -> None:
        for event in events:
            engine.apply(event)
            records.append(event)
        while engine.due(engine.now_s):
            records.append(engine.with_evidence(engine.decide(engine.now_s)))

    trials = [
        JobSpec(f"trial-{number}", 0.0, 1, 100.0, app="search", app_scheduler="halving:eta=2,rungs=1")
        for number in (1, 2)
    ]
    happen(*(JobSubmitted(0.0, trial) for trial in trials))
    happen(*(JobStarted(1.0, trial.id, 1) for trial in trials))
    happen(JobProgressed(60.0, "trial-1", 1, 60.0, loss=1.0), JobProgressed(60.0, "trial-2", 1, 60.0, loss=2.0))
    happen(JobStopped(61.0, "trial-2", 1, 60.0))
    assert STATES[engine.jobs.state[1]] is CANCELLED
    history = read_history(beginning, records, complete=False)
    assert history.state[1] == CANCELLED
    assert history.given_up is not None
    assert history.given_up.tolist() == [False, True]
