"""A run in a trace viewer: slices nest, add up to what the report counts, and say what happened."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.cluster import Node, Span
from horae.core.events import JobCancelled, JobHeld, NodeJoined, NodeLost
from horae.core.history import History
from horae.core.throughputs import Setting, Throughputs
from horae.report.metrics.measure import measure
from horae.report.perfetto import write_perfetto
from horae.simulator.faults import Faults
from tests.builders import Script, cluster, job, run
from tests.report.sample import Loop, random_jobs

Event = dict[str, Any]
PHASES = ("loading", "working", "saving")


@pytest.fixture
def events(tmp_path: Path):
    def events(history: History) -> list[Event]:
        path = tmp_path / "run.json"
        write_perfetto(path, history)
        written: list[Event] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        return written

    return events


def slices(events: list[Event]) -> list[Event]:
    return [event for event in events if event["ph"] == "X"]


def attempts(events: list[Event]) -> list[Event]:
    return [event for event in slices(events) if event["name"] not in PHASES]


def names(events: list[Event], what: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == f"{what}_name"}


def counter(events: list[Event], name: str) -> list[tuple[float, int]]:
    return [(e["ts"] / 1e6, e["args"]["value"]) for e in events if e["ph"] == "C" and e["name"] == name]


def covered_s(parts: list[tuple[int, int]]) -> float:
    """Seconds covered by intervals of microseconds, however they overlap."""
    covered, reached = 0, -1
    for begin, end in sorted(parts):
        covered += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return covered / 1e6


def check_format(events: list[Event]) -> None:
    """What every viewer relies on."""
    for event in events:
        assert {"ph", "ts", "pid", "tid", "name"} <= set(event)
        assert event["ph"] in ("M", "C", "X")
        assert all(isinstance(event[key], int) and event[key] >= 0 for key in ("ts", "pid", "tid"))
    tracks = defaultdict(list)
    for event in slices(events):
        assert event["dur"] > 0
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert set(tracks) <= set(names(events, "thread"))
    for parts in tracks.values():
        open_: list[int] = []
        # As written: whoever contains another comes before it.
        for begin, end in sorted(parts, key=lambda part: part[0]):
            while open_ and open_[-1] <= begin:
                open_.pop()
            assert not open_ or end <= open_[-1], "slices overlap in part"
            open_.append(end)
        assert len(open_) <= 2


def check_sums(history: History, events: list[Event]) -> None:
    """GPUs are in use as long as the report says, and without work as long as it says."""
    report = measure(history)
    by_gpu = defaultdict(list)
    gpu_of = {track: (track[0], name.removesuffix(", shared")) for track, name in names(events, "thread").items()}
    for event in attempts(events):
        by_gpu[gpu_of[event["pid"], event["tid"]]].append((event["ts"], event["ts"] + event["dur"]))
    busy_s = sum(covered_s(parts) for parts in by_gpu.values())
    assert busy_s == pytest.approx(report.gpu_hours * 3600, abs=1e-3)
    phases = sum(event["dur"] for event in slices(events) if event["name"] in PHASES)
    assert phases == sum(event["dur"] for event in attempts(events)), "every moment of an attempt is some phase"
    if not report.shared_gpu_share:
        working = sum(event["dur"] for event in slices(events) if event["name"] == "working") / 1e6
        assert working == pytest.approx(busy_s - report.restart_overhead.gpu_seconds, abs=1e-3)


# ------------------------------------------------------------------- by hand


def test_a_preempted_job_works_saves_and_loads_again(events) -> None:
    jobs = [job("long", gpus=2, work=100, checkpoint_s=5, restore_s=7, queue="org/a"), job("b", work=10, submit_s=20)]
    written = events(run(jobs, "1x2", "srtf"))
    check_format(written)
    shown = [
        (e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in slices(written) if e["tid"] == slices(written)[0]["tid"]
    ]
    assert shown == [
        ("long", 0, 25), ("working", 0, 20), ("saving", 20, 5),
        ("b", 25, 10), ("working", 25, 10),
        ("long", 35, 87), ("loading", 35, 7), ("working", 42, 80),
    ]  # fmt: skip
    first, last = attempts(written)[0], attempts(written)[-1]
    assert first["args"] == {"attempt": 1, "queue": "org/a", "app": "long", "gpus": 2, "ended": "preempted"}
    assert (last["args"]["attempt"], last["args"]["ended"]) == (2, "finished")
    assert counter(written, "free GPUs") == [(0, 0), (25, 1), (35, 0), (122, 2)]
    assert counter(written, "waiting jobs") == [(0, 0), (20, 1), (35, 0)]


def test_nodes_are_processes_and_gpus_are_tracks(events) -> None:
    written = events(run([job("a", gpus=3)], "v100:1x2,v100:1x1"))
    processes = list(names(written, "process").values())
    assert processes == ["cluster", "v100-0: 2 v100", "v100-1: 1 v100"]
    by_process = defaultdict(list)
    for (process, track), name in names(written, "thread").items():
        by_process[process].append(name)
        assert track not in {pid for pid, _ in names(written, "process")}
    assert list(by_process.values()) == [["GPU 0", "GPU 1"], ["GPU 0"]]
    assert len({(e["pid"], e["tid"]) for e in attempts(written)}) == 3


def test_gpus_of_a_lost_node_are_not_free(events) -> None:
    happens = [NodeLost(10, "v100-1"), NodeJoined(40, Node("v100-1~2", "v100", 3))]
    written = events(Script([job("a", gpus=2, work=60)], "v100:2x2", events=happens).history)
    assert counter(written, "free GPUs") == [(0, 2), (10, 0), (40, 3), (60, 5)]


def sharing() -> History:
    """Two jobs that share one GPU, the second longer than the first, and a third that follows."""
    table = Throughputs()
    for name in ("x", "y"):
        table.put(Setting(name, "gpu", 1, Span.GPU), 1.0)
        for other in ("x", "y"):
            table.put(Setting(name, "gpu", 1, Span.GPU, other), 0.9)
    jobs = [
        job(f"j{k}", work=100.0 * (k + 1), submit_s=10.0 * k, unit="steps", job_class="xy"[k % 2]) for k in range(4)
    ]
    return run(jobs, "1x1", "max-min", settings={"space-sharing": "true", "round": "60"}, throughputs=table)


def test_two_jobs_on_one_gpu_have_a_track_each(events) -> None:
    history = sharing()
    assert measure(history).shared_gpu_share > 0.2
    written = events(history)
    check_format(written)
    check_sums(history, written)
    assert set(names(written, "thread").values()) == {"GPU 0", "GPU 0, shared"}
    assert min(value for _, value in counter(written, "free GPUs")) == 0


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (JobCancelled(40, "a"), "cancelled"),
        (JobHeld(40, "a"), "failed and tried again, held, lost with its node, or never up"),
        (NodeLost(40, "gpu-0"), "failed and tried again, held, lost with its node, or never up"),
    ],
)
def test_the_slice_says_why_it_ended(events, happens: Any, why: str) -> None:
    history = Script([job("a", work=100)], "1x1", events=[happens]).history
    assert [event["args"]["ended"] for event in attempts(events(history))] == [why]


def test_names_that_json_must_escape(events) -> None:
    assert attempts(events(run([job('a"b\\c é', work=1)])))[0]["name"] == 'a"b\\c é'


def test_a_run_in_which_nothing_ran(events) -> None:
    history = run([])
    check_format(events(history))
    assert slices(events(history)) == []


# ------------------------------------------------------------------ in general


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), preempt=st.integers(0, 3), costs=st.sampled_from([(0.0, 0.0), (7.3, 2.1)]))
def test_any_run_adds_up(tmp_path_factory: pytest.TempPathFactory, seed: int, preempt: int, costs: Any) -> None:
    jobs = random_jobs(seed, 40, ["a", "b"])
    history = Loop(jobs, cluster("a:2x4,b:3x2"), *costs, preempt_every=preempt).run()
    path = tmp_path_factory.mktemp("perfetto") / "run.json"
    write_perfetto(path, history)
    written = json.loads(path.read_text())["traceEvents"]
    check_format(written)
    check_sums(history, written)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_with_trouble_adds_up_and_every_launch_is_shown(events, seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = [
        job(f"j{k}", gpus=int(rng.integers(1, 5)), work=float(rng.uniform(50, 500)), submit_s=20.0 * k, start_s=3.3)
        for k in range(30)
    ]
    trouble = Faults(node_losses_per_day=40, node_repair_s=60, launch_failures=0.1, launch_failure_s=2.5)
    history = run(jobs, "3x4", "las", faults=trouble, seed=seed)
    written = events(history)
    check_format(written)
    check_sums(history, written)
    held = history.attempts.end_s > history.attempts.begin_s
    assert len(attempts(written)) == int(history.attempts.gpus[held].sum())
    assert {event["args"]["ended"] for event in attempts(written)} > {"finished"}
