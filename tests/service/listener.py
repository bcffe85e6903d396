"""Somebody who listens to server-sent events."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Any

import httpx


class Listener:
    """Somebody who listens to a stream in a thread of their own."""

    def __init__(self, client: httpx.Client, path: str) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.open, self.over = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, args=(client, path), daemon=True).start()
        assert self.open.wait(20)

    def _listen(self, client: httpx.Client, path: str) -> None:
        with suppress(httpx.TransportError), client.stream("GET", path) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            kind = "message"
            for line in answer.iter_lines():
                self.open.set()
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.heard.append((kind, json.loads(line.removeprefix("data: "))))
                    kind = "message"
        self.over.set()

    @property
    def lines(self) -> list[str]:
        return [said["line"] for kind, said in self.heard if kind == "message"]
