"""The attempts of a job, as `horae status` shows them."""

from __future__ import annotations

from typing import Any

from horae.core.cluster import Cluster, Node, Span
from horae.core.commands import Decided, Launch, Stop, StopWhy
from horae.core.events import Event, JobFailed, JobFinished, JobProgressed, JobStarted, JobStopped
from horae.service.views.attempts import attempts_of

CLUSTER = Cluster((Node("v100", "v100", 2),))


def launch(at_s: float, attempt: int, work_done: float = 0.0) -> Decided:
    launches = (Launch("a", attempt, (1,), Span.GPU, work_done), Launch("other", attempt, (0,), Span.GPU, 0.0))
    return Decided(at_s, planned=False, launches=launches)


def told(*records: Event | Decided) -> list[dict[str, Any]]:
    return attempts_of("a", enumerate(records), CLUSTER, lambda at_s: f"{at_s:g}")


def test_every_attempt_has_its_place_and_times_and_how_it_ended() -> None:
    stop = Decided(9.0, planned=False, stops=(Stop("other", 1, StopWhy.HELD), Stop("a", 1, StopWhy.PREEMPTED)))
    first, second = told(
        launch(1.0, 1), JobStarted(3.0, "a", 1), stop, JobStopped(10.0, "a", 1, 5.0), launch(20.0, 2, 5.0),
        JobStarted(22.0, "a", 2), JobFailed(30.0, "a", 2, 3, 5.0), JobFailed(31.0, "a", 2, 4, 5.0),
    )  # fmt: skip
    assert first == {
        "attempt": 1, "on": ["v100[1]"], "launched": "1", "started": "3", "stopping": "9",
        "stopped_because": "preempted", "ended": "10", "end": "stopped", "exit_code": None,
    }  # fmt: skip
    assert (second["started"], second["ended"], second["end"], second["exit_code"]) == ("22", "30", "failed", 3)


def test_one_that_does_not_say_when_it_began_did_so_when_it_was_up_or_as_its_first_report_tells() -> None:
    assert [one["started"] for one in told(launch(1.0, 1))] == [None]
    silent = [launch(1.0, 1), JobStarted(7.0, "a", 1, up_s=5.0)]
    assert [one["started"] for one in told(*silent)] == ["2"]
    assert [one["started"] for one in told(*silent, JobProgressed(9.0, "a", 1, 0.0))] == ["9"]
    assert [one["started"] for one in told(*silent, JobProgressed(9.0, "a", 1, 3.0))] == ["2"]
    assert [one["started"] for one in told(launch(1.0, 1), JobFinished(2.0, "a", 1))] == ["1"]
