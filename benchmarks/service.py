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
from benchmarks.part import Part, Row
from benchmarks.serving import Client, Served, jobs, served, wait_for

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

_Feed = Iterator[Mapping[str, object]]


@dataclass
class _Load:
    """A service that is measured, and what was found."""

    service: Served
    feed: _Feed
    judged: bool
    rows: list[Row]
    missed: list[str]

    def add(
        self, what: str, value: float, unit: str, cpu_ms: float, limit: float | None = None, **more: object
    ) -> None:
        """One line of the table; limits are upper ones, but for rates."""
        holds = limit is None or (value >= limit if unit == "a second" else value <= limit)
        if self.judged and not holds:
            self.missed.append(f"{what}: {value:.4g} {unit}, and {limit:g} are demanded.")
        shown = "-" if limit is None or not self.judged else "yes" if holds else "NO"
        self.rows.append({"what": what, "value": float(f"{value:.3g}"), "unit": unit, "cpu_ms": float(f"{cpu_ms:.3g}")})
        self.rows[-1] |= {"reference": "-", "limit": limit or "-", "holds": shown, **more}


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
            _measure_decisions(load, policy, settings)
        load.add("memory at its peak", service.peak_mb, "MB", 0.0, MEMORY_MB)
    notes = [
        f"{queued:,} jobs of 1 to 8 GPUs on 16 virtual ones; those that run sleep for {_SLEEP_S:g} s.",
        "Wall time of the one who asks, the fastest of some tries, or the rate of acknowledged jobs; cpu_ms is CPU time "
        "of the service (of the command, for commands), for each job, question or decision.",
        "reference: the same answer written by json.dumps alone (lists), an empty question asked by as many clients "
        "(submissions, a second), an interpreter that starts and ends (commands).",
        "Decisions by the service's own clock: `mean` of all, `worst` is the upper end of the class of the longest.",
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
    load.add(what, count / took_s, "a second", cpu_ms, limit, reference=round(300 / empty_s))


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
            tries = [_timed(load.service, lambda: client.ask("GET", path)) for _ in range(_TRIES)]
            answer = client.json("GET", path)
        began_s = time.process_time()
        json.dumps(answer)
        dumped_ms = 1e3 * (time.process_time() - began_s)
        wall_s, cpu_s = (min(column) for column in zip(*tries, strict=True))
        load.add(what, 1e3 * wall_s, "ms", 1e3 * cpu_s, 1e3 * LIST_S, reference=float(f"{dumped_ms:.3g}"))


def _timed(service: Served, ask: Callable[[], object]) -> tuple[float, float]:
    """Wall seconds of a question, and CPU seconds of the service meanwhile."""
    cpu_s, began_s = service.cpu_s, time.perf_counter()
    ask()
    return time.perf_counter() - began_s, service.cpu_s - cpu_s


def _measure_commands(load: _Load) -> None:
    """The commands as somebody types them, with the start of the interpreter."""
    _, empty_cpu_s = _run(load.service, ["-c", "pass"])
    for words in (["queue"], ["queue", "--limit", "0", "-o", "json"]):
        note(f"service, horae {' '.join(words)}")
        tries = [_run(load.service, ["-m", "horae", *words]) for _ in range(_TRIES)]
        wall_s, cpu_s = (min(column) for column in zip(*tries, strict=True))
        what = f"`horae {' '.join(words)}`"
        load.add(what, 1e3 * wall_s, "ms", 1e3 * cpu_s, reference=float(f"{1e3 * empty_cpu_s:.3g}"))


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


def _measure_decisions(load: _Load, policy: str, settings: Mapping[str, str]) -> None:
    """Jobs come and end; the policy decides each time."""
    service = load.service
    before, cpu_s, waited = service.metrics(), service.cpu_s, []
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
    cpu_ms = 1e3 * (service.cpu_s - cpu_s) / count
    more = {"reference": f"mean {mean_ms:.3g} of {count:.0f}; a submission {1e3 * median(waited):.0f}"}
    load.add(f"longest decision, {policy}", 1e3 * _longest_s(before, after), "ms", cpu_ms, 1e3 * DECISION_S, **more)


def _longest_s(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Upper end of the class of the longest decision between two looks."""
    name = "horae_decision_seconds"
    count = after[f"{name}_count"] - before[f"{name}_count"]
    classes = {key: key.partition('le="')[2].rstrip('"}') for key in after if key.startswith(f"{name}_bucket")}
    return min(float(end) for key, end in classes.items() if after[key] - before[key] >= count)
