"""Who comes in, before anything of a request's body is read: the host that was asked for, the caller, the limits."""

from __future__ import annotations

import ipaddress
import math
import re
import time
from collections.abc import Callable, Hashable
from contextlib import AsyncExitStack

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from horae.core.errors import UserError
from horae.service.api.access_log import AccessLog
from horae.service.api.auth import Service, refused_token
from horae.service.api.errors import problem, refusal
from horae.service.api.limits import REPORT_LIMITS, CallerLimits, RequestRates, Turns
from horae.service.roles import Forbidden
from horae.service.standby import Follower

#: Methods that change nothing, and what a token that is for submitting only may do.
_READING, _SUBMIT = ("GET", "HEAD"), ("POST", "/v1/jobs")
#: Paths that need no token.
_OPEN = re.compile(r"/v1/proof|(?!/v1/|/metrics).*", re.DOTALL)
_REPORT = re.compile(r"/v1/attempts/([^/]+)/([0-9]{1,10})/progress")
_BEARER = re.compile(r"bearer +(\S+) *", re.IGNORECASE)


class Admission:
    """Admits requests to the API. Handlers find the caller in the request's state, as `caller`.

    What a handler puts into `ending` of the state is closed at the end of the answer.
    """

    def __init__(
        self, app: ASGIApp, service: Service, is_own_name: Callable[[str], bool], log: AccessLog | None = None
    ) -> None:
        self._app, self._service, self._is_own_name, self._log = app, service, is_own_name, log
        self._rates, self._turns = RequestRates(), Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit the request and pass it on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state, status, began_s = scope.setdefault("state", {}), 0, time.monotonic()
        give_back: Callable[[], None] = lambda: None  # noqa: E731, replaced below

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # A stream keeps nobody waiting: what it costs is counted as a stream.
                give_back()
            await send(message)

        try:
            async with AsyncExitStack() as ending:
                state["ending"] = ending
                try:
                    self._check_host(scope)
                    self._check_active(scope)
                    if not _OPEN.fullmatch(scope["path"]):
                        give_back = await self._take_turn(ending, *await self._identify(scope))
                        state["give_back"] = give_back
                except HTTPException as why:
                    await problem(why.status_code, why.detail, why.headers)(scope, receive, send_noted)
                    return
                except UserError as why:
                    await refusal(why, state.get("caller"))(scope, receive, send_noted)
                    return
                await self._app(scope, receive, send_noted)
        finally:
            if self._log:
                caller = state.get("caller")
                user = caller.user if caller else state.get("attempt", "")
                self._log.note(state.get("peer", ""), user, scope, status, time.monotonic() - began_s)

    def _check_host(self, scope: Scope) -> None:
        """Refuse names that lead here though they are not the service's: a web page may have rebound its own name.

        An address cannot be rebound. A name that was checked by TLS, and a Unix socket, lead here for sure.
        """
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        if scope["scheme"] == "https" or scope.get("client") is None or not host:
            return
        name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
        if not _is_address(name) and not self._is_own_name(name.lower().rstrip(".")):
            raise HTTPException(
                421,
                f"This service is not called {name[:100]!r}: ask its operator for its address, who may add the name "
                "with `horae serve --server-name`.",
            )

    def _check_active(self, scope: Scope) -> None:
        """Refuse a change if this is a standby, before anything else is asked: it may not know a new token yet."""
        if isinstance(self._service.daemon, Follower) and scope["method"] not in _READING:
            raise self._service.daemon.refusal()

    async def _identify(self, scope: Scope) -> tuple[Hashable, CallerLimits]:
        """Whose request this is, for counting, and what they may; refuses who has no valid token."""
        service, state = self._service, scope["state"]
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        bearer = _BEARER.fullmatch(header.decode("latin-1"))
        token = bearer[1] if bearer else None
        report = _REPORT.fullmatch(scope["path"])
        if report and token and service.tokens.is_of_job(token, report[1], int(report[2])):
            state["attempt"] = f"{report[1]}/{report[2]}"
            return ("attempt", state["attempt"]), REPORT_LIMITS
        caller = await service.caller(token, state.get("uid")) if not report else None
        if caller is None:
            raise refused_token(service, state.get("peer", ""), is_given=token is not None)
        state["caller"] = caller
        if caller.scope.submit_only and (scope["method"], scope["path"]) != _SUBMIT:
            raise Forbidden("This token is for submitting jobs only: use another one.")
        return ("user", caller.user, caller.is_admin), service.limits_of(caller)

    async def _take_turn(self, ending: AsyncExitStack, whose: Hashable, limits: CallerLimits) -> Callable[[], None]:
        wait_s = self._rates.count(whose, limits)
        if math.isinf(wait_s):
            raise HTTPException(429, "Your limit is no requests at all: ask an admin to raise it.")
        if wait_s > 0:
            raise HTTPException(
                429,
                f"Too many requests, more than {limits.requests_per_s:g} a second: wait {wait_s:.1f} s, or send more "
                "at a time.",
                {"Retry-After": str(int(wait_s) + 1)},
            )
        return await ending.enter_async_context(self._turns.taken(whose, limits.at_once))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return False
    return True
