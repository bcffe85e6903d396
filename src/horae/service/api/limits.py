"""Limits: size and form of a request's body, requests, streams and log reads of a caller, wrong tokens."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from anyio import CapacityLimiter
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from horae.core.limits import Limits
from horae.service.api.errors import problem
from horae.service.roles import Caller

#: Most bytes of a request's body.
BODY_LIMIT = 4 * 1024 * 1024
#: Most bytes of an oversized body that are read and dropped before it is refused.
DRAIN_BYTES = 64 * 1024 * 1024
#: Bytes of a body from which its form is looked at first: what is smaller cannot keep the service busy.
_LARGE_BODY = 64 * 1024
#: Most keys of an object, items of a list, and characters of a key in a body.
MOST_KEYS, MOST_ITEMS, LONGEST_KEY = 1000, 10_000, 1000
#: Wrong tokens that one address may send within FAILURES_S seconds; after that it must wait.
FAILURES, FAILURES_S = 20, 60.0
#: Most addresses or callers remembered; the least recently used one is dropped first.
_REMEMBERED = 10_000

_Counted = TypeVar("_Counted")


@dataclass(frozen=True)
class CallerLimits:
    """What one caller may ask of the service."""

    #: Requests a second in the long run, and at once after a while without any.
    requests_per_s: float
    burst: int
    #: Requests that are worked on at the same time. Further ones wait.
    at_once: int
    #: Open streams, and waiting requests for offers.
    streams: int
    #: Logs that are read at the same time. Further ones wait.
    log_reads: int


#: Limits of callers for whom admins have set none; the service has 40 threads for requests of all.
USER_LIMITS = CallerLimits(requests_per_s=50.0, burst=250, at_once=8, streams=50, log_reads=4)
ADMIN_LIMITS = CallerLimits(requests_per_s=200.0, burst=1000, at_once=24, streams=100, log_reads=4)
#: Limits of the reports of one attempt: `horae.train` sends one a second, and one for each checkpoint.
REPORT_LIMITS = CallerLimits(requests_per_s=10.0, burst=50, at_once=2, streams=0, log_reads=0)
#: Most streams of all callers together.
MOST_STREAMS = 500
#: Threads that read logs, and reads of a user's logs that may wait.
LOG_THREADS, WAITING_A_USER = 8, 100


def caller_limits(caller: Caller, given: Limits) -> CallerLimits:
    """The limits of a caller: those that admins have set, else those of the role."""
    limits = ADMIN_LIMITS if caller.is_admin else USER_LIMITS
    if (rate := given.requests_per_s) is not None:
        limits = replace(limits, requests_per_s=rate, burst=max(1, round(rate * limits.burst / limits.requests_per_s)))
    if given.streams is not None:
        limits = replace(limits, streams=given.streams)
    return limits if given.log_reads is None else replace(limits, log_reads=given.log_reads)


# -------------------------------------------------------------------------- bodies


class BodyLimit:
    """Refuses bodies that are too large, or of a form that would take long to look through."""

    def __init__(self, app: ASGIApp, limit: int = BODY_LIMIT) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read and check the body, then pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced[:20]) > self._limit:
            await _drain_body(receive)
            await problem(413, self._sentence)(scope, receive, send)
            return
        body, last = bytearray(), await receive()
        while last["type"] == "http.request":
            body += last.get("body", b"")
            if len(body) > self._limit:
                await _drain_body(receive, last)
                await problem(413, self._sentence)(scope, receive, send)
                return
            if not last.get("more_body", False):
                break
            last = await receive()
        if wrong := _wrong_form(bytes(body)) if len(body) > _LARGE_BODY else "":
            await problem(422, wrong)(scope, receive, send)
            return
        whole: Message = {"type": "http.request", "body": bytes(body), "more_body": False}
        await self._app(scope, _first(whole if last["type"] == "http.request" else last, receive), send)

    @property
    def _sentence(self) -> str:
        return f"A request may have at most {self._limit // 2**20} MiB: send less at a time."


def _first(message: Message, receive: Receive) -> Receive:
    """Receive this message first, then what comes."""
    messages = [message]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received


async def _drain_body(receive: Receive, message: Message | None = None) -> None:
    """Read and drop the rest of an oversized body: a client whose sending is cut off does not read the answer."""
    received = 0
    while received < DRAIN_BYTES and (message is None or message.get("more_body", False)):
        message = await receive()
        received += len(message.get("body", b""))


class _WrongForm(Exception):
    pass


def _wrong_form(body: bytes) -> str:
    """What is wrong with the form of a large body; nothing if it is no JSON, which is told elsewhere.

    Each unknown key and each wrong item would become an error of its own: millions of them take seconds.
    """
    try:
        content = json.loads(body, object_pairs_hook=_checked_object)
    except _WrongForm as wrong:
        return str(wrong)
    except (ValueError, RecursionError):
        return ""
    return _too_many_items(content)


def _checked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MOST_KEYS:
        raise _WrongForm(f"An object in the request has {len(pairs)} keys: {MOST_KEYS} is the most.")
    for key, value in pairs:
        if len(key) > LONGEST_KEY:
            raise _WrongForm(f"A key in the request has {len(key)} characters: {LONGEST_KEY} is the most.")
        if wrong := _too_many_items(value):
            raise _WrongForm(wrong)
    return dict(pairs)


def _too_many_items(value: object) -> str:
    if isinstance(value, list) and len(value) > MOST_ITEMS:
        return f"A list in the request has {len(value)} items: {MOST_ITEMS} is the most."
    return ""


# ------------------------------------------------------------------------- callers


class _Remembered(Generic[_Counted]):
    """Something for each address or caller. The least recently used is forgotten first. Not thread-safe."""

    def __init__(self, new: Callable[[], _Counted]) -> None:
        self._new = new
        self._by_key: OrderedDict[Hashable, _Counted] = OrderedDict()

    def of(self, key: Hashable) -> _Counted:
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = self._new()
        self._by_key.move_to_end(key)
        if len(self._by_key) > _REMEMBERED:
            self._by_key.popitem(last=False)
        return found


@dataclass
class _Bucket:
    used: float = 0.0
    at_s: float = 0.0


class RequestRates:
    """Counts requests of callers. Used by the thread of the HTTP server only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: _Remembered[_Bucket] = _Remembered(_Bucket)

    def count(self, caller: Hashable, limits: CallerLimits) -> float:
        """Count a request; returns the seconds that the caller must wait before it, infinite if they may send none."""
        bucket, now_s = self._buckets.of(caller), self._clock()
        bucket.used = max(0.0, bucket.used - (now_s - bucket.at_s) * limits.requests_per_s)
        bucket.at_s = now_s
        if not limits.requests_per_s:
            return math.inf
        if bucket.used + 1 > limits.burst:
            return (bucket.used + 1 - limits.burst) / limits.requests_per_s
        bucket.used += 1
        return 0.0


