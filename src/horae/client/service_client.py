"""Client of one service over HTTP. Every failure is a `UserError` with one sentence."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from horae.client.address import Address, NoService, find_address
from horae.core.errors import UserError

if TYPE_CHECKING:
    from horae.client.failover import FailoverConnection
    from horae.client.http_connection import HttpConnection, Reply

#: Seconds for which a request is sent again if the service is asked too often, and longest wait between two of them.
_PATIENCE_S, _LONGEST_WAIT_S = 30.0, 5.0


class Refused(UserError):
    """The service refused a request."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class NotThere(Refused):
    """The service answered 404: not found."""


class Strange(UserError):
    """An answer that a Horae service of this version does not give."""


@dataclass(frozen=True)
class Message:
    """One server-sent event."""

    event: str
    data: dict[str, Any]


@contextmanager
def service(url: str | None) -> Iterator[ServiceClient]:
    """A client of the service at `url`, or of the default service."""
    with service_at(find_address(url)) as at:
        yield at


@contextmanager
def service_at(address: Address) -> Iterator[ServiceClient]:
    """A client of the service at an address."""
    from horae.client.failover import FailoverConnection
    from horae.client.http_connection import HttpConnection, Untrusted

    try:
        first, *others = (HttpConnection(url, address.token, address.ca) for url in (address.url, *address.others))
    except Untrusted as why:
        raise NoService(str(why)) from None
    wire = FailoverConnection((first, *others)) if others else first
    with closing(wire):
        yield ServiceClient(address, wire)


def part(name: str) -> str:
    """A name as one segment of a URL path, quoted."""
    if not name.strip("."):
        raise NotThere(404, f"{name!r} cannot be a name.")
    return quote(name, safe="")


class ServiceClient:
    """Requests to a service. Answers are JSON objects; a refusal raises `Refused` with the service's sentence."""

    def __init__(self, address: Address, wire: HttpConnection | FailoverConnection) -> None:
        self.address = address
        self._wire = wire

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """GET a path."""
        return self._json(self._ask("GET", path, params))

    def post(self, path: str, body: object = None, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """POST to a path."""
        return self._json(self._ask("POST", path, params, body))

    def put(self, path: str, body: object) -> dict[str, Any]:
        """PUT to a path."""
        return self._json(self._ask("PUT", path, None, body))

    def delete(self, path: str) -> dict[str, Any]:
        """DELETE a path."""
        return self._json(self._ask("DELETE", path))

    def text(self, path: str, params: Mapping[str, Any] | None = None) -> str:
        """GET a path as plain text."""
        return self._ask("GET", path, params).text

    def follow(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[Message]:
        """Server-sent events as they come. The service sends keep-alive comments between them."""
        with self._errors_as_sentences(), self._wire.stream(path, _given(params)) as (status, lines):
            if status >= 300:
                raise self._refusal(status, "\n".join(lines))
            yield from self._messages(lines)

    def _ask(self, method: str, path: str, params: Mapping[str, Any] | None = None, body: object = None) -> Reply:
        end_s = time.monotonic() + _PATIENCE_S
        while True:
            with self._errors_as_sentences():
                answer = self._wire.ask(method, path, _given(params), body)
            # A request that comes too soon after others was not performed.
            wait_s = answer.retry_after_s if answer.status == 429 else None
            if wait_s is None or wait_s > _LONGEST_WAIT_S or time.monotonic() + wait_s > end_s:
                break
            time.sleep(wait_s)
        if answer.status >= 300:
            raise self._refusal(answer.status, answer.text)
        return answer

    @contextmanager
    def _errors_as_sentences(self) -> Iterator[None]:
        """Raise connection errors as sentences."""
        from horae.client.http_connection import BrokenOff, Busy, Unreachable, Untrusted

        url = " or ".join((self.address.url, *self.address.others))
        try:
            yield
        except Unreachable:
            raise NoService(
                f"No service answers at {url}: start one with `horae serve`, or name another with --url or HORAE_URL."
            ) from None
        except Untrusted as why:
            raise NoService(f"The service at {url} cannot be trusted. {why}") from None
        except Busy:
            raise NoService(f"The service at {url} is too busy to answer: try again in a moment.") from None
        except BrokenOff:
            raise NoService(
                f"The connection to {url} broke: check that the service still runs{_or_https(url)}, then try again."
            ) from None

    def _refusal(self, status: int, text: str) -> UserError:
        try:
            sentence = str(json.loads(text)["error"])
        except (ValueError, KeyError, TypeError):
            return self._strange(f"status {status}")
        refusal = NotThere if status == 404 else Refused
        return refusal(status, sentence)

    def _json(self, answer: Reply) -> dict[str, Any]:
        if answer.status == 204:
            return {}
        try:
            content = answer.json()
        except ValueError:
            raise self._strange("something that is not JSON") from None
        if not isinstance(content, dict):
            raise self._strange("JSON of another form")
        return content

    def _messages(self, lines: Iterator[str]) -> Iterator[Message]:
        event, data = "", list[str]()
        for line in lines:
            name, _, value = line.partition(":")
            if not line and data:
                yield Message(event or "message", self._data("\n".join(data)))
            if not line:
                event, data = "", []
            elif name == "event":
                event = value.removeprefix(" ")
            elif name == "data":
                data.append(value.removeprefix(" "))

    def _data(self, text: str) -> dict[str, Any]:
        try:
            content = json.loads(text)
        except ValueError:
            raise self._strange("an event that is not JSON") from None
        return content if isinstance(content, dict) else {"value": content}

    def _strange(self, what: str) -> Strange:
        return Strange(
            f"{self.address.url} answered with {what}: check that a Horae service of this version runs there."
        )


def records_of(answer: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The list of records under a key of an answer."""
    records = answer.get(key)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise Strange(f"The service's answer has no list of {key}: check that it has the same version as this command.")
    return records


def _or_https(url: str) -> str:
    """A service with TLS closes plain connections without a word."""
    return " and that its address does not begin with https://" if url.startswith("http:") else ""


def _given(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters that are set; booleans as the API expects them."""
    given = {key: value for key, value in (params or {}).items() if value is not None and value is not False}
    return {key: "true" if value is True else value for key, value in given.items()}
