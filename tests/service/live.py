"""A whole service in this process, asked over real HTTP: the fake backend stands in for processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from horae.backends.fake import FakeBackend, FakeJob, FakeWorld
from horae.core.cluster import Node
from horae.service.api import make_app
from horae.service.clock import wall_clock
from horae.service.daemon import Daemon
from horae.service.initial_settings import InitialSettings
from horae.service.listening import Listener, listen
from horae.service.roles import Role
from horae.service.server import Http
from horae.service.store.store import Store
from horae.service.tokens import Tokens
from horae.service.warm_up import warm_up

NODES = (Node("v100", "v100", 4), Node("k80", "k80", 4))
#: Two cores that others use, too: nothing here takes so long unless it is broken.
PATIENCE_S = 20.0


class PrintingBackend(FakeBackend):
    """A fake backend whose jobs can print."""

    logs: Path

    def log(self, job: str, attempt: int, piece: int = 0) -> Path:
        return self.logs / f"{job}-{attempt}.txt"

    def print(self, job: str, text: str, attempt: int = 1) -> None:
        with self.log(job, attempt).open("a") as file:
            file.write(text)


class Live:
    """A service that runs, and people who ask it."""

    def __init__(
        self, folder: Path, policy: str, settings: dict[str, str], script: FakeJob, nodes: tuple[Node, ...]
    ) -> None:
        self.folder = folder
        self.store = Store(f"sqlite:///{folder}/journal.db", own=True)
        clock = wall_clock(self.store.epoch)
        self.tokens = Tokens(self.store, b"s" * 32, clock)
        self.backend = PrintingBackend(nodes, FakeWorld(default=script))
        self.backend.logs = folder
        beginning = InitialSettings(nodes, policy, settings)
        warm_up(beginning)
        self.daemon = Daemon(self.store, self.backend, beginning, clock, lambda job, attempt: {}, watch_s=0.01)
        self.daemon.start()
        self.app = make_app(self.daemon, self.tokens)
        self.listener = listen("127.0.0.1", 0, allow_remote=False)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self._http = Http(self.app, Listener(self.listener))
        self._http.start()
        self._clients: list[httpx.Client] = []

    def token(self, user: str, role: Role = Role.USER, lasts_s: float | None = None) -> str:
        token, record = self.tokens.draft(user, role, lasts_s)
        self.tokens.add(record)
        return token

    def person(self, user: str, role: Role = Role.USER) -> httpx.Client:
        return self.client(self.token(user, role))

    def client(self, token: str | None, connections: int = 10) -> httpx.Client:
        """A client that is closed with the service, with this number of connections at most."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        # There is nothing to verify on loopback, and reading all certificates takes longer than most tests.
        client = httpx.Client(
            base_url=self.url,
            headers=headers,
            limits=httpx.Limits(max_connections=connections),
            timeout=PATIENCE_S,
            trust_env=False,
            verify=False,
        )
        self._clients.append(client)
        return client

    def close(self) -> None:
        self.app.state.service.leaving.set()
        self._http.close()
        self.daemon.close()
        self.listener.close()
        self.store.close()
        for client in self._clients:
            client.close()


@contextmanager
def live(
    folder: Path,
    policy: str = "fifo-backfill",
    settings: dict[str, str] | None = None,
    script: FakeJob | None = None,
    nodes: tuple[Node, ...] = NODES,
) -> Iterator[Live]:
    """A service for a while. Jobs run until they are stopped, unless `script` says otherwise."""
    service = Live(folder, policy, settings or {}, script or FakeJob(), nodes)
    try:
        yield service
        assert service.daemon.crashed is None
    finally:
        service.close()


def submit(client: httpx.Client, *jobs: dict[str, Any]) -> list[str]:
    """Submit jobs of which only the interesting part is named."""
    answer = client.post("/v1/jobs", json=[{"run": ["true"], **job} for job in jobs or ({},)])
    assert answer.status_code == 200, answer.text
    ids: list[str] = answer.json()["ids"]
    return ids


def eventually(look: Callable[[], Any], what: str = "it") -> Any:
    """What `look` gives as soon as it gives something true."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} never happened")


def in_state(client: httpx.Client, job: str, *states: str) -> dict[str, Any]:
    """Wait until a job is in a state; gives the job."""

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
        return found if found["state"] in states else None

    found: dict[str, Any] = eventually(look, f"{job} in {states}")
    return found
