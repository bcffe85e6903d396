"""The recorder: who held which GPUs when, also where two held the same.

Tests core/run_history.py.
"""

from __future__ import annotations

import math

import pytest

from horae.core.cluster import Node, Span
from horae.core.events import NodeJoined, NodeLost
from horae.core.history import Recorder


def test_two_attempts_on_the_same_gpus_are_two_rows():
    recorder = Recorder()
    recorder.launched(0, 1, 0.0, (2, 3), Span.NODE)
    recorder.launched(1, 1, 10.0, (2, 3), Span.NODE)
    recorder.started(0, 1, 5.0)
    recorder.stopping(0, 1, 40.0, preempted=True)
    recorder.ended(0, 1, 45.0)
    found = recorder.attempts(until_s=60.0)
    assert found.job.tolist() == [0, 1]
    assert found.gpu_ids.tolist() == [2, 3, 2, 3]
    assert found.gpus.tolist() == [2, 2]
    assert (found.begin_s.tolist(), found.end_s.tolist()) == ([0.0, 10.0], [45.0, 60.0])
    assert (found.stop_s.tolist(), found.preempted.tolist()) == ([40.0, 60.0], [True, False])
    assert found.work_s[0] == 5.0
    assert math.isnan(found.work_s[1])


def test_the_first_report_of_each_kind_counts_and_strangers_are_ignored():
    recorder = Recorder()
    recorder.launched(0, 1, 0.0, (0,), Span.GPU)
    for now_s in (3.0, 7.0):
        recorder.started(0, 1, now_s)
        recorder.stopping(0, 1, 10 + now_s, preempted=now_s < 5)
        recorder.ended(0, 1, 20 + now_s)
        recorder.ended(5, 1, now_s)
    found = recorder.attempts(until_s=99.0)
    assert (found.work_s.tolist(), found.stop_s.tolist(), found.end_s.tolist()) == ([3.0], [13.0], [23.0])
    assert found.preempted.tolist() == [True]


def test_an_attempt_cannot_be_launched_twice():
    recorder = Recorder()
    recorder.launched(0, 1, 0.0, (0,), Span.GPU)
    with pytest.raises(AssertionError, match="launched twice"):
        recorder.launched(0, 1, 5.0, (1,), Span.GPU)


def test_nodes_of_one_host_are_there_one_after_the_other():
    recorder = Recorder([Node("v1", "v100", 2), Node("v2", "k80", 1)])
    assert recorder.presence(("v100", "k80"), 9.0) is None, "nothing came or went"
    # An old journal lacks that v1 was lost; what is said of v1 afterwards does not concern v1~2.
    happens = [NodeJoined(10.0, Node("v1~2", "v100", 4)), NodeLost(15.0, "v1"), NodeLost(20.0, "v2")]
    for event in [*happens, NodeJoined(30.0, Node("v2", "k80", 1)), NodeLost(30.0, "v2")]:
        recorder.see(event, {})
    presence = recorder.presence(("v100", "k80"), 40.0)
    assert presence.gpu_seconds(2, 0.0, 40.0).tolist() == [2 * 10 + 4 * 30, 20]
    assert presence.gpu_seconds(2, 5.0, 12.0).tolist() == [2 * 5 + 4 * 2, 7]
    assert presence.most(2).tolist() == [4, 1]
