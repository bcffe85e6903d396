"""A dashboard that answers what a test wants, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, object]


def state_of(*entries: object) -> Reply:
    """An answer of the state API."""
    return 200, {"result": True, "data": {"result": {"result": list(entries)}}}


def node_entry(name: str, state: str = "ALIVE", gpus: int = 4, **more: Any) -> dict[str, Any]:
    """A node as the state API lists it."""
    number = more.pop("number", 2)
    resources = {"GPU": float(gpus), "CPU": 8.0, "memory": 8.0 * 2**30, f"node:10.0.0.{number}": 1.0}
    base = {"node_id": f"{name}-{number}", "node_name": name, "node_ip": f"10.0.0.{number}", "state": state}
    return {**base, "resources_total": resources, "labels": {"ray.io/accelerator-type": "V100"}, **more}


def job_entry(name: str, status: str = "RUNNING", **more: Any) -> dict[str, Any]:
    """A job as the Jobs API lists it."""
    metadata = {"horae_nodes": json.dumps(more.pop("nodes", ["v1"]))}
    return {"submission_id": name, "job_id": "02000000", "status": status, "message": "", "metadata": metadata, **more}


@dataclass
class FakeDashboard:
    """What is answered, by method and path without the query; and what was asked."""

    replies: dict[str, Reply | Callable[[Any], Reply]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    address: str = ""

    def answer(self, line: str, content: bytes, headers: dict[str, str]) -> Reply:
        try:
            value: Any = json.loads(content) if content else None
        except ValueError:
            value = content
        self.asked.append((line, value))
        self.headers.append(headers)
        reply = self.replies.get(line.partition("?")[0], (404, f"{line} does not exist"))
        return reply(value) if callable(reply) else reply


@contextmanager
def serving(dashboard: FakeDashboard) -> Iterator[FakeDashboard]:
    """Answer requests on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, value = dashboard.answer(f"{self.command} {self.path}", content, dict(self.headers))
            body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815, the library calls them so

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    dashboard.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield dashboard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
