"""Who may do what: the caller by token and role, and the service, as dependencies of handlers."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from horae.core.states import ALIVE
from horae.service.api.limits import CallerLimits, FailedLogins, LogReads, Streams, caller_limits
from horae.service.daemon import Daemon
from horae.service.local_users import LocalUsers
from horae.service.operations import Operations
from horae.service.roles import Caller
from horae.service.standby import Follower
from horae.service.tokens import Tokens
from horae.service.views.event_sentences import EventSentence, EventSentences
from horae.service.views.views import ServiceViews

if TYPE_CHECKING:
    from horae.service.api.event_hub import EventHub

_bearer = HTTPBearer(auto_error=False, description="A token of `horae token create`, or that of the state folder.")
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


@dataclass
class Service:
    """The service as handlers see it. All of it but the daemon outlives the takeover by a standby."""

    daemon: Daemon | Follower
    tokens: Tokens
    local_users: LocalUsers = field(default_factory=LocalUsers)
    failed: FailedLogins = field(default_factory=FailedLogins)
    #: Open streams and waiting requests for offers.
    streams: Streams = field(default_factory=Streams)
    #: Logs that are read now, by user.
    log_reads: LogReads = field(default_factory=LogReads)
    #: Set when the service shuts down, so that streams end.
    leaving: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.answer_from(self.daemon, self.tokens)

    def answer_from(self, daemon: Daemon | Follower, tokens: Tokens) -> None:
        """Answer from this daemon from now on: a standby that takes over gets one. Streams go on."""
        self.operations, self.daemon, self.tokens = Operations(daemon), daemon, tokens

    @cached_property
    def hub(self) -> EventHub:
        """Tells events to all streams."""
        from horae.service.api.event_hub import EventHub

        return EventHub(self)

    async def caller(self, token: str | None, uid: int | None) -> Caller | None:
        """The caller by token, or without one by the account at the other end of the Unix socket."""
        if token is not None:
            return self.tokens.caller(token)
        return await self.local_users.caller(uid) if uid is not None else None

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

    def limits_of(self, caller: Caller) -> CallerLimits:
        """What the caller may ask of the service."""
        return caller_limits(caller, self.operations.rights.limits_of(caller))

    @property
    def closing(self) -> bool:
        """Whether streams should end."""
        return self.daemon.closing or self.leaving.is_set()


async def service_of(request: Request) -> Service:
    """The service of a request."""
    service: Service = request.app.state.service
    return service


ServiceGiven = Annotated[Service, Depends(service_of)]


async def caller_of(request: Request, service: ServiceGiven, credentials: _Credentials) -> Caller:
    """The caller, whom `Admission` has found by token or account; 401 without one."""
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        raise refused_token(service, _peer(request), is_given=credentials is not None)
    return caller


CallerGiven = Annotated[Caller, Depends(caller_of)]


async def token_still_valid(
    request: Request, service: ServiceGiven, credentials: _Credentials
) -> Callable[[], Awaitable[bool]]:
    """A function that says whether the request's token, or account, is still valid."""
    token = credentials.credentials if credentials else None

    async def is_valid() -> bool:
        return await service.caller(token, getattr(request.state, "uid", None)) is not None

    return is_valid


async def stream_opener(request: Request, service: ServiceGiven, caller: CallerGiven) -> Callable[[], None]:
    """A function that counts a stream, or a waiting request, until its answer ends, and refuses one too many."""

    def open_stream() -> None:
        request.state.ending.enter_context(service.streams.opened(caller.user, service.limits_of(caller)))
        # It keeps no thread, so that it needs no slot of the caller's requests.
        request.state.give_back()

    return open_stream


async def check_attempt(
    request: Request, service: ServiceGiven, credentials: _Credentials, job: str, attempt: int
) -> None:
    """Admit an attempt by its own token, while the attempt lives."""
    token = credentials.credentials if credentials else ""
    if not service.tokens.is_of_job(token, job, attempt) or _is_over(service.daemon, job, attempt):
        raise refused_token(service, _peer(request), is_given=credentials is not None)


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


def _peer(request: Request) -> str:
    return str(getattr(request.state, "peer", ""))


def refused_token(service: Service, peer: str, is_given: bool) -> HTTPException:
    """The refusal of a request without a valid token. Wrong tokens of a peer are counted."""
    headers = {"WWW-Authenticate": "Bearer"}
    if not is_given:
        return HTTPException(401, "A token is needed: send it as `Authorization: Bearer TOKEN`.", headers)
    wait_s = service.failed.fail(peer)
    if wait_s > 0:
        wait = {"Retry-After": str(int(wait_s) + 1)}
        return HTTPException(429, f"Too many wrong tokens: wait {wait_s:.0f} s, then try the right one.", wait)
    return HTTPException(401, "This token is unknown, expired or revoked: ask an admin for a new one.", headers)


StreamOpener = Annotated[Callable[[], None], Depends(stream_opener)]
TokenStillValid = Annotated[Callable[[], Awaitable[bool]], Depends(token_still_valid)]
