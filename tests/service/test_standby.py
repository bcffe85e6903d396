"""Two services on one database: one is active, the other follows it, and takes over.

HORAE_TAKE_OVERS=20 makes the storm long (`make soak`) and shows figures.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from horae.client.client import Client
from horae.client.service_client import Refused
from horae.core.errors import UserError
from horae.service.server import ServeOptions, Server
from horae.service.store.connection import StoreInUse
from tests.backends.real import until
from tests.contracts.postgres import Server as Postgres
from tests.service.listener import Listener
from tests.service.live import submit
from tests.service.pairs import Pair, TakeOvers

KILLS = int(os.environ.get("HORAE_TAKE_OVERS", "2"))
TRUE = {"run": ["true"]}


class Waiting:
    """A server in this process that waits, as the command does, until it is told to stop."""

    def __init__(self, asked: ServeOptions) -> None:
        self.notes: list[str] = []
        self.failure: Exception | None = None
        self._stop = threading.Event()
        self.server = Server(asked, self.notes.append)
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self.server.wait(self._stop, self.notes.append)
        except Exception as error:
            self.failure = error
        finally:
            self.server.close()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.server.token_file.read_text().strip()}"}
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=20, trust_env=False, verify=False)


@contextmanager
def two_services(state: Path, url: str) -> Iterator[tuple[Waiting, Waiting]]:
    """An active service and its standby."""
    asked = ServeOptions(state, database=url, port=0, gpus="v100:2", standby=True, isolation="none")
    active = Waiting(asked)
    standby = None
    try:
        standby = Waiting(asked)
        yield active, standby
    finally:
        for service in filter(None, (standby, active)):
            service.end()


def test_a_standby_answers_what_reads_refuses_changes_and_takes_over(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "horae"
    with two_services(state, postgres.new_database()) as (active, standby):
        assert (active.server.stands_by, standby.server.stands_by) == (False, True)
        at_active, at_standby = active.client(), standby.client()
        (job,) = submit(at_active, {"run": "echo hello; echo $HORAE_STANDBY_URL"})
        until(lambda: state_of(at_standby, job) == "finished", "for the standby to follow")
        until(lambda: "hello" in at_standby.get(f"/v1/jobs/{job}/logs").text, "for the log")
        assert at_standby.get(f"/v1/jobs/{job}/events").json()["events"]
        assert "horae_standby 1.0" in at_standby.get("/metrics").text
        assert at_standby.get("/healthz").json() == {"ok": True, "error": "", "standby": True}
        refused = at_standby.post("/v1/jobs", json=[TRUE])
        assert (refused.status_code, refused.headers["Horae-Standby"]) == (503, "1")
        assert f"the active one is at {active.server.url}" in refused.json()["error"]
        token = at_active.post("/v1/tokens", json={"user": "ann", "role": "user"}).json()["token"]
        check_client(monkeypatch, token, standby.server.url, active.server.url)
        ears = Listener(at_standby, "/v1/stream")
        (heard,) = submit(at_active, TRUE)
        until(lambda: ("finished", heard) in kinds_of(ears), "for the events that a standby tells")
        active.end()
        until(lambda: not standby.server.stands_by, "for the standby to take over", patience_s=20.0)
        address = state / "address.json"
        until(lambda: address.exists() and standby.server.url in address.read_text(), "for its address")
        assert not (state / "standby.json").exists()
        assert any("has taken over, with term 2" in note for note in standby.notes)
        (later,) = submit(at_standby, TRUE)
        until(lambda: state_of(at_standby, later) == "finished", "for a job of the new active service")
        until(lambda: ("finished", later) in kinds_of(ears), "for the same stream to go on")
        assert at_standby.get("/healthz").json()["ok"]
    assert standby.failure is None


def check_client(monkeypatch: pytest.MonkeyPatch, token: str, standby: str, active: str) -> None:
    """Clients find the active service among the addresses that they know, and go to no other."""
    monkeypatch.setenv("HORAE_TOKEN", token)
    with Client(f"{standby},{active}") as client:
        job = client.submit(["true"])
        assert client.submit(["true"]).id != job.id
    own = {"Authorization": f"Bearer {token}"}
    until(lambda: httpx.get(f"{standby}/v1/jobs", headers=own).status_code == 200, "for the standby to know the token")
    with Client(standby) as client, pytest.raises(Refused, match="active one is at"):
        client.submit(["true"])


def kinds_of(ears: Listener) -> set[tuple[str, str]]:
    return {(said["kind"], said["job"]) for _, said in ears.heard}


def state_of(client: httpx.Client, job: str) -> str:
    answer = client.get(f"/v1/jobs/{job}")
    return str(answer.json()["state"]) if answer.status_code == 200 else ""


def test_an_active_service_that_lost_its_journal_ends_with_a_sentence(postgres: Postgres, tmp_path: Path) -> None:
    with two_services(tmp_path / "horae", postgres.new_database()) as (active, standby):
        # Its session ends, and before it beats again, the standby has the lock.
        lock = active.server.store._store_lock
        assert lock is not None
        lock._closing.set()  # type: ignore[attr-defined]
        lock._thread.join()  # type: ignore[attr-defined]
        lock._connection.close()  # type: ignore[attr-defined]
        until(lambda: not standby.server.stands_by, "for the standby to take over", patience_s=20.0)
        refused = active.client().post("/v1/jobs", json=[TRUE])
        assert refused.status_code in (400, 503), refused.text
        until(lambda: active.failure, "for the old service to end")
        assert isinstance(active.failure, StoreInUse)
        assert "taken over (term 2, this one had term 1)" in str(active.failure)
        active.end()
        address = tmp_path / "horae" / "address.json"
        until(lambda: address.exists() and standby.server.url in address.read_text(), "for the new one's address")


def test_a_standby_needs_a_database_and_the_folder_and_machine_of_the_active_service(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="--standby needs a journal in PostgreSQL"):
        Server(ServeOptions(tmp_path, port=0, gpus="v100:1", standby=True))
    url = postgres.new_database()
    active = Waiting(ServeOptions(tmp_path / "one", database=url, port=0, gpus="v100:1"))
    try:
        with pytest.raises(UserError, match=r"use the folder .*one: start it with --state"):
            Server(ServeOptions(tmp_path / "two", database=url, port=0, gpus="v100:1", standby=True))
        here = socket.gethostname()
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        with pytest.raises(UserError, match=f"processes of {here}: start its standby on that machine"):
            Server(ServeOptions(tmp_path / "one", database=url, port=0, gpus="v100:1", standby=True))
    finally:
        active.end()


def test_a_database_that_is_down_is_waited_for_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horae.service.server.START_WAIT_S", 0.3)
    monkeypatch.setattr("horae.service.server.START_AGAIN_S", 0.1)
    notes: list[str] = []
    with pytest.raises(UserError, match="cannot be reached"):
        Server(ServeOptions(tmp_path, "postgresql://me@127.0.0.1:1/x", port=0, gpus="v100:1"), notes.append)
    assert len(notes) == 1
    assert "It is tried again for" in notes[0]


@pytest.mark.long
@pytest.mark.parametrize("point", ["launch:2:freezes-before", "append:30:freezes-after"])
def test_a_service_frozen_before_it_acts_begins_nothing_twice_when_it_goes_on(
    postgres: Postgres, tmp_path: Path, point: str
) -> None:
    with Pair(tmp_path, postgres.new_database()) as pair:
        storm = TakeOvers(pair, seed=3)
        pair.start(0, point)
        pair.await_active()
        pair.start(1)
        pair.await_standby()
        storm.submitter.start()
        pair.await_frozen(0)
        until(lambda: pair.active() == 1, "for the standby to take over", patience_s=60.0)
        pair.thaw(0)
        assert pair.end_of(0) == 1
        assert "Another service has taken over" in pair.said()
        pair.start(0)
        storm.finish()
        storm.examine()


@pytest.mark.long
def test_a_killed_active_service_is_replaced_within_ten_seconds_and_no_job_is_lost(
    postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Pair(tmp_path, postgres.new_database()) as pair:
        storm = TakeOvers(pair, seed=1)
        storm.begin()
        storm.kill(KILLS)
        storm.finish()
        found = storm.examine()
    if KILLS > 2:
        with capsys.disabled():
            print(f"\n{found}")  # noqa: T201
    assert found.kills == KILLS
    assert found.longest_gap_s < 10.0
