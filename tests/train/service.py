"""A small HTTP server that plays the service, and scripts run as Horae would run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "a-token-of-this-job"
SOURCE = Path(__file__).parents[2] / "src"
#: Processes that the running test has started.
STARTED: list[subprocess.Popen[str]] = []


@dataclass
class Service:
    """What came in, and how it is answered."""

    url: str = ""
    reports: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    #: Whether the answer to a report is "stop".
    stop: Callable[[dict[str, Any]], bool] = lambda report: False
    #: Nobody is answered before this is set.
    answering: threading.Event = field(default_factory=threading.Event)
    #: Requests to answer with 503 first.
    failures: int = 0
    #: Sent as it is, instead of a proper answer.
    nonsense: bytes | None = None
    refused: int = 0
    #: Whether another service is active.
    standby: bool = False

    def steps(self) -> list[int]:
        return [report["step"] for report in self.reports]

    def answer(self, path: str, token: str | None, report: dict[str, Any]) -> tuple[int, bytes]:
        if token != f"Bearer {TOKEN}":
            self.refused += 1
            return 401, b"{}"
        if self.standby:
            self.refused += 1
            return 503, b"{}"
        if self.failures:
            self.failures -= 1
            return 503, b"{}"
        self.paths.append(path)
        self.reports.append(report)
        self.answering.wait(30)
        return 200, self.nonsense or json.dumps({"stop": self.stop(report)}).encode()


@contextmanager
def serving() -> Iterator[Service]:
    """A service on a free port of loopback."""
    service = Service()
    service.answering.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, body = service.answer(self.path, self.headers["Authorization"], report)
            # Who asked may have lost patience.
            try:
                self.send_response(status)
                if service.standby:
                    self.send_header("Horae-Standby", "1")
                self.end_headers()
                self.wfile.write(body)
            except ConnectionError:
                pass

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()


def environment(**more: str) -> dict[str, str]:
    """What every process gets: not the environment of whoever runs the tests."""
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(SOURCE), **more}


def inside_horae(folder: Path, url: str = "", token: str = TOKEN, **more: str) -> dict[str, str]:
    """The environment of a job."""
    job = {"HORAE_JOB_ID": "night-1", "HORAE_ATTEMPT": "3", "HORAE_CHECKPOINT_DIR": str(folder), "HORAE_TOKEN": token}
    return environment(**job, **({"HORAE_URL": url} if url else {}), **more)


def start(script: Path, *arguments: object, env: Mapping[str, str], group: int = 0) -> subprocess.Popen[str]:
    """A script in a process group of its own, as the backend starts it, or in that of another."""
    return launch([sys.executable, script, *arguments], env, group)


def launch(command: Sequence[object], env: Mapping[str, str], group: int = 0) -> subprocess.Popen[str]:
    """A command likewise; see `stop_all`."""
    words = [str(word) for word in command]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, env=dict(env), text=True, stdout=pipe, stderr=pipe, process_group=group)
    STARTED.append(process)
    return process


def stop_all() -> None:
    """Leave nothing running, however a test ends."""
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until something is true; an error if it never is."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this took too long"
        time.sleep(0.01)
