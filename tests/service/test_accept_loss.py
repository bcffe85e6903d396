"""What a service does with a journal that lost records, once its operator accepts that.

Tests service/orphans.py, service/store/salvage.py and service/store/used_numbers.py.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from horae.backends.protocol import Seen, Sight
from horae.core.cluster import Node
from horae.core.events import (
    BY_ORPHANS,
    JobFinished,
    JobSubmitted,
    NodeDraining,
    NodeJoined,
    NodeObserved,
    NumbersRaised,
)
from horae.service.initial_settings import InitialSettings
from horae.service.machines import BACKEND
from horae.service.orphans import Orphans
from horae.service.server import ServeOptions, Server
from horae.service.store.chain import JournalDamaged, JournalLost
from tests.backends.real import until
from tests.builders import job as made_job
from tests.service.live import in_state, submit
from tests.service.two_gpus import served


def keep_journal(state: Path, copy: Path) -> None:
    """A copy of the journal alone, as somebody makes who has no backup program."""
    with closing(sqlite3.connect(state / "journal.db")) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def put_back(state: Path, copy: Path) -> None:
    for file in state.glob("journal.db*"):
        file.unlink()
    shutil.copy(copy, state / "journal.db")


def test_after_an_older_journal_no_number_is_used_again_and_nothing_running_is_killed(tmp_path: Path) -> None:
    state, go = tmp_path / "state", tmp_path / "go"
    with served(state) as (_, client):
        (first,) = submit(client)
        in_state(client, first, "finished")
        keep_journal(state, tmp_path / "older.db")
        done = [submit(client)[0] for _ in range(3)]
        for job in done:
            in_state(client, job, "finished")
        (runs,) = submit(client, {"run": ["bash", "-c", f"until [ -e {go} ]; do sleep 0.05; done"]})
        until(lambda: (state / "jobs" / runs / "1" / "runner.json").exists(), "for the job")
    put_back(state, tmp_path / "older.db")
    with pytest.raises(JournalLost, match="older than what was acknowledged"):
        Server(ServeOptions(state, port=0, gpus="v100:2"))
    with served(state, accept_loss=True) as (server, client):
        assert "Loss was accepted" in server.journal_notes[0]
        orphans = until(lambda: client.get("/v1/orphans").json()["orphans"], "for the orphan")
        assert [(one["job"], one["attempt"]) for one in orphans] == [(runs, 1)]
        assert "journal does not know" in client.get("/healthz").json()["error"]
        (new,) = submit(client)
        used = {first, runs, *done}
        assert new not in used
        assert int(new.rpartition("-")[2]) > max(int(job.rpartition("-")[2]) for job in used)
        assert client.get(f"/v1/jobs/{new}").json()["state"] == "waiting", "the orphan's GPUs are not given away"
        assert (state / "jobs" / runs / "1" / "exit.json").exists() is False, "it goes on"
        go.touch()
        in_state(client, new, "finished")
        until(lambda: client.get("/healthz").json()["ok"], "for the service to be well")
    with served(state) as (_, client):
        assert client.get("/v1/jobs", params={"all": True}).json()["total"] == 2


def test_an_admin_ends_orphans(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with served(state) as (_, client):
        (runs,) = submit(client, {"run": ["sleep", "600"]})
        until(lambda: (state / "jobs" / runs / "1" / "runner.json").exists(), "for the job")
    for file in state.glob("journal.db*"):
        file.unlink()
    with served(state, accept_loss=True) as (_, client):
        until(lambda: client.get("/v1/orphans").json()["orphans"], "for the orphan")
        assert client.post("/v1/orphans/end").json() == {"ended": [f"{runs}@1"]}
        until(lambda: not client.get("/v1/orphans").json()["orphans"], "for its end")
        (new,) = submit(client)
        assert new != runs
        in_state(client, new, "finished")


def test_a_damaged_journal_is_salvaged_up_to_the_damage_and_kept_aside(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with served(state) as (server, client):
        (first,) = submit(client)
        in_state(client, first, "finished")
        upto = server.store.last_seq()
        (second,) = submit(client)
        in_state(client, second, "finished")
        (token,) = (client.post("/v1/tokens", json={"user": "ada", "role": "viewer"}).json()["token"],)
    with closing(sqlite3.connect(state / "journal.db")) as journal, journal:
        # The checkpoints go, too: else recovery would not need the damaged record.
        journal.execute("DELETE FROM checkpoints")
        journal.execute(
            "UPDATE journal SET body = replace(body, 'JobSubmitted', 'JobSubmittee') WHERE seq = ?", [upto + 1]
        )
    with pytest.raises(JournalDamaged, match=f"record {upto + 1} is not what was written"):
        Server(ServeOptions(state, port=0, gpus="v100:2"))
    with served(state, accept_loss=True) as (server, client):
        assert f"up to number {upto}" in server.journal_notes[1]
        assert [job["id"] for job in client.get("/v1/jobs", params={"all": True}).json()["jobs"]] == [first]
        assert httpx.get(f"{server.url}/v1/nodes", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        (new,) = submit(client)
        assert new not in (first, second)
        in_state(client, new, "finished")
    assert len(list(state.glob("journal.db.2*"))) == 1
    with served(state):
        pass


def test_a_file_that_is_no_journal_any_more_gives_way_to_a_new_one(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with served(state) as (_, client):
        (first,) = submit(client)
        in_state(client, first, "finished")
    for file in state.glob("journal.db-*"):
        file.unlink()
    (state / "journal.db").write_bytes(b"no database" * 1000)
    with pytest.raises(JournalDamaged, match="--accept-loss"):
        Server(ServeOptions(state, port=0, gpus="v100:2"))
    with served(state, accept_loss=True) as (_, client):
        (new,) = submit(client)
        assert new != first
        in_state(client, new, "finished")


def test_after_a_loss_a_node_takes_no_jobs_until_it_is_known_what_runs_there() -> None:
    """A backend may look at its nodes seconds after the first decision is due."""
    machine = InitialSettings((Node("v", "v100", 1), Node("w", "v100", 1)), "fifo-backfill", {}).engine(live=True)
    machine.apply(NodeDraining(0.0, "w", by="root"))
    machine.apply(NumbersRaised(1.0, 7, 7))
    machine.apply(JobSubmitted(2.0, made_job("a-8")))
    assert not machine.decide(2.0).launches
    orphans, sight = Orphans(), Sight((Seen("v", "v100", 1), Seen("w", "v100", 1)))
    seen = [NodeObserved(3.0, node, (("b-7", 1),) if node == "v" else ()) for node in ("v", "w")]
    for event in orphans.set_apart(seen, machine, sight, 3.0):
        machine.apply(event)
    assert not machine.decide(3.0).launches
    for event in orphans.set_apart([JobFinished(4.0, "b-7", 1)], machine, sight, 4.0):
        machine.apply(event)
    assert [launch.job for launch in machine.decide(4.0).launches] == ["a-8"]
    assert machine.gpus.closed_by == {"w": "root"}, "what the operator has closed stays closed"


def test_a_node_that_opens_while_an_orphan_is_found_there_is_closed_again() -> None:
    machine = InitialSettings((Node("v", "v100", 1),), "fifo-backfill", {}).engine(live=True)
    machine.apply(NodeDraining(0.0, "v", by=BACKEND))
    joins = NodeJoined(1.0, Node("v", "v100", 1))
    events = Orphans().set_apart([joins, NodeObserved(1.0, "v", (("b-7", 1),))], machine, None, 1.0)
    assert NodeDraining(1.0, "v", by=BY_ORPHANS) in events
