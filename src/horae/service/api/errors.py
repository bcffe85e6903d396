"""What becomes of everything that goes wrong: one sentence, and the status that says whose fault it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from horae.core.errors import UserError, in_plain_words
from horae.crash import write_report
from horae.service.daemon import Closed
from horae.service.job_file import complaint, most_telling
from horae.service.roles import Forbidden, NotFound
from horae.service.store.connection import StoreTrouble

#: No sentence is longer, whatever was asked for.
_LONGEST = 600
#: Statuses of errors that are a user's to mend, or only time's; all others are 400.
_STATUS: dict[type[UserError], int] = {Forbidden: 403, NotFound: 404, StoreTrouble: 503, Closed: 503}


class Problem(BaseModel):
    """What went wrong, and what to do about it."""

    error: str


#: What every endpoint may answer, for the API's description.
RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "It cannot be done as asked."},
    401: {"model": Problem, "description": "No token, or one that is not good."},
    403: {"model": Problem, "description": "The token's role does not allow it."},
    404: {"model": Problem, "description": "It is not there, or not for you to see."},
    413: {"model": Problem, "description": "The request is too large."},
    422: {"model": Problem, "description": "The request has not the form that it should have."},
    429: {"model": Problem, "description": "Too many: wait a while."},
    500: {"model": Problem, "description": "A bug of Horae's; a report was written on the server."},
    503: {"model": Problem, "description": "The service cannot do it now; try again."},
}


def handle_errors(app: FastAPI) -> None:
    """Have every error answered by a sentence."""
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _bad_form)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(TimeoutError, _too_slow)
    app.add_middleware(Bugs)


def problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error as it is answered: one line of characters that any terminal can show."""
    plain = " ".join(sentence.split()).encode("utf-8", "backslashreplace").decode()
    short = plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}..."
    return JSONResponse({"error": short}, status, headers)


async def _user_error(request: Request, error: Exception) -> JSONResponse:
    status = next((number for kind, number in _STATUS.items() if isinstance(error, kind)), 400)
    return problem(status, str(error), {"Retry-After": "1"} if status == 503 else None)


async def _bad_form(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = most_telling(error.errors())
    if first["loc"] == ("body",) and "json" not in request.headers.get("content-type", "json"):
        return problem(422, "The request's body is not said to be JSON: send it with `Content-Type: application/json`.")
    return problem(422, _form_sentence(first, _holds_jobs(request)))


def _holds_jobs(request: Request) -> bool:
    return request.method == "POST" and request.url.path == "/v1/jobs"


def _form_sentence(first: Mapping[str, Any], jobs: bool) -> str:
    """The first thing that is wrong with a request, and where it stands."""
    loc: Sequence[int | str] = first["loc"]
    if jobs and len(loc) > 2 and loc[0] == "body":
        return f"Job {int(loc[1]) + 1}: {complaint(loc[2:], first['type'], first['msg'])}"
    if first["type"] == "json_invalid":
        return "The request's body is not JSON."
    place = ".".join(str(part) for part in loc[1:]) or "the body"
    return f"{place}: {in_plain_words(first['msg']).rstrip('.')}."


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    known = {
        404: f"There is nothing at {request.url.path}; GET /openapi.json describes what there is.",
        405: f"{request.url.path} does not take {request.method}.",
    }
    plain = error.detail in ("Not Found", "Method Not Allowed")
    headers = _allowed(request) if error.status_code == 405 else error.headers
    return problem(error.status_code, known[error.status_code] if plain else error.detail, headers)


def _allowed(request: Request) -> dict[str, str]:
    """All that a path takes: the framework names only what its first endpoint there does."""
    about = request.app.openapi()["paths"]
    here = [methods for path, methods in about.items() if compile_path(path)[0].match(request.url.path)]
    return {"Allow": ", ".join(sorted({method.upper() for methods in here for method in methods}))}


async def _too_slow(request: Request, error: Exception) -> JSONResponse:
    return problem(503, "The service is busy and did not get to it in time; look whether it happened, and try again.")


class Bugs:
    """Answers a bug of ours in a line and keeps it in a file.

    The framework's own way to catch everything raises it again after the answer, and the server drops the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through what goes well."""
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            path = write_report(error, ["serve", scope["method"], scope["path"]])
            sentence = f"This is a bug in horae ({type(error).__name__}); the operator finds a report in {path.name}."
            await problem(500, sentence)(scope, receive, send)
