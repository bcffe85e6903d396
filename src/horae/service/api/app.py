"""The FastAPI application: all endpoints, the body limit, and error handling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import FastAPI

from horae import __version__
from horae.service.api import admin, agents, health, jobs, streams
from horae.service.api.access_log import AccessLog
from horae.service.api.admission import Admission
from horae.service.api.auth import Service
from horae.service.api.errors import RESPONSES, handle_errors
from horae.service.api.limits import BodyLimit
from horae.service.daemon import Daemon
from horae.service.local_users import LocalUsers
from horae.service.standby import Follower
from horae.service.tokens import Tokens

_ABOUT = 'Submit, watch and steer training jobs on shared GPUs. Errors are `{"error": "one sentence"}`.'


@dataclass(frozen=True)
class ApiOptions:
    """How the API is offered."""

    #: Whether a name, in lower case, is one of the service's own.
    is_own_name: Callable[[str], bool] = lambda name: name == "localhost"
    #: Callers that are known by their accounts on this machine.
    local_users: LocalUsers = field(default_factory=LocalUsers)
    access_log: AccessLog | None = None


def make_app(daemon: Daemon | Follower, tokens: Tokens, options: ApiOptions | None = None) -> FastAPI:
    """The API of a daemon, or of a standby.

    `app.state.service.leaving` ends its streams, and `answer_from` there has it answer from another daemon.
    """
    options = options or ApiOptions()
    app = FastAPI(
        title="Horae",
        version=__version__,
        description=_ABOUT,
        # Disabled: these pages load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        responses=RESPONSES,
    )
    app.state.service = service = Service(daemon, tokens, options.local_users)
    # The last one is the first that a request comes to.
    app.add_middleware(BodyLimit)
    app.add_middleware(Admission, service=service, is_own_name=options.is_own_name, log=options.access_log)
    handle_errors(app)
    for part in (jobs, streams, agents, admin, health):
        app.include_router(part.router)
    return app
