"""Connections of the HTTP server: how many there may be, how long a request may take, and which one gives way.

A connection waits for its client until a request is complete, and is busy until the request is answered. Too many
connections never lock a new client out: the oldest waiting one of the peer with the most of them is closed instead.
A peer is an address, or the account at the other end of a Unix socket.
"""

from __future__ import annotations

import asyncio
import errno
import json
import resource
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from horae.service.listening import Listener

#: Seconds for the headers of a request, and for its body.
REQUEST_S = 10.0
#: Seconds for which a connection may stay open between two requests.
IDLE_S = 5
#: Seconds without progress after which an answer that its client does not read is given up.
UNREAD_S = 30.0
#: Seconds for saying goodbye with TLS.
_TLS_SHUTDOWN_S = 2.0
#: Most connections, however many descriptors there are, and most descriptors to ask the system for.
MOST_CONNECTIONS, _MOST_DESCRIPTORS = 4096, 65536
#: Descriptors that connections leave for launches, journal and logs.
RESERVED_DESCRIPTORS = 256
#: Connections that are accepted, or closed to make room, in one go; seconds between two goes while it is full.
_BATCH, _FULL_PAUSE_S = 16, 0.01
#: Seconds until the next try when the machine is short of descriptors, and between two looks at all deadlines.
_SHORT_PAUSE_S, _SWEEP_S = 0.5, 0.5

