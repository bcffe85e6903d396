"""A run as a file for a trace viewer: Chrome's trace-event JSON, as ui.perfetto.dev and chrome://tracing open it.

Every node is a process and every GPU a track in it, with a slice for each attempt that held the GPU
and slices below that for loading, working and saving. Slices of one track must lie one inside the
other, so the second of two jobs that share a GPU has a track of its own. The cluster as a whole is
one more process, with the free GPUs and the waiting jobs over time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from horae.core.arrays import Ints
from horae.core.gpu_ledger import SEATS
from horae.core.history import History
from horae.core.states import ALIVE, State
from horae.report.metrics.gpu_holdings import Holdings, seats
from horae.report.metrics.step_functions import StepFunction, overlap

#: Process number of the cluster; the nodes follow.
CLUSTER = 1


def write_perfetto(path: Path, history: History) -> None:
    """Write a run event by event, one on a line, times in microseconds from the run's time 0.

    Attempts that held their GPUs for less than half a microsecond are not shown.
    """
    with path.open("w", encoding="utf-8") as file:
        about = json.dumps({"policy": history.policy, **history.settings}, ensure_ascii=False)
        file.write(f'{{"displayTimeUnit":"ms","otherData":{about},"traceEvents":[\n')
        seat = seats(history.attempts)
        events = chain(_names(history, seat), _counters(history), _slices(history, seat))
        file.write(next(events))
        for event in events:
            file.write(",\n")
            file.write(event)
        file.write("\n]}\n")


# ----------------------------------------------------------------- the tracks


def _process(node: int) -> int:
    return CLUSTER + 1 + node


def _track(history: History, gpu: int, seat: int) -> int:
    """The number of a track, different from that of every process, which would make it a main thread."""
    return _process(len(history.cluster.nodes)) + SEATS * gpu + seat


def _names(history: History, seat: Ints) -> Iterator[str]:
    """Names of processes and tracks, and their order: the cluster, then the nodes as they are numbered."""
    cluster, attempts = history.cluster, history.attempts
    yield from _named("process", CLUSTER, 0, "cluster", 0)
    for number, node in enumerate(cluster.nodes):
        yield from _named("process", _process(number), 0, f"{node.name}: {node.gpus} {node.gpu_type}", _process(number))
    shared = set(attempts.gpu_ids[np.repeat(seat > 0, attempts.gpus)].tolist())
    for gpu, node_number in enumerate(cluster.gpu_node.tolist()):
        name = f"GPU {gpu - int(cluster.first_gpu[node_number])}"
        for other in range(SEATS if gpu in shared else 1):
            track = _track(history, gpu, other)
            yield from _named("thread", _process(node_number), track, f"{name}, shared" if other else name, track)


def _named(what: str, process: int, track: int, name: str, place: int) -> Iterator[str]:
    for event, args in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": place})):
        yield _event("M", process, track, 0, event, args)


# --------------------------------------------------------------- the counters


def _counters(history: History) -> Iterator[str]:
    """Free GPUs and waiting jobs, wherever they change."""
    yield from _counter("free GPUs", _free(history))
    yield from _counter("waiting jobs", _waiting(history))


def _free(history: History) -> StepFunction:
    """GPUs that were there and nobody held."""
    held, stays = Holdings.of(history.attempts), history.presence
    if stays is None:
        used = overlap(held.begin_s, held.end_s, 1.0 / held.holders)
        return StepFunction(used.times, history.cluster.gpus - used.values)
    begin_s, end_s = np.concatenate((stays.begin_s, held.begin_s)), np.concatenate((stays.end_s, held.end_s))
    free = overlap(begin_s, end_s, np.concatenate((stays.gpus.astype(np.float64), -1.0 / held.holders)))
    # Nodes that are there at the end of the run stay.
    free.values[-1:] = stays.gpus[stays.end_s == free.times[-1]].sum()
    return free


def _waiting(history: History) -> StepFunction:
    """Jobs that were submitted, had not ended and held no GPU."""
    attempts, submit_s = history.attempts, history.submit_s
    last_s = max(attempts.end_s.max(initial=0), submit_s.max(initial=0), np.nan_to_num(history.end_s).max(initial=0))
    gone_s = np.where(np.isnan(history.end_s), last_s, history.end_s)
    one_each = np.repeat((1.0, -1.0), (len(submit_s), len(attempts.job)))
    return overlap(np.concatenate((submit_s, attempts.begin_s)), np.concatenate((gone_s, attempts.end_s)), one_each)


def _counter(name: str, steps: StepFunction) -> Iterator[str]:
    values = np.maximum(np.rint(steps.values), 0).astype(np.int64)
    changed = np.append(True, np.diff(values) != 0)[: len(values)]
    for at_us, value in zip(_microseconds(steps.times)[changed].tolist(), values[changed].tolist(), strict=True):
        yield _event("C", CLUSTER, 0, at_us, name, {"value": value})


# ----------------------------------------------------------------- the slices


def _slices(history: History, seat: Ints) -> Iterator[str]:
    """Attempt by attempt, the same slices on each of its GPUs."""
    attempts, node_of = history.attempts, history.cluster.gpu_node
    begin, stop, end = (_microseconds(column) for column in (attempts.begin_s, attempts.stop_s, attempts.end_s))
    # An attempt that never came to work was loading all the time, or until it was told to stop.
    work = np.minimum(_microseconds(np.where(np.isnan(attempts.work_s), attempts.stop_s, attempts.work_s)), stop)
    numbers, whys = _attempt_numbers(history), _ends(history)
    for attempt in np.flatnonzero(end > begin).tolist():
        moments = [int(column[attempt]) for column in (begin, work, stop, end)]
        bodies = [_body(moments[0], moments[-1], *_label(history, attempt, int(numbers[attempt]), whys[attempt]))]
        for phase, since, until in zip(("loading", "working", "saving"), moments, moments[1:], strict=False):
            if until > since:
                bodies.append(_body(since, until, phase, {}))
        for gpu in attempts.gpu_ids[attempts.first[attempt] : attempts.first[attempt + 1]].tolist():
            track = f'{{"ph":"X","pid":{_process(int(node_of[gpu]))},"tid":{_track(history, gpu, int(seat[attempt]))},'
            yield from (track + body for body in bodies)


def _label(history: History, attempt: int, number: int, why: str) -> tuple[str, dict[str, Any]]:
    """The name of an attempt's slice, and the arguments that the viewer shows when it is selected."""
    job = history.jobs[int(history.attempts.job[attempt])]
    gpus = int(history.attempts.gpus[attempt])
    return job.id, {"attempt": number, "queue": job.queue, "app": job.app_id, "gpus": gpus, "ended": why}


