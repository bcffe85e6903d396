"""The reconciler on a real Kubernetes of this machine: every promise of a backend. Pods are processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from horae.backends.kubernetes import objects
from horae.backends.protocol import Place
from horae.backends.reconcile import Reconciler, ReconcilerSettings
from horae.core.events import Event, JobFinished, JobStarted, JobStopped, LaunchFailed
from horae.testing import BACKEND_CHECKS
from horae.testing.kubernetes_build import API_SERVER
from horae.testing.kubernetes_cluster import NAMESPACE, KubernetesCluster
from tests.backends.kubernetes.stage import PODS, driver_of, needs_kubernetes, new_service, pods
from tests.backends.real import bash, start, text_of, until
from tests.contracts.backend_rigs import LocalRig
from tests.engine_folder import engine_folder

pytestmark = needs_kubernetes


class KubernetesRig(LocalRig):
    """The same jobs, as pods."""

    backend: Reconciler  # type: ignore[assignment]

    def __init__(self, state: Path, cluster: KubernetesCluster) -> None:
        self.cluster, self.service = cluster, new_service()
        super().__init__(state)

    def _open(self) -> None:
        driver = driver_of(self.cluster, self.state, self.service)
        self.backend = Reconciler(driver, self.state, settings=ReconcilerSettings(look_every_s=0.2, ready_s=0.0))


@pytest.fixture
def rig(cluster: KubernetesCluster) -> Iterator[KubernetesRig]:
    with engine_folder("kube") as folder:
        made = KubernetesRig(folder, cluster)
        yield made
        made.close()


def told(rig: KubernetesRig, what: type[Event]) -> list[Event]:
    """Events of a type that the backend tells now."""
    return [event for event in rig.backend.watch(1.0) if isinstance(event, what)]


@pytest.mark.parametrize("check", BACKEND_CHECKS.values(), ids=BACKEND_CHECKS)
def test_kubernetes_keeps_every_promise_of_a_backend(
    rig: KubernetesRig, check: Callable[[KubernetesRig], None]
) -> None:
    check(rig)


def test_the_api_server_dies_and_nobody_is_stopped(rig: KubernetesRig) -> None:
    rig.start("runs")
    rig.up()
    rig.cluster.kill(API_SERVER)
    until(lambda: rig.backend.sight() is None, "for the silence")
    rig.reopen()
    until(lambda: "out of sight" in rig.backend.trouble, "for the trouble")
    rig.cluster.start_api_server()
    until(lambda: told(rig, JobStarted), "for the start to be told again")
    assert rig.begun() == 1


def test_of_a_forgotten_attempt_no_pod_and_no_finalizer_is_left(rig: KubernetesRig) -> None:
    rig.start("finishes")
    until(lambda: told(rig, JobFinished), "for the end")
    (pod,) = pods(rig.cluster).values()
    assert pod["metadata"]["finalizers"] == ["horae.dev/journalled"]
    rig.backend.forget("a-1", 1)
    until(lambda: not pods(rig.cluster), "for the pod to go")


def test_an_uneven_gang_on_two_nodes_has_ranks_by_node_and_gpus_of_the_kubelets_choice(rig: KubernetesRig) -> None:
    run = bash("echo $RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $(echo $CUDA_VISIBLE_DEVICES | tr , '\n' | wc -l)")
    rig.backend.start(start(run, places=(Place("k80", (1, 2)), Place("v100", (0,))), processes="gpu"))
    until(lambda: told(rig, JobFinished), "for the end")
    logs = [text_of(rig.backend.log("a-1", 1, piece)) for piece in (0, 1)]
    assert sorted(logs[0].splitlines()) == ["0/3 127.0.0.1:29017 2", "1/3 127.0.0.1:29017 2"]
    assert logs[1] == "2/3 127.0.0.1:29017 1\n"


def test_a_pod_that_somebody_deletes_saves_and_its_job_runs_again(rig: KubernetesRig) -> None:
    rig.start("runs")
    rig.up()
    (name,) = pods(rig.cluster)
    rig.cluster.ask("DELETE", f"{PODS}/{name}")
    (event,) = until(lambda: told(rig, JobStopped), "for the end")
    assert isinstance(event, JobStopped)
    assert event.work_done == 40.0


def test_a_pod_deleted_by_force_counts_as_running_until_it_has_ended(rig: KubernetesRig) -> None:
    rig.start("runs")
    rig.up()
    (name,) = pods(rig.cluster)
    rig.cluster.ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    assert pods(rig.cluster)[name]["status"]["phase"] == "Running"
    until(lambda: told(rig, JobStopped), "for the end")
    assert rig.begun() == 1


def test_a_pod_deleted_before_its_kubelet_looked_at_it_never_runs_and_its_job_does(
    rig: KubernetesRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "NEVER_BEGAN_S", 1.0)
    rig.cluster.kill_node("v100")
    try:
        rig.start("runs")
        (name,) = until(lambda: [name for name, pod in pods(rig.cluster).items() if pod["spec"].get("nodeName")])
        rig.cluster.ask("DELETE", f"{PODS}/{name}")
    finally:
        rig.cluster.start_node("v100")
        rig.cluster.wait_for_nodes("v100")
    until(lambda: told(rig, JobStopped), "for the end")
    assert pods(rig.cluster)[name]["status"]["phase"] == "Pending"
    assert rig.begun() == 0


@pytest.mark.long
def test_a_node_deleted_while_its_kubelet_is_dead_ends_nobody(rig: KubernetesRig) -> None:
    """Kubernetes deletes the pods of a node that is gone by force, though their processes live."""
    rig.start("runs", node="k80")
    rig.up()
    (name,) = pods(rig.cluster)
    rig.cluster.kill_node("k80")
    rig.cluster.ask("DELETE", "/api/v1/nodes/k80")
    try:
        until(lambda: "deletionTimestamp" in pods(rig.cluster)[name]["metadata"], "for the deletion", patience_s=90.0)
        assert pods(rig.cluster)[name]["metadata"]["deletionGracePeriodSeconds"] == 0
        assert told(rig, JobStopped) == []
        assert rig.cluster.living_pods(str(rig.cluster.node_folder("k80")))
    finally:
        rig.cluster.start_node("k80")
        rig.cluster.wait_for_nodes("k80")
    (event,) = until(lambda: told(rig, JobStopped), "for the end")
    assert isinstance(event, JobStopped)
    assert (event.work_done, rig.begun()) == (40.0, 1)


def test_what_a_quota_forbids_is_a_failed_launch_with_its_words(rig: KubernetesRig) -> None:
    space = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}}
    rig.cluster.ask("POST", space, quota)
    try:
        until(lambda: rig.cluster.ask("GET", f"{space}/none")["status"].get("used"), "for the quota")
        rig.start("runs")
        (event,) = until(lambda: told(rig, LaunchFailed), "for the refusal")
    finally:
        rig.cluster.ask("DELETE", f"{space}/none")
    assert isinstance(event, LaunchFailed)
    assert "exceeded quota" in event.why
    assert rig.begun() == 0
    rig.backend.forget("a-1", 1)
    assert pods(rig.cluster) == {}
