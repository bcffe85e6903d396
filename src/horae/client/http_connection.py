"""One HTTP connection, kept between requests, with the standard library only.

A larger HTTP library would take longer to import than the service takes to answer.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlencode, urlsplit

from horae.client.address import UNIX

if TYPE_CHECKING:
    import ssl

#: Seconds to wait for an answer and for a connection. A list of 10,000 jobs under load stays within this.
_PATIENCE_S, _CONNECT_S = 60.0, 5.0
#: Seconds without a request after which a new connection is made: the service closes idle ones.
_IDLE_S = 2.0
_PIECE = 65536
#: Characters of a token's SHA-256 by which the service is asked for its proof.
_PROOF_KEY = 16
#: Header by which a standby says that another service is active.
_STANDBY_HEADER = "Horae-Standby"
_NO_CA = (
    "No CA that this machine trusts has issued its certificate: set HORAE_CA to the file of its CA, from its operator."
)
_OTHER_NAME = "Its certificate is for another name: use the address that its operator has given you."
#: What verification errors of OpenSSL (X509_V_ERR_...) mean to users.
_UNTRUSTED = {
    9: "Its certificate is not valid yet: check this machine's clock.",
    10: "Its certificate has expired: ask its operator to renew it.",
    **dict.fromkeys((2, 18, 19, 20, 21), _NO_CA),
    **dict.fromkeys((62, 64), _OTHER_NAME),
}


class Unreachable(Exception):
    """Nothing listens at the address."""


class Untrusted(Exception):
    """What listens there cannot be verified to be the service; says why, and what to do."""


class Busy(Exception):
    """No answer came in time."""


class BrokenOff(Exception):
    """The connection broke before the end of the answer."""


@dataclass(frozen=True)
class Reply:
    """An HTTP response."""

    status: int
    body: bytes
    #: Seconds to wait before the request may be sent again, if the service says so.
    retry_after_s: float | None = None
    #: Whether a standby refused the request: another service is active.
    is_standby: bool = False

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body parsed as JSON; ValueError if it is not JSON."""
        return json.loads(self.body)


