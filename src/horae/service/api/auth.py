"""Who may do what: the caller by token and role, and the service, as dependencies of handlers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from horae.core.limits import Limits
from horae.core.states import ALIVE
from horae.service.api.limits import FailedLogins, LogReads
from horae.service.daemon import Daemon
from horae.service.operations import Operations
from horae.service.roles import Caller, Forbidden
from horae.service.standby import Follower
from horae.service.tokens import Tokens
from horae.service.views.event_sentences import EventSentence, EventSentences
from horae.service.views.views import ServiceViews

#: Most streams that one user may have open.
MOST_STREAMS = 50

_bearer = HTTPBearer(auto_error=False, description="A token of `horae token create`, or that of the state folder.")
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


@dataclass(frozen=True)
class Service:
    """The service as handlers see it."""

    daemon: Daemon | Follower
    operations: Operations
    tokens: Tokens
    failed: FailedLogins = field(default_factory=FailedLogins)
    #: Open streams and waiting requests for offers, by user.
    streams: Counter[str] = field(default_factory=Counter)
    #: Logs that are read now, by user.
    log_reads: LogReads = field(default_factory=LogReads)
    #: Set when the service shuts down, so that streams end.
    leaving: threading.Event = field(default_factory=threading.Event)

    def views(self) -> ServiceViews:
        """Views of the current cluster status."""
        daemon = self.daemon
        return ServiceViews(daemon.status, daemon.tasks, daemon.store.epoch, daemon.clock())

    def event_sentences(self) -> EventSentences:
        """Makes sentences from records, with the current cluster status."""
        return EventSentences(self.daemon.status, self.daemon.tasks)

    def may_see_job(self, caller: Caller, job: str) -> bool:
        """Whether the caller may see a job."""
        return caller.lists_all or self.views().sees_job(caller, job)

    def may_see_event(self, caller: Caller, sentence: EventSentence, at_s: float) -> bool:
        """Whether the caller may see an event of `at_s`: events of own jobs and apps, and of the cluster."""
        if sentence.job:
            return self.may_see_job(caller, sentence.job)
        return not sentence.app or caller.lists_all or self.operations.sees_app(caller, sentence.app, at_s)

    def limits_of(self, caller: Caller) -> Limits:
        """The limits of the caller: requests in a second, streams and reads of logs at a time, and others."""
        return self.operations.rights.limits_of(caller)

    def check_stream_limit(self, caller: Caller) -> None:
        """Refuse a caller who has too many streams open."""
        limit = self.limits_of(caller).streams
        most = MOST_STREAMS if limit is None else limit
        if self.streams[caller.user] >= most:
            raise HTTPException(429, f"You have {most} streams open: end one first.", {"Retry-After": "5"})

    @contextmanager
    def counted_stream(self, caller: Caller) -> Iterator[None]:
        """Count an open stream of the caller."""
        self.streams[caller.user] += 1
        try:
            yield
        finally:
            self.streams[caller.user] -= 1

    @property
    def closing(self) -> bool:
        """Whether streams should end."""
        return self.daemon.closing or self.leaving.is_set()


async def service_of(request: Request) -> Service:
    """The service of a request. A standby answers only requests that change nothing."""
    service: Service = request.app.state.service
    if isinstance(service.daemon, Follower) and request.method not in ("GET", "HEAD"):
        raise service.daemon.refusal()
    return service


ServiceGiven = Annotated[Service, Depends(service_of)]


async def caller_of(request: Request, service: ServiceGiven, credentials: _Credentials) -> Caller:
    """The caller by token; 401 without a valid token."""
    caller = service.tokens.caller(credentials.credentials) if credentials else None
    if caller is None:
        raise _unauthorized(request, service, given=credentials is not None)
    if caller.scope.submit_only and (request.method, request.url.path) != ("POST", "/v1/jobs"):
        raise Forbidden("This token is for submitting jobs only: use another one.")
    return caller


async def token_still_valid(service: ServiceGiven, credentials: _Credentials) -> Callable[[], bool]:
    """A function that says whether the request's token is still valid."""
    token = credentials.credentials if credentials else ""
    return lambda: service.tokens.caller(token) is not None


async def check_attempt(
    request: Request, service: ServiceGiven, credentials: _Credentials, job: str, attempt: int
) -> None:
    """Admit an attempt by its own token, while the attempt lives."""
    token = credentials.credentials if credentials else ""
    if not service.tokens.is_of_job(token, job, attempt) or _is_over(service.daemon, job, attempt):
        raise _unauthorized(request, service, given=credentials is not None)


def _is_over(daemon: Daemon | Follower, job: str, attempt: int) -> bool:
    """Whether an existing attempt has ended; also true if its job has left the service.

    An attempt that has just started may not be in the published status yet, but its job is.
    """
    status = daemon.status
    row = status.row(job)
    if row is None:
        return True
    newest = int(status.columns["attempt"][row])
    return newest > attempt or (newest == attempt and status.state(row) not in ALIVE)


def _unauthorized(request: Request, service: Service, given: bool) -> HTTPException:
    headers = {"WWW-Authenticate": "Bearer"}
    if not given:
        return HTTPException(401, "A token is needed: send it as `Authorization: Bearer TOKEN`.", headers)
    wait_s = service.failed.fail(request.client.host if request.client else "")
    if wait_s > 0:
        wait = {"Retry-After": str(int(wait_s) + 1)}
        return HTTPException(429, f"Too many wrong tokens: wait {wait_s:.0f} s, then try the right one.", wait)
    return HTTPException(401, "This token is unknown, expired or revoked: ask an admin for a new one.", headers)


CallerGiven = Annotated[Caller, Depends(caller_of)]
TokenStillValid = Annotated[Callable[[], bool], Depends(token_still_valid)]
