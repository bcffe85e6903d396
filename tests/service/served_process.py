"""A whole service as a process of its own, which can be killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.backends.real import until

ENDED = {"finished", "failed", "cancelled", "timeout"}


class ServedProcess:
    """A service in a folder. `words` are its options, `env` its variables beside those of this process."""

    def __init__(self, folder: Path, words: list[str], env: dict[str, str]) -> None:
        self.folder, self.state = folder, folder / "state"
        self.words, self.env = words, env
        self.service: subprocess.Popen[bytes] | None = None
        #: How to run Horae.
        self.command = [sys.executable, "-m", "horae"]

    @property
    def url(self) -> str:
        """Where the service listens."""
        return str(json.loads((self.state / "address.json").read_text())["url"])

    def horae(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Horae; commands that ask a service ask this one."""
        address = self.state / "address.json"
        asks = {"HORAE_TOKEN_FILE": str(self.state / "token")}
        asks |= {"HORAE_URL": json.loads(address.read_text())["url"]} if address.exists() else {}
        command = [sys.executable, "-m", "horae", *words]
        return subprocess.run(
            command, env={**os.environ, **self.env, **asks}, capture_output=True, text=True, timeout=240
        )

    def serve(self) -> None:
        """Start the service, and wait until it answers."""
        command = [*self.command, "serve", "--state", str(self.state), "--port", "0"]
        with (self.folder / "serve.log").open("ab") as log:
            self.service = subprocess.Popen(
                [*command, *self.words], env={**os.environ, **self.env}, stdout=log, stderr=log
            )
        until(lambda: self._is_up() or self._has_ended(), "for the service", patience_s=240)
        assert not self._has_ended(), (self.folder / "serve.log").read_text()

    def _is_up(self) -> bool:
        try:
            address = json.loads((self.state / "address.json").read_text())
            return bool(address["pid"] == self.service.pid and self.get("/v1/settings"))  # type: ignore[union-attr]
        except (OSError, ValueError, httpx.HTTPError):
            return False

    def _has_ended(self) -> bool:
        return self.service is not None and self.service.poll() is not None

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the service: in good order, or with SIGKILL."""
        if self.service and self.service.poll() is None:
            self.service.send_signal(number)
        if self.service:
            self.service.wait(30)
        self.service = None

    def get(self, path: str) -> Any:
        """What the API answers."""
        url, headers = self._address()
        return httpx.get(f"{url}{path}", headers=headers, timeout=20, trust_env=False).raise_for_status().json()

    def post(self, path: str, body: Any) -> Any:
        """What the API answers to a request."""
        url, headers = self._address()
        answer = httpx.post(f"{url}{path}", json=body, headers=headers, timeout=20, trust_env=False)
        return answer.raise_for_status().json()

    def _address(self) -> tuple[str, dict[str, str]]:
        return self.url, {"Authorization": f"Bearer {(self.state / 'token').read_text().strip()}"}

    def records(self) -> list[dict[str, Any]]:
        """All jobs of the service."""
        found: list[dict[str, Any]] = self.get("/v1/jobs?all=true")["jobs"]
        return found

    def until_quiet(self, patience_s: float) -> None:
        """Wait until all jobs of the service have ended."""
        end_s = time.monotonic() + patience_s
        while time.monotonic() < end_s:
            if {job["state"] for job in self.records()} <= ENDED:
                return
            time.sleep(0.2)
        states = {job["id"]: (job["state"], job["attempt"]) for job in self.records()}
        raise AssertionError(f"not over after {patience_s:g} s: {states}")


def stays(look: Callable[[], Any], seconds: float, what: str = "") -> None:
    """Check for a while that something is true, again and again."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        assert look(), what
        time.sleep(0.2)


def patiently(look: Callable[[], Any], what: str = "") -> Any:
    """Wait until something is true. Services start, and clusters schedule, in seconds: on a busy machine in many."""
    return until(look, what, patience_s=180.0)
