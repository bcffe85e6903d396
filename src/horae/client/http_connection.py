"""HTTP as a command needs it: one connection, kept between questions, from the standard library.

A larger client would take longer to load than the service takes to answer.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

#: A service that is asked for 10,000 jobs under load still answers within this.
_PATIENCE_S, _CONNECT_S = 60.0, 5.0
#: Services hang up on those who say nothing for a few seconds; whoever was silent so long begins anew.
_IDLE_S = 2.0
_PIECE = 65536


class Unreachable(Exception):
    """Nobody listens there."""


class Busy(Exception):
    """No answer came in time."""


class BrokenOff(Exception):
    """The answer did not come, or not to its end."""


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as what it stands for; ValueError if it is no JSON."""
        return json.loads(self.body)


class HttpConnection:
    """One connection to a service."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=_CONNECT_S)
        self._below = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "*/*"}
        self._asked_s = time.monotonic()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def ask(self, method: str, path: str, params: Mapping[str, Any], body: object = None) -> Reply:
        """Ask and read the whole answer."""
        with self._in_words():
            answer = self._send(method, path, params, body)
            reply = Reply(answer.status, answer.read())
        self._asked_s = time.monotonic()
        return reply

    @contextmanager
    def stream(self, path: str, params: Mapping[str, Any]) -> Iterator[tuple[int, Iterator[str]]]:
        """The status and, as they come, the lines of an answer that may have no end."""
        with self._in_words():
            answer = self._send("GET", path, params)
        try:
            yield answer.status, self._lines(answer)
        finally:
            # Whatever else was on its way is of no interest.
            self._connection.close()

    def _send(self, method: str, path: str, params: Mapping[str, Any], body: object = None) -> HTTPResponse:
        if time.monotonic() - self._asked_s > _IDLE_S:
            self._connection.close()
        self._connect()
        headers, text = self._headers, None
        if body is not None:
            headers, text = {**headers, "Content-Type": "application/json"}, json.dumps(body).encode()
        target = f"{self._below}{path}?{urlencode(params)}" if params else f"{self._below}{path}"
        self._connection.request(method, target, text, headers)
        return self._connection.getresponse()

    def _connect(self) -> None:
        connection = self._connection
        sock: socket.socket | None = connection.sock
        if sock is not None:
            return
        try:
            connection.connect()
        except OSError as why:
            raise Unreachable from why
        connection.sock.settimeout(_PATIENCE_S)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Whatever can go wrong, as one of three errors; the next question is asked over a new connection."""
        try:
            yield
        except BaseException as why:
            self._connection.close()
            if isinstance(why, TimeoutError):
                raise Busy from why
            if isinstance(why, HTTPException | OSError | ValueError):
                raise BrokenOff from why
            raise

    def _lines(self, answer: HTTPResponse) -> Iterator[str]:
        """Lines without their ends. The answer's own way to read them takes a broken connection for the end."""
        rest = b""
        while True:
            with self._in_words():
                more = answer.read1(_PIECE)
            *lines, rest = (rest + more).split(b"\n")
            yield from (line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines)
            if not more:
                return
