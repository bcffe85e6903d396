"""Reports of progress to the service, from a thread of their own: training never waits for long, and never fails."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

#: Seconds between two reports that nobody insists on.
PACE_S = 1.0
#: Seconds that one request may take.
TIMEOUT_S = 2.0
#: Seconds in all that training waits for reports it insists on, until the service answers again.
PATIENCE_S = 3.0
#: Seconds before a report that failed is tried again: the first time, and at most.
RETRY_S, RETRY_MOST_S = 0.2, 5.0
#: Longest answer worth reading.
_ANSWER_BYTES = 65536


class Report(NamedTuple):
    """How far a run has come."""

    step: int
    total: int
    loss: float | None


class Address:
    """Where reports go; one request each, without proxies or redirects, so that the token goes nowhere else."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._url = env["HORAE_URL"].rstrip("/")
        self._path = f"/v1/attempts/{env['HORAE_JOB_ID']}/{env.get('HORAE_ATTEMPT') or 1}/progress"
        self._token = env.get("HORAE_TOKEN", "")

    def post(self, report: Report, ready: bool) -> tuple[int, bytes]:
        """The status and the answer."""
        # Imported late: they cost more than all the rest of this package.
        from http.client import HTTPConnection, HTTPSConnection
        from urllib.parse import urlsplit

        url = urlsplit(self._url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"HORAE_URL is no address of a service: {self._url}")
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(url.hostname, url.port, timeout=TIMEOUT_S)
        body = {"step": report.step, "total": report.total, "loss": report.loss, "ready": ready}
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            connection.request("POST", url.path + self._path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_ANSWER_BYTES)
        finally:
            connection.close()


class Reporter:
    """Sends reports. Of those that wait, the newest wins, except for those somebody insists on."""

    def __init__(self, address: Address) -> None:
        self.stop = False
        self._address = address
        self._changed = threading.Condition()
        self._newest: Report | None = None
        self._insisted: deque[Report] = deque()
        self._patience_s = PATIENCE_S
        self._ready_told = False
        self._troubled = False
        self._next_offer = 0.0
        self._thread: threading.Thread | None = None

    @property
    def due(self) -> bool:
        """Whether it is time for the next report."""
        return time.monotonic() >= self._next_offer

    def offer(self, report: Report) -> None:
        """Send this soon, unless a newer one comes first."""
        self._next_offer = time.monotonic() + PACE_S
        with self._changed:
            self._newest = report
            self._changed.notify_all()
        self._begin()

    def insist(self, report: Report) -> None:
        """Send this for certain, and wait for the answer as long as patience lasts."""
        self._begin()
        with self._changed:
            self._insisted.append(report)
            self._newest = None
            self._changed.notify_all()
            began = time.monotonic()
            if not self._changed.wait_for(lambda: not self._insisted, self._patience_s):
                self._patience_s = max(0.0, self._patience_s - (time.monotonic() - began))

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="horae-reports", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        pause = RETRY_S
        while True:
            report = self._next()
            if self._delivered(report):
                self._done_with(report)
                pause = RETRY_S
            else:
                time.sleep(pause)
                pause = min(2 * pause, RETRY_MOST_S)

    def _next(self) -> Report:
        """The next report to send, when there is one. It stays where it is until it is delivered."""
        with self._changed:
            self._changed.wait_for(lambda: self._insisted or self._newest)
            report = self._insisted[0] if self._insisted else self._newest
            assert report is not None
            return report

    def _done_with(self, report: Report) -> None:
        with self._changed:
            self._patience_s = PATIENCE_S
            if self._insisted and self._insisted[0] is report:
                self._insisted.popleft()
            elif self._newest is report:
                self._newest = None
            self._changed.notify_all()

    def _delivered(self, report: Report) -> bool:
        """Whether this report needs no further try: it was accepted, or refused for good."""
        try:
            status, answer = self._address.post(report, ready=not self._ready_told)
        # Whatever it is, training has nothing to do with it. Only an address that is none stays so.
        except Exception as trouble:
            what = f"did not get through ({str(trouble) or type(trouble).__name__})"
            return self._trouble(what, for_good=isinstance(trouble, ValueError))
        if status >= 300:
            again = status >= 500 or status in (408, 425, 429)
            return self._trouble(f"was refused (HTTP {status})", for_good=not again)
        self._ready_told = True
        self._troubled = False
        self.stop = self.stop or _says_stop(answer)
        return True

    def _trouble(self, what: str, for_good: bool) -> bool:
        """Say it once, in the job's log, and go on."""
        if not self._troubled:
            self._troubled = True
            sys.stderr.write(f"horae: a progress report {what}; training goes on\n")
        return for_good


def _says_stop(answer: bytes) -> bool:
    try:
        told = json.loads(answer)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("stop") is True
