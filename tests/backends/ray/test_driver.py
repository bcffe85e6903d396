"""`RayDriver` against a fake dashboard: what it asks for, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horae.backends.driver import OutOfSight, Piece, PieceId, PieceRunning, PiecesRefused
from horae.backends.ray import gang
from horae.backends.ray.dashboard import Dashboard
from horae.backends.ray.driver import BadRaySettings, RayDriver
from horae.backends.ray.gang_job import RaySettings
from horae.workload.clusters import parse_cluster
from tests.backends.ray.fake_dashboard import FakeDashboard, job_entry, node_entry, serving, state_of

PIECE = Piece(PieceId("a-1", 1, "v1"), "v100", 2, ("true",))
OURS = "horae-s1-a-1-1"
EXISTS = (
    500,
    f"Traceback ...\nRuntimeError: status code 400: ValueError: Job {OURS} already exists. Use another.\n.\n",
)


@pytest.fixture
def fake() -> Iterator[FakeDashboard]:
    replies: dict[str, Any] = {
        "GET /api/v0/nodes": state_of(node_entry("v1"), node_entry("v2", number=3)),
        "GET /api/v0/actors": state_of(),
        "GET /api/v0/placement_groups": state_of(),
        "GET /api/v0/tasks": state_of(),
        "GET /api/jobs/": (200, []),
        "POST /api/jobs/": (200, {"submission_id": OURS}),
    }
    with serving(FakeDashboard(replies)) as dashboard:
        yield dashboard


@pytest.fixture
def driver(fake: FakeDashboard, tmp_path: Path) -> RayDriver:
    return RayDriver(RaySettings("s1", tmp_path), Dashboard(fake.address, limit_s=5.0))


def test_a_look_has_nodes_own_pieces_and_work_of_others(fake: FakeDashboard, driver: RayDriver) -> None:
    ours = job_entry(OURS, nodes=["v1", "v2"])
    theirs = job_entry("horae-s2-a-1-1", job_id="03000000")
    fake.replies["GET /api/jobs/"] = (200, [ours, theirs])
    actor = {"class_name": "PieceActor", "node_id": "v1-2", "required_resources": {"GPU": 1.0}}
    lost = {"class_name": "Lost", "node_id": "nobody", "required_resources": {"GPU": 1.0}, "job_id": "9"}
    fake.replies["GET /api/v0/actors"] = state_of(
        {**actor, "job_id": "02000000"}, {**actor, "job_id": "03000000"}, lost
    )
    look = driver.look()
    assert [*look.nodes] == ["v1", "v2"]
    assert look.pieces == {PieceId("a-1", 1, "v1"): PieceRunning(), PieceId("a-1", 1, "v2"): PieceRunning()}
    assert look.foreign == {"v1": ("Ray actor PieceActor of job 03000000",)}


def test_a_ray_cluster_is_read_for_simulations(fake: FakeDashboard) -> None:
    fake.replies["GET /api/v0/nodes"] = state_of(node_entry("v1"), node_entry("v2", "DEAD"), node_entry("head", gpus=0))
    (node,) = parse_cluster(f"ray:{fake.address}").nodes
    assert (node.name, node.gpu_type, node.gpus, node.rack) == ("v1", "v100", 4, "rack-0")
    assert node.cpus
    assert node.memory_mb


def test_without_the_state_api_nodes_come_from_the_summary(fake: FakeDashboard, driver: RayDriver) -> None:
    fake.replies["GET /api/v0/nodes"] = (404, "gone in this release")
    raylet = {"nodeId": "x", "nodeName": "v9", "nodeManagerAddress": "10.0.0.9", "state": "ALIVE"}
    fake.replies["GET /nodes"] = (200, {"data": {"summary": [{"raylet": {**raylet, "resourcesTotal": {"GPU": 2.0}}}]}})
    assert [*driver.look().nodes] == ["v9"]


def test_a_cluster_without_a_living_node_is_not_believed(fake: FakeDashboard, driver: RayDriver) -> None:
    fake.replies["GET /api/v0/nodes"] = state_of(node_entry("v1", "DEAD"))
    with pytest.raises(OutOfSight, match="no living node"):
        driver.look()


@pytest.mark.parametrize("path", ["actors", "placement_groups", "tasks"])
def test_a_look_that_is_not_whole_is_none(fake: FakeDashboard, driver: RayDriver, path: str) -> None:
    fake.replies[f"GET /api/v0/{path}"] = (500, "timed out")
    with pytest.raises(OutOfSight):
        driver.look()


def test_a_gang_is_submitted_once_and_its_program_is_on_the_shared_folder(
    fake: FakeDashboard, driver: RayDriver, tmp_path: Path
) -> None:
    driver.submit([PIECE])
    driver.submit([])
    ((_, request),) = [asked for asked in fake.asked if asked[0] == "POST /api/jobs/"]
    (program,) = tmp_path.glob("gang-*.py")
    assert request["submission_id"] == OURS
    assert str(program) in request["entrypoint"]
    assert program.read_bytes() == Path(gang.__file__).read_bytes()


def test_a_job_that_is_there_already_is_as_good_as_submitted(fake: FakeDashboard, driver: RayDriver) -> None:
    fake.replies["POST /api/jobs/"] = EXISTS
    fake.replies[f"GET /api/jobs/{OURS}"] = (200, job_entry(OURS, nodes=["v1", "v2"]))
    driver.submit([PIECE])


def test_a_job_that_is_there_without_the_piece_is_told(fake: FakeDashboard, driver: RayDriver) -> None:
    fake.replies["POST /api/jobs/"] = EXISTS
    fake.replies[f"GET /api/jobs/{OURS}"] = (200, job_entry(OURS, nodes=["v2"]))
    with pytest.raises(PiecesRefused, match="without pieces on v1"):
        driver.submit([PIECE])


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (500, "RuntimeError: status code 400: ValueError: bad metadata", PiecesRefused),
        (400, "ValueError: bad metadata", PiecesRefused),
        (500, "RpcError: GCS is away", OutOfSight),
        (503, "", OutOfSight),
    ],
)
def test_a_refusal_is_told_from_a_ray_that_cannot_answer(
    fake: FakeDashboard, driver: RayDriver, status: int, text: str, error: type[Exception]
) -> None:
    fake.replies["POST /api/jobs/"] = (status, text)
    with pytest.raises(error):
        driver.submit([PIECE])


def test_a_kill_tells_all_guards_and_stops_the_job(fake: FakeDashboard, driver: RayDriver, tmp_path: Path) -> None:
    fake.replies[f"GET /api/jobs/{OURS}"] = (200, job_entry(OURS, nodes=["v1", "v2"]))
    fake.replies[f"POST /api/jobs/{OURS}/stop"] = (200, {"stopped": True})
    driver.kill(PIECE.id)
    assert all((tmp_path / "jobs" / "a-1" / "1" / node / gang.KILL).exists() for node in ("v1", "v2"))
    assert fake.asked[-1][0] == f"POST /api/jobs/{OURS}/stop"


def test_a_job_that_ray_does_not_know_needs_no_kill(fake: FakeDashboard, driver: RayDriver, tmp_path: Path) -> None:
    driver.kill(PIECE.id)
    assert [line for line, _ in fake.asked] == [f"GET /api/jobs/{OURS}"]
    assert not (tmp_path / "jobs").exists()


def test_forgetting_deletes_the_record_and_twice_is_harmless(fake: FakeDashboard, driver: RayDriver) -> None:
    driver.forget(PIECE.id)
    assert [line for line, _ in fake.asked] == [f"DELETE /api/jobs/{OURS}"]


def test_a_shared_folder_that_cannot_be_written_is_out_of_sight(fake: FakeDashboard, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    driver = RayDriver(RaySettings("s1", tmp_path / "file"), Dashboard(fake.address))
    with pytest.raises(OutOfSight, match="shared folder"):
        driver.submit([PIECE])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (RaySettings("My-Service", Path("/mnt")), "cannot be the id of a service"),
        (RaySettings("s1", Path("mnt")), "give a full path"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: RaySettings, sentence: str) -> None:
    with pytest.raises(BadRaySettings, match=sentence):
        RayDriver(settings, Dashboard("http://head:8265"))
