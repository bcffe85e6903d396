"""Adoption on a real API server with the real Job controller: users apply Jobs, Horae orders. Kubelets are ours.

The rules themselves are tested without Kubernetes, in test_gang_steps.py. Tests backends/kubernetes/release.py, too.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from horae.testing.kubernetes_build import API_SERVER
from horae.testing.kubernetes_cluster import KubernetesCluster, MadeUpKubeNode
from tests.backends.kubernetes.adoption_rig import SAVES, TEAM, PodRig
from tests.backends.kubernetes.stage import needs_kubernetes, running_cluster, sweep
from tests.engine_folder import engine_folder
from tests.service.served_process import patiently, stays

pytestmark = needs_kubernetes
NODES = tuple(MadeUpKubeNode(name, "Tesla-V100-SXM2-16GB", "rack-0") for name in ("v1", "v2"))
FINALIZER = "horae.dev/journalled"


@pytest.fixture(scope="module")
def lasting_cluster() -> Iterator[KubernetesCluster]:
    with running_cluster(NODES, adopt=[TEAM]) as made:
        yield made


@pytest.fixture
def rig(lasting_cluster: KubernetesCluster) -> Iterator[PodRig]:
    with engine_folder("kube") as folder:
        made = PodRig(folder, lasting_cluster)
        try:
            yield made
        finally:
            made.end(signal.SIGKILL)
            clean(lasting_cluster)


def clean(cluster: KubernetesCluster) -> None:
    """Delete all Jobs, then all pods, then the Lease."""
    for job in cluster.ask("GET", f"/apis/batch/v1/namespaces/{TEAM}/jobs")["items"]:
        cluster.ask("DELETE", f"/apis/batch/v1/namespaces/{TEAM}/jobs/{job['metadata']['name']}")
    sweep(cluster)
    cluster.ask("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{TEAM}/leases")


def test_a_job_is_queued_run_whole_and_finished_and_others_are_left_alone(rig: PodRig) -> None:
    uid = rig.job("early", 4, "sleep 1; echo done", gpus=2, notes={"horae.dev/user": "ann"})
    rig.job("theirs", 2, "sleep 1", scheduler="default-scheduler")
    rig.serve()
    assert rig.wait_for("early", "finished") == 1
    patiently(lambda: rig.status_of("early").get("succeeded") == 4, "for the Job's own word")
    found = rig.pods("early")
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in found.values()} == {uid}
    patiently(lambda: not any(pod["metadata"].get("finalizers") for pod in rig.pods("early").values()), "no finalizer")
    assert sorted(pod["metadata"]["annotations"]["horae.dev/rank"] for pod in found.values()) == ["0", "1", "2", "3"]
    job = rig.jobs()["early"]
    assert (job["user"], job["queue"], set(rig.jobs())) == (f"ann@{TEAM}", TEAM, {"early"})
    for pod in rig.pods("theirs").values():
        assert not pod["spec"].get("nodeName")
        assert not pod["metadata"].get("finalizers")
    name = next(iter(found))
    assert any(line.startswith("Scheduled: Horae has assigned the pod to v") for line in rig.events(name))


def test_a_waiting_gang_says_why_once_and_runs_when_there_is_room(rig: PodRig) -> None:
    rig.serve()
    rig.job("first", 8)
    rig.wait_for_running("first", 8)
    rig.job("second", 2, gpus=4)
    rig.wait_for("second", "waiting")
    name = rig.waiting("second")[0]
    (line,) = patiently(lambda: rig.events(name), "for the reason")
    assert line.startswith("Waiting: second-2 waits. ")
    stays(lambda: rig.events(name) == [line], 4, "it is not repeated")
    assert rig.waiting("second") == rig.waiting("")
    rig.delete("jobs", "first")
    rig.wait_for("first", "cancelled")
    rig.wait_for_running("second", 2)


def test_a_preempted_gang_is_made_again_and_is_the_next_attempt(rig: PodRig) -> None:
    rig.serve()
    rig.job("moves", 4)
    before = rig.wait_for_running("moves", 4)
    (node,) = {pod["spec"]["nodeName"] for pod in rig.pods("moves").values()}
    rig.wait_for("moves", "running")
    rig.post(f"/v1/nodes/{node}/drain", {"evict": True})
    patiently(lambda: rig.state_of("moves") == ("running", 2), "for the next attempt")
    after = rig.running("moves")
    assert len(after) == 4
    assert not {*before} & {*after}
    assert {rig.pods("moves")[name]["spec"]["nodeName"] for name in after} == {"v1", "v2"} - {node}
    assert not rig.status_of("moves").get("conditions"), "nothing counts against the Job"


def test_incomplete_gangs_wait_and_a_member_that_its_user_deletes_is_missed(rig: PodRig) -> None:
    labels = {"horae.dev/gang": "trio", "horae.dev/gang-size": "3"}
    rig.serve()
    rig.pod("a", labels=labels)
    rig.pod("b", labels=labels)
    (line,) = patiently(lambda: rig.events("a"), "for the reason")
    assert line == "Waiting: 2 of its 3 pods are there."
    assert rig.jobs() == {}
    blocker = rig.job("blocker", 8)
    assert blocker
    rig.wait_for_running("blocker", 8)
    rig.pod("c", labels=labels)
    rig.wait_for("trio", "waiting")
    patiently(lambda: FINALIZER in rig.pods()["b"]["metadata"].get("finalizers", ()), "for the finalizer")
    rig.delete("pods", "b")
    patiently(lambda: "b" not in rig.pods(), "for the pod to go: it can never run")
    rig.wait_for("trio", "held")
    assert any("2 of its 3 pods" in line for line in rig.events("a"))
    rig.pod("b", labels=labels)
    rig.wait_for("trio", "waiting")
    rig.delete("jobs", "blocker")
    rig.wait_for_running("", 3)
    for name in "abc":
        rig.delete("pods", name)
    rig.wait_for("trio", "cancelled")
    patiently(lambda: not rig.pods(), "for the pods to go")


def test_pods_labelled_as_a_jobset_labels_them_are_one_gang(rig: PodRig) -> None:
    """The Jobs are real, and labelled as JobSet does; there is no JobSet controller here."""
    rig.serve()
    for number in range(2):
        labels = {
            "jobset.sigs.k8s.io/jobset-name": "both",
            "jobset.sigs.k8s.io/replicatedjob-name": "workers",
            "jobset.sigs.k8s.io/replicatedjob-replicas": "2",
            "jobset.sigs.k8s.io/job-index": str(number),
            "jobset.sigs.k8s.io/restart-attempt": "0",
        }
        rig.job(f"both-workers-{number}", 2, "sleep 2", gpus=2, labels=labels, job_labels=labels)
        if number == 0:
            stays(lambda: rig.jobs() == {}, 2, "the second Job is missing")
    rig.wait_for_running("both", 4)
    assert rig.wait_for("both", "finished") == 1
    assert set(rig.jobs()) == {"both"}


def test_pods_labelled_as_a_pytorchjob_labels_them_are_one_gang(rig: PodRig) -> None:
    """The pods are made by hand, as the training operator makes them; it is not here, so nobody makes them again."""
    rig.serve()
    uid = rig.kubernetes.ask(
        "POST",
        f"/api/v1/namespaces/{TEAM}/configmaps",
        {"metadata": {"name": "torch"}},
    )["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "torch", "uid": uid, "controller": True}
    for kind, count in (("worker", 3), ("master", 1)):
        for number in range(count):
            labels = {f"training.kubeflow.org/{key}": value for key, value in _torch_labels(kind, number).items()}
            env = {"WORLD_SIZE": "4"}
            rig.pod(f"torch-{kind}-{number}", "sleep 2", labels=labels, env=env, owners=[owner])
    assert rig.wait_for("torch", "finished") == 1
    ranks = {name: pod["metadata"]["annotations"]["horae.dev/rank"] for name, pod in rig.pods("torch").items()}
    assert ranks == {"torch-master-0": "0", "torch-worker-0": "1", "torch-worker-1": "2", "torch-worker-2": "3"}


def _torch_labels(kind: str, number: int) -> dict[str, str]:
    return {
        "job-name": "torch",
        "operator-name": "pytorchjob-controller",
        "replica-type": kind,
        "replica-index": str(number),
    }


def test_horae_restarted_while_half_of_a_gang_is_bound_binds_the_rest(rig: PodRig) -> None:
    """The binding of later pods fails while the API server is away, and the service is killed then."""
    rig.job("half", 8)
    rig.serve()
    patiently(lambda: len(rig.waiting("half")) < 8, "for the first binding")
    rig.kubernetes.kill(API_SERVER)
    rig.end(signal.SIGKILL)
    rig.kubernetes.start_api_server()
    rig.serve()
    rig.wait_for_running("half", 8)
    assert rig.wait_for("half", "running") == 1


def test_what_cannot_be_ordered_is_said_and_a_cancelled_job_is_not_taken_in_again(rig: PodRig) -> None:
    rig.serve()
    rig.pod("odd", notes={"horae.dev/gpu-tipe": "v100"})
    rig.pod("choosy", spec={"nodeSelector": {"disk": "fast"}})
    rig.job("large", 3, gpus=4)
    assert "horae.dev/gpu-tipe is not known" in patiently(lambda: rig.events("odd"), "for the reason")[0]
    assert "nodeSelector" in patiently(lambda: rig.events("choosy"), "for the reason")[0]
    (name, *_) = rig.waiting("large")
    assert "Not taken in" in patiently(lambda: rig.events(name), "for the reason")[0]
    rig.job("unwanted", 2)
    rig.wait_for_running("unwanted", 2)
    rig.wait_for("unwanted", "running")
    rig.post("/v1/jobs/cancel", {"ids": [rig.jobs()["unwanted"]["id"]]})
    rig.wait_for("unwanted", "cancelled")
    patiently(lambda: len(rig.waiting("unwanted")) == 2 and not rig.running("unwanted"), "for its next pods")
    (name, *_) = rig.waiting("unwanted")
    assert "is over (cancelled)" in patiently(lambda: rig.events(name), "for the word")[0]
    stays(lambda: not rig.running("unwanted"), 2)
    assert set(rig.jobs()) == {"unwanted"}


def test_a_job_that_fails_by_itself_is_run_again_as_its_controller_says_and_fails_with_it(rig: PodRig) -> None:
    rig.serve()
    rig.job("fails", 2, f"[ $POD_RANK = 0 ] && [ $ATTEMPT = 1 ] && exit 3; {SAVES}", job={"backoffLimit": 3})
    rig.job("gives-up", 1, "exit 4", job={"backoffLimit": 0})
    patiently(lambda: rig.state_of("fails") == ("running", 2), "for the next attempt")
    assert rig.wait_for("gives-up", "failed") == 1
    rig.delete("jobs", "fails")
    rig.wait_for("fails", "cancelled")


def test_a_node_without_a_word_ends_nothing_and_one_that_started_again_does(rig: PodRig) -> None:
    rig.serve()
    rig.job("cut", 4)
    rig.wait_for_running("cut", 4)
    rig.wait_for("cut", "running")
    (node,) = {pod["spec"]["nodeName"] for pod in rig.pods("cut").values()}
    rig.kubernetes.kill_machine(node)
    try:
        rig.kubernetes.wait_for_nodes(node, ready="Unknown")
        for name in rig.running("cut"):
            rig.kubernetes.ask("DELETE", f"/api/v1/namespaces/{TEAM}/pods/{name}", {"gracePeriodSeconds": 0})
        stays(lambda: rig.state_of("cut")[1] == 1, 5, "deleted by force, but their processes may live")
    finally:
        rig.kubernetes.start_node(node)
        rig.kubernetes.wait_for_nodes(node)
    patiently(lambda: rig.state_of("cut") == ("running", 2), "for the next attempt")


def test_more_completions_than_pods_at_a_time_run_in_one_attempt(rig: PodRig) -> None:
    rig.serve()
    rig.job("rolls", 2, "sleep 0.5", job={"completions": 6})
    assert rig.wait_for("rolls", "finished") == 1
    assert rig.status_of("rolls")["succeeded"] == 6


def test_another_service_is_refused_and_releasing_leaves_running_pods_alone(rig: PodRig) -> None:
    rig.serve()
    rig.job("runs", 8)
    names = rig.wait_for_running("runs", 8)
    rig.wait_for("runs", "running")
    rig.job("waits", 1)
    rig.wait_for("waits", "waiting")
    second = rig.horae("serve", "--state", str(rig.folder / "b"), "--port", "0", *rig.words)
    assert second.returncode == 1
    assert f"Namespace {TEAM} belongs to another Horae service" in second.stderr
    released = ("kubernetes", "release", "--adopt", TEAM, "--state", str(rig.state))
    assert "still runs" in rig.horae(*released).stderr
    rig.end()
    done = rig.horae(*released)
    assert done.returncode == 0, done.stderr
    assert "1 pods wait for Horae" in done.stdout
    assert sorted(rig.running("runs")) == sorted(names)
    assert not any(pod["metadata"].get("finalizers") for pod in rig.pods().values())


def test_pods_that_lose_their_job_are_followed_to_their_end(rig: PodRig) -> None:
    rig.serve()
    rig.job("orphans", 2, "sleep 8")
    rig.wait_for_running("orphans", 2)
    rig.wait_for("orphans", "running")
    path = f"/apis/batch/v1/namespaces/{TEAM}/jobs/orphans"
    rig.kubernetes.ask("DELETE", path, {"propagationPolicy": "Orphan"})
    patiently(
        lambda: not any(pod["metadata"].get("ownerReferences") for pod in rig.pods("orphans").values()),
        "for the pods to be nobody's",
    )
    assert rig.wait_for("orphans", "finished", "cancelled", "failed") == 1
    assert rig.state_of("orphans") == ("finished", 1)
    patiently(lambda: not any(pod["metadata"].get("finalizers") for pod in rig.pods().values()), "no finalizer")
