"""A real `horae serve` with virtual GPUs on loopback, asked over HTTP: what it takes, as the system sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.process import CommandFailed

#: Two types of one node each.
GPUS = "v100:8,k80:8"
#: A service that needs longer to start, or to end its jobs, is broken.
PATIENCE_S = 120.0
#: The service hangs up on those who say nothing for a few seconds.
_IDLE_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")
_SIZES, _TEAMS = (1, 1, 1, 1, 2, 2, 4, 8), 12


class Client:
    """One connection that stays open between questions, unless these are far apart."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._asked_s = time.monotonic()

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        """The answer, unread; a refusal is raised."""
        if time.monotonic() - self._asked_s > _IDLE_S:
            self._connection.close()
        text = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, text, self._headers)
        answer = self._connection.getresponse()
        said = answer.read()
        self._asked_s = time.monotonic()
        if answer.status != 200:
            raise CommandFailed(f"{method} {path} was answered with {answer.status}: {said[:300].decode()}")
        return said

    def json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The answer, read."""
        said: dict[str, Any] = json.loads(self.ask(method, path, body))
        return said

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


@dataclass(frozen=True)
class Served:
    """A service that runs: where it is, and what the system knows of its process."""

    url: str
    state: Path
    process: subprocess.Popen[str]

    @property
    def token(self) -> str:
        """The admin's."""
        return (self.state / "token").read_text().strip()

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Somebody who asks for a while."""
        client = Client(self.url, self.token)
        try:
            yield client
        finally:
            client.close()

    @property
    def cpu_s(self) -> float:
        """CPU time that the service has had; that of its jobs is not in it."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def peak_mb(self) -> float:
        """The most resident memory it ever had."""
        return self._memory_mb("VmHWM")

    @property
    def resident_mb(self) -> float:
        """Resident memory now."""
        return self._memory_mb("VmRSS")

    def _memory_mb(self, name: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(float(line.split()[1]) for line in status.splitlines() if line.startswith(name)) / 1e3

    def metrics(self) -> dict[str, float]:
        """What it tells Prometheus, by name with labels."""
        with self.client() as client:
            lines = client.ask("GET", "/metrics").decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def end(self, crash: bool = False) -> None:
        """Have it leave, or die."""
        self.process.kill() if crash else self.process.terminate()
        self.process.wait(PATIENCE_S)

    def end_jobs(self) -> None:
        """Stop whatever runs, so that no process is left behind."""
        with self.client() as client:
            for node in client.json("GET", "/v1/nodes")["nodes"]:
                client.json("POST", f"/v1/nodes/{node['node']}/drain", {"evict": True})
            wait_for(lambda: not any(node["used"] for node in client.json("GET", "/v1/nodes")["nodes"]))


@contextmanager
def served(state: Path, policy: str = "fifo-backfill") -> Iterator[Served]:
    """A service for a while; its jobs end with it."""
    service = start(state, policy)
    try:
        yield service
        service.end_jobs()
    finally:
        service.end()


def start(state: Path, policy: str = "fifo-backfill") -> Served:
    """A service that answers."""
    command = [sys.executable, "-m", "horae", "serve", "--state", str(state), "--port", "0", "--gpus", GPUS]
    process = subprocess.Popen([*command, "--policy", policy, "-o", "json"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    if not said:
        raise CommandFailed(f"{' '.join(command)} ended with exit code {process.wait()} before it served")
    return Served(json.loads(said)["url"], state, process)


def wait_for(look: Any, every_s: float = 0.05) -> None:
    """Wait until it is so."""
    until_s = time.monotonic() + PATIENCE_S
    while not look():
        if time.monotonic() > until_s:
            raise CommandFailed(f"what a service was to do did not happen in {PATIENCE_S:g} s")
        time.sleep(every_s)


def jobs(sleep_s: float, first: int = 0) -> Iterator[Mapping[str, object]]:
    """Jobs without end, of many sizes, classes and teams; each sleeps."""
    for number in count(first):
        team, gpus = f"team-{number % _TEAMS}", _SIZES[number * 7 % len(_SIZES)]
        yield {
            "name": f"train-{number % 50}",
            "run": ["sleep", f"{sleep_s:g}"],
            "queue": f"research/{team}",
            "app": f"sweep-{number // 20}" if number % 3 else "",
            "class": f"model-{number % 30}",
            "resources": {"gpus": gpus},
            "envs": {"SEED": str(number), "LEARNING_RATE": "0.1"},
            "estimate": {"steps": 1000.0 + number % 5000, "duration": 600.0 + number % 86400},
            "max_duration": "2d",
        }
