"""Policies and backends from outside in the live service.

Tests service/failing_policies.py and service/initial_settings.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from horae.backends import BACKENDS, BackendOptions
from horae.backends.fake import FakeBackend, FakeJob, FakeWorld
from horae.core.cluster import Node
from horae.core.errors import UserError
from horae.policies import CONTENT_HASH, POLICIES
from horae.service.failing_policies import MissingPolicy
from horae.service.history.journal_history import read_history
from horae.service.initial_settings import InitialSettings
from horae.service.listening import CannotServe
from horae.service.server import ServeOptions, Server
from tests.service.live import eventually, submit

GOOD = '''
import horae


class Mine:
    """Large gangs first."""

    def plan(self, now, memory):
        return horae.Wishes(now.rows, -now.gpus.astype(float))
'''
FRAGILE = """
from pathlib import Path

import horae


class Mine:
    def plan(self, now, memory):
        if Path(__file__).with_name("broken").exists():
            raise RuntimeError("out of order")
        return horae.Wishes(now.rows)
"""


PINNING = """
from pathlib import Path

import horae


class Mine:
    def plan(self, now, memory):
        if Path(__file__).with_name("broken").exists():
            return horae.Wishes(now.rows[-1:], pins=({0: 4},) * len(now.rows[-1:]))
        return horae.Wishes(now.rows, lease_until_s=now.now_s + 3600)
"""


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test loads and adds is forgotten, as in another process."""
    policies, backends = dict(POLICIES), dict(BACKENDS)
    yield
    for known, before in ((POLICIES, policies), (BACKENDS, backends)):
        known.clear()  # type: ignore[attr-defined]
        known.update(before)  # type: ignore[attr-defined]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    return path


@contextmanager
def served(state: Path, **asked: Any) -> Iterator[Server]:
    server = Server(ServeOptions(state, **{"port": 0, "gpus": "v100:4", **asked}))
    try:
        yield server
    finally:
        server.close()
        for name in [name for name in POLICIES if ":" in name]:
            del POLICIES[name]


def person(server: Server) -> httpx.Client:
    token = server.token_file.read_text().strip()
    return httpx.Client(
        base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=20, trust_env=False, verify=False
    )


def test_a_file_is_stored_with_its_hash_and_found_by_the_next_service(
    tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{mine}:Mine"
    stored = {CONTENT_HASH: hashlib.sha256(mine.read_bytes()).hexdigest()}
    with served(tmp_path / "state", policy="./mine.py:Mine") as server:
        at = server.daemon.status
        assert (at.policy, at.settings) == (name, stored)
    monkeypatch.chdir("/")
    with served(tmp_path / "state") as server:
        assert (server.daemon.status.policy, server.daemon.status.settings) == (name, stored)
        with person(server) as admin:
            submit(admin, {"run": ["sleep", "60"]})
            eventually(lambda: admin.get("/v1/jobs").json()["jobs"][0]["state"] == "launching", "a launch")
            (job,) = admin.get("/v1/jobs").json()["jobs"]
            admin.post(f"/v1/jobs/{job['id']}/cancel")
            eventually(lambda: not admin.get("/v1/jobs").json()["jobs"], "the end of the job")


def test_a_file_that_changed_or_is_gone_is_told_with_what_to_do(tmp_path: Path, mine: Path) -> None:
    with served(tmp_path / "state", policy=str(mine) + ":Mine"):
        pass
    mine.write_text(GOOD + "\n# another day\n")
    with pytest.raises(CannotServe, match=r"mine\.py has changed since .*--policy .*mine\.py:Mine") as error:
        Server(ServeOptions(tmp_path / "state", port=0, gpus="v100:4"))
    assert "\n" not in str(error.value)
    with served(tmp_path / "state", policy=f"{mine}:Mine") as server:
        newest = {CONTENT_HASH: hashlib.sha256(mine.read_bytes()).hexdigest()}
        assert server.daemon.status.settings == newest, "naming it again takes the new file"
    with served(tmp_path / "state") as server:
        assert server.daemon.status.settings == newest
    mine.unlink()
    with pytest.raises(CannotServe, match=r"There is no file .*mine\.py"):
        Server(ServeOptions(tmp_path / "state", port=0, gpus="v100:4"))
    with served(tmp_path / "state", policy="fifo") as server:
        assert (server.daemon.status.policy, server.daemon.status.settings) == ("fifo", {})
    with served(tmp_path / "state") as server:
        assert server.daemon.status.policy == "fifo"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("class Mine(:\n", "SyntaxError"),
        ("class Mine: pass\n", "has no method plan"),
        ("class Other: pass\n", "has no 'Mine'"),
        ("class Mine:\n  def plan(self, now, memory): return 7\n", "plan must return horae.Wishes"),
        ("class Mine:\n  def plan(self, now, memory): return 1 / 0\n", r"ZeroDivisionError: division by zero \(line 2"),
        ("class Mine:\n  def __init__(self): 1 / 0\n  def plan(self, now, memory): pass\n", "cannot be made"),
    ],
)
def test_a_broken_file_does_not_start_a_service(tmp_path: Path, mine: Path, source: str, told: str) -> None:
    mine.write_text(source)
    with pytest.raises(UserError, match=told) as error:
        Server(ServeOptions(tmp_path / "state", port=0, gpus="v100:4", policy=f"{mine}:Mine"))
    assert "\n" not in str(error.value)
    with served(tmp_path / "state") as server:
        assert server.daemon.status.policy == "fifo-backfill", "nothing of it was stored"


