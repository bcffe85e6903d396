"""Connections that come in thousands, say half of what they want to say, or do not listen."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from horae.service import connections
from horae.service.connections import connections_for
from horae.service.listening import Listener, listen
from horae.service.server import Http
from tests.backends.real import until
from tests.service.live import Live, live, submit
from tests.service.served_process import ENDED, ServedProcess

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("live")) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that a test can wait for."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.4)
    monkeypatch.setattr(connections, "UNREAD_S", 0.4)


def dial(service: Live, said: bytes = b"") -> socket.socket:
    wire = socket.create_connection(service.listener.getsockname(), timeout=20)
    wire.sendall(said)
    return wire


def answer(wire: socket.socket) -> bytes:
    """What comes until the service hangs up."""
    heard = b""
    with wire, suppress(ConnectionResetError):
        while more := wire.recv(65536):
            heard += more
    return heard


POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n["


@pytest.mark.parametrize("said", [b"", b"GET", HALF, POST], ids=["nothing", "a word", "half the headers", "no body"])
def test_a_request_must_be_complete_in_time(service: Live, impatient: None, said: bytes) -> None:
    heard = answer(dial(service, said))
    assert b"408" in heard.split(b"\r\n")[0] or b"401" in heard.split(b"\r\n")[0]


def test_a_request_that_comes_byte_by_byte_is_cut_off(service: Live, impatient: None) -> None:
    wire = dial(service)
    began_s = time.monotonic()

    def is_cut_off() -> bool:
        try:
            wire.sendall(b"x")
        except OSError:
            return True
        return False

    until(is_cut_off, "for the service to hang up", patience_s=20)
    assert time.monotonic() - began_s < 10, "each byte would be in time"
    wire.close()


def test_a_client_that_does_not_read_its_answer_is_given_up(service: Live, impatient: None) -> None:
    token = service.token("reader")
    alice = service.client(token)
    submit(alice, *({"name": "long", "run": ["true", "x" * 50_000]} for _ in range(60)))
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.connect(service.listener.getsockname())
    head = f"GET /v1/jobs/long-1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    wire.sendall(head * 60)
    server = service._http._server
    until(lambda: not len(server.table), "for the service to hang up")
    wire.close()


def test_the_oldest_idle_connection_makes_room_for_a_new_one(service: Live) -> None:
    listener = listen("127.0.0.1", 0, allow_remote=False)
    http = Http(service.app, Listener(listener), most_connections=16)
    http.start()
    with ExitStack() as ending:
        ending.callback(http.close)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        kept = ending.enter_context(httpx.Client(base_url=url, trust_env=False))
        first = socket.create_connection(listener.getsockname(), timeout=20)
        first.sendall(HALF)
        attack = [ending.enter_context(socket.create_connection(listener.getsockname())) for _ in range(60)]
        for wire in attack:
            wire.sendall(HALF)
        assert kept.get("/healthz").status_code == 200
        assert answer(first) == b"", "the oldest is closed"
        assert len(http._server.table) <= 16


def test_of_many_peers_the_one_with_the_most_connections_gives_way() -> None:
    class Wire:
        def __init__(self, peer: str) -> None:
            self.peer, self.waits_since_s, self.is_closed = peer, 0.0, False

        def abort(self) -> None:
            self.is_closed = True

    table = connections.Connections(100)
    greedy, modest = [Wire("10.0.0.1") for _ in range(49)], [Wire(f"10.0.1.{n}") for n in range(51)]
    for wire in (*modest, *greedy):
        assert table.add(wire)  # type: ignore[arg-type]
    assert not table.has_room()
    assert [wire.is_closed for wire in greedy] == [True] * 16 + [False] * 33
    assert not any(wire.is_closed for wire in modest)
    for wire in greedy[:16]:
        table.remove(wire)  # type: ignore[arg-type]
    assert table.has_room()


def test_no_peer_has_more_than_half_of_all_connections() -> None:
    class Busy:
        peer, waits_since_s = "10.0.0.1", 0.0

    table = connections.Connections(10)
    for _ in range(5):
        wire = Busy()
        assert table.add(wire)  # type: ignore[arg-type]
        table.stop_waiting(wire)  # type: ignore[arg-type]
    assert not table.add(Busy())  # type: ignore[arg-type]


@pytest.mark.parametrize(("descriptors", "expected"), [(64, 32), (1024, 768), (4096, 3840), (1_000_000, 4096), (1, 1)])
def test_descriptors_are_left_for_launches_and_journal(descriptors: int, expected: int) -> None:
    assert connections_for(descriptors) == expected


#: Opens half requests, says how many, and keeps them.
_ATTACK = """
import resource, socket, sys, time
port, count = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
wires = []
for number in range(count):
    wire = socket.create_connection(("127.0.0.1", port), timeout=60)
    wire.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\nX-Slow: ")
    wires.append(wire)
print("open", flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_five_thousand_half_requests_stop_nothing(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 6000:
        pytest.skip("the attacker needs 6,000 descriptors")
    served = ServedProcess(tmp_path, ["--gpus", "v100:8"], {})
    limited = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)); {_SERVE}"
    served.command = [sys.executable, "-c", limited]
    with ExitStack() as ending:
        served.serve()
        ending.callback(served.end)
        assert served.service
        port = served.url.rpartition(":")[2]
        attack = subprocess.Popen([sys.executable, "-c", _ATTACK, port, "5000"], stdout=subprocess.PIPE)
        ending.callback(attack.wait)
        ending.callback(attack.kill)
        assert attack.stdout
        assert attack.stdout.readline() == b"open\n"
        began_s, slowest_s, ids = time.monotonic(), 0.0, list[str]()
        used_s = cpu_s(served.service.pid)
        for second in range(1, 16):
            asked_s = time.monotonic()
            ids += served.post("/v1/jobs", [{"run": ["true"]}])["ids"]
            slowest_s = max(slowest_s, time.monotonic() - asked_s)
            until(lambda second=second: time.monotonic() > began_s + second)
        asked_s = time.monotonic()
        assert httpx.get(f"{served.url}/healthz", trust_env=False).json()["ok"]
        assert time.monotonic() - asked_s < 1.0
        assert (cpu_s(served.service.pid) - used_s) / (time.monotonic() - began_s) < 0.10
        assert slowest_s < 2.0, "submits go on"
        until(lambda: {served.get(f"/v1/jobs/{job}")["state"] for job in ids} <= ENDED, "for all jobs", 60)
        assert {served.get(f"/v1/jobs/{job}")["state"] for job in ids} == {"finished"}
        ends = [attempt["end"] for job in ids for attempt in served.get(f"/v1/jobs/{job}")["attempts"]]
        assert ends == ["finished"] * len(ids), "no launch failed"


_SERVE = "runpy.run_module('horae', run_name='__main__', alter_sys=True)"


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