class Turns:
    """Lets some of each caller go on at once; the others wait. Used by the thread of the HTTP server only."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, asyncio.Semaphore] = {}
        self._users: Counter[Hashable] = Counter()

    def count(self, caller: Hashable) -> int:
        """How many of a caller go on, or wait."""
        return self._users[caller]

    @asynccontextmanager
    async def taken(self, caller: Hashable, at_once: int) -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn and keep it; yields what gives it back before the end."""
        self._users[caller] += 1
        turns = self._turns.setdefault(caller, asyncio.Semaphore(at_once))
        try:
            await turns.acquire()
            kept = [turns]

            def give_back() -> None:
                if kept:
                    kept.pop().release()

            try:
                yield give_back
            finally:
                give_back()
        finally:
            self._users[caller] -= 1
            if not self._users[caller]:
                del self._users[caller], self._turns[caller]


class Streams:
    """Counts open streams. Used by the thread of the HTTP server only, so that nothing comes between look and count."""

    def __init__(self, most: int = MOST_STREAMS) -> None:
        self._most = most
        self.by_user: Counter[str] = Counter()

    @contextmanager
    def opened(self, user: str, limits: CallerLimits) -> Iterator[None]:
        """Count a stream while it is open; refuses a user who has too many, or one too many of all."""
        if self.by_user[user] >= limits.streams:
            raise HTTPException(429, f"You have {limits.streams} streams open: end one first.", {"Retry-After": "5"})
        if self.by_user.total() >= self._most:
            raise HTTPException(429, "All streams are in use: try again in a moment.", {"Retry-After": "5"})
        self.by_user[user] += 1
        try:
            yield
        finally:
            self.by_user[user] -= 1
            if not self.by_user[user]:
                del self.by_user[user]


class FailedLogins:
    """Counts wrong tokens by address.

    A valid token is never refused because of these: all users and jobs of a machine share an address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: _Remembered[deque[float]] = _Remembered(lambda: deque(maxlen=FAILURES))
        self._lock = threading.Lock()

    def fail(self, address: str) -> float:
        """Count a wrong token; returns the seconds that the address must wait, or 0."""
        now_s = self._clock()
        with self._lock:
            times = self._failed.of(address)
            if len(times) == FAILURES and now_s - times[0] < FAILURES_S:
                return FAILURES_S - (now_s - times[0])
            times.append(now_s)
            return 0.0


class LogReads:
    """Who may read a log now. Used by the thread of the HTTP server only."""

    def __init__(self) -> None:
        #: Made when it is first used: it belongs to an event loop.
        self._threads: CapacityLimiter | None = None
        self._turns = Turns()

    @property
    def threads(self) -> CapacityLimiter:
        """The threads that read logs; not those of other requests."""
        self._threads = self._threads or CapacityLimiter(LOG_THREADS)
        return self._threads

    @asynccontextmanager
    async def turn_of(self, user: str, limits: CallerLimits) -> AsyncIterator[None]:
        """Wait until a user may read a log. Too many that wait are refused."""
        if not limits.log_reads:
            raise HTTPException(429, "Your limit is no reads of logs: ask an admin to raise it.")
        if self._turns.count(user) >= WAITING_A_USER:
            raise HTTPException(429, "Too many logs are being read for you: wait until some have been read.")
        async with self._turns.taken(user, limits.log_reads):
            yield
