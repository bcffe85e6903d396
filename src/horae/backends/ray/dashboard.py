"""Asks Ray's dashboard over HTTP: the Jobs API and the state API. Needs no `ray` here.

Each request has a time limit and a connection of its own. Whatever keeps an answer from coming is `OutOfSight`: it
may have been the request that was lost, or only its answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from horae.backends.driver import OutOfSight
from horae.core.errors import UserError

#: Variable with the token of a Ray cluster that asks for one (RAY_AUTH_MODE=token), as Ray's own clients read it.
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
#: Entries that the state API lists at most. Its own default is 100, which would hide nodes.
_MOST_ENTRIES = 10_000


class BadRayAddress(UserError):
    """An address that cannot be a dashboard's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the dashboard answered."""

    status: int
    text: str

    @property
    def is_good(self) -> bool:
        """Whether the request was done."""
        return self.status < 300

    @property
    def last_line(self) -> str:
        """The last line with words: of a traceback, what went wrong."""
        lines = [line.strip() for line in self.text.splitlines() if any(map(str.isalnum, line))]
        return lines[-1] if lines else f"HTTP status {self.status}"

    def read_json(self) -> Any:
        """The value in the answer."""
        try:
            return json.loads(self.text)
        except ValueError:
            raise OutOfSight("Ray's dashboard gave an answer that cannot be read.") from None


class Dashboard:
    """The dashboard of one Ray cluster, by its address, such as `http://head:8265`."""

    def __init__(self, address: str, limit_s: float = 10.0, token: str | None = None) -> None:
        self.address = address.rstrip("/")
        self._parts = _checked(self.address)
        self._limit_s = limit_s
        self._token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token

    def ask(self, method: str, path: str, content: object = None, data: bytes | None = None) -> Answer:
        """Send a request, with a JSON value or with bytes, and return the answer, good or bad."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if data is None and content is not None:
            data, headers = json.dumps(content).encode(), {**headers, "Content-Type": "application/json"}
        connection = self._connect()
        try:
            connection.request(method, self._parts.path + path, data, headers)
            response = connection.getresponse()
            answer = Answer(response.status, response.read().decode("utf-8", "replace"))
        except (OSError, HTTPException) as why:
            said = f": {why}" if str(why) else ""
            raise OutOfSight(f"Ray's dashboard does not answer ({type(why).__name__}{said}).") from None
        finally:
            connection.close()
        if answer.status in (401, 403):
            raise OutOfSight(f"Ray's dashboard wants another token than that in {TOKEN_VARIABLE}.")
        return answer

    def read(self, path: str) -> Any:
        """The JSON value at a path; a bad answer is no answer."""
        answer = self.ask("GET", path)
        if not answer.is_good:
            raise OutOfSight(f"Ray's dashboard cannot answer now: {answer.last_line}.")
        return answer.read_json()

    def read_state(self, what: str, filters: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Entries of the state API, such as `nodes` or `actors`, that have these values."""
        query: list[tuple[str, str]] = [("detail", "1"), ("limit", str(_MOST_ENTRIES))]
        for key, value in (filters or {}).items():
            query += [("filter_keys", key), ("filter_predicates", "="), ("filter_values", value)]
        found = self.read(f"/api/v0/{what}?{urlencode(query)}")
        try:
            entries: list[dict[str, Any]] = found["data"]["result"]["result"]
        except (KeyError, TypeError):
            raise OutOfSight(f"Ray's dashboard does not list {what} in a form that is known here.") from None
        return entries

    def _connect(self) -> HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        return kind(host, port, timeout=self._limit_s)


def job_path(submission_id: str, more: str = "") -> str:
    """Where the Jobs API has a job."""
    return f"/api/jobs/{quote(submission_id, safe='')}{more}"


def _checked(address: str) -> Any:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise BadRayAddress(
            f"{address!r} is not the address of a Ray dashboard: write it like http://head:8265, as `ray start` does."
        )
    return parts
