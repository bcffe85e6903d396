"""The reconciler on a cluster that is blind, slow, forgetful or too eager.

Tests backends/reconcile.py, backends/attempt_round.py, backends/shared_folder.py, backends/piece_files.py and
backends/fence.py.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from horae.backends.attempt_round import ReconcilerSettings
from horae.backends.driver import EndCause, Look, PieceEnded, PieceId
from horae.backends.local import runner
from horae.backends.local.attempt_folders import AttemptFolders, read_json
from horae.backends.protocol import Place
from horae.backends.reconcile import Reconciler
from horae.backends.shared_folder import master_port
from horae.backends.terms import Term
from horae.core.cluster import Node
from horae.core.events import (
    Event,
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
    LaunchFailed,
    NodeObserved,
)
from tests.backends.fake_cluster import FakeCluster
from tests.backends.real import bash, end_all, start, text_of, until

_RUNS = "echo begun; trap 'exit 75' USR1; sleep 60 & wait"
_GANG = (Place("v1", (2,)), Place("v2", (0, 1)))


class Site:
    """A fake cluster of two nodes, and a reconciler that can be opened again."""

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self.cluster = FakeCluster([Node("v1", "v100", 4), Node("v2", "v100", 4)])
        self.settings = ReconcilerSettings(look_every_s=0.05, ready_s=0.0)
        self.seen: list[Event] = []
        self.open()

    def open(self) -> None:
        self.backend = Reconciler(self.cluster, self.shared, settings=self.settings)

    def reopen(self, **settings: float) -> None:
        self.backend.close()
        self.seen, self.settings = [], replace(self.settings, **settings)
        self.open()

    def start(self, script: str = _RUNS, places: tuple[Place, ...] = (Place("v1", (0,)),), **more: Any) -> None:
        self.backend.start(start(bash(script), places=places, **more))

    def watch(self) -> list[Event]:
        self.seen += self.backend.watch(7.0)
        return self.seen

    def told(self, what: type[Event]) -> Any:
        """The first event of a type, once it is told."""
        return until(lambda: next((event for event in self.watch() if isinstance(event, what)), None), f"for {what}")

    def up(self, node: str = "v1") -> None:
        until(lambda: "begun" in self.log(node), f"for the piece on {node}")

    def log(self, node: str = "v1") -> str:
        return text_of(self.shared / "jobs" / "a-1" / "1" / node / runner.LOG)

    def rounds(self, count: int = 10) -> list[Event]:
        """Let some rounds pass."""
        last = self.cluster.calls + count
        until(lambda: self.cluster.calls >= last, "for some rounds")
        return self.watch()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "shared")
    yield made
    made.cluster.answers.set()
    made.backend.close()
    end_all(made.shared)


def ends(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, NodeObserved | JobStarted)]


def test_pieces_carry_what_the_job_asks_for_beside_gpus(site: Site) -> None:
    site.start(places=_GANG, cpus_per_gpu=3, memory_mb_per_gpu=512, image="train:1")
    site.up()
    found = [(piece.gpus, piece.cpus_per_gpu, piece.memory_mb_per_gpu, piece.image) for piece in site.cluster.asked]
    assert found == [(1, 3, 512, "train:1"), (2, 3, 512, "train:1")]


def test_nobody_waits_10_ms_while_the_driver_hangs(site: Site) -> None:
    site.start()
    site.told(JobStarted)
    site.cluster.answers.clear()
    site.rounds(1)
    calls: list[Callable[[], object]] = [
        lambda: site.start(job="b-2"),
        lambda: site.backend.stop("a-1", 1),
        lambda: site.backend.watch(1.0),
        lambda: site.backend.forget("a-1", 1),
        lambda: site.backend.sight(),
    ]
    for call in calls:
        begun_s = time.perf_counter()
        call()
        assert time.perf_counter() - begun_s < 0.01
    site.cluster.answers.set()
    assert site.told(JobStopped).job == "a-1"


def test_a_driver_that_hangs_for_long_is_out_of_sight(site: Site) -> None:
    site.reopen(silence_s=0.3)
    site.told(NodeObserved)
    site.cluster.answers.clear()
    until(lambda: site.backend.sight() is None, "for the silence to be noticed")
    assert site.backend.trouble == "The cluster does not answer."
    site.seen = []
    site.cluster.answers.set()
    assert site.told(NodeObserved)
    assert site.backend.sight()


def test_blind_at_a_restart_stops_nobody(site: Site) -> None:
    site.start()
    site.told(JobStarted)
    site.cluster.blind = True
    site.reopen()
    assert site.rounds() == []
    assert (site.backend.sight(), "blind" in site.backend.trouble) == (None, True)
    site.cluster.blind = False
    until(lambda: len([event for event in site.watch() if isinstance(event, NodeObserved)]) == 2, "for both nodes")
    assert {event.node: event.alive for event in site.seen if isinstance(event, NodeObserved)} == {
        "v1": (("a-1", 1),),
        "v2": (),
    }
    until(lambda: site.backend.trouble == "", "for the trouble to pass")
    assert not ends(site.rounds())
    assert site.log() == "begun\n"


def test_ends_out_of_sight_are_told_later_and_nodes_are_observed_again(site: Site) -> None:
    site.start("echo begun; sleep 0.5")
    site.up()
    site.told(NodeObserved)
    site.cluster.blind = True
    assert not ends(site.rounds(20))
    site.seen = []
    site.cluster.blind = False
    site.told(JobFinished)
    assert len([event for event in site.rounds() if isinstance(event, NodeObserved)]) == 2


@pytest.mark.parametrize("mishap", ["lose", "double", "lose_answer"])
def test_lost_and_doubled_submissions_begin_once(site: Site, mishap: str) -> None:
    setattr(site.cluster, mishap, 1)
    site.start("echo begun; sleep 0.3")
    site.told(JobFinished)
    assert site.log() == "begun\n"
    assert len(ends(site.rounds())) == 1


@pytest.mark.long
def test_a_node_that_is_cut_off_waits_for_the_fence(site: Site) -> None:
    site.reopen(beat_limit_s=4.0, fence_s=6.0)
    site.start()
    site.told(JobStarted)
    site.cluster.cut_off.add("v1")
    assert not ends(site.rounds(40)), "it still beats"
    for each in site.cluster.runners.values():
        each[0].kill()
    assert not ends(site.rounds(40)), "the last beat is not old enough"
    site.reopen(beat_limit_s=1.0, fence_s=1.5)
    assert not ends(site.rounds(40)), "its runner was told to be more patient"
    assert site.told(JobStopped).attempt == 1
    assert len(site.cluster.submitted) == 1


def test_a_job_that_kills_its_runner_again_and_again_has_failed(site: Site) -> None:
    site.reopen(beat_limit_s=0.3, fence_s=0.5)
    script = "echo begun; kill -9 $PPID"
    for attempt in (1, 2):
        site.start(script, attempt=attempt)
        assert site.told(JobStopped).attempt == attempt, "somebody else may have killed it"
        site.seen = []
    site.start(script, attempt=3)
    assert site.told(JobFailed) == JobFailed(7.0, "a-1", 3, 137, 0.0)


def test_ends_without_a_word_count_only_one_after_the_other(site: Site) -> None:
    site.reopen(beat_limit_s=0.3, fence_s=0.5)
    vanishes = "echo begun; kill -9 $PPID"
    for attempt, script in enumerate((vanishes, vanishes, "exit 75", vanishes, vanishes), 1):
        site.start(script, attempt=attempt)
        if script != vanishes:
            until(lambda attempt=attempt: ends(site.watch()), "for the end")
            site.backend.stop("a-1", attempt)
        else:
            assert site.told(JobStopped).attempt == attempt
        site.seen = []


def test_an_end_without_a_word_is_no_fault_of_a_job_that_was_to_stop(site: Site) -> None:
    site.reopen(beat_limit_s=0.3, fence_s=0.5)
    site.cluster.ended = PieceEnded(137, EndCause.FAILED, "OUT_OF_MEMORY")
    for attempt in range(1, 5):
        site.start("trap 'kill -9 $PPID' USR1; echo begun; sleep 60 & wait", attempt=attempt)
        site.told(JobStarted)
        until(lambda attempt=attempt: "begun" in text_of(site.backend.log("a-1", attempt)), "for the job")
        site.backend.stop("a-1", attempt)
        assert site.told(JobStopped).attempt == attempt
        site.seen = []


def test_a_job_that_goes_on_may_lose_its_runner_as_often_as_it_likes(site: Site) -> None:
    site.reopen(beat_limit_s=0.3, fence_s=0.5)
    saves = """echo '{"step": '$HORAE_ATTEMPT'}' > $HORAE_CHECKPOINT_DIR/saved.json; kill -9 $PPID"""
    for attempt in range(1, 5):
        site.start(saves, attempt=attempt)
        assert site.told(JobStopped).work_done == attempt
        site.seen = []


def test_a_piece_that_used_too_much_memory_has_failed(site: Site) -> None:
    site.reopen(beat_limit_s=0.3, fence_s=0.5)
    site.cluster.ended = PieceEnded(137, EndCause.FAILED, "OUT_OF_MEMORY")
    site.start("echo begun; kill -9 $PPID")
    assert site.told(JobFailed).exit_code == 137


def test_a_driver_that_fails_is_told_once_in_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Look:
        site.cluster.calls += 1
        raise ValueError

    site.told(NodeObserved)
    site.cluster.look = fail  # type: ignore[method-assign]
    site.rounds()
    assert "failed with ValueError" in site.backend.trouble
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_node_that_was_cut_off_before_its_runner_began_needs_no_fence(site: Site) -> None:
    site.cluster.cut_off.add("v1")
    site.cluster._begin = lambda piece: site.cluster.answers  # type: ignore[assignment, return-value, method-assign]
    site.start()
    site.told(JobStopped)
    assert site.log() == ""


def test_a_gang_knows_its_ranks_its_master_and_the_gpus_that_were_chosen(site: Site) -> None:
    script = (
        "echo $HORAE_NODE $RANK/$WORLD_SIZE $GROUP_RANK $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT $CUDA_VISIBLE_DEVICES"
    )
    site.start(script, _GANG, processes="gpu")
    site.told(JobFinished)
    assert site.log("v1") == f"v1 0/3 0 0 127.0.0.1:{master_port(2, 1)} 5\n"
    assert sorted(site.log("v2").splitlines()) == [f"v2 {n}/3 1 {n - 1} 127.0.0.1:29033 5" for n in (1, 2)]
    assert site.backend.log("a-1", 1, 1).read_text() == site.log("v2")


@pytest.mark.parametrize("code", [3, 75])
def test_a_piece_that_fails_ends_the_others_and_its_code_counts(site: Site, code: int) -> None:
    site.start(f"echo begun; test $GROUP_RANK = 0 || {{ sleep 0.5; exit {code}; }}; {_RUNS[12:]}", _GANG, grace_s=0.5)
    assert site.told(JobFailed) == JobFailed(7.0, "a-1", 1, code, 0.0)
    first = read_json(site.shared / "jobs" / "a-1" / "1" / "v1" / runner.EXIT) or {}
    assert (first["code"], first["stopped"]) == (143, False), "no notice: it ends by SIGTERM"


def test_a_gang_is_stopped_whole(site: Site) -> None:
    site.start(places=_GANG)
    site.told(JobStarted)
    site.up("v1")
    site.up("v2")
    site.backend.stop("a-1", 1)
    site.told(JobStopped)
    assert len(ends(site.rounds())) == 1


def test_pieces_that_are_refused_are_a_failed_launch_and_never_run(site: Site) -> None:
    site.cluster.refuses = "Invalid account."
    site.start(places=_GANG)
    assert site.told(LaunchFailed).why == "Invalid account."
    site.cluster.refuses = ""
    site.reopen()
    assert site.told(LaunchFailed).why == "Invalid account."
    assert site.cluster.submitted == []


def test_a_stop_reaches_the_job_while_the_cluster_is_out_of_sight(site: Site) -> None:
    site.start("trap 'echo saved; exit 75' USR1; echo begun; sleep 60 & wait")
    site.told(JobStarted)
    site.up()
    site.cluster.blind = True
    site.rounds(3)
    site.backend.stop("a-1", 1)
    until(lambda: "saved" in site.log(), "for the stop to reach the job")
    assert not ends(site.watch())
    site.cluster.blind = False
    site.told(JobStopped)


def test_one_submission_without_an_answer_blinds_nobody(site: Site) -> None:
    site.cluster.lose_answer = 2
    site.start()
    site.start("echo begun", job="b-2")
    site.start("echo begun", job="c-3")
    until(lambda: len([event for event in site.watch() if isinstance(event, JobFinished)]) == 2, "for the others")
    assert len([event for event in site.seen if isinstance(event, NodeObserved)]) == 2, "each node was told of once"


def test_what_was_asked_for_before_a_restart_is_done_after_it(site: Site) -> None:
    site.cluster.blind = True
    site.start()
    site.reopen()
    assert site.cluster.submitted == []
    site.cluster.blind = False
    site.told(JobStarted)
    site.up()
    site.cluster.blind = True
    site.backend.stop("a-1", 1)
    site.reopen()
    site.cluster.blind = False
    site.told(JobStopped)


def test_nodes_are_told_of_when_every_attempt_was_seen_to(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that ended while nobody looked is not alive, even if each round sees to one attempt only."""
    jobs = ["a-1", "b-2", "c-3"]
    for job in jobs:
        site.start("echo begun; sleep 0.3", job=job)
    until(lambda: len([event for event in site.watch() if isinstance(event, JobStarted)]) == 3, "for the starts")
    site.backend.close()
    ends_at = [site.shared / "jobs" / job / "1" / "v1" / runner.EXIT for job in jobs]
    until(lambda: all(path.exists() for path in ends_at), "for the ends")
    # A runner lives on for a moment after its last word, and holds its GPUs.
    pieces = site.cluster.look().pieces
    until(lambda: all(isinstance(site.cluster.look().pieces[piece], PieceEnded) for piece in pieces), "for the runners")
    monkeypatch.setattr("horae.backends.reconcile._SLICE_S", 0.0)
    site.seen = []
    site.open()
    until(lambda: len([event for event in site.watch() if isinstance(event, NodeObserved)]) == 2, "for both nodes")
    assert {event.alive for event in site.seen if isinstance(event, NodeObserved)} == {()}
    assert {event.job for event in site.seen if isinstance(event, JobFinished)} == {*jobs}


