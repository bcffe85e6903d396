"""What the journal says, in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from horae.backends.task import Task
from horae.core.cluster import Node
from horae.core.commands import Decided, GivenUp, Launch, Placed, Stop, StopWhy
from horae.core.events import (
    PRECEDENCE,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobProgressed,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobTimedOut,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    SettingsChanged,
)
from horae.core.queues import Queue
from horae.core.reasons import Reason
from horae.service.views.event_sentences import EventSentences
from tests.builders import Cell, job


def teller() -> EventSentences:
    """Somebody who knows jobs a-1 of alice and b-2 of bob, of 100 s each, on a node of four."""
    cell = Cell("1x4", policy="srtf")
    cell.submit(0, job("a-1"), job("b-2"))
    users = {"a-1": "alice", "b-2": "bob"}
    return EventSentences(
        cell.engine.status(), {name: Task(name, user, "x", ("x",), 100) for name, user in users.items()}
    )


def told(record: Any) -> list[tuple[str, str, str]]:
    return [(one.kind, one.job, one.what) for one in teller().sentences_of(record)]


@pytest.mark.parametrize(
    ("record", "kind", "what"),
    [
        (JobSubmitted(0, job("a-1")), "submitted", "Submitted by alice to queue default: 1 GPU."),
        (
            JobSubmitted(0, job("a-1", 2, gpu_types=("v100", "k80"))),
            "submitted",
            "Submitted by alice to queue default: 2 GPUs of type v100 or k80.",
        ),
        (JobCancelled(0, "a-1", "bob"), "cancelled", "Cancelled by bob."),
        (JobTimedOut(0, "a-1"), "timeout", "It has run for as long as it may (`max_duration`)."),
        (JobHeld(0, "a-1", "alice"), "held", "Held by alice."),
        (JobReleased(0, "a-1"), "released", "Released."),
        (JobStarted(0, "a-1", 2), "started", "Attempt 2 is up and works."),
        (JobStarted(9, "a-1", 2, up_s=5.04), "started", "Attempt 2 has been up for 5.0 s."),
        (LaunchFailed(0, "a-1", 2, "no disk"), "launch-failed", "Attempt 2 could not be started: no disk."),
        (LaunchFailed(0, "a-1", 2, "It is gone."), "launch-failed", "Attempt 2 could not be started: It is gone."),
        (JobStopped(0, "a-1", 1, 40.0), "stopped", "Attempt 1 has stopped; 40% of its work is saved."),
        (JobFinished(0, "a-1", 3), "finished", "Finished, in attempt 3."),
        (JobFailed(0, "a-1", 1, 3), "failed", "Attempt 1 failed with exit code 3; 0% of its work is saved."),
        (
            JobFailed(0, "a-1", 1, 137, 50.0),
            "failed",
            "Attempt 1 failed with exit code 137 (SIGKILL); 50% of its work is saved.",
        ),
    ],
)
def test_what_happens_to_a_job(record: Any, kind: str, what: str) -> None:
    assert told(record) == [(kind, "a-1", what)]


@pytest.mark.parametrize(
    ("record", "kind", "part"),
    [
        (NodeJoined(0, Node("n1", "v100", 4)), "node-joined", "4 GPUs of type v100"),
        (NodeLost(0, "n1"), "node-lost", "n1 is gone"),
        (NodeDraining(0, "n1", evict=True), "node-draining", "those it runs are stopped"),
        (SettingsChanged(0, "las", {"quantum": "60"}), "settings", "The policy is now las with quantum=60."),
        (SettingsChanged(0, None, {"quantum": "60"}), "settings", "settings changed: quantum=60"),
        (SettingsChanged(0, queues=(Queue("a/b", gpus_max=3),)), "settings", "Queue a/b has weight 1"),
    ],
)
def test_what_happens_to_the_cluster(record: Any, kind: str, part: str) -> None:
    ((found, about, what),) = told(record)
    assert (found, about) == (kind, "")
    assert part in what


def test_every_kind_of_record_is_told_or_left_out_on_purpose() -> None:
    silent = {JobProgressed, NodeObserved}
    assert told(JobProgressed(0, "a-1", 1, 5.0)) == told(NodeObserved(0, "n1", ())) == []
    assert len(PRECEDENCE) >= 15
    assert silent <= set(PRECEDENCE)


@pytest.mark.parametrize("why", StopWhy)
def test_every_reason_to_stop_has_its_sentence(why: StopWhy) -> None:
    ((kind, about, what),) = told(Decided(0, True, stops=(Stop("a-1", 1, why, "b-2"),)))
    assert (kind, about) == (why.replace(" ", "-"), "a-1")
    assert what.startswith("Attempt 1 was told to stop: ")
    assert ("b-2 of bob" in what) == (why in (StopWhy.PREEMPTED, StopWhy.MOVED))


def test_a_decision_is_told_piece_by_piece() -> None:
    record = Decided(
        0,
        True,
        given_up=(GivenUp("a-1", "after rung 2"),),
        withdrawn=("b-2",),
        placed=(Placed("b-2", (0, 1), 1),),  # type: ignore[arg-type]
        launches=(Launch("a-1", 2, (2, 3), 1, 25.0),),  # type: ignore[arg-type]
    )
    assert told(record) == [
        ("given-up", "a-1", "Its app gave it up after rung 2."),
        ("withdrawn", "b-2", "The GPUs that were set aside for it are free for other jobs again."),
        ("placed", "b-2", "gpu-0[0,1] are set aside for it; it starts when the last of them is free."),
        ("launched", "a-1", "Attempt 2 is launched on gpu-0[2,3], from 25% of its work on."),
    ]


def test_a_preemption_by_a_quota_names_the_taker_or_the_quota() -> None:
    quota = int(Reason.OVER_QUOTA)
    begin = "Attempt 1 was told to stop: preempted"
    assert told(Decided(0.0, True, stops=(Stop("a-1", 1, StopWhy.PREEMPTED, "b-2", quota),))) == [
        ("preempted", "a-1", f"{begin} by job b-2 of bob, which goes first within the quota of their queue.")
    ]
    assert told(Decided(0.0, True, stops=(Stop("a-1", 1, StopWhy.PREEMPTED, "", quota),))) == [
        ("preempted", "a-1", f"{begin}, since its queue may have fewer GPUs now.")
    ]


def test_a_real_preemption_names_taker_and_rule() -> None:
    cell = Cell("1x4", policy="srtf")
    cell.submit(0, job("long-1", 4, 1000))
    record = cell.submit(1, job("short-2", 4, 10))
    assert [stop.by for stop in record.stops] == ["short-2"]
    tasks = {"short-2": Task("short-2", "bob", "x", ("x",), 10)}
    decision = next(one for one in cell.decisions if one.stops)
    (first, *_) = EventSentences(cell.engine.status(), tasks).sentences_of(decision)
    assert first.what == (
        "Attempt 1 was told to stop: preempted by job short-2 of bob, which gets its GPUs. "
        "Jobs with less work left go first."
    )
