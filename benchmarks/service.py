"""A service under load: 10,000 queued jobs, a real `horae serve`, asked over loopback."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import median

from benchmarks.bench import Bench, note
from benchmarks.decision import perform
from benchmarks.part import Part, Row
from benchmarks.recovery import submissions
from benchmarks.serving import GPUS, Client, Served, jobs, served, wait_for
from horae.backends.local.gpu_detection import parse_virtual
from horae.core.events import JobFinished
from horae.service.initial_settings import InitialSettings
from horae.service.warm_up import warm_up

#: Policies whose decisions are timed, with leases and rounds that end while they are.
POLICIES: dict[str, dict[str, str]] = {
    "fifo-backfill": {},
    "tiresias": {},
    "themis": {"lease": "60"},
    "max-min": {"round": "10"},
    "finish-time": {"round": "10"},
}
#: What a service must keep with so many jobs in its queue.
QUEUED = 10_000
DECISION_S, LIST_S, SUBMITS_A_S, MEMORY_MB = 1.0, 0.2, 500.0, 1000.0
#: Jobs in one request, and clients that send such requests, or one job at a time.
_BATCH, _BATCHERS, _SINGLES = 100, 4, 16
#: How long jobs sleep, so that some end while things are measured.
_SLEEP_S = 8.0
_TRIES = 7
#: A single submission every so often while decisions are timed, so many times.
_PAUSE_S, _POSTS = 0.5, 12
#: Decisions that are timed without a service around them.
_ALONE = 8

_Feed = Iterator[Mapping[str, object]]


@dataclass
class _Load:
    """A service that is measured, and what was found."""

    service: Served
    feed: _Feed
    judged: bool
    rows: list[Row]
    missed: list[str]

    def add(self, what: str, value: float, unit: str, cpu_ms: float, reference: object = "-") -> None:
        """One line of the table, without a limit."""
        row = {"what": what, "value": _short(value), "unit": unit, "cpu_ms": _short(cpu_ms)}
        self.rows.append({**row, "reference": reference, "limit": "-", "holds": "-"})

    def limit(self, limit: str, cpu_holds: bool, wall_holds: bool) -> None:
        """Judge the last line by CPU time, and say so where wall time on this machine was over the limit."""
        holds = "NO" if not cpu_holds else "yes" if wall_holds else "CPU only"
        self.rows[-1] |= {"limit": limit, "holds": holds if self.judged else "-"}
        if self.judged and not cpu_holds:
            row = self.rows[-1]
            self.missed.append(f"{row['what']}: {row['value']} {row['unit']}, {row['cpu_ms']} ms CPU; limit {limit}.")


def measure_service(bench: Bench) -> Part:
    """Fill the queue over HTTP; then look at it, and let policies decide about it."""
    queued = bench.sizes.service
    with served(bench.folder / "service") as service:
        load = _Load(service, jobs(_SLEEP_S), queued >= QUEUED, [], [])
        _measure_submissions(load, queued)
        _measure_lists(load)
        _measure_commands(load)
        for policy, settings in POLICIES.items():
            note(f"service, decisions of {policy}")
            _measure_decisions(load, policy, settings, queued)
        load.add("memory at its peak", service.peak_mb, "MB", 0.0)
        fits = service.peak_mb <= MEMORY_MB
        load.limit(f"{MEMORY_MB:g} MB", fits, fits)
    notes = [
        f"{queued:,} jobs of 1 to 8 GPUs on 16 virtual ones; those that run sleep for {_SLEEP_S:g} s.",
        (
            "value: wall time of the one who asks, the fastest of some tries; of decisions, the upper end of the "
            "class of the longest by the service's own clock."
        ),
        (
            "cpu_ms: CPU time of the service for each job or question; of a command, its own; of decisions, the "
            f"longest of {_ALONE} with the same queue in a process that does nothing else."
        ),
        "holds: limits on time are judged by cpu_ms; `CPU only` where the wall time beside it was over the limit.",
        (
            "reference: the same answer written by json.dumps alone; an empty question from as many clients, a second; "
            "an interpreter that starts and ends."
        ),
    ]
    return Part(f"A service with {queued:,} queued jobs", load.rows, notes, load.missed)


# ----------------------------------------------------------------- submissions


def _measure_submissions(load: _Load, queued: int) -> None:
    """Most of the queue in batches, the rest one by one."""
    single = min(queued // 5, 2_000)
    note(f"service, {queued - single:,} jobs in batches of {_BATCH}")
    _submit(load, f"submit, batches of {_BATCH}", _BATCHERS, _BATCH, queued - single, SUBMITS_A_S)
    note(f"service, {single:,} jobs one by one")
    _submit(load, f"submit one by one, {_SINGLES} clients", _SINGLES, 1, single, None)


def _submit(load: _Load, what: str, clients: int, size: int, count: int, limit: float | None) -> None:
    batches = [list(islice(load.feed, size)) for _ in range(count // size)]
    before_s = load.service.cpu_s
    took_s = _together(load.service, clients, [_posting(batch) for batch in batches])
    cpu_ms = 1e3 * (load.service.cpu_s - before_s) / count
    empty_s = _together(load.service, clients, [_looking] * 300)
    load.add(what, count / took_s, "a second", cpu_ms, round(300 / empty_s))
    if limit is not None:
        fast = count / took_s >= limit
        load.limit(f"{limit:g} a second", fast, fast)


def _posting(batch: list[Mapping[str, object]]) -> Callable[[Client], object]:
    return lambda client: client.ask("POST", "/v1/jobs", batch)


def _looking(client: Client) -> object:
    return client.ask("GET", "/healthz")


def _together(service: Served, clients: int, questions: list[Callable[[Client], object]]) -> float:
    """Seconds in which so many clients get all questions answered; each takes the next that nobody has asked."""
    left, failed = iter(questions), list[BaseException]()
    lock = threading.Lock()

    def ask() -> None:
        try:
            with service.client() as client:
                while True:
                    with lock:
                        question = next(left, None)
                    if question is None:
                        return
                    question(client)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - began_s


# ----------------------------------------------------------------------- lists


def _measure_lists(load: _Load) -> None:
    for what, path in {
        "list, as `horae queue` asks": "/v1/jobs",
        "list of all jobs": "/v1/jobs?limit=0",
        "list of all jobs, two fields": "/v1/jobs?limit=0&fields=id,state",
    }.items():
        note(f"service, {what}")
        with load.service.client() as client:
            before_s = load.service.cpu_s
            tries_s = [_wall_s(client, path) for _ in range(_TRIES)]
            cpu_ms = 1e3 * (load.service.cpu_s - before_s) / _TRIES
            answer = client.json("GET", path)
        began_s = time.process_time()
        json.dumps(answer)
        dumped_ms = 1e3 * (time.process_time() - began_s)
        load.add(what, 1e3 * min(tries_s), "ms", cpu_ms, f"{_short(dumped_ms)} ms")
        load.limit(f"{1e3 * LIST_S:g} ms", cpu_ms <= 1e3 * LIST_S, min(tries_s) <= LIST_S)


def _wall_s(client: Client, path: str) -> float:
    began_s = time.perf_counter()
    client.ask("GET", path)
    return time.perf_counter() - began_s


def _measure_commands(load: _Load) -> None:
    """The commands as somebody types them, with the start of the interpreter."""
    _, empty_cpu_s = _run(load.service, ["-c", "pass"])
    for words in (["queue"], ["queue", "--limit", "0", "-o", "json"]):
        note(f"service, horae {' '.join(words)}")
        tries = [_run(load.service, ["-m", "horae", *words]) for _ in range(_TRIES)]
        wall_s, cpu_s = (min(column) for column in zip(*tries, strict=True))
        what = f"`horae {' '.join(words)}`"
        load.add(what, 1e3 * wall_s, "ms", 1e3 * cpu_s, f"{_short(1e3 * empty_cpu_s)} ms")


def _run(service: Served, arguments: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a Python process."""
    before, began_s = _children_s(), time.perf_counter()
    environment = {**os.environ, "HORAE_URL": service.url, "HORAE_TOKEN": service.token}
    subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began_s, _children_s() - before


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# ------------------------------------------------------------------- decisions


