"""Connections to a service and its standby: a request goes to the one that is active."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from horae.client.http_connection import HttpConnection, Reply, Unreachable, Untrusted

#: Seconds for which a request is offered to all in turn: a standby takes over within ten. Seconds between two rounds.
_TAKE_OVER_S, _AGAIN_S = 15.0, 0.5


class FailoverConnection:
    """Like `HttpConnection`, with several addresses, in the order in which they are tried first.

    A request is sent again only if it was surely not performed: nobody listened there, what listened did not prove
    that it is the service (a standby may not know a new token yet), or a standby refused it.
    """

    def __init__(self, connections: Sequence[HttpConnection], patience_s: float = _TAKE_OVER_S) -> None:
        self._connections, self._patience_s = list(connections), patience_s

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()

    def ask(self, method: str, path: str, params: Mapping[str, Any], body: object = None) -> Reply:
        """Send a request to each service in turn until one performs it; read the whole response."""
        end_s = time.monotonic() + self._patience_s
        while True:
            reply = self._ask_each(method, path, params, body)
            if reply and not reply.is_standby:
                return reply
            if time.monotonic() >= end_s:
                if reply:
                    return reply
                raise Unreachable
            time.sleep(_AGAIN_S)

    def _ask_each(self, method: str, path: str, params: Mapping[str, Any], body: object) -> Reply | None:
        """The answer of the first that is no standby, else that of a standby; None if none is reached.

        Raises if none can be trusted.
        """
        refusal: Reply | None = None
        untrusted: list[Untrusted] = []
        for connection in list(self._connections):
            try:
                reply = connection.ask(method, path, params, body)
            except Unreachable:
                continue
            except Untrusted as why:
                untrusted.append(why)
                continue
            if not reply.is_standby:
                self._prefer(connection)
                return reply
            refusal = reply
        if len(untrusted) == len(self._connections):
            raise untrusted[0]
        return refusal

    @contextmanager
    def stream(self, path: str, params: Mapping[str, Any]) -> Iterator[tuple[int, Iterator[str]]]:
        """Status and lines of a response that may have no end, of the first that is reached."""
        refusal: Unreachable | Untrusted = Unreachable()
        for connection in list(self._connections):
            opened = connection.stream(path, params)
            try:
                answer = opened.__enter__()
            except Unreachable:
                continue
            except Untrusted as why:
                refusal = why
                continue
            self._prefer(connection)
            try:
                yield answer
            finally:
                opened.__exit__(None, None, None)
            return
        raise refusal

    def _prefer(self, connection: HttpConnection) -> None:
        self._connections.remove(connection)
        self._connections.insert(0, connection)
