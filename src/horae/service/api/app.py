"""The FastAPI application: all endpoints, the body limit, and error handling."""

from __future__ import annotations

from fastapi import FastAPI

from horae import __version__
from horae.service.api import admin, agents, health, jobs, streams
from horae.service.api.auth import Service
from horae.service.api.errors import RESPONSES, handle_errors
from horae.service.api.limits import BodyLimit
from horae.service.daemon import Daemon
from horae.service.operations import Operations
from horae.service.standby import Follower
from horae.service.tokens import Tokens

_ABOUT = 'Submit, watch and steer training jobs on shared GPUs. Errors are `{"error": "one sentence"}`.'


def make_app(daemon: Daemon | Follower, tokens: Tokens) -> FastAPI:
    """The API of a daemon, or of a standby; `app.state.service.leaving` ends its streams."""
    app = FastAPI(
        title="Horae",
        version=__version__,
        description=_ABOUT,
        # Disabled: these pages load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        responses=RESPONSES,
    )
    answer_from(app, daemon, tokens)
    app.add_middleware(BodyLimit)
    handle_errors(app)
    for part in (jobs, streams, agents, admin, health):
        app.include_router(part.router)
    return app


def answer_from(app: FastAPI, daemon: Daemon | Follower, tokens: Tokens) -> None:
    """Have the API answer from this daemon from now on: a standby that takes over gets one."""
    app.state.service = Service(daemon, Operations(daemon), tokens)
