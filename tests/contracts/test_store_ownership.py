"""Who may write to a store, and what becomes of callers when its database hangs.

Tests service/store/background_call.py, service/store/deadlines.py and service/store/store_lock.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from horae.backends.fake import FakeBackend, FakeJob, FakeWorld
from horae.core.cluster import Node
from horae.core.events import Event, JobHeld
from horae.core.states import State
from horae.service.clock import wall_clock
from horae.service.daemon import Daemon
from horae.service.health import what_is_wrong
from horae.service.initial_settings import InitialSettings
from horae.service.job_file import read_job
from horae.service.operations import Operations
from horae.service.recovery import recover
from horae.service.store import deadlines, store_lock
from horae.service.store.connection import StoreInUse, StoreTrouble
from horae.service.store.store import Store
from horae.service.store.stored_records import TokenRecord
from tests.backends.real import until
from tests.contracts.postgres import Server, owners
from tests.service.stepped_service import ANN
from tests.simulation.trouble import same


def cut_off(postgres: Server) -> None:
    """End all sessions: the service finds out later, and its lock is free."""
    postgres.do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'store_%'")


def test_a_daemon_that_lost_the_store_to_another_never_writes_again(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else it may have its lock again before the other one takes it.
    monkeypatch.setattr(store_lock, "BEAT_S", 60.0)
    url = postgres.new_database()
    store = Store(url, own=True, timeout_s=0.3)
    token = TokenRecord("t", "0" * 64, "ann", "user", 0.0)
    cut_off(postgres)
    other = Store(url, own=True)
    assert (store.term, other.term) == (1, 2)
    writes = (
        lambda: store.append([JobHeld(1.0, "a")]),
        lambda: store.save_checkpoint(1, b"engine"),
        lambda: store.add_token(token),
        lambda: store.save_serve_options({"port": 1}),
        store.try_writing,
    )
    for write in writes:
        with pytest.raises(StoreInUse, match=r"taken over \(term 2, this one had term 1\)"):
            write()
    assert other.append([JobHeld(1.0, "b")]) == 1
    other.close()
    with pytest.raises(StoreInUse):
        store.append([JobHeld(2.0, "a")])
    assert [record for _, record in store.tail()] == [JobHeld(1.0, "b")]
    store.close()


@pytest.mark.long
def test_an_owner_that_was_cut_off_takes_its_lock_again(postgres: Server) -> None:
    url = postgres.new_database()
    store, waiting = Store(url, own=True), Store(url)
    cut_off(postgres)
    until(lambda: owners(postgres) == 1, "for the lock")
    assert not waiting.try_to_own()
    assert store.append([JobHeld(1.0, "a")]) == 1
    store.close()
    until(waiting.try_to_own, "for the server to end the session")
    assert (store.term, waiting.term) == (1, 2)
    assert waiting.append([JobHeld(2.0, "b")]) == 2
    waiting.close()


@pytest.mark.long
def test_a_frozen_owner_loses_its_lock_and_others_do_not_wait_for_its_transaction(postgres: Server) -> None:
    url = postgres.new_database()
    frozen = subprocess.Popen([sys.executable, "-m", "tests.contracts.appender", url, "a"], stdout=subprocess.PIPE)
    try:
        assert frozen.stdout is not None
        frozen.stdout.readline()
        frozen.send_signal(signal.SIGSTOP)
        standby = Store(url)
        until(standby.try_to_own, "for the lock of a frozen service", patience_s=20.0)
        assert standby.append([JobHeld(1e6, "b")]) > 0
        standby.close()
    finally:
        frozen.kill()
        frozen.wait()


@pytest.mark.long
def test_a_frozen_server_is_noticed_and_what_it_had_not_confirmed_is_known_later(postgres: Server) -> None:
    url = postgres.new_database()
    store = Store(url, own=True, timeout_s=1.0)
    assert store.append([JobHeld(1.0, "a")]) == 1
    with postgres.frozen():
        began_s = time.monotonic()
        with pytest.raises(StoreTrouble, match="cannot be reached"):
            store.append([JobHeld(2.0, "b")])
        with pytest.raises(StoreTrouble):
            store.last_seq()
        assert time.monotonic() - began_s < 12.0
        for _ in range(3):
            began_s = time.monotonic()
            with pytest.raises(StoreTrouble):
                store.try_writing()
            assert time.monotonic() - began_s < 2.0, "nobody waits for a server that hangs"
    until(lambda: _written(store), "for the server")
    assert store.append([JobHeld(3.0, "c")]) == store.last_seq()
    store.close()


def _written(store: Store) -> bool:
    try:
        return store.try_writing() >= 1
    except StoreTrouble:
        return False


class WatchedBackend(FakeBackend):
    """A backend that counts how often it is watched."""

    looks = 0

    def watch(self, now_s: float) -> list[Event]:
        self.looks += 1
        return super().watch(now_s)


def states(daemon: Daemon, *jobs: str) -> set[State]:
    rows = [daemon.status.row(job) for job in jobs]
    return {daemon.status.state(row) for row in rows if row is not None}


def test_a_service_whose_database_is_frozen_refuses_at_once_watches_its_jobs_and_goes_on(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_PING_S", 0.5)
    monkeypatch.setattr(deadlines, "_CONNECT_S", 2)
    url = postgres.new_database()
    store = Store(url, own=True, timeout_s=1.0)
    backend = WatchedBackend((Node("v100", "v100", 2),), FakeWorld(default=FakeJob(lasts_s=0.5)))
    settings = InitialSettings((Node("v100", "v100", 2),), "fifo", {})
    daemon = Daemon(store, backend, settings, wall_clock(store.epoch), lambda job, attempt: {})
    operations = Operations(daemon)
    daemon.start()
    first = operations.submit(ANN, [read_job({"run": ["true"]})])
    with postgres.frozen():
        with pytest.raises(StoreTrouble):
            operations.submit(ANN, [read_job({"run": ["true"]})])
        assert what_is_wrong(daemon) == "The journal cannot be written."
        seen = backend.looks
        end_s = time.monotonic() + 2.0
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            with pytest.raises(StoreTrouble):
                operations.submit(ANN, [read_job({"run": ["true"]})])
            assert time.monotonic() - began_s < 1.5, "a request waits for a server that hangs"
            assert daemon.clock() - daemon.counters.cycle_s < 2.0, "the loop hangs"
        assert backend.looks > seen + 1, "the backend is not watched"
    until(lambda: not daemon._in_doubt, "for the database", patience_s=30.0)
    last = operations.submit(ANN, [read_job({"run": ["true"]})])
    until(lambda: states(daemon, *first, *last) == {State.FINISHED}, "for the jobs", patience_s=30.0)
    daemon.close()
    assert same(daemon.engine.contents(), recover(store, settings)[0].contents())
    store.close()
