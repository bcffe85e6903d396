"""How much one request may hold, and how often somebody may be wrong."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from horae.service.api.errors import problem

#: Bytes that a request's body may have.
BODY_LIMIT = 4 * 1024 * 1024
#: Bytes of a body that is too large which are read, and dropped, before it is refused.
READ_ON = 64 * 1024 * 1024
#: So many wrong tokens from one address in so long are answered; after that it is told to wait.
FAILURES, FAILURES_S = 20, 60.0
#: Addresses that are remembered; the one heard of least lately goes first.
_ADDRESSES = 10_000


class BodyLimit:
    """Refuses bodies that are too large: by what they announce, or while they come."""

    def __init__(self, app: ASGIApp, limit: int = BODY_LIMIT) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count while the body comes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced[:20]) > self._limit:
            await _read_on(receive)
            await problem(413, self._sentence)(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    @property
    def _sentence(self) -> str:
        return f"A request may have up to {self._limit // 2**20} MiB: send less at a time."

    def _counted(self, receive: Receive) -> Receive:
        had = 0

        async def counted() -> Message:
            nonlocal had
            message = await receive()
            had += len(message.get("body", b""))
            if had > self._limit:
                await _read_on(receive, message)
                raise HTTPException(413, self._sentence)
            return message

        return counted


async def _read_on(receive: Receive, message: Message | None = None) -> None:
    """Let a sender say more than it may, within reason: one that is cut off in its speech hears no answer."""
    had = 0
    while had < READ_ON and (message is None or message.get("more_body", False)):
        message = await receive()
        had += len(message.get("body", b""))


class FailedLogins:
    """Wrong tokens by address.

    A good token is never refused for the wrong ones of a neighbour: all users and jobs of a machine share an address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def fail(self, address: str) -> float:
        """Count a wrong token; returns how many seconds the address has to wait, 0 if it need not."""
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