def test_over_the_api_only_what_is_loaded_can_be_named(tmp_path: Path, mine: Path) -> None:
    with served(tmp_path / "state", policy=f"{mine}:Mine") as server, person(server) as admin:
        for place in ("./mine.py:Mine", "os:path", "/etc/passwd"):
            answer = admin.put("/v1/settings", json={"policy": place})
            assert answer.status_code == 400
            assert "is a file or a module" in answer.json()["error"]
        answer = admin.put("/v1/settings", json={"settings": {CONTENT_HASH: "0" * 64}})
        assert (answer.status_code, "leave it out" in answer.json()["error"]) == (400, True)
        assert admin.put("/v1/settings", json={"policy": "las"}).status_code == 200


def test_a_policy_that_pins_gpus_of_a_protected_job_does_not_end_the_service(
    tmp_path: Path, mine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine.write_text(PINNING)
    gang = {"run": ["sleep", "60"], "resources": {"gpus": 4}}
    with served(tmp_path / "state", policy=f"{mine}:Mine") as server, person(server) as admin:
        (first,) = submit(admin, gang)
        eventually(lambda: admin.get(f"/v1/jobs/{first}").json()["state"] in ("launching", "running"), "a start")
        (tmp_path / "broken").touch()
        (second,) = submit(admin, gang)
        eventually(lambda: admin.get("/healthz").status_code == 503, "trouble")
        assert f"where job '{first}' keeps its GPUs for another" in caplog.text
        assert admin.get(f"/v1/jobs/{first}").json()["state"] in ("launching", "running"), "it keeps its GPUs"
        admin.post("/v1/jobs/cancel", json={"ids": [first, second]})
        (tmp_path / "broken").unlink()
        eventually(lambda: not admin.get("/v1/jobs").json()["jobs"], "the end of the jobs")


def test_a_policy_that_fails_does_not_end_the_service(tmp_path: Path, mine: Path) -> None:
    mine.write_text(FRAGILE)
    with served(tmp_path / "state", policy=f"{mine}:Mine") as server, person(server) as admin:
        (first,) = submit(admin, {"run": ["sleep", "60"]})
        eventually(lambda: admin.get(f"/v1/jobs/{first}").json()["state"] in ("launching", "running"), "a start")
        (tmp_path / "broken").touch()
        (second,) = submit(admin, {"run": ["sleep", "60"]})
        eventually(lambda: admin.get("/healthz").status_code == 503, "trouble")
        assert "policy fails" in admin.get("/healthz").json()["error"]
        assert admin.get(f"/v1/jobs/{first}").json()["state"] in ("launching", "running"), "it keeps its GPUs"
        assert admin.get(f"/v1/jobs/{second}").json()["why"]["reason"] == "NotYetConsidered"
        (tmp_path / "broken").unlink()
        (third,) = submit(admin, {"run": ["sleep", "60"]})
        for job in (second, third):
            eventually(lambda job=job: admin.get(f"/v1/jobs/{job}").json()["state"] in ("launching", "running"), job)
        assert admin.get("/healthz").status_code == 200
        admin.post("/v1/jobs/cancel", json={"ids": [first, second, third]})
        eventually(lambda: not admin.get("/v1/jobs").json()["jobs"], "the end of the jobs")


def test_whoever_reads_the_journal_elsewhere_loads_nothing(tmp_path: Path, mine: Path) -> None:
    marker = tmp_path / "loaded"
    mine.write_text(f"open({str(marker)!r}, 'a').write('x')\n{GOOD}")
    with served(tmp_path / "state", policy=f"{mine}:Mine") as server:
        said = server.store.initial_settings()
        assert said is not None
    marker.unlink()
    beginning = InitialSettings.from_dict(said)
    assert isinstance(beginning.engine().policy, MissingPolicy)
    assert read_history(beginning, iter(()), 1.0, True).policy == f"{mine}:Mine"
    assert not marker.exists()


def test_a_backend_from_outside_runs_jobs(tmp_path: Path) -> None:
    made: list[BackendOptions] = []
    world = FakeWorld(default=FakeJob(lasts_s=0.2))

    def make(options: BackendOptions) -> FakeBackend:
        made.append(options)
        return FakeBackend(options.nodes or (Node("far", "h100", 8),), world)

    BACKENDS["far-away"] = make
    with served(tmp_path, gpus=None, backend="far-away") as server, person(server) as admin:
        assert made[0].state == server.state
        assert server.daemon.status.cluster.gpu_types == ("h100",)
        (job,) = submit(admin, {"resources": {"gpus": 8}})
        eventually(lambda: admin.get(f"/v1/jobs/{job}").json()["state"] == "finished", "the end of the job")
    with served(tmp_path, gpus=None) as server, person(server) as admin:
        assert len(made) == 2, "a service comes back under the backend of before"
        world.default = FakeJob()
        submit(admin)
        eventually(lambda: server.daemon.engine.gpus.occupied, "a start")
    with pytest.raises(CannotServe, match="start it with --backend far-away"):
        Server(ServeOptions(tmp_path, port=0, gpus="far:8", backend="local"))
    with pytest.raises(UserError, match="No backend is called 'near'"):
        Server(ServeOptions(tmp_path / "other", port=0, backend="near"))


def test_a_service_starts_though_its_backend_sees_nothing(tmp_path: Path) -> None:
    world = FakeWorld(default=FakeJob(lasts_s=0.2))
    blind = FakeBackend((Node("far", "h100", 8),), world, blind=True, shares_gpus=False)
    BACKENDS["far-away"] = lambda options: blind
    with pytest.raises(UserError, match="gandiva lets two jobs share GPUs"):
        Server(ServeOptions(tmp_path, port=0, backend="far-away", policy="gandiva"))
    with served(tmp_path, gpus=None, backend="far-away") as server, person(server) as admin:
        assert server.daemon.status.policy == "fifo-backfill", "a policy that is refused is not stored"
        assert admin.get("/v1/nodes").json() == {"nodes": [], "trouble": "The cluster is out of sight."}
        assert admin.get("/healthz").json() == {"ok": False, "error": "The cluster is out of sight."}
        assert "horae_backend_trouble 1.0" in admin.get("/metrics").text
        blind.blind = False
        eventually(lambda: admin.get("/v1/nodes").json()["nodes"], "a node")
        assert admin.get("/healthz").json() == {"ok": True, "error": ""}
        (job,) = submit(admin, {"resources": {"gpus": 8}})
        eventually(lambda: admin.get(f"/v1/jobs/{job}").json()["state"] == "finished", "the end of the job")
