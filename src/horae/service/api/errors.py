"""Errors of the API: one sentence, with the right HTTP status."""

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
from horae.service.job_file import error_sentence, most_helpful_error
from horae.service.roles import Caller, Forbidden, NotFound
from horae.service.standby import StandingBy
from horae.service.store.connection import StoreTrouble

#: Header of an answer that refuses because another service is active.
STANDBY_HEADER = "Horae-Standby"
#: Longest sentence in characters.
_LONGEST = 600
#: HTTP statuses of user errors; all others are 400.
_STATUS: dict[type[UserError], int] = {Forbidden: 403, NotFound: 404, StoreTrouble: 503, Closed: 503, StandingBy: 503}


_JOURNAL_TROUBLE = "The journal cannot be used now: try again in a moment, and tell an admin if that does not help."


class Problem(BaseModel):
    """What went wrong, and what to do."""

    error: str


#: Error responses of every endpoint, for the API's description.
RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The request cannot be performed."},
    401: {"model": Problem, "description": "No token, or an invalid token."},
    403: {"model": Problem, "description": "The token's role does not allow it."},
    404: {"model": Problem, "description": "Not found, or not visible to you."},
    413: {"model": Problem, "description": "The request is too large."},
    421: {"model": Problem, "description": "The service has not the name that was asked for."},
    422: {"model": Problem, "description": "The request has a wrong format."},
    429: {"model": Problem, "description": "Too many requests: wait a while."},
    500: {"model": Problem, "description": "A bug in Horae; a report was written on the server."},
    503: {"model": Problem, "description": "The service cannot do this now: try again."},
}


def handle_errors(app: FastAPI) -> None:
    """Answer every error with a sentence."""
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(TimeoutError, _timed_out)
    app.add_middleware(UnexpectedErrors)


def problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error as a response: one line of printable characters."""
    plain = " ".join(sentence.split()).encode("utf-8", "backslashreplace").decode()
    short = plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}..."
    return JSONResponse({"error": short}, status, headers)


async def _user_error(request: Request, error: Exception) -> JSONResponse:
    return refusal(error, getattr(request.state, "caller", None))


def refusal(error: Exception, caller: Caller | None) -> JSONResponse:
    """A `UserError` as a response."""
    status = next((number for error_type, number in _STATUS.items() if isinstance(error, error_type)), 400)
    headers = {"Retry-After": "1"} if status == 503 else {}
    if isinstance(error, StoreTrouble) and (caller is None or not caller.is_admin):
        # The error may name the journal's path or host, which only admins need to know.
        return problem(status, _JOURNAL_TROUBLE, headers)
    return problem(status, str(error), headers | ({STANDBY_HEADER: "1"} if isinstance(error, StandingBy) else {}))


async def _invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = most_helpful_error(error.errors())
    if first["loc"] == ("body",) and "json" not in request.headers.get("content-type", "json"):
        return problem(422, "The request is not declared as JSON: send it with `Content-Type: application/json`.")
    return problem(422, _validation_sentence(first, _holds_jobs(request)))


def _holds_jobs(request: Request) -> bool:
    return request.method == "POST" and request.url.path == "/v1/jobs"


def _validation_sentence(first: Mapping[str, Any], jobs: bool) -> str:
    """A validation error as a sentence, with the place in the request."""
    loc: Sequence[int | str] = first["loc"]
    if jobs and len(loc) > 2 and loc[0] == "body":
        return f"Job {int(loc[1]) + 1}: {error_sentence(loc[2:], first['type'], first['msg'])}"
    if first["type"] == "json_invalid":
        return "The request's body is not JSON."
    place = ".".join(str(part) for part in loc[1:]) or "the body"
    return f"{place}: {in_plain_words(first['msg']).rstrip('.')}."


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    sentences = {
        404: f"There is nothing at {request.url.path}; GET /openapi.json describes what there is.",
        405: f"{request.url.path} does not take {request.method}.",
    }
    plain = error.detail in ("Not Found", "Method Not Allowed")
    headers = _allowed(request) if error.status_code == 405 else error.headers
    return problem(error.status_code, sentences[error.status_code] if plain else error.detail, headers)


def _allowed(request: Request) -> dict[str, str]:
    """All methods of a path; the framework names only those of its first endpoint."""
    about = request.app.openapi()["paths"]
    here = [methods for path, methods in about.items() if compile_path(path)[0].match(request.url.path)]
    return {"Allow": ", ".join(sorted({method.upper() for methods in here for method in methods}))}


async def _timed_out(request: Request, error: Exception) -> JSONResponse:
    return problem(
        503, "The service is too busy to answer in time: check whether the request was done, then try again."
    )


class UnexpectedErrors:
    """Answers a bug in one line and writes a crash report.

    The framework's own handler raises the error again after the answer, and the server drops the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; answer an unexpected error."""
        begun = False

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            path = write_report(error, ["serve", scope["method"], scope["path"]])
            sentence = f"This is a bug in horae ({type(error).__name__}); the operator finds a report in {path.name}."
            await problem(500, sentence)(scope, receive, send)
