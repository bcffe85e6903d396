"""Deadlines of calls to PostgreSQL: of the server, of the network, and of this process.

A server that hangs (frozen, or on a disk that does not answer) keeps its sockets open and ends no statement of its own
accord: only the client can notice. The connection is closed then, and whether a commit took place is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

Answer = TypeVar("Answer")

#: Seconds of the client beyond those of the server, which has the first word: its errors are better.
_CLIENT_MARGIN_S = 1.0
#: Seconds in which a server must say that it is there, and take a new connection: a caller may wait for both.
_PING_S, _CONNECT_S = 2.0, 3
#: Seconds between two signs of life on a silent connection, and how many may be missed.
_KEEPALIVE_S, _KEEPALIVES = 2, 3


class DeadlineConnection(psycopg.Connection[Any]):
    """A connection that is closed, with an `OperationalError`, when the server does not answer a statement in time."""

    #: Seconds for one statement; None: as long as it takes.
    deadline_s: float | None = None

    def wait(self, gen: Generator[Any, Any, Answer], *words: Any, **named: Any) -> Answer:
        """Drive a call of the library until it is done or late."""
        if self.deadline_s is None:
            return super().wait(gen, *words, **named)
        return super().wait(self._in_time(gen, time.monotonic() + self.deadline_s), *words, **named)

    def _in_time(self, gen: Generator[Any, Any, Answer], end_s: float) -> Generator[Any, Any, Answer]:
        """The same steps, until `end_s`. The library takes a step several times a second, also if nothing comes."""
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                if not ready and time.monotonic() >= end_s:
                    gen.close()
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.deadline_s:g} s")
                waits_for = gen.send(ready)
        except StopIteration as done:
            answer: Answer = done.value
            return answer

    def is_there(self) -> bool:
        """Whether the server answers; soon, whatever the deadline of statements is."""
        deadline_s, self.deadline_s = self.deadline_s, _PING_S
        try:
            self.autocommit = True
            self.execute("SELECT 1")
            self.autocommit = False
        except psycopg.Error:
            return False
        finally:
            self.deadline_s = deadline_s
        return True


def connect_options(timeout_s: float) -> dict[str, Any]:
    """Options of libpq for connections that notice a dead network: seconds, but for `tcp_user_timeout` (ms)."""
    return {
        "connect_timeout": _CONNECT_S,
        "keepalives_idle": _KEEPALIVE_S,
        "keepalives_interval": _KEEPALIVE_S,
        "keepalives_count": _KEEPALIVES,
        "tcp_user_timeout": int((timeout_s + _CLIENT_MARGIN_S) * 1000),
    }


def session_settings(timeout_s: float) -> str:
    """Settings of a session: limits of locks and statements, and of a client that vanishes or is frozen."""
    limit_ms = int(timeout_s * 1000)
    settings: dict[str, int | str] = {
        "lock_timeout": limit_ms,
        "statement_timeout": limit_ms + 500,
        # A frozen service must not keep the lock of the writers, for which all others wait.
        "idle_in_transaction_session_timeout": 2 * limit_ms,
        "tcp_keepalives_idle": _KEEPALIVE_S,
        "tcp_keepalives_interval": _KEEPALIVE_S,
        "tcp_keepalives_count": _KEEPALIVES,
        "synchronous_commit": "on",
    }
    return "; ".join(f"SET {name} = {value}" for name, value in settings.items())


def begin_session(connection: DeadlineConnection, timeout_s: float) -> None:
    """Give a new connection its settings and its deadline."""
    connection.deadline_s = timeout_s + _CLIENT_MARGIN_S
    connection.execute(session_settings(timeout_s).encode())
    connection.commit()