def _attempt_numbers(history: History) -> Ints:
    """The number of each attempt among those of its job, from 1."""
    seen: dict[int, int] = {}
    numbers = np.zeros(len(history.attempts.job), dtype=np.int64)
    for attempt, job in enumerate(history.attempts.job.tolist()):
        numbers[attempt] = seen[job] = seen.get(job, 0) + 1
    return numbers


def _ends(history: History) -> list[str]:
    """Why each attempt ended, as far as the job's state and the record of preemptions tell."""
    attempts = history.attempts
    last = {job: attempt for attempt, job in enumerate(attempts.job.tolist())}
    return [_end(history, attempt, last[job] == attempt) for attempt, job in enumerate(attempts.job.tolist())]


def _end(history: History, attempt: int, last: bool) -> str:
    job = int(history.attempts.job[attempt])
    state = State(int(history.state[job]))
    if last and state is State.FINISHED:
        return "finished"
    if last and state is State.FAILED:
        return "failed"
    if history.attempts.preempted[attempt]:
        return "preempted"
    if last and state is State.TIMEOUT:
        return "stopped by its time limit"
    if last and state is State.CANCELLED and history.attempts.end_s[attempt] >= history.end_s[job]:
        return "given up by its app" if history.given_up is not None and history.given_up[job] else "cancelled"
    if last and state in ALIVE:
        return "not: the record ends here"
    return "failed and tried again, held, lost with its node, or never up"


# ------------------------------------------------------------------ the events


def _microseconds(seconds: Any) -> Ints:
    """Whole microseconds: rounding keeps the order of times, so slices that did not overlap never will."""
    return np.rint(np.asarray(seconds, dtype=np.float64) * 1e6).astype(np.int64)


def _event(phase: str, process: int, track: int, at_us: int, name: str, args: dict[str, Any]) -> str:
    fields = f'"name":{_text(name)},"args":{_text(args)}}}'
    return f'{{"ph":"{phase}","pid":{process},"tid":{track},"ts":{at_us},{fields}'


def _body(since_us: int, until_us: int, name: str, args: dict[str, Any]) -> str:
    """The part of a slice that is the same on every track."""
    more = f',"args":{_text(args)}' if args else ""
    return f'"ts":{since_us},"dur":{until_us - since_us},"name":{_text(name)}{more}}}'


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
