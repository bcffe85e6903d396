"""`KubernetesDriver` on a real API server, with kubelets of ours.

Tests backends/kubernetes/site_checks.py and backends/kubernetes/node_sizes.py, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from lightkube.config.kubeconfig import KubeConfig

from horae.backends.driver import (
    EndCause,
    OutOfSight,
    Piece,
    PieceEnded,
    PieceId,
    PieceRunning,
    PiecesRefused,
    PieceState,
)
from horae.backends.kubernetes import driver as driver_module
from horae.backends.kubernetes import objects
from horae.backends.kubernetes.api import BadKubeConfig, KubernetesApi, load_config
from horae.backends.kubernetes.driver import (
    BadKubernetesSettings,
    KubernetesDriver,
    has_room,
    settings_of_this_process,
)
from horae.backends.kubernetes.node_sizes import NEW_SIZE_S, NodeSizes
from horae.backends.kubernetes.objects import SLOW_S, STUCK_S, cannot_start, read_node, read_pod
from horae.backends.kubernetes.pods import binding_of, pod_name, pod_of
from horae.backends.kubernetes.shared_volume import SharedVolume
from horae.backends.kubernetes.site_checks import check_rights
from horae.testing.kubernetes_build import API_SERVER
from horae.testing.kubernetes_cluster import ADMIN_USER, ETCD, HORAE_USER, NAMESPACE, KubernetesCluster
from horae.workload.clusters import parse_cluster
from tests.backends.kubernetes.made_objects import node, pod
from tests.backends.kubernetes.stage import PODS, api_of, driver_of, needs_kubernetes, new_service, pods
from tests.backends.real import until

_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"


@dataclass
class Stage:
    """A driver, its cluster, and a folder in which pieces leave traces."""

    driver: KubernetesDriver
    cluster: KubernetesCluster
    folder: Path
    service: str

    @property
    def command(self) -> tuple[str, ...]:
        """Stands in for the runner: notes where it runs with which GPUs, and ends when a file is there."""
        script = (
            'echo "$HORAE_NODE $CUDA_VISIBLE_DEVICES" >> "$0/begun"; echo hello; '
            'while [ ! -e "$0/end" ]; do sleep 0.05; done; exit 75'
        )
        return ("/bin/sh", "-c", script, str(self.folder))

    def piece(self, node: str, gpus: int = 4, job: str = "a-1", **more: Any) -> Piece:
        return Piece(PieceId(job, 1, node), **{"gpu_type": node, "gpus": gpus, "command": self.command, **more})

    def begun(self) -> list[list[str]]:
        """A line of words for each piece that has ever begun."""
        path = self.folder / "begun"
        return sorted(line.split() for line in path.read_text().splitlines()) if path.exists() else []

    def run(self, *pieces: Piece) -> None:
        """Submit pieces of an attempt, and wait until each has begun and is seen to."""
        self.driver.submit(pieces)
        for piece in pieces:
            self.wait_for(piece, PieceRunning)

    def wait_for(self, piece: Piece, state: type[PieceState]) -> Any:
        return until(lambda: isinstance(found := self.driver.look().pieces.get(piece.id), state) and found, str(state))

    def name(self, piece: Piece) -> str:
        return pod_name(self.service, piece.id)


@pytest.fixture
def stage(cluster: KubernetesCluster, tmp_path: Path) -> Stage:
    service = new_service()
    return Stage(driver_of(cluster, tmp_path, service), cluster, tmp_path, service)


@pytest.fixture
def silent_k80(cluster: KubernetesCluster) -> Iterator[None]:
    """The kubelet of k80 is dead, and Kubernetes knows it."""
    cluster.kill_node("k80")
    cluster.wait_for_nodes("k80", ready="Unknown")
    yield
    cluster.start_node("k80")
    cluster.wait_for_nodes("k80")


class TestOnRealKubernetes:
    pytestmark = needs_kubernetes

    def test_a_look_sees_the_nodes_with_types(self, stage: Stage) -> None:
        look = stage.driver.look()
        found = {name: (node.gpu_type, node.gpus, node.cpus, node.rack) for name, node in look.nodes.items()}
        assert found == {"v100": ("v100", 4, 16, "rack-0"), "k80": ("k80", 4, 16, "rack-0")}
        assert all(node.is_open and not node.is_lost for node in look.nodes.values())
        assert (look.pieces, look.foreign) == ({}, {})

    def test_the_rights_of_the_manifests_suffice_and_others_are_told(self, stage: Stage) -> None:
        host, claim = SharedVolume("", Path("/mnt")), SharedVolume("team", Path("/mnt"))
        api = api_of(stage.cluster)
        assert check_rights(api, host).errors == ()
        assert check_rights(api, claim).errors == (f"Namespace {NAMESPACE} has no PersistentVolumeClaim 'team'.",)
        api.namespace = "elsewhere"
        assert "may not create pods in namespace elsewhere" in check_rights(api, host).errors[0]

    def test_the_account_of_a_pod_does_as_well_as_a_kubeconfig_file(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As Kubernetes mounts it into pods: token, namespace and certificate as files."""
        config = json.loads(stage.cluster.kubeconfig(HORAE_USER).read_text())
        server = config["clusters"][0]["cluster"]
        (stage.folder / "token").write_text(config["users"][0]["user"]["token"])
        (stage.folder / "namespace").write_text(NAMESPACE)
        (stage.folder / "ca.crt").write_text(Path(server["certificate-authority"]).read_text())
        host, _, port = server["server"].removeprefix("https://").partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setattr(KubeConfig, "from_env", lambda: KubeConfig.from_service_account(stage.folder))
        api = KubernetesApi(load_config())
        assert api.namespace == NAMESPACE
        assert check_rights(api, SharedVolume("", Path("/mnt"))).errors == ()

    def test_simulations_can_have_its_nodes(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBECONFIG", str(stage.cluster.kubeconfig(HORAE_USER)))
        found = {(node.name, node.gpu_type, node.gpus) for node in parse_cluster("kubernetes:made-up").nodes}
        assert found == {("v100", "v100", 4), ("k80", "k80", 4)}
        with pytest.raises(BadKubeConfig, match="'elsewhere' not found"):
            parse_cluster("kubernetes:elsewhere")

    def test_submitted_again_and_again_a_piece_runs_once(self, stage: Stage) -> None:
        piece = stage.piece("v100")
        stage.driver.submit([piece])
        stage.driver.submit([piece])
        until(stage.begun)
        stage.driver.submit([piece])
        (stage.folder / "end").touch()
        ended = stage.wait_for(piece, PieceEnded)
        assert (ended.code, ended.cause) == (75, EndCause.EXITED)
        stage.driver.submit([piece])
        assert stage.begun() == [["v100", "0,1,2,3"]]
        assert len(pods(stage.cluster)) == 1

    def test_a_pod_whose_binding_was_lost_is_bound_by_the_next_submission(self, stage: Stage) -> None:
        piece, seen = stage.piece("v100"), read_node(node())
        assert seen
        settings = settings_of_this_process(stage.service, "none", SharedVolume("", stage.folder))
        made = pod_of(settings, piece, seen, 1000, 1000).to_dict()
        stage.cluster.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", **made})
        assert stage.driver.look().pieces == {}
        stage.run(piece)
        assert len(stage.begun()) == 1

    def test_a_binding_whose_answer_was_lost_is_no_failure(self, stage: Stage) -> None:
        piece = stage.piece("v100")
        post = stage.driver._api.call

        def bind_twice(method: str, resource: type, *more: Any, **options: Any) -> Any:
            if resource.__name__ == "PodBinding":
                post(method, resource, *more, **options)
            return post(method, resource, *more, **options)

        stage.driver._api.call = bind_twice  # type: ignore[method-assign]
        stage.run(piece)
        assert stage.begun() == [["v100", "0,1,2,3"]]

    def test_an_uneven_gang_has_its_gpus_on_the_nodes_chosen(self, stage: Stage) -> None:
        stage.run(stage.piece("v100", 3), stage.piece("k80", 1))
        assert stage.begun() == [["k80", "0"], ["v100", "0,1,2"]]

    def test_two_attempts_share_a_node(self, stage: Stage) -> None:
        stage.run(stage.piece("v100", 2))
        stage.run(stage.piece("v100", 2, job="b"))
        assert stage.begun() == [["v100", "0,1"], ["v100", "2,3"]]

    def test_a_pod_that_would_find_no_room_is_not_bound_until_there_is(self, stage: Stage) -> None:
        first, second = stage.piece("v100", 4), stage.piece("v100", 1, job="b")
        stage.run(first)
        stage.driver.submit([second])
        assert [*pods(stage.cluster)] == [stage.name(first)]
        stage.driver.kill(first.id)
        stage.wait_for(first, PieceEnded)
        stage.run(second)

    def test_a_kubelet_that_has_no_room_refuses_in_its_words(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = stage.piece("v100", 4), stage.piece("v100", 1, job="b", cpus_per_gpu=1, memory_mb_per_gpu=1)
        stage.run(first)
        monkeypatch.setattr(driver_module, "has_room", lambda *_: True)
        stage.driver.submit([second])
        ended = stage.wait_for(second, PieceEnded)
        assert ended.cause == EndCause.FAILED
        assert ended.why.startswith("OutOf")

    def test_a_killed_piece_ends_though_it_ignores_term_and_twice_is_harmless(self, stage: Stage) -> None:
        deaf = ("/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
        piece = stage.piece("v100", 2, command=deaf)
        stage.run(piece)
        stage.driver.kill(piece.id)
        stage.driver.kill(piece.id)
        ended = stage.wait_for(piece, PieceEnded)
        assert (ended.code, ended.cause) == (137, EndCause.STOPPED)
        stage.driver.kill(piece.id)
        stage.driver.kill(PieceId("never", 1, "v100"))

    def test_a_pod_of_others_keeps_what_it_asked_for_and_is_named(self, stage: Stage) -> None:
        resources = {"limits": {"nvidia.com/gpu": "1", "cpu": "4"}}
        container = {"name": "c", "image": "none", "command": ["sleep", "60"], "resources": resources}
        theirs = {"metadata": {"name": "theirs"}, "spec": {"nodeName": "k80", "containers": [container]}}
        stage.cluster.ask("POST", "/api/v1/namespaces/default/pods", theirs)
        look = until(lambda: (found := stage.driver.look()).foreign and found)
        assert look.foreign == {"k80": ("pod default/theirs with 1 GPU",)}
        stage.driver.submit([stage.piece("k80", 2)])
        (made,) = pods(stage.cluster).values()
        assert made["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "6"

    def test_pods_of_another_service_are_foreign_and_untouched(self, stage: Stage) -> None:
        stage.run(stage.piece("v100"))
        other = driver_of(stage.cluster, stage.folder, new_service())
        look = other.look()
        assert look.pieces == {}
        assert [*look.foreign] == ["v100"]
        other.kill(stage.piece("v100").id)
        other.forget(stage.piece("v100").id)
        assert stage.driver.look().pieces == {stage.piece("v100").id: PieceRunning()}

    def test_of_a_forgotten_piece_nothing_is_left_and_forgetting_twice_is_harmless(self, stage: Stage) -> None:
        piece = stage.piece("v100")
        stage.run(piece)
        stage.driver.kill(piece.id)
        stage.wait_for(piece, PieceEnded)
        stage.driver.forget(piece.id)
        stage.driver.forget(piece.id)
        until(lambda: not pods(stage.cluster), "for the pod to go")
        until(lambda: not stage.driver.look().pieces, "for the look")
        stage.driver.forget(piece.id)

    def test_finalizers_of_others_stay(self, stage: Stage) -> None:
        piece = stage.piece("v100")
        stage.run(piece)
        path = f"{PODS}/{stage.name(piece)}"
        finalizers = ["horae.dev/journalled", "example.com/theirs"]
        stage.cluster.ask("PATCH", path, {"metadata": {"finalizers": finalizers}}, _MERGE)
        stage.driver.kill(piece.id)
        stage.wait_for(piece, PieceEnded)
        stage.driver.forget(piece.id)
        assert pods(stage.cluster)[stage.name(piece)]["metadata"]["finalizers"] == ["example.com/theirs"]

    def test_of_a_gang_that_is_refused_nothing_is_left(self, stage: Stage) -> None:
        pieces = [stage.piece("v100", 2), stage.piece("k80", 2, command=("",) * 2)]
        post = stage.driver._api.call

        def refuse(method: str, resource: type, *more: Any, **options: Any) -> Any:
            if method == "post" and resource.__name__ == "Pod" and pods(stage.cluster):
                options["content"].metadata.name = "Not Valid"
            return post(method, resource, *more, **options)

        stage.driver._api.call = refuse  # type: ignore[method-assign]
        with pytest.raises(PiecesRefused, match="Invalid value"):
            stage.driver.submit(pieces)
        assert pods(stage.cluster) == {}

    def test_a_node_that_is_not_there_is_refused(self, stage: Stage) -> None:
        with pytest.raises(PiecesRefused, match="no node v9 with GPUs"):
            stage.driver.submit([stage.piece("v9")])

    def test_a_cordoned_or_tainted_node_is_closed_and_keeps_its_pieces(self, stage: Stage) -> None:
        stage.run(stage.piece("v100"))
        path = "/api/v1/nodes/v100"
        stage.cluster.ask("PATCH", path, {"spec": {"unschedulable": True}}, _MERGE)
        try:
            node = until(lambda: not (found := stage.driver.look().nodes["v100"]).is_open and found)
            assert (node.is_lost, node.why) == (False, "cordoned")
            assert stage.driver.look().pieces == {stage.piece("v100").id: PieceRunning()}
        finally:
            stage.cluster.ask("PATCH", path, {"spec": {"unschedulable": None, "taints": None}}, _MERGE)
        until(lambda: stage.driver.look().nodes["v100"].is_open)

    def test_a_dead_kubelet_closes_its_node_and_is_no_loss(self, stage: Stage, silent_k80: None) -> None:
        look = stage.driver.look()
        assert (look.nodes["k80"].is_open, look.nodes["k80"].is_lost) == (False, False)
        assert look.nodes["v100"].is_open

    def test_what_ended_while_its_kubelet_was_dead_is_told_when_it_is_back(self, stage: Stage) -> None:
        piece = stage.piece("k80")
        stage.run(piece)
        stage.cluster.kill_node("k80")
        (stage.folder / "end").touch()
        until(lambda: not stage.cluster.living_pods(), "for the process to end")
        assert stage.driver.look().pieces == {piece.id: PieceRunning()}
        stage.cluster.start_node("k80")
        assert stage.wait_for(piece, PieceEnded).code == 75
        assert len(stage.begun()) == 1

    def test_a_deleted_node_is_lost_and_its_piece_is_for_the_beat_to_judge(self, stage: Stage) -> None:
        piece = stage.piece("k80")
        stage.run(piece)
        stage.driver.look()
        stage.cluster.ask("DELETE", "/api/v1/nodes/k80")
        try:
            look = until(lambda: (found := stage.driver.look()).nodes["k80"].is_lost and found)
            assert (look.nodes["k80"].gpus, look.nodes["k80"].is_open, look.nodes["k80"].why) == (4, False, "deleted")
            assert look.pieces == {piece.id: PieceEnded(None, EndCause.STOPPED, "node k80 gives no sign of life")}
            assert len(stage.cluster.living_pods(str(stage.cluster.node_folder("k80")))) > 0
        finally:
            stage.cluster.kill_node("k80")
            stage.cluster.start_node("k80")
            stage.cluster.wait_for_nodes("k80")
        assert stage.driver.look().pieces == {piece.id: PieceRunning()}

    def test_a_node_that_shows_no_gpus_is_closed_with_those_it_had(self, stage: Stage) -> None:
        assert stage.driver.look().nodes["k80"].gpus == 4
        path, room = "/api/v1/nodes/k80/status", "nvidia.com/gpu"
        for shown, expected in (("0", (4, False, "shows no GPUs")), ("4", (4, True, ""))):
            change = {"status": {"allocatable": {room: shown}}}
            stage.cluster.ask("PATCH", path, change, _STRATEGIC)
            found = until(lambda is_open=expected[1]: _when(stage.driver.look().nodes["k80"], is_open))
            assert (found.gpus, found.is_open, found.why) == expected

    def test_an_api_server_that_dies_is_out_of_sight_and_shows_the_same_pieces_afterwards(self, stage: Stage) -> None:
        stage.run(stage.piece("v100"), stage.piece("k80", 2))
        before = stage.driver.look().pieces
        stage.cluster.kill(API_SERVER)
        began_s = time.monotonic()
        for act in (stage.driver.look, lambda: stage.driver.kill(PieceId("x", 1, "v100"))):
            with pytest.raises(OutOfSight, match="does not answer"):
                act()
        assert time.monotonic() - began_s < 2.0
        stage.cluster.start_api_server()
        until(lambda: _sees(stage.driver) and stage.driver.look().pieces == before, "for the same pieces")
        assert len(stage.begun()) == 2

    def test_an_api_server_without_its_store_is_out_of_sight(self, stage: Stage) -> None:
        stage.driver.look()
        stage.cluster.kill(ETCD)
        with pytest.raises(OutOfSight):
            stage.driver.look()
        stage.cluster.start_etcd()
        until(stage.cluster.api_server_is_ready, "for the API server")
        until(lambda: _sees(stage.driver), "for a look")

    def test_an_api_server_that_hangs_is_out_of_sight_in_the_time_limit(self, stage: Stage) -> None:
        stage.driver.look()
        stage.cluster.freeze(API_SERVER)
        began_s = time.monotonic()
        with pytest.raises(OutOfSight):
            stage.driver.look()
        assert time.monotonic() - began_s < 12.0
        stage.cluster.thaw(API_SERVER)
        until(lambda: _sees(stage.driver), "for a look")

    def test_a_pod_that_cannot_start_is_given_up_and_tells_why(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(objects, "STUCK_S", -1.0)
        piece = stage.piece("k80")
        stage.cluster.freeze("k80")
        try:
            stage.driver.submit([piece])
            waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
            status = {"name": "runner", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
            content = {"status": {"containerStatuses": [{**status, "state": waiting}]}}
            stage.cluster.ask("PATCH", f"{PODS}/{stage.name(piece)}/status", content, _MERGE)
            until(lambda: stage.driver.look() and _is_deleted(stage, piece), "for the pod to be given up")
        finally:
            stage.cluster.thaw("k80")
        notes = pods(stage.cluster)[stage.name(piece)]["metadata"]["annotations"]
        assert notes["horae.dev/refused"] == "ErrImagePull: no such image"

    def test_logs_of_pods_can_be_read_with_kubectl(self, stage: Stage) -> None:
        stage.run(stage.piece("v100"))
        path = f"{PODS}/{stage.name(stage.piece('v100'))}/log"
        assert until(lambda: stage.cluster._open("GET", path, None, "", 10.0)) == b"hello\n"
        assert stage.cluster.kubeconfig(ADMIN_USER).exists()


def _when(node: Any, is_open: bool) -> Any:
    return node if node.is_open is is_open else None


def _sees(driver: KubernetesDriver) -> bool:
    try:
        return bool(driver.look())
    except OutOfSight:
        return False


def _is_deleted(stage: Stage, piece: Piece) -> bool:
    return "deletionTimestamp" in pods(stage.cluster)[stage.name(piece)]["metadata"]


def test_a_binding_has_the_name_of_its_pod() -> None:
    piece = PieceId("a", 1, "v1")
    assert binding_of(pod_name("s1", piece), "v1").to_dict()["metadata"]["name"] == pod_name("s1", piece)


def test_a_new_size_is_believed_after_a_while_and_none_never() -> None:
    four, eight, none = (read_node(node(allocatable={"nvidia.com/gpu": count})) for count in ("4", "8", "0"))
    assert four
    assert eight
    assert none
    sizes = NodeSizes()
    assert sizes.believe(four, 0.0) == (4, "")
    assert sizes.believe(none, 1.0) == (4, "shows no GPUs")
    assert sizes.believe(none, 999.0) == (4, "shows no GPUs")
    assert sizes.believe(eight, 1000.0) == (4, "shows 8 GPUs instead of 4")
    assert sizes.believe(four, 1001.0) == (4, "")
    assert sizes.believe(eight, 1002.0) == (4, "shows 8 GPUs instead of 4")
    assert sizes.believe(eight, 1002.0 + NEW_SIZE_S) == (8, "")


def test_a_piece_has_room_unless_pods_that_have_not_ended_hold_the_gpus() -> None:
    v1, holder = read_node(node()), read_pod(pod())
    assert v1
    piece = Piece(PieceId("b", 1, "v1"), "v100", 3, ("true",))
    assert not has_room(piece, v1, [holder])
    assert has_room(replace(piece, gpus=2), v1, [holder])
    assert has_room(piece, v1, [replace(holder, phase="Failed")])
    assert has_room(piece, v1, [replace(holder, node="v2")])
    assert has_room(replace(piece, id=PieceId("a-1", 2, "v1")), v1, [holder])


def test_a_pod_may_wait_for_its_image_longer_than_for_one_that_is_not_there() -> None:
    waiting = replace(read_pod(pod("Pending")), bound_s=0.0)
    assert [cannot_start(waiting, after_s) for after_s in (STUCK_S + 1, SLOW_S + 1)] == [False, True]
    stuck = replace(waiting, stuck="ErrImagePull")
    assert [cannot_start(stuck, after_s) for after_s in (STUCK_S - 1, STUCK_S + 1)] == [False, True]
    assert not cannot_start(replace(stuck, deleted_s=1.0), SLOW_S + 1)
    assert not cannot_start(replace(stuck, phase="Running"), SLOW_S + 1)


def test_an_id_that_cannot_be_a_label_is_refused() -> None:
    settings = settings_of_this_process("My-Service", "none", SharedVolume("", Path("/mnt")))
    with pytest.raises(BadKubernetesSettings, match="cannot be the id of a service"):
        KubernetesDriver(settings, None)  # type: ignore[arg-type]
