"""What a handler is given: the service, who asks, and what can be looked at."""

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

from horae.core.states import ALIVE
from horae.service.api.limits import FailedLogins
from horae.service.daemon import Daemon
from horae.service.operations import Operations
from horae.service.roles import Caller
from horae.service.tokens import Tokens
from horae.service.views.event_sentences import EventSentence, EventSentences
from horae.service.views.views import ServiceViews

#: Streams that one user may have open.
MOST_STREAMS = 50

_bearer = HTTPBearer(auto_error=False, description="A token of `horae token create`, or the one in the state folder.")
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


@dataclass(frozen=True)
class Service:
    """Everything that handlers need."""

    daemon: Daemon
    operations: Operations
    tokens: Tokens
    failed: FailedLogins = field(default_factory=FailedLogins)
    #: Streams that are open and offers that are waited for, by user.
    streams: Counter[str] = field(default_factory=Counter)
    #: Set when the service leaves, so that streams end.
    leaving: threading.Event = field(default_factory=threading.Event)

    def views(self) -> ServiceViews:
        """What can be looked at now."""
        daemon = self.daemon
        return ServiceViews(daemon.standing, daemon.tasks, daemon.store.epoch, daemon.clock())

    def teller(self) -> EventSentences:
        """What tells records now."""
        return EventSentences(self.daemon.standing, self.daemon.tasks)

    def sees(self, who: Caller, job: str) -> bool:
        """Whether somebody may see a job."""
        task = self.daemon.tasks.get(job)
        return who.sees_all or (task is not None and task.user == who.user)

    def shows(self, who: Caller, one: EventSentence, at_s: float) -> bool:
        """Whether somebody may hear of what happened at a moment: to their jobs and apps, and to the cluster."""
        if one.job:
            return self.sees(who, one.job)
        return not one.app or who.sees_all or self.operations.sees_app(who, one.app, at_s)

    def check_room(self, who: Caller) -> None:
        """Refuse somebody who waits for too much at once already."""
        if self.streams[who.user] >= MOST_STREAMS:
            raise HTTPException(429, f"You have {MOST_STREAMS} streams open: end one first.", {"Retry-After": "5"})

    @contextmanager
    def waiting(self, who: Caller) -> Iterator[None]:
        """Count somebody who waits for news."""
        self.streams[who.user] += 1
        try:
            yield
        finally:
            self.streams[who.user] -= 1

    @property
    def closing(self) -> bool:
        """Whether streams should end."""
        return self.daemon.closing or self.leaving.is_set()


async def service_of(request: Request) -> Service:
    """The service that a request came to."""
    service: Service = request.app.state.service
    return service


ServiceGiven = Annotated[Service, Depends(service_of)]


async def person_of(request: Request, service: ServiceGiven, credentials: _Credentials) -> Caller:
    """Who asks; those without a good token learn nothing."""
    who = service.tokens.person(credentials.credentials) if credentials else None
    if who is None:
        raise _unknown(request, service, given=credentials is not None)
    return who


async def still_good(service: ServiceGiven, credentials: _Credentials) -> Callable[[], bool]:
    """Tells at any later time whether the token that was shown still opens anything."""
    token = credentials.credentials if credentials else ""
    return lambda: service.tokens.person(token) is not None


async def check_attempt(
    request: Request, service: ServiceGiven, credentials: _Credentials, job: str, attempt: int
) -> None:
    """Let an attempt in by its own token, while it lives."""
    token = credentials.credentials if credentials else ""
    if not service.tokens.is_of_job(token, job, attempt) or _is_over(service.daemon, job, attempt):
        raise _unknown(request, service, given=credentials is not None)


def _is_over(daemon: Daemon, job: str, attempt: int) -> bool:
    """Whether an attempt, which there was, is known to have ended; its job may even have been forgotten.

    An attempt that has just begun may not be shown yet, but its job is.
    """
    at = daemon.standing
    row = at.row(job)
    if row is None:
        return True
    newest = int(at.columns["attempt"][row])
    return newest > attempt or (newest == attempt and at.state(row) not in ALIVE)


def _unknown(request: Request, service: Service, given: bool) -> HTTPException:
    headers = {"WWW-Authenticate": "Bearer"}
    if not given:
        return HTTPException(401, "A token is needed: send it as `Authorization: Bearer TOKEN`.", headers)
    wait_s = service.failed.fail(request.client.host if request.client else "")
    if wait_s > 0:
        wait = {"Retry-After": str(int(wait_s) + 1)}
        return HTTPException(429, f"Too many wrong tokens: wait {wait_s:.0f} s, then try the right one.", wait)
    return HTTPException(401, "This token is not known, has expired or was revoked: ask an admin for one.", headers)


PersonGiven = Annotated[Caller, Depends(person_of)]
StillGood = Annotated[Callable[[], bool], Depends(still_good)]