def test_nodes_with_work_of_others_are_closed_and_lost_nodes_are_not_shown(site: Site) -> None:
    site.told(NodeObserved)
    site.cluster.foreign = {"v1": ("Slurm job 7 (x) of bob",)}
    site.cluster.nodes["v2"] = replace(site.cluster.nodes["v2"], is_lost=True)
    until(lambda: site.backend.trouble, "for the trouble to be told")
    assert site.backend.trouble == "Work of others runs on v1: closed for new jobs."
    sight = site.backend.sight()
    assert sight
    assert [(node.name, node.open, node.why) for node in sight.nodes] == [("v1", False, "Slurm job 7 (x) of bob")]


def test_a_lost_node_on_which_somebody_lives_is_only_closed(site: Site) -> None:
    site.start("echo begun; while [ ! -e $HORAE_CHECKPOINT_DIR/go ]; do sleep 0.05; done")
    site.told(JobStarted)
    site.up()
    site.cluster.nodes["v1"] = replace(site.cluster.nodes["v1"], is_lost=True, why="Not responding")
    site.cluster.cut_off.add("v1")

    def shown() -> list[tuple[str, bool, str]]:
        sight = site.backend.sight()
        return [(node.name, node.open, node.why) for node in sight.nodes] if sight else []

    until(lambda: shown() == [("v1", False, "Not responding"), ("v2", True, "")], "for the node to be closed")
    assert not ends(site.rounds())
    (site.shared / "jobs" / "a-1" / "checkpoint" / "go").touch()
    assert site.told(JobFinished)
    until(lambda: shown() == [("v2", True, "")], "for the node to be lost")


