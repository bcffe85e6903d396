"""People and jobs on the service's own machine: the Unix socket knows them, and no token goes to a stranger.

Tests service/local_users.py.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from horae.client.address import NoService, find_address
from horae.client.client import Client
from horae.service.listening import CannotServe
from horae.service.roles import Role
from horae.service.server import ServeOptions, Server
from horae_train.reports import NotTheService, ReportAddress, RunProgress
from tests.backends.real import until

NOBODY = 65534

#: Asks for a path by a Unix socket, as another account if it may be one; prints status and body.
_ASK = """
import http.client, os, socket, sys
path, uid, target = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if uid != os.getuid():
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(path)
connection.request("GET", target)
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


@contextmanager
def serving(folder: Path, **options: object) -> Iterator[Server]:
    asked = {"port": 0, "gpus": "v100:2", "isolation": "none", **options}
    server = Server(ServeOptions(state=folder / "s", **asked))  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short name, since names of sockets are short; nothing of this user's is set."""
    for name in ("HORAE_URL", "HORAE_TOKEN", "HORAE_TOKEN_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    with TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        monkeypatch.setenv("HOME", made)
        monkeypatch.setenv("XDG_STATE_HOME", made)
        yield Path(made)


def ask(path: object, target: str, uid: int | None = None) -> tuple[int, dict[str, object]]:
    words = [sys.executable, "-c", _ASK, str(path), str(os.getuid() if uid is None else uid), target]
    status, _, body = subprocess.run(words, capture_output=True, text=True, check=True).stdout.partition(" ")
    return int(status), json.loads(body)


def test_the_operator_needs_no_token_and_other_accounts_what_they_are_given(folder: Path) -> None:
    with serving(folder, socket=folder / "h.sock", local_users=Role.USER, isolation="none"):
        assert ask(folder / "h.sock", "/v1/tokens")[0] == 200, "an admin"
        jobs_only = folder / "h-jobs.sock"
        assert ask(jobs_only, "/v1/jobs")[0] == 401, "by the socket of jobs no account counts"
        if os.getuid() == 0:
            assert ask(folder / "h.sock", "/v1/jobs", NOBODY)[0] == 200
            status, said = ask(folder / "h.sock", "/v1/tokens", NOBODY)
            assert (status, "Only an admin" in str(said)) == (403, True)
            name = pwd.getpwuid(NOBODY).pw_name
            assert name == "nobody"
    assert not (folder / "h.sock").exists()
    assert not jobs_only.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another account")
def test_by_default_other_accounts_need_a_token(folder: Path) -> None:
    with serving(folder, socket=folder / "h.sock"):
        assert ask(folder / "h.sock", "/v1/jobs", NOBODY)[0] == 401
        assert ask(folder / "h.sock", "/healthz", NOBODY)[0] == 200


def test_a_socket_that_cannot_be_is_refused_only_if_it_was_asked_for(folder: Path) -> None:
    with (
        pytest.raises(CannotServe, match="AF_UNIX path too long"),
        serving(folder, socket=folder / ("long" * 40)),
    ):
        pass
    with serving(folder / ("long" * 40)) as server:
        address = json.loads((server.state / "address.json").read_text())
        assert "socket" not in address
        assert httpx.get(f"{address['url']}/healthz", trust_env=False).json()["ok"]


def test_a_socket_left_by_a_crash_is_replaced_and_one_in_use_is_not(folder: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(folder / "h.sock"))
    left.close()
    with (
        serving(folder, socket=folder / "h.sock"),
        pytest.raises(CannotServe, match="Address already in use"),
        serving(folder / "other", socket=folder / "h.sock"),
    ):
        pass


def test_commands_of_the_operator_come_by_the_socket_without_a_token(folder: Path) -> None:
    server = Server(ServeOptions(state=folder / "horae", port=0, gpus="v100:2"))
    try:
        address = find_address(None)
        assert (address.url, address.token) == (f"unix:{folder}/horae/horae.sock", "")
        with Client() as client:
            job = client.submit("true")
            assert job.wait(60) == "finished"
        with Client(f"unix:{folder}/horae/horae.sock") as client:
            assert client.service.get("/v1/tokens")["tokens"]
    finally:
        server.close()


# ------------------------------------------------------------------- strangers


class Stranger:
    """A program that took the service's address: hears all, and says what it likes."""

    def __init__(self, listener: socket.socket, says: bytes) -> None:
        self.heard, self._says, self._listener = b"", says, listener
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                wire, _ = self._listener.accept()
                with wire:
                    wire.settimeout(5)
                    with suppress(OSError):
                        while more := wire.recv(65536):
                            self.heard += more
                            wire.sendall(self._says)


def said(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


SAYS = [
    said(b'{"proof": "' + b"0" * 64 + b'"}'),
    said(b'{"stop": true}'),
    said(b'{"error": "no"}', b"404 Not Found"),
    said(b'{"proof": "x"}') * 2,
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
    b"rubbish\r\n\r\n",
]


@pytest.mark.parametrize("says", SAYS)
def test_no_token_goes_to_a_program_that_took_the_port(
    folder: Path, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    """The port of a service that has ended, as jobs and commands know it."""
    job_token = "horj_" + "x" * 43
    with serving(folder) as server:
        token, job = server.token_file.read_text().strip(), {"HORAE_JOB_ID": "a-1", "HORAE_TOKEN": job_token}
        env = {**server._listening.environment, **job}
    monkeypatch.setenv("HORAE_TOKEN", token)
    with socket.create_server(("127.0.0.1", int(env["HORAE_URL"].rpartition(":")[2]))) as listener:
        stranger = Stranger(listener, says)
        with pytest.raises(NoService), Client(env["HORAE_URL"]) as client:
            client.service.get("/v1/jobs")
        with pytest.raises((NotTheService, HTTPException, OSError)):
            ReportAddress(env).post(RunProgress(1, 2, None), ready=True)
    assert stranger.heard.count(b"GET /v1/proof?key=") == 2
    assert not any(secret.encode() in stranger.heard for secret in (token, token[5:], job_token, job_token[5:]))


@pytest.mark.long
def test_jobs_report_by_their_socket_and_by_the_port(folder: Path) -> None:
    with serving(folder) as server, httpx.Client(base_url=server.url, trust_env=False) as operator:
        operator.headers["Authorization"] = f"Bearer {server.token_file.read_text().strip()}"
        (job,) = operator.post("/v1/jobs", json=[{"run": "exec sleep 60"}]).json()["ids"]
        until(lambda: operator.get(f"/v1/jobs/{job}").json()["state"] == "running", "for the job", 60)
        order = json.loads(next((server.state / "jobs" / job / "1").glob("order.json")).read_text())
        env = _variables(order)
        assert env["HORAE_SOCKET"] == str(server.state / "horae-jobs.sock")
        assert ReportAddress(env).post(RunProgress(1, 10, None), ready=True)[0] == 200
        without = {name: value for name, value in env.items() if name != "HORAE_SOCKET"}
        assert ReportAddress(without).post(RunProgress(2, 10, None), ready=True)[0] == 200
        gone = {**env, "HORAE_SOCKET": "/no/such/socket"}
        assert ReportAddress(gone).post(RunProgress(3, 10, None), ready=True)[0] == 200
        wrong = {**env, "HORAE_TOKEN": "horj_" + "x" * 43}
        with pytest.raises(NotTheService):
            ReportAddress(wrong).post(RunProgress(4, 10, None), ready=True)
        operator.post(f"/v1/jobs/{job}/cancel")
        until(lambda: operator.get(f"/v1/jobs/{job}").json()["state"] == "cancelled", "for its end", 60)


def _variables(order: dict[str, object]) -> dict[str, str]:
    """The variables of a job, wherever its order has them."""
    found: dict[str, str] = {}
    for value in order.values():
        if isinstance(value, dict):
            found |= {name: text for name, text in value.items() if name.startswith("HORAE_") and isinstance(text, str)}
            found |= _variables(value)
        elif isinstance(value, list):
            for inner in value:
                found |= _variables({"inner": inner})
    return found