_TOO_SLOW = json.dumps({"error": f"The request was not complete after {REQUEST_S:.0f} s: send it again."}).encode()


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as the system lets it have; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def connections_for(descriptors: int) -> int:
    """Most connections of a process with so many descriptors."""
    return max(1, min(MOST_CONNECTIONS, descriptors - min(RESERVED_DESCRIPTORS, descriptors // 2)))


class Connections:
    """All open connections. Used by the thread of the server only."""

    def __init__(self, most: int) -> None:
        self._most, self._most_of_peer = most, max(1, most // 2)
        self._open: dict[Connection, None] = {}
        self._by_peer: dict[str, int] = {}
        #: Connections that wait for their clients, by peer, the one that has waited longest first.
        self._waiting: dict[str, OrderedDict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def has_room(self) -> bool:
        """Whether another connection may be accepted. If not, waiting ones are being closed."""
        if len(self._open) < self._most:
            return True
        if self._waiting:
            self._evict(max(self._waiting, key=lambda peer: len(self._waiting[peer])), _BATCH)
        return False

    def add(self, connection: Connection) -> bool:
        """Note a new connection. False if its peer has too many already, all of them busy."""
        peer = connection.peer
        if self._by_peer.get(peer, 0) >= self._most_of_peer and not self._evict(peer, 1):
            return False
        self._open[connection] = None
        self._by_peer[peer] = self._by_peer.get(peer, 0) + 1
        self.wait(connection)
        return True

    def remove(self, connection: Connection) -> None:
        """Note that a connection is closed."""
        if connection not in self._open:
            return
        self.stop_waiting(connection)
        del self._open[connection]
        self._by_peer[connection.peer] -= 1
        if not self._by_peer[connection.peer]:
            del self._by_peer[connection.peer]

    def wait(self, connection: Connection) -> None:
        """Note that a connection waits for its client from now on."""
        self.stop_waiting(connection)
        connection.waits_since_s = time.monotonic()
        self._waiting.setdefault(connection.peer, OrderedDict())[connection] = None

    def stop_waiting(self, connection: Connection) -> None:
        """Note that a connection has a request to answer, or is being closed."""
        waiting = self._waiting.get(connection.peer)
        if waiting is not None and connection in waiting:
            del waiting[connection]
            if not waiting:
                del self._waiting[connection.peer]

    def _evict(self, peer: str, count: int) -> int:
        """Close the connections of a peer that have waited longest; returns how many."""
        oldest = list(self._waiting.get(peer, ()))[:count]
        for connection in oldest:
            self.stop_waiting(connection)
            connection.abort()
        return len(oldest)

    def sweep(self, now_s: float) -> None:
        """Close connections that are too slow."""
        for waiting in list(self._waiting.values()):
            for connection in list(waiting):
                if now_s - connection.waits_since_s < REQUEST_S:
                    break
                if connection.reads:
                    self.stop_waiting(connection)
                    connection.time_out()
        for connection in list(self._open):
            if connection.is_unread(now_s):
                connection.abort()


class Connection(H11Protocol):
    """One connection. Its request finds the account at the other end of a Unix socket in its state, as `uid`."""

    def __init__(self, server: HttpServer, wire: socket.socket, listener: Listener) -> None:
        super().__init__(server.config, server.server_state, dict(server.lifespan.state))
        self.peer, uid = _peer(wire)
        if listener.identifies and uid is not None:
            self.app_state["uid"] = uid
        self.app_state["peer"] = self.peer
        self.waits_since_s = 0.0
        self._table = server.table
        self._is_made = self._is_busy = False
        self._phase: Any = h11.IDLE
        self._unread = (0, 0.0)
        #: The task that opens the connection, shaking hands if it is with TLS.
        self.opening: asyncio.Task[None] | None = None

    @property
    def reads(self) -> bool:
        """Whether the server reads what the client sends; if it does not, the client is not to blame."""
        return not self._is_made or not self.flow.read_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, after the handshake if the connection is with TLS."""
        self._is_made = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        super().data_received(data)
        self._note_phase()

    def on_response_complete(self) -> None:
        """Note that a request is answered."""
        super().on_response_complete()
        self._note_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._table.remove(self)
        super().connection_lost(exc)

    def _note_phase(self) -> None:
        """Note whether the connection waits for its client: for the headers of a request, or for its body."""
        answered = self.cycle is None or self.cycle.response_complete
        phase = self.conn.their_state if answered or self.conn.their_state is h11.SEND_BODY else None
        if phase is None or self.transport.is_closing():
            self._table.stop_waiting(self)
        elif phase is not self._phase or (answered and self._is_busy):
            self._table.wait(self)
        self._phase, self._is_busy = phase, not answered

    def is_unread(self, now_s: float) -> bool:
        """Whether the client has read nothing of an answer for `UNREAD_S`."""
        left = self.transport.get_write_buffer_size() if self._is_made else 0
        if not left or left < self._unread[0] or not self._unread[0]:
            self._unread = (left, now_s)
        return left > 0 and now_s - self._unread[1] >= UNREAD_S

    def time_out(self) -> None:
        """Close a connection whose request does not become complete; say so, if nothing was answered yet."""
        if not self._is_made:
            self.abort()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
            headers.append((b"content-length", str(len(_TOO_SLOW)).encode()))
            with suppress(h11.LocalProtocolError):
                for event in (
                    h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"),
                    h11.Data(data=_TOO_SLOW),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._is_made:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class Acceptor:
    """Accepts the connections of one listening socket."""

    def __init__(self, server: HttpServer, listener: Listener) -> None:
        self._server, self._listener = server, listener
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._is_open = True
        listener.socket.setblocking(False)
        self._resume()

    def _resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._listener.socket.fileno(), self._accept)

    def _pause(self, pause_s: float) -> None:
        self._loop.remove_reader(self._listener.socket.fileno())
        self._loop.call_later(pause_s, self._resume)

    def _accept(self) -> None:
        for _ in range(_BATCH):
            if not self._server.table.has_room():
                self._pause(_FULL_PAUSE_S)
                return
            try:
                wire, _ = self._listener.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._pause(_SHORT_PAUSE_S)
                return
            self._open(wire)

    def _open(self, wire: socket.socket) -> None:
        wire.setblocking(False)
        connection = Connection(self._server, wire, self._listener)
        if not self._server.table.add(connection):
            wire.close()
            return
        task = connection.opening = self._loop.create_task(self._shake_hands(connection, wire))
        self._opening.add(task)

        def opened(task: asyncio.Task[None]) -> None:
            self._opening.discard(task)
            # A task that is cancelled before its first step never runs, so this cannot be done there.
            if task.cancelled() or task.exception():
                wire.close()
                self._server.table.remove(connection)

        task.add_done_callback(opened)

    async def _shake_hands(self, connection: Connection, wire: socket.socket) -> None:
        tls = self._listener.tls
        await self._loop.connect_accepted_socket(
            lambda: connection,
            wire,
            ssl=tls,
            ssl_handshake_timeout=REQUEST_S if tls else None,
            ssl_shutdown_timeout=_TLS_SHUTDOWN_S if tls else None,
        )

    def close(self) -> None:
        """Accept no more connections."""
        self._is_open = False
        self._loop.remove_reader(self._listener.socket.fileno())
        for task in list(self._opening):
            task.cancel()

    async def wait_closed(self) -> None:
        """Return when it is closed."""


class HttpServer(uvicorn.Server):
    """The HTTP server: accepts connections itself, and keeps their deadlines."""

    def __init__(self, config: uvicorn.Config, listeners: Sequence[Listener], most: int) -> None:
        super().__init__(config)
        self.table = Connections(most)
        self._listeners = listeners
        self._sweeping: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        self.servers = [Acceptor(self, listener) for listener in self._listeners]  # type: ignore[misc]
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        self.started = True

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.table.sweep(time.monotonic())


def _peer(wire: socket.socket) -> tuple[str, int | None]:
    """Name of the peer of a connection; its user id if the connection is by a Unix socket."""
    if wire.family == socket.AF_UNIX:
        credentials = wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        uid = int(struct.unpack("3i", credentials)[1])
        return f"uid {uid}", uid
    try:
        return str(wire.getpeername()[0]), None
    except OSError:  # gone already
        return "", None
