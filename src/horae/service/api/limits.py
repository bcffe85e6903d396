"""Limits: size of a request's body, wrong tokens per address, and logs that are read at a time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from horae.service.api.errors import problem

#: Most bytes of a request's body.
BODY_LIMIT = 4 * 1024 * 1024
#: Most bytes of an oversized body that are read and dropped before it is refused.
DRAIN_BYTES = 64 * 1024 * 1024
#: Wrong tokens that one address may send within FAILURES_S seconds; after that it must wait.
FAILURES, FAILURES_S = 20, 60.0
#: Threads that read logs, and logs that are read for one user at a time, or wait for it.
LOG_THREADS, LOGS_A_USER, WAITING_A_USER = 8, 4, 100
#: Most addresses remembered; the least recently used one is dropped first.
_ADDRESSES = 10_000


class BodyLimit:
    """Refuses oversized bodies: by their content-length, or while they are read."""

    def __init__(self, app: ASGIApp, limit: int = BODY_LIMIT) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the size of the body, then pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced[:20]) > self._limit:
            await _drain_body(receive)
            await problem(413, self._sentence)(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    @property
    def _sentence(self) -> str:
        return f"A request may have at most {self._limit // 2**20} MiB: send less at a time."

    def _counted(self, receive: Receive) -> Receive:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                await _drain_body(receive, message)
                raise HTTPException(413, self._sentence)
            return message

        return counted


async def _drain_body(receive: Receive, message: Message | None = None) -> None:
    """Read and drop the rest of an oversized body: a client whose sending is cut off does not read the answer."""
    received = 0
    while received < DRAIN_BYTES and (message is None or message.get("more_body", False)):
        message = await receive()
        received += len(message.get("body", b""))


class FailedLogins:
    """Counts wrong tokens by address.

    A valid token is never refused because of these: all users and jobs of a machine share an address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def fail(self, address: str) -> float:
        """Count a wrong token; returns the seconds that the address must wait, or 0."""
        now_s = self._clock()
        with self._lock:
            times = self._failed.setdefault(address, deque(maxlen=FAILURES))
            self._failed.move_to_end(address)
            if len(self._failed) > _ADDRESSES:
                self._failed.popitem(last=False)
            if len(times) == FAILURES and now_s - times[0] < FAILURES_S:
                return FAILURES_S - (now_s - times[0])
            times.append(now_s)
            return 0.0


class LogReads:
    """Who may read a log now. Of the event loop alone."""

    def __init__(self) -> None:
        #: Limiters belong to an event loop; each is made when it is first used.
        self._threads: CapacityLimiter | None = None
        self._users: dict[str, tuple[CapacityLimiter, list[int]]] = {}

    @property
    def threads(self) -> CapacityLimiter:
        """The threads that read logs; not those of other requests."""
        self._threads = self._threads or CapacityLimiter(LOG_THREADS)
        return self._threads

    @asynccontextmanager
    async def turn_of(self, user: str) -> AsyncIterator[None]:
        """Wait until a user may read a log. Too many that wait are refused."""
        limiter, waiting = self._users.setdefault(user, (CapacityLimiter(LOGS_A_USER), [0]))
        if waiting[0] >= WAITING_A_USER:
            raise HTTPException(429, "Too many logs are being read for you: wait until some have been read.")
        waiting[0] += 1
        try:
            # Requests are told apart by themselves, not by their task: a stream may read in several.
            borrower = object()
            await limiter.acquire_on_behalf_of(borrower)
            try:
                yield
            finally:
                limiter.release_on_behalf_of(borrower)
        finally:
            waiting[0] -= 1
            if not waiting[0]:
                self._users.pop(user, None)
