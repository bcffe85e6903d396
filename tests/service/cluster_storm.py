"""Helpers for storms on a real cluster manager: how fast the service answers, and what its daemons may lie about."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import httpx

from tests.service.crashes import Findings, Service


class Probe:
    """Asks the service again and again, as users do, and notes how long each answer took."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.seconds: list[float] = []
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._enough.wait(0.1):
            for path in ("/v1/nodes", "/v1/jobs?limit=20", "/healthz"):
                self._ask(path)

    def _ask(self, path: str) -> None:
        """Ask once. What a service that died did not answer says nothing."""
        with suppress(OSError, httpx.HTTPError), self._service.client() as client:
            began_s = time.perf_counter()
            client.get(path)
            self.seconds.append(time.perf_counter() - began_s)

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()

    def p99_s(self) -> float:
        return sorted(self.seconds)[int(0.99 * (len(self.seconds) - 1))]


def let_pass(seconds: float) -> None:
    """Let a storm go on for a while."""
    time.sleep(seconds)


def attempts_begun(marks: Path) -> set[tuple[str, int]]:
    """Attempts that have begun, by their witnesses."""
    path = marks / "lines"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {(line["job"], line["attempt"]) for line in lines if line["what"] == "begin"}


def await_attempts(marks: Path, attempts: int, repeated: int, patience_s: float = 600.0) -> None:
    """Wait until there were so many attempts, so many of them of jobs that had run before."""
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        begun = attempts_begun(marks)
        if len(begun) >= attempts and len(begun) - len({job for job, _ in begun}) >= repeated:
            return
        time.sleep(1.0)
    raise AssertionError(f"only {len(begun)} attempts in {patience_s:g} s")


def seconds_to_begin(service: Service, marks: Path) -> list[float]:
    """Seconds from the launch of each attempt of the last jobs to the first line of its witness, sorted."""
    begun: dict[tuple[str, int], float] = defaultdict(lambda: float("inf"))
    for line in map(json.loads, (marks / "lines").read_text().splitlines()):
        if line["what"] == "begin":
            one = (line["job"], line["attempt"])
            begun[one] = min(begun[one], line["at"])
    with service.client() as client:
        records = {job: client.get(f"/v1/jobs/{job}").json()["attempts"] for job, _ in begun}
    launched = {(job, one["attempt"]): one["launched"] for job, ones in records.items() for one in ones}
    return sorted(at - _moment_s(launched[one]) for one, at in begun.items() if launched.get(one) is not None)


def _moment_s(moment: str | float) -> float:
    return moment if isinstance(moment, int | float) else datetime.fromisoformat(moment).timestamp()


def summary(found: Findings, probe: Probe, begin_s: list[float]) -> str:
    """The figures of a storm in a few lines."""
    return (
        f"{found}\nAPI: {len(probe.seconds)} answers, p99 {probe.p99_s() * 1e3:.0f} ms, "
        f"most {max(probe.seconds) * 1e3:.0f} ms. Launch to begun: median {begin_s[len(begin_s) // 2]:.2f} s, "
        f"p90 {begin_s[int(len(begin_s) * 0.9)]:.2f} s, most {begin_s[-1]:.2f} s, of {len(begin_s)}."
    )
