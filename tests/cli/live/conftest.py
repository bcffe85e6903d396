"""A service that says what a test has it say, on a real socket, and remembers what it was asked."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.proof import proof


@dataclass(frozen=True)
class Asked:
    """One request."""

    line: str
    query: dict[str, list[str]]
    body: Any
    token: str


@dataclass
class FakeService:
    """`answers["GET /v1/jobs"]` is what it says: an object, a text, a (status, object), or a list of those in turn."""

    url: str
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    #: Headers of its answers.
    headers: dict[str, str] = field(default_factory=dict)
    #: Tokens that it knows, and proves that it knows.
    tokens: list[str] = field(default_factory=lambda: ["letmein"])

    def answer_to(self, line: str) -> Any:
        said = self.answers.get(line, (404, {"error": f"nothing at {line}"}))
        if isinstance(said, list):
            return said.pop(0) if len(said) > 1 else said[0]
        return said

    @property
    def last(self) -> Asked:
        return self.asked[-1]


class _Handler(BaseHTTPRequestHandler):
    fake: FakeService
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        line = f"{self.command} {parts.path}"
        query = parse_qs(parts.query)
        said = json.loads(body) if body else None
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if parts.path == "/v1/proof":
            answer = {"proof": proof(self.fake.tokens, self.path)}
        else:
            self.fake.asked.append(Asked(line, query, said, token))
            answer = self.fake.answer_to(line)
        status, value = answer if isinstance(answer, tuple) else (200, answer)
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, text in self.fake.headers.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815, the names that http.server looks for

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with nothing set, who stands in an empty folder."""
    for name in ("HORAE_URL", "HORAE_TOKEN", "HORAE_TOKEN_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def fake(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """A service that the commands find by themselves."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    fake = FakeService(f"http://127.0.0.1:{server.server_address[1]}")
    handler.fake = fake  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("HORAE_URL", fake.url)
    monkeypatch.setenv("HORAE_TOKEN", "letmein")
    yield fake
    server.shutdown()
    server.server_close()
    thread.join()


def job(name: str = "train-1", state: str = "waiting", **more: Any) -> dict[str, Any]:
    """A job as a list shows it."""
    return {
        "id": name,
        "name": name.rpartition("-")[0],
        "user": "ana",
        "queue": "vision/ana",
        "app": "",
        "state": state,
        "reason": "NoFreeGpus" if state == "waiting" else "None",
        "why": "",
        "gpus": 4,
        "gpu_types": [],
        "on": ["v100[0,1,2,3]"] if state == "running" else [],
        "ahead": 2 if state == "waiting" else 0,
        "submitted": "2024-01-01T00:00:00.000+00:00",
        "started": "2024-01-01T00:01:00.000+00:00" if state != "waiting" else None,
        "ended": "2024-01-01T00:02:00.000+00:00" if state in ("finished", "failed", "cancelled") else None,
        "attempt": 0 if state == "waiting" else 1,
        "preemptions": 0,
        "failures": 0,
        "progress": 0.25,
        "loss": None,
        "ran_s": 0.0 if state == "waiting" else 60.0,
        "left_s": None,
        "gpu_seconds": 0.0 if state == "waiting" else 240.0,
        **more,
    }


def detail(name: str = "train-1", state: str = "waiting", reason: str = "NoFreeGpus", **more: Any) -> dict[str, Any]:
    """A job with everything about it."""
    told = {
        "job": name,
        "state": state,
        "reason": reason,
        "sentence": f"The sentence of {reason}.",
        "numbers": {"gpus": 4, "free": 2, "head": "big-9"},
        "decided": "2024-01-01T00:00:30.000+00:00",
    }
    task = {"run": ["python", "train.py", "--note", "a; b"], "workdir": "/home/ana", "envs": ["SEED"], "setup": ""}
    attempts = [{"attempt": 1, "on": ["v100[0,1]"], "ended": None, "end": "", "exit_code": None}]
    return {**job(name, state), "why": told, "task": task, "attempts": attempts, **more}