class HttpConnection:
    """One connection to a service, by TCP or by a Unix socket (`unix:PATH`).

    Without TLS, the service must prove that it knows the token before the token is sent: another program may have
    taken the port of a service that has ended.
    """

    def __init__(self, url: str, token: str, ca: str | None = None) -> None:
        parts = urlsplit(url)
        is_unix = url.startswith(UNIX)
        self._connection = _UnixConnection(url.removeprefix(UNIX)) if is_unix else _connection(parts, ca)
        # No new connection is made unasked: what listens there then has proved nothing.
        self._connection.auto_open = 0
        self._below = "" if is_unix else parts.path.rstrip("/")
        self._token, self._needs_proof = token, bool(token) and parts.scheme != "https"
        self._headers = {"Accept": "*/*"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._asked_s = time.monotonic()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(self, method: str, path: str, params: Mapping[str, Any], body: object = None) -> Reply:
        """Send a request and read the whole response."""
        with self._in_words():
            answer = self._send(method, path, params, body)
            after = answer.headers.get("Retry-After", "")
            is_standby = answer.headers.get(_STANDBY_HEADER) is not None
            reply = Reply(answer.status, answer.read(), float(after) if after.isdecimal() else None, is_standby)
        self._asked_s = time.monotonic()
        return reply

    @contextmanager
    def stream(self, path: str, params: Mapping[str, Any]) -> Iterator[tuple[int, Iterator[str]]]:
        """Status and lines of a response that may have no end."""
        with self._in_words():
            answer = self._send("GET", path, params)
        try:
            yield answer.status, self._lines(answer)
        finally:
            # The rest of the response is not needed.
            self._connection.close()

    def _send(self, method: str, path: str, params: Mapping[str, Any], body: object = None) -> HTTPResponse:
        if time.monotonic() - self._asked_s > _IDLE_S:
            self._connection.close()
        self._connect()
        headers, text = self._headers, None
        if body is not None:
            headers, text = {**headers, "Content-Type": "application/json"}, json.dumps(body).encode()
        target = f"{self._below}{path}?{urlencode(params)}" if params else f"{self._below}{path}"
        self._connection.request(method, target, text, headers)
        return self._connection.getresponse()

    def _connect(self) -> None:
        connection = self._connection
        sock: socket.socket | None = connection.sock
        if sock is not None:
            return
        try:
            connection.connect()
        except OSError as why:
            raise _unconnected(why) from why
        connection.sock.settimeout(_PATIENCE_S)
        if self._needs_proof:
            self._demand_proof()

    def _demand_proof(self) -> None:
        """Raise unless the service proves on this connection that it knows the token, which is not sent for that."""
        import hmac
        from hashlib import sha256

        digest, nonce = sha256(self._token.encode()).hexdigest(), os.urandom(16).hex()
        query = urlencode({"key": digest[:_PROOF_KEY], "nonce": nonce})
        self._connection.request("GET", f"{self._below}/v1/proof?{query}", headers={"Accept": "*/*"})
        answer = self._connection.getresponse()
        try:
            given = str(json.loads(answer.read(_PIECE))["proof"])
        except (ValueError, KeyError, TypeError):
            given = ""
        wanted = hmac.new(digest.encode(), f"horae proof\n{nonce}".encode(), sha256).hexdigest()
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            self._connection.close()
            raise Untrusted(
                "It did not prove that it knows your token, which was not sent: check the token, that the service has "
                "this command's version, and that no other program has taken its address."
            )

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Raise all errors as `Unreachable`, `Busy` or `BrokenOff`; the next request uses a new connection."""
        try:
            yield
        except BaseException as why:
            self._connection.close()
            if isinstance(why, TimeoutError):
                raise Busy from why
            if isinstance(why, HTTPException | OSError | ValueError):
                raise BrokenOff from why
            raise

    def _lines(self, answer: HTTPResponse) -> Iterator[str]:
        """Lines without line ends. `HTTPResponse.readline` would take a broken connection for the end."""
        rest = b""
        while True:
            with self._in_words():
                more = answer.read1(_PIECE)
            *lines, rest = (rest + more).split(b"\n")
            yield from (line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines)
            if not more:
                return


class _UnixConnection(HTTPConnection):
    """HTTP by a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_CONNECT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONNECT_S)
        try:
            self.sock.connect(self._path)
        except BaseException:
            self.close()
            raise


def _connection(parts: SplitResult, ca: str | None) -> HTTPConnection:
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "http":
        return HTTPConnection(host, port, timeout=_CONNECT_S)
    return HTTPSConnection(host, port, timeout=_CONNECT_S, context=_tls_context(ca))


def _tls_context(ca: str | None) -> ssl.SSLContext:
    """Trust the CA certificates of a file, or of a text; without any, those that the system trusts."""
    import ssl

    if not ca:
        return ssl.create_default_context()
    try:
        is_text = ca.startswith("-----BEGIN")
        return ssl.create_default_context(cadata=ca) if is_text else ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise Untrusted(f"HORAE_CA ({ca[:80]}) has no certificates in PEM form: name the file of the CA.") from None
    except OSError as why:
        raise Untrusted(f"The CA file {ca} cannot be read ({why.strerror}): check HORAE_CA.") from None


def _unconnected(why: OSError) -> Exception:
    """Why there is no connection."""
    import ssl

    if isinstance(why, ssl.SSLCertVerificationError):
        return Untrusted(_UNTRUSTED.get(why.verify_code, f"Its certificate cannot be verified: {why.verify_message}."))
    if isinstance(why, ssl.SSLError) and why.reason == "WRONG_VERSION_NUMBER":
        return Untrusted("It does not speak TLS: check whether its address begins with http:// instead.")
    return Unreachable()
