"""A small real Kubernetes: it starts, stays on loopback, survives what is done to it, and leaves nothing behind.

Tests testing/daemons.py, testing/kubernetes_build.py and testing/made_up_kubelet.py, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horae.testing import kubernetes_build, kubernetes_cluster
from horae.testing.daemons import Daemons, DaemonTrouble, kill_all, until, with_descendants
from horae.testing.kubernetes_build import API_SERVER, CONTROLLERS, INSTALL, BuildTrouble, binaries, build
from horae.testing.kubernetes_cluster import ADMIN_USER, ETCD, KubernetesCluster, KubernetesTrouble, main
from horae.testing.made_up_kubelet import amount, requests_of
from tests.backends.kubernetes.stage import needs_kubernetes
from tests.listening import listening

PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, script: str, gpus: int = 0, node: str = "v1", grace_s: int = 5) -> dict[str, Any]:
    container = {"name": "c", "image": "none", "command": ["bash", "-c", script]}
    container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}  # type: ignore[assignment]
    spec = {"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s}
    return {"metadata": {"name": name, "finalizers": ["example.com/keep"]}, "spec": {**spec, "containers": [container]}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    with KubernetesCluster(tmp_path_factory.mktemp("kube"), controllers=True) as cluster:
        yield cluster
    assert not any(cluster.daemons.process(name).is_alive() for name in cluster.daemons.names())
    assert cluster.living_pods() == []


class TestRealKubernetes:
    pytestmark = needs_kubernetes

    def phase(self, cluster: KubernetesCluster, name: str) -> str:
        return str(cluster.ask("GET", f"{PODS}/{name}")["status"]["phase"])

    def ended(self, cluster: KubernetesCluster, name: str) -> dict[str, Any]:
        until(lambda: self.phase(cluster, name) in ("Succeeded", "Failed"), f"the end of {name}")
        found: dict[str, Any] = cluster.ask("GET", f"{PODS}/{name}")["status"]
        return found

    def test_it_listens_on_loopback_only(self, cluster: KubernetesCluster) -> None:
        ports = json.loads((cluster.folder / "ports.json").read_text()).values()
        until(lambda: {*ports} <= {*listening()}, "all daemons to listen")
        assert [listening().get(port) for port in ports] == [{"0100007F"}] * 4

    def test_pods_get_gpus_of_their_own_and_are_refused_if_there_are_none(
        self, cluster: KubernetesCluster, tmp_path: Path
    ) -> None:
        for name in ("one", "two"):
            cluster.ask("POST", PODS, pod(name, f"echo $CUDA_VISIBLE_DEVICES >> {tmp_path}/gpus; sleep 60", gpus=2))
        gpus = tmp_path / "gpus"
        until(lambda: gpus.exists() and sorted(gpus.read_text().split()) == ["0,1", "2,3"], "two pods")
        cluster.ask("POST", PODS, pod("three", "true", gpus=1))
        assert self.ended(cluster, "three")["reason"] == "OutOfnvidia.com/gpu"

    def test_a_deleted_pod_has_its_grace_period_and_a_last_word(self, cluster: KubernetesCluster) -> None:
        script = 'trap "sleep 1; echo saved > $TERMINATION_LOG; exit 75" TERM; sleep 60 & wait'
        cluster.ask("POST", PODS, pod("saves", script, node="p1"))
        until(lambda: self.phase(cluster, "saves") == "Running", "the pod")
        cluster.ask("DELETE", f"{PODS}/saves")
        ended = self.ended(cluster, "saves")["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["message"]) == (75, "saved\n")

    def test_what_ignores_its_grace_period_is_killed_with_its_children(self, cluster: KubernetesCluster) -> None:
        cluster.ask("POST", PODS, pod("deaf", 'trap "" TERM; setsid sleep 60 & sleep 60 & wait', node="p2", grace_s=2))
        until(lambda: self.phase(cluster, "deaf") == "Running", "the pod")
        cluster.ask("DELETE", f"{PODS}/deaf")
        ended = self.ended(cluster, "deaf")["containerStatuses"][0]["state"]["terminated"]
        assert ended["exitCode"] == 137
        until(lambda: not cluster.living_pods(str(cluster.node_folder("p2"))), "its children to end")

    def test_pods_outlive_their_kubelet_and_are_adopted_by_the_next(self, cluster: KubernetesCluster) -> None:
        cluster.ask("POST", PODS, pod("lives", "sleep 2; exit 3", node="v2"))
        until(lambda: self.phase(cluster, "lives") == "Running", "the pod")
        cluster.kill_node("v2")
        assert cluster.living_pods(str(cluster.node_folder("v2")))
        cluster.start_node("v2")
        assert self.ended(cluster, "lives")["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3

    def test_a_silent_node_becomes_unknown_and_comes_back(self, cluster: KubernetesCluster) -> None:
        cluster.silence("p1")
        cluster.wait_for_nodes("p1", ready="Unknown")
        cluster.silence("p1", silent=False)
        cluster.wait_for_nodes("p1")

    def test_a_machine_that_dies_takes_its_pods_along(self, cluster: KubernetesCluster) -> None:
        cluster.ask("POST", PODS, pod("dies", "sleep 60", node="p2"))
        until(lambda: self.phase(cluster, "dies") == "Running", "the pod")
        cluster.kill_machine("p2")
        assert cluster.living_pods(str(cluster.node_folder("p2"))) == []
        cluster.start_node("p2")
        assert self.ended(cluster, "dies")["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137

    def test_its_daemons_are_killed_and_started_one_by_one(self, cluster: KubernetesCluster) -> None:
        for daemon in (ETCD, API_SERVER, CONTROLLERS):
            cluster.kill(daemon)
        assert not cluster.api_server_is_ready()
        before = cluster.daemons.process("v1")
        cluster.start()
        assert cluster.daemons.process("v1") == before, "what runs already is not started again"
        assert cluster.api_server_is_ready()

    def test_it_is_a_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = tmp_path / "kube"
        try:
            assert main(["start", str(folder)]) == 0
            shown = capsys.readouterr().out
            assert f"export KUBECONFIG={folder}/kubeconfig-{ADMIN_USER}" in shown
            assert len(KubernetesCluster(folder).ask("GET", "/api/v1/nodes")["items"]) == 4
        finally:
            assert main(["stop", str(folder)]) == 0
        daemons = Daemons(folder)
        assert not any(daemons.process(name).is_alive() for name in daemons.names())

    def test_a_refusal_says_so(self, cluster: KubernetesCluster) -> None:
        with pytest.raises(KubernetesTrouble, match="failed with 404"):
            cluster.ask("GET", f"{PODS}/none")


def test_without_kubernetes_it_says_what_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kubernetes_cluster.shutil, "which", lambda program: None)
    assert main(["start", str(tmp_path)]) == 1
    assert INSTALL in capsys.readouterr().err
    monkeypatch.setattr(kubernetes_cluster.shutil, "which", lambda program: program)
    monkeypatch.setattr(kubernetes_cluster, "is_built", lambda: False)
    assert main(["start", str(tmp_path)]) == 1
    assert "python -m horae.testing.kubernetes_cluster build" in capsys.readouterr().err


def test_a_build_without_go_says_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kubernetes_build.shutil, "which", lambda program: None)
    assert binaries().is_relative_to(tmp_path)
    with pytest.raises(BuildTrouble, match="golang-go"):
        build()


def test_what_is_built_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    binaries().mkdir(parents=True)
    for name in (API_SERVER, CONTROLLERS):
        (binaries() / name).touch()
    monkeypatch.setattr(kubernetes_build.shutil, "which", lambda program: None)
    build()


def test_stopping_what_never_ran_is_harmless_and_a_folder_is_needed(tmp_path: Path) -> None:
    assert main(["stop", str(tmp_path)]) == 0
    with pytest.raises(SystemExit):
        main(["start"])


def test_a_daemon_is_known_by_its_process_not_by_its_number(tmp_path: Path) -> None:
    daemons = Daemons(tmp_path)
    daemons.start("sleeper", ["sleep", "60"], {"PATH": "/bin:/usr/bin"})
    process = daemons.process("sleeper")
    try:
        assert process.is_alive()
        assert Daemons(tmp_path).process("sleeper") == process
        record = tmp_path / "pids" / "sleeper"
        record.write_text(json.dumps({**json.loads(record.read_text()), "start_time": 1}))
        Daemons(tmp_path).end("sleeper")
        assert process.is_alive(), "it is another process by the record, so it is left alone"
    finally:
        kill_all([process.pid])


def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(DaemonTrouble, match="in vain for the moon"):
        until(lambda: False, "the moon", patience_s=0.05)


def test_descendants_are_found_whatever_their_session() -> None:
    script = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True); print(); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout
    child.stdout.readline()
    family = with_descendants([child.pid])
    try:
        assert len(family) == 2
    finally:
        kill_all(family)
        child.communicate()


def test_requests_of_a_pod_are_the_sum_of_its_containers() -> None:
    resources = {"limits": {"memory": "1Gi", "nvidia.com/gpu": "2"}, "requests": {"cpu": "500m", "memory": "512Mi"}}
    found = requests_of({"spec": {"containers": [{"resources": resources}, {"resources": resources}, {}]}})
    assert found == {"cpu": 1.0, "memory": 2.0**30, "nvidia.com/gpu": 4.0}
    assert [amount(text) for text in ("2", "100m", "2Gi", "1k")] == [2.0, 0.1, 2.0**31, 1000.0]