def _measure_decisions(load: _Load, policy: str, settings: Mapping[str, str], queued: int) -> None:
    """Jobs come and end; the policy decides each time."""
    service = load.service
    before, waited = service.metrics(), []
    with service.client() as client:
        client.json("PUT", "/v1/settings", {"policy": policy, "settings": dict(settings), "queues": []})
        for _ in range(_POSTS):
            began_s = time.perf_counter()
            client.ask("POST", "/v1/jobs", [next(load.feed)])
            waited.append(time.perf_counter() - began_s)
            time.sleep(_PAUSE_S)
        wait_for(lambda: service.metrics()["horae_decision_seconds_count"] > before["horae_decision_seconds_count"])
    after = service.metrics()
    name = "horae_decision_seconds"
    count = after[f"{name}_count"] - before[f"{name}_count"]
    mean_ms = 1e3 * (after[f"{name}_sum"] - before[f"{name}_sum"]) / count
    longest_ms, cpu_ms = 1e3 * _longest_s(before, after), 1e3 * _longest_alone_s(policy, settings, queued)
    about = f"mean {mean_ms:.3g} ms of {count:.0f}; a submission {1e3 * median(waited):.0f} ms"
    load.add(f"longest decision, {policy}", longest_ms, "ms", cpu_ms, about)
    load.limit(f"{DECISION_S:g} s", cpu_ms <= 1e3 * DECISION_S, longest_ms <= 1e3 * DECISION_S)


def _longest_alone_s(policy: str, settings: Mapping[str, str], queued: int) -> float:
    """CPU seconds of the longest of some decisions: the same jobs and GPUs, but nobody asks anything meanwhile."""
    beginning = InitialSettings(parse_virtual(GPUS), policy, dict(settings))
    warm_up(beginning)
    engine = beginning.engine()
    for event in islice(submissions(engine, []), queued):
        engine.apply(event)
    longest_s, now_s = 0.0, 0.0
    for _ in range(_ALONE):
        now_s += 100.0
        began_s = time.process_time()
        record = engine.with_evidence(engine.decide(now_s))
        longest_s = max(longest_s, time.process_time() - began_s)
        perform(engine, record)
        row = next(iter(engine.gpus.occupied))
        engine.apply(JobFinished(now_s, engine.jobs.specs[row].id, int(engine.jobs.attempt[row])))
    return longest_s


def _longest_s(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Upper end of the class of the longest decision between two looks."""
    name = "horae_decision_seconds"
    count = after[f"{name}_count"] - before[f"{name}_count"]
    classes = {key: key.partition('le="')[2].rstrip('"}') for key in after if key.startswith(f"{name}_bucket")}
    return min(float(end) for key, end in classes.items() if after[key] - before[key] >= count)


def _short(value: float) -> float:
    return float(f"{value:.3g}")
