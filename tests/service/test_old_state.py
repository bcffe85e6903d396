"""State folders that earlier releases wrote are opened, and the service goes on where it was."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from horae.cli.main import main
from horae.core.explain import explain
from horae.core.states import State
from horae.service.initial_settings import InitialSettings
from horae.service.recovery import recover
from horae.service.server import ServeOptions, Server
from horae.service.store.store import Store
from tests.contracts.postgres import Server as Postgres
from tests.contracts.postgres import program
from tests.service.live import in_state, submit

ARCHIVES = Path(__file__).parent / "old_state"
ENDED = ("finished", "failed", "cancelled")
#: What is told of a job that has ended and can never change.
STAYS = "name user queue app state gpus gpu_types attempt preemptions failures progress loss ran_s gpu_seconds".split()
#: The service is opened so long after its last record, whatever the date: else its jobs would be too old to be kept.
LATER_S = 60.0


@dataclass(frozen=True)
class Old:
    """A state folder as it was left, where the service keeps its journal, and what the service last said."""

    state: Path
    database: str | None
    expected: dict[str, Any]

    @property
    def url(self) -> str:
        return self.database or f"sqlite:///{self.state}/journal.db"

    @property
    def jobs(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = self.expected["jobs"]
        return jobs


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    if not program("initdb") or not program("postgres"):
        pytest.skip("needs PostgreSQL: neither on the path nor under /usr/lib/postgresql are initdb and postgres")
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    """A copy of each folder."""
    database = request.getfixturevalue("postgres").new_database() if request.param == "postgresql" else None
    with tarfile.open(ARCHIVES / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = Old(tmp_path / "state", database, json.loads((tmp_path / "expected.json").read_text()))
    if database:
        text = (tmp_path / "tables.json").read_text().replace(found.expected["folder"], str(found.state))
        _fill(database, json.loads(text))
    else:
        _make_recent(found.state / "journal.db")
    return found


def _fill(database: str, said: dict[str, Any]) -> None:
    """Make the tables as they were made, and fill them."""
    last_s = max(row["at_s"] for row in said["tables"]["journal"])
    for fact in said["tables"]["facts"]:
        fact["value"] = repr(_epoch(last_s)) if fact["name"] == "epoch" else fact["value"]
    with psycopg.connect(database) as connection:
        for statement in said["ddl"]:
            connection.execute(statement)
        for table, rows in said["tables"].items():
            for row in rows:
                names, holes = ", ".join(f'"{name}"' for name in row), ", ".join(["%s"] * len(row))
                values = [_value(value) for value in row.values()]
                connection.execute(f"INSERT INTO {table} ({names}) VALUES ({holes})".encode(), values)


def _value(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


def _make_recent(journal: Path) -> None:
    with closing(sqlite3.connect(journal)) as connection, connection:
        (last_s,) = connection.execute("SELECT max(at_s) FROM journal").fetchone()
        connection.execute("UPDATE facts SET value = ? WHERE name = 'epoch'", [repr(_epoch(last_s))])


def _epoch(last_s: float) -> float:
    return time.time() - last_s - LATER_S


@contextmanager
def opened(old: Old) -> Iterator[Server]:
    # It has several users, so that its operator has to say once that their jobs share an account.
    options = ServeOptions(old.state, database=old.database, port=0, gpus="v100:2,k80:2", isolation="none")
    server = Server(options)
    try:
        yield server
        assert server.daemon.crashed is None
    finally:
        server.close()


@contextmanager
def people(server: Server, old: Old) -> Iterator[list[httpx.Client]]:
    """The operator, ann and bob, each with the token of before."""
    tokens = [server.token_file.read_text().strip(), *(old.expected["tokens"][user] for user in ("ann", "bob"))]
    with ExitStack() as open_clients:
        yield [
            open_clients.enter_context(
                httpx.Client(
                    base_url=server.url,
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=20,
                    trust_env=False,
                    verify=False,
                )
            )
            for token in tokens
        ]


def test_every_acknowledged_job_is_recovered_with_its_state_and_its_reason(old: Old) -> None:
    with closing(Store(old.url, own=True)) as store:
        beginning = InitialSettings.from_dict(store.initial_settings() or {})
        engine, seq = recover(store, beginning)
        assert seq == store.last_seq() > 100
        assert store.newest_checkpoint()
        assert len(store.tokens()) == 3
    assert (beginning.policy, engine.policy_name, engine.policy_settings["lease"]) == ("tiresias", "themis", "3")
    standing = engine.status()
    table = engine.jobs
    assert [spec.id for spec in table.specs] == [job["id"] for job in old.jobs]
    for row, job in enumerate(old.jobs):
        found = (State(table.state[row]).name.lower(), int(table.attempt[row]), int(table.failures[row]))
        assert found == (job["state"], job["attempt"], job["failures"]), job["id"]
        why = explain(standing, job["id"])
        assert (why.code, _figures(why.sentence)) == (job["reason"], _figures(job["sentence"]))
    assert {job["state"] for job in old.jobs} == {*ENDED, "running", "waiting", "held"}


def test_the_service_goes_on_with_old_and_new_jobs(old: Old) -> None:
    running = [job["id"] for job in old.jobs if job["state"] not in ENDED]
    with opened(old) as server, people(server, old) as (admin, ann, bob):
        _check_ended(admin, old)
        mine = {job["id"] for job in bob.get("/v1/jobs", params={"all": "true"}).json()["jobs"]}
        assert mine == {job["id"] for job in old.jobs if job["user"] == "bob"}
        assert bob.post("/v1/jobs/held-16/release").status_code == 200
        (new,) = submit(ann, {"name": "new", "run": ["true"], "queue": "org/vision"})
        assert new == "new-19", "numbers go on after those of jobs that left"
        for job in (*running, new):
            in_state(admin, job, "finished")
        again = {job["id"]: _told(admin, job["id"]) for job in old.jobs}
        assert again["big-11"]["attempt"] == 2, "its first attempt went down with the machine"
    with opened(old) as server, people(server, old) as (admin, _, _):
        assert {job: _told(admin, job) for job in again} == again
        _check_ended(admin, old)


def test_reports_and_replays_read_the_old_journal(
    old: Old, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def horae(*words: str) -> Any:
        code, said = main([*words, "-o", "json"]), capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    with opened(old) as server:
        monkeypatch.setenv("HORAE_URL", server.url)
        monkeypatch.setenv("HORAE_TOKEN_FILE", str(server.token_file))
        monkeypatch.delenv("HORAE_TOKEN", raising=False)
        listed = horae("queue", "--all")["jobs"]
        assert {job["id"] for job in listed} == {job["id"] for job in old.jobs}
        told = [event["what"] for event in horae("events", "trial0-6")["events"]]
        (then,) = [_in_todays_words(job["events"]) for job in old.jobs if job["id"] == "trial0-6"]
        assert told == [what for _, _, what in then]
        assert horae("why", "trial3-9")["reason"] == "GivenUp"
        was, would = horae("replay", "--policy", "srtf")["runs"]
        assert [was[name] for name in ("jobs", "failed", "cancelled", "given_up")] == [15, 1, 1, 2]
        assert (would["policy"], would["jobs"]) == ("srtf", 15)
        used = {(row["user"], row["queue"]): row["jobs"] for row in horae("report", "usage")["usage"]}
        assert used == {("ann", "org/vision"): 10, ("bob", "org/text"): 3, ("bob", "default"): 2}


def _told(person: httpx.Client, job: str) -> dict[str, Any]:
    answer = person.get(f"/v1/jobs/{job}")
    assert answer.status_code == 200, answer.text
    record = answer.json()
    return {name: record[name] for name in STAYS}


def _check_ended(person: httpx.Client, old: Old) -> None:
    """Jobs that had ended are told of as they were."""
    listed = person.get("/v1/jobs", params={"all": "true", "limit": 0}).json()["jobs"]
    assert {job["id"] for job in listed} >= {job["id"] for job in old.jobs}
    for job in old.jobs:
        if job["state"] in ENDED:
            assert _told(person, job["id"]) == {name: job[name] for name in STAYS}
            assert person.get(f"/v1/jobs/{job['id']}/why").json()["sentence"] == job["sentence"]
            events = person.get(f"/v1/jobs/{job['id']}/events").json()["events"]
            assert [[event["seq"], event["kind"], event["what"]] for event in events] == _in_todays_words(job["events"])


def _figures(sentence: str) -> list[str]:
    """The numbers of a sentence: its words may change, they may not."""
    return sorted(re.findall(r"\d+(?:\.\d+)?", sentence))


def _in_todays_words(events: list[list[Any]]) -> list[list[Any]]:
    """Events as that version told them, but for the one sentence that is another now."""
    saved_nothing = "0% of its work is saved.", "nothing is saved, so the next one begins anew."
    return [[seq, kind, what.replace(*saved_nothing) if kind == "stopped" else what] for seq, kind, what in events]