def test_a_piece_of_an_attempt_that_is_over_is_killed(site: Site) -> None:
    site.start("echo begun")
    site.told(JobFinished)
    (runners,) = site.cluster.runners.values()
    late = subprocess.Popen(["sleep", "60"])
    runners.append(late)
    assert late.wait(10) == -9


def test_a_service_that_was_replaced_kills_nothing_that_it_does_not_know(site: Site, tmp_path: Path) -> None:
    """Frozen for a while, and overtaken: the pieces of the new service are strange to it."""
    old, new = Term(tmp_path, "journal", 1), Term(tmp_path, "journal", 2)
    old.claim()
    site.backend.act_under(old)
    site.rounds()
    new.claim()
    replaced = site.backend
    site.open()
    site.backend.act_under(new)
    site.start()
    site.up()
    try:
        site.rounds(20)
        assert "Another service has taken over" in replaced.trouble
        assert replaced.sight() is None
        assert not ends(site.watch())
        assert all(process.poll() is None for runners in site.cluster.runners.values() for process in runners)
        replaced.start(start(bash("echo twice"), job="b-1", places=(Place("v2", (0,)),)))
        site.rounds(20)
        assert not (site.shared / "jobs" / "b-1").exists()
    finally:
        replaced.close()


def test_a_service_that_is_replaced_in_the_middle_of_a_round_stops_there_and_logs_no_fault(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, look = Term(tmp_path, "journal", 1), site.cluster.look
    old.claim()
    site.backend.act_under(old)
    site.rounds()

    def look_and_freeze() -> Look:
        found = look()
        if (site.shared / "jobs" / "a-1").exists():
            Term(tmp_path, "journal", 2).claim()
        return found

    site.cluster.look = look_and_freeze  # type: ignore[method-assign]
    site.start()
    until(lambda: "Another service has taken over" in site.backend.trouble, "for the trouble")
    assert not site.cluster.runners
    assert not caplog.records


def test_a_stop_of_an_attempt_that_ended_and_was_forgotten_is_answered_with_its_end(site: Site) -> None:
    """A journal that was restored takes it for running: without an answer its GPUs were lost for ever."""
    site.start("echo begun")
    end = site.told(JobFinished)
    site.backend.forget(end.job, end.attempt)
    until(lambda: not list((site.shared / "attempts").iterdir()), "for the attempt to be forgotten")
    site.reopen()
    site.start("echo begun")
    site.backend.stop(end.job, end.attempt)
    until(lambda: ends(site.watch()), "for the end")
    (told,) = ends(site.rounds())
    assert (told.job, told.attempt) == (end.job, end.attempt)
    site.seen = []
    site.backend.forget(end.job, end.attempt)
    assert not ends(site.rounds())


def test_a_driver_that_fails_in_any_way_is_trouble_and_no_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("/secret/path")

    monkeypatch.setattr(site.cluster, "look", fail)
    until(lambda: "failed" in site.backend.trouble, "for the failure")
    assert site.backend.sight() is None
    assert site.backend.trouble == "The cluster is out of sight: its driver failed with ValueError."


def test_a_node_that_is_not_shown_for_a_while_keeps_what_runs_there(site: Site) -> None:
    """Ray shows its nodes one after the other when it was restarted."""
    site.start(places=_GANG)
    site.up("v1")
    site.up("v2")
    hidden = site.cluster.nodes.pop("v1")

    def shown() -> list[tuple[str, bool, str]]:
        sight = site.backend.sight()
        return sorted((node.name, node.open, node.why) for node in sight.nodes) if sight else []

    until(lambda: shown() == [("v1", False, "The cluster does not show this node."), ("v2", True, "")], "for the gap")
    site.start(places=(Place("v1", (3,)),), job="b-1")
    assert not ends(site.rounds(6))
    site.cluster.nodes["v1"] = hidden
    until(lambda: shown() == [("v1", True, ""), ("v2", True, "")], "for the node to be shown again")
    assert not [event for event in site.watch() if isinstance(event, JobStopped | JobFailed | LaunchFailed)]
    site.backend.stop("a-1", 1)
    site.told(JobStopped)


def test_a_node_that_is_not_shown_and_where_nothing_began_is_lost(site: Site) -> None:
    until(lambda: site.backend.sight(), "for a look")
    del site.cluster.nodes["v1"]
    site.start()
    until(lambda: [node.name for node in site.backend.sight().nodes] == ["v2"], "for the loss")


def test_the_token_is_gone_from_all_orders_once_an_attempt_is_forgotten(site: Site) -> None:
    site.start("echo begun", env={"HORAE_TOKEN": "t0ken"})
    site.told(JobFinished)
    assert list(_files_with("t0ken", site.shared))
    site.backend.forget("a-1", 1)
    until(lambda: not list(_files_with("t0ken", site.shared)), "for the orders to be cleaned")


def test_a_job_whose_folder_cannot_be_used_holds_up_nobody_else(site: Site) -> None:
    site.told(NodeObserved)
    (site.shared / "jobs" / "a-1").touch()
    site.start()
    site.start("echo begun", job="b-2")
    assert site.told(JobFinished).job == "b-2"
    assert site.backend.trouble == "Nothing can be done for one job now: File exists."
    assert site.backend.sight()
    (site.shared / "jobs" / "a-1").unlink()
    until(lambda: "a-1" in [event.job for event in site.watch() if isinstance(event, JobStarted)], "for the start")
    until(lambda: not site.backend.trouble, "for the trouble to pass")


def test_a_piece_that_somebody_cancels_in_the_cluster_is_stopped_and_runs_again(site: Site) -> None:
    """Slurm calls jobs cancelled that it has lost in a crash of its own: nobody wanted that."""
    site.start()
    site.told(JobStarted)
    site.cluster.cancelled = True
    (runners,) = site.cluster.runners.values()
    runners[0].terminate()
    site.told(JobStopped)
    assert len(ends(site.rounds())) == 1


def test_a_piece_that_does_not_end_is_killed_again_but_not_in_every_round(site: Site) -> None:
    site.reopen(overdue_s=0.1)
    site.start("trap '' USR1 TERM; echo begun; sleep 60 & wait; sleep 60", grace_s=0.1)
    site.told(JobStarted)
    site.up()
    kills: list[float] = []
    site.cluster.kill = lambda piece: kills.append(time.monotonic())  # type: ignore[method-assign]
    site.backend.stop("a-1", 1)
    until(lambda: len(kills) == 2, "for the second kill")
    assert 1.9 < kills[1] - kills[0] < 3.0
    site.told(JobStopped)


def test_an_operator_who_is_sure_needs_no_fence_but_a_later_beat_proves_him_wrong(site: Site) -> None:
    site.reopen(doubt_s=1.5)
    site.start()
    site.told(JobStarted)
    site.backend.gone("v1")
    assert not ends(site.rounds(40)), "it beats"
    for each in site.cluster.runners.values():
        each[0].kill()
        each[0].wait()
    site.cluster.stuck.add("v1")
    site.backend.gone("v1")
    assert site.told(JobStopped).attempt == 1


def test_the_sites_fence_makes_sure(site: Site, tmp_path: Path) -> None:
    fence = tmp_path / "fence"
    fence.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/fenced\ntest -e {tmp_path}/works\n")
    fence.chmod(0o755)
    site.start()
    site.told(JobStarted)
    site.backend.close()
    settings = replace(site.settings, doubt_s=1.5)
    site.backend = Reconciler(site.cluster, site.shared, settings=settings, fence=f"{fence} --off")
    site.cluster.cut_off.add("v1")
    assert not ends(site.rounds(40)), "it beats: nobody needs a fence"
    assert text_of(tmp_path / "fenced") == ""
    for each in site.cluster.runners.values():
        each[0].kill()
        each[0].wait()
    (tmp_path / "works").touch()
    assert not ends(site.rounds(60)), "the node answers: nobody cuts its power"
    assert text_of(tmp_path / "fenced") == ""
    site.cluster.nodes["v1"] = replace(site.cluster.nodes["v1"], is_lost=True)
    assert site.told(JobStopped).attempt == 1
    assert text_of(tmp_path / "fenced") == "--off v1\n"


@pytest.mark.long
def test_a_shared_folder_that_is_away_for_longer_than_allowed_ends_jobs_and_for_less_does_not(site: Site) -> None:
    site.reopen(beat_limit_s=5.0, fence_s=7.0)
    site.start()
    site.told(JobStarted)
    away = site.shared.with_name("away")
    for away_s, ended in ((1.0, []), (6.5, [JobStopped(7.0, "a-1", 1, 0.0)])):
        site.shared.rename(away)
        until(lambda: site.backend.sight() is None, "for the trouble")
        assert site.backend.trouble == "The shared folder cannot be used: No such file or directory."
        time.sleep(away_s)
        away.rename(site.shared)
        until(lambda: site.backend.sight() and not site.backend.trouble, "for the folder")
        if ended:
            site.told(JobStopped)
        assert ends(site.rounds()) == ended
    assert re.search(r"the shared folder could not be written for [56] s; the job is killed", site.log())


def test_forgotten_pieces_are_forgotten_by_the_cluster_even_after_a_time_out_of_sight(site: Site) -> None:
    site.start("echo begun")
    site.told(JobFinished)
    site.cluster.blind = True
    site.backend.forget("a-1", 1)
    site.rounds(3)
    assert site.cluster.runners
    site.cluster.blind = False
    until(lambda: not site.cluster.runners, "for the piece to be forgotten")


def test_a_last_word_that_cannot_be_understood_is_a_failure(site: Site) -> None:
    site.start()
    site.told(JobStarted)
    site.up()
    (site.shared / "jobs" / "a-1" / "1" / "v1" / runner.EXIT).write_text('{"code": "\u2603"}')
    site.cluster.kill(PieceId("a-1", 1, "v1"))
    assert site.told(JobFailed).exit_code == 1


def test_a_piece_that_cannot_start_beside_one_that_runs_is_a_failed_launch(site: Site) -> None:
    site.cluster.ends_at_once.add("v2")
    site.start(places=_GANG)
    assert site.told(LaunchFailed).why == "its runner ended before the job began"
    assert len(ends(site.rounds())) == 1
    assert not [event for event in site.seen if isinstance(event, JobStarted)]


def test_what_was_printed_for_a_runner_that_never_began_is_the_reason(site: Site) -> None:
    site.cluster.ends_at_once.add("v1")
    site.cluster.printed = "exec: /x/python: not found"
    site.start()
    assert site.told(LaunchFailed).why == "its runner ended before the job began: exec: /x/python: not found"


def test_a_piece_that_cannot_start_is_the_reason_though_it_ended_the_other_one_first(site: Site) -> None:
    site.cluster.ends_at_once.add("v2")
    site.cluster.stuck.add("v2")
    site.start(places=_GANG)
    until(lambda: (site.shared / "jobs" / "a-1" / "1" / "v1" / runner.RUNNER).exists(), "for the other one")
    site.cluster.blind = True
    for process in site.cluster.runners[PieceId("a-1", 1, "v1")]:
        process.terminate()
        process.wait(20)
    site.cluster.stuck.clear()
    site.cluster.blind = False
    assert site.told(LaunchFailed).why == "its runner ended before the job began"


def _files_with(text: str, folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.json") if text in text_of(path))


def test_a_piece_that_is_never_started_is_a_failed_launch_with_the_clusters_reason(site: Site) -> None:
    site.reopen(launch_limit_s=0.3)
    site.cluster.not_started = "ReqNodeNotAvail"
    site.start(places=_GANG)
    failed = site.told(LaunchFailed)
    assert re.search(r"did not start it within .*ReqNodeNotAvail$", failed.why)
    assert site.cluster.cancelled, "told before the cluster held nothing for it any more"
    site.cluster.not_started = ""
    site.start(attempt=2)
    site.told(JobStarted)


def test_time_out_of_sight_does_not_count_as_waiting_for_a_start(site: Site) -> None:
    site.reopen(launch_limit_s=0.6, silence_s=0.05)
    site.cluster.not_started = "Priority"
    site.start()
    until(lambda: site.cluster.submitted, "for the submission")
    site.cluster.blind = True
    end_s = time.monotonic() + 0.8
    until(lambda: time.monotonic() > end_s, "for longer than a start may take")
    site.cluster.blind = False
    assert not ends(site.rounds(3))
    site.told(LaunchFailed)


def test_the_fence_gets_the_machine_and_covers_all_its_nodes(site: Site, tmp_path: Path) -> None:
    fenced = tmp_path / "fenced"
    (tmp_path / "fence").write_text(f'#!/bin/sh\necho "$1" >> {fenced}\n')
    (tmp_path / "fence").chmod(0o700)
    site.cluster.nodes = {
        name: replace(site.cluster.nodes["v1"], name=name, gpu_type=name[3:]) for name in ("v1/k80", "v1/v100")
    }
    site.backend.close()
    settings = replace(site.settings, doubt_s=0.2, beat_limit_s=30.0, fence_s=60.0)
    site.backend = Reconciler(site.cluster, site.shared, settings=settings, fence=str(tmp_path / "fence"))
    site.start(places=(Place("v1/k80", (0,)), Place("v1/v100", (0,))))
    site.told(JobStarted)
    end_all(site.shared)
    site.cluster.cut_off = {"v1/k80", "v1/v100"}
    site.cluster.nodes = {}
    assert site.told(JobStopped)
    assert set(text_of(fenced).split()) == {"v1"}


def test_runners_of_other_versions_go_once_no_piece_may_need_them(site: Site) -> None:
    site.told(NodeObserved)
    old = site.shared / "runner-0123456789ab.py"
    site.cluster.not_started = "Priority"
    site.start()
    until(lambda: site.cluster.submitted, "for the submission")
    old.touch()
    site.reopen()
    site.told(NodeObserved)
    assert old.exists(), "a piece that was not begun may be one of its"
    site.backend.stop("a-1", 1)
    site.told(JobStopped)
    site.reopen()
    site.told(NodeObserved)
    assert [str(path) for path in site.shared.glob("runner-*.py")] == [
        site.backend._folder and site.backend._folder.program
    ]


def test_drafts_with_secrets_go_with_their_attempt(site: Site) -> None:
    site.start("true")
    site.told(JobFinished)
    attempt = site.shared / "jobs" / "a-1" / "1"
    drafts = [folder / ".order.json.head.99" for folder in (attempt, attempt / "v1")]
    for draft in drafts:
        draft.write_text("a secret")
    site.backend.forget("a-1", 1)
    until(lambda: not any(draft.exists() for draft in drafts), "for the drafts to go")


def test_discarding_does_not_wait_for_the_file_server(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.start("true")
    site.told(JobFinished)
    site.backend.forget("a-1", 1)
    until(lambda: not site.backend._notes, "for the note")
    answers, discard = threading.Event(), AttemptFolders.discard
    monkeypatch.setattr(AttemptFolders, "discard", lambda *given: answers.wait(20) and discard(*given))
    begun_s = time.perf_counter()
    assert site.backend.discard(["a-1"], []) == []
    assert time.perf_counter() - begun_s < 0.5
    answers.set()
    until(lambda: site.backend.discard(["a-1"], []) == ["a-1"], "for the job to be gone")
    assert not (site.shared / "jobs" / "a-1").exists()


@pytest.mark.parametrize("content", [b"{}", b"\xff", b'{"nodes": ["../../b-2/1/v1"], "task": {}}'])
def test_an_attempt_whose_order_a_job_has_broken_is_killed_and_has_failed(site: Site, content: bytes) -> None:
    site.start()
    site.told(JobStarted)
    site.up()
    site.backend.close()
    (site.shared / "jobs" / "a-1" / "1" / runner.ORDER).write_bytes(content)
    site.reopen()
    assert isinstance(site.told(JobFailed), JobFailed)
    assert site.backend.sight()
    site.start("echo begun", job="b-2")
    assert site.told(JobFinished).job == "b-2"


def test_a_launch_into_the_folder_of_another_attempt_fails(site: Site) -> None:
    site.start("true")
    site.told(JobFinished)
    site.backend.forget("a-1", 1)
    site.start("true")
    assert site.told(LaunchFailed).why == "its folder was used by another attempt"


def test_a_piece_whose_sign_of_life_is_a_pipe_holds_up_nobody(site: Site) -> None:
    site.start("cd $HORAE_ATTEMPT_DIR/v1; rm -f beat; mkfifo beat; rm -f stop; mkfifo stop; echo begun; sleep 60")
    site.up()
    site.start("echo begun", job="b-2")
    assert site.told(JobFinished).job == "b-2"
