"""Progress reports to the service, sent by a background thread: training never waits for long and never fails."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPConnection

#: Least seconds between two ordinary reports.
PACE_S = 1.0
#: Longest duration of an HTTP request, in seconds.
TIMEOUT_S = 2.0
#: Total seconds that training waits for answers to required reports, until the service answers again.
PATIENCE_S = 3.0
#: Seconds before a failed report is sent again: the first delay, and the longest.
RETRY_S, RETRY_MOST_S = 0.2, 5.0
#: Bytes read of an answer, at most.
_ANSWER_BYTES = 65536
#: Begins a place that is a Unix socket.
_UNIX = "unix:"


class RunProgress(NamedTuple):
    """The content of a progress report: steps done, steps in all, and the loss if known."""

    step: int
    total: int
    loss: float | None


class NotTheService(Exception):
    """What listens at the service's address does not know the token of this attempt."""


class ReportAddress:
    """The address for progress reports: a Unix socket of this machine, or a URL.

    No proxies and no redirects, so that the token reaches only the service. Without TLS, the service proves that it
    knows the token before the token is sent: another program may have taken the port of a service that has ended.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        named = f"{env['HORAE_URL']},{env.get('HORAE_STANDBY_URL', '')}".split(",")
        urls = [url.strip().rstrip("/") for url in named if url.strip()]
        socket = env.get("HORAE_SOCKET", "")
        #: The service's Unix socket, and addresses of it and its standby; the one that answered last comes first.
        self._places = ([f"{_UNIX}{socket}"] if socket else []) + urls
        self._attempt = f"{env['HORAE_JOB_ID']}/{env.get('HORAE_ATTEMPT') or 1}"
        self._token = env.get("HORAE_TOKEN", "")
        #: Whether the service that started this attempt can prove what it knows; older ones cannot.
        self._proves = env.get("HORAE_PROOF") == "1"
        #: Certificates of the CA that vouches for the service: a text, or a file. Empty: those the system trusts.
        self._ca = env.get("HORAE_CA", "")
        self._tls: ssl.SSLContext | None = None

    def post(self, report: RunProgress, ready: bool) -> tuple[int, bytes]:
        """Send a report to the service that is active; returns HTTP status and body.

        `ready` says that this is the first report of the attempt.
        """
        trouble: Exception | None = None
        refused: tuple[int, bytes] | None = None
        for place in list(self._places):
            try:
                status, answer, is_standby = self._post_to(place, report, ready)
            except (OSError, NotTheService) as why:
                trouble = why
                continue
            if not is_standby:
                self._places.remove(place)
                self._places.insert(0, place)
                return status, answer
            refused = (status, answer)
        if refused:
            return refused
        raise trouble or ValueError("HORAE_URL is no address of a service.")

    def _post_to(self, place: str, report: RunProgress, ready: bool) -> tuple[int, bytes, bool]:
        """HTTP status, body, and whether another service is active."""
        connection, below, is_verified = self._connection(place)
        body = {"step": report.step, "total": report.total, "loss": report.loss, "ready": ready}
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            if self._proves and not is_verified:
                self._demand_proof(connection, below)
                # No new connection is made unasked: what listens there then has proved nothing.
                connection.auto_open = 0
            connection.request("POST", f"{below}/v1/attempts/{self._attempt}/progress", json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_ANSWER_BYTES), answer.getheader("Horae-Standby") is not None
        finally:
            connection.close()

    def _demand_proof(self, connection: HTTPConnection, below: str) -> None:
        """Raise unless the service proves on this connection that it knows the token, which is not sent for that."""
        import hmac
        import os
        from hashlib import sha256
        from urllib.parse import quote

        nonce, digest = os.urandom(16).hex(), sha256(self._token.encode()).hexdigest()
        connection.request("GET", f"{below}/v1/proof?key={quote(self._attempt, safe='')}&nonce={nonce}")
        answer = connection.getresponse().read(_ANSWER_BYTES)
        try:
            given = str(json.loads(answer)["proof"])
        except (ValueError, KeyError, TypeError):
            given = ""
        wanted = hmac.new(digest.encode(), f"horae proof\n{nonce}".encode(), sha256).hexdigest()
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            raise NotTheService("what listens at the service's address did not prove that it is the service")

    def _connection(self, place: str) -> tuple[HTTPConnection, str, bool]:
        """A connection, the path below which the service is, and whether TLS verifies what listens there."""
        # Imported here: these modules take longer to import than the rest of this package.
        from http.client import HTTPConnection, HTTPSConnection
        from urllib.parse import urlsplit

        if place.startswith(_UNIX):
            return _unix_connection(place[len(_UNIX) :]), "", False
        url = urlsplit(place)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"HORAE_URL is no address of a service: {place}")
        if url.scheme == "http":
            return HTTPConnection(url.hostname, url.port, timeout=TIMEOUT_S), url.path, False
        if self._tls is None:
            from ssl import create_default_context

            is_text = self._ca.startswith("-----BEGIN")
            self._tls = create_default_context(
                cafile=None if is_text else self._ca or None, cadata=self._ca if is_text else None
            )
        return HTTPSConnection(url.hostname, url.port, timeout=TIMEOUT_S, context=self._tls), url.path, True


def _unix_connection(path: str) -> HTTPConnection:
    """A connection by a Unix socket. There is none on other machines and within containers: OSError."""
    import socket
    from http.client import HTTPConnection

    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    wire.settimeout(TIMEOUT_S)
    try:
        wire.connect(path)
    except OSError:
        wire.close()
        raise
    connection = HTTPConnection("localhost", timeout=TIMEOUT_S)
    connection.sock = wire
    return connection


class Reporter:
    """Sends progress reports. A newer ordinary report replaces an older unsent report; required reports all go out."""

    def __init__(self, address: ReportAddress) -> None:
        self.stop = False
        self._address = address
        self._changed = threading.Condition()
        self._newest: RunProgress | None = None
        self._required: deque[RunProgress] = deque()
        self._patience_s = PATIENCE_S
        self._ready_sent = False
        self._trouble_logged = False
        self._next_report_s = 0.0
        self._thread: threading.Thread | None = None

    @property
    def due(self) -> bool:
        """Whether it is time for the next ordinary report."""
        return time.monotonic() >= self._next_report_s

    def offer(self, report: RunProgress) -> None:
        """Send an ordinary report soon, unless a newer report replaces it."""
        self._next_report_s = time.monotonic() + PACE_S
        with self._changed:
            self._newest = report
            self._changed.notify_all()
        self._start_thread()

    def require(self, report: RunProgress) -> None:
        """Send a required report, and wait for the answer for the rest of `PATIENCE_S`."""
        self._start_thread()
        with self._changed:
            self._required.append(report)
            self._newest = None
            self._changed.notify_all()
            wait_start_s = time.monotonic()
            if not self._changed.wait_for(lambda: not self._required, self._patience_s):
                self._patience_s = max(0.0, self._patience_s - (time.monotonic() - wait_start_s))

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="horae-reports", daemon=True)
            self._thread.start()

    def _send_all(self) -> None:
        pause_s = RETRY_S
        while True:
            report = self._wait_for_report()
            if self._delivered(report):
                self._remove(report)
                pause_s = RETRY_S
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MOST_S)

    def _wait_for_report(self) -> RunProgress:
        """Wait for the next report to send. It stays queued until it is delivered."""
        with self._changed:
            self._changed.wait_for(lambda: self._required or self._newest)
            report = self._required[0] if self._required else self._newest
            assert report is not None
            return report

    def _remove(self, report: RunProgress) -> None:
        with self._changed:
            self._patience_s = PATIENCE_S
            if self._required and self._required[0] is report:
                self._required.popleft()
            elif self._newest is report:
                self._newest = None
            self._changed.notify_all()

    def _delivered(self, report: RunProgress) -> bool:
        """Send a report. True if it is not to be sent again: it was accepted, or refused permanently."""
        try:
            status, answer = self._address.post(report, ready=not self._ready_sent)
        # No error of a report may reach training. A malformed address (ValueError) is the only permanent error.
        except Exception as trouble:
            what = f"did not get through ({str(trouble) or type(trouble).__name__})"
            return self._log_trouble(what, permanent=isinstance(trouble, ValueError))
        if status >= 300:
            retry = status >= 500 or status in (408, 425, 429)
            return self._log_trouble(f"was refused (HTTP {status})", permanent=not retry)
        self._ready_sent = True
        self._trouble_logged = False
        self.stop = self.stop or _says_stop(answer)
        return True

    def _log_trouble(self, what: str, permanent: bool) -> bool:
        """Write to the job's log, once until a report gets through; returns `permanent`."""
        if not self._trouble_logged:
            self._trouble_logged = True
            sys.stderr.write(f"horae: a progress report {what}; training goes on\n")
        return permanent


def _says_stop(answer: bytes) -> bool:
    try:
        fields = json.loads(answer)
    except ValueError:
        return False
    return isinstance(fields, dict) and fields.get("stop") is True
