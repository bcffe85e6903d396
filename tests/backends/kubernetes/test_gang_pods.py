"""Which pods form a gang, how many it has, and what it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from horae.backends.adoption_options import BadRequest
from horae.backends.kubernetes.gang_pods import Controller, document_of, pack, read_user_pod, user_of, view_of
from horae.service.job_file import read_job
from tests.backends.kubernetes.made_gangs import JOB_UID, content, over, running, user_job, user_pod

JOBS = {JOB_UID: user_job(2)}


def jobset(number: int, **more: Any) -> dict[str, Any]:
    labels = {"jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/job-index": str(number), **more}
    return {"labels": labels, "owner": ("Job", f"set-{number}", f"job-{number}")}


class TestPods:
    def test_only_pods_that_ask_for_horae_and_are_not_its_own_are_read(self) -> None:
        assert read_user_pod(content(spec={"schedulerName": "default-scheduler"})) is None
        own = content(labels={"horae.dev/service": "s1"}, notes={"horae.dev/node": "v1"})
        marked = read_user_pod(own)
        assert marked
        assert marked.looks_own
        labelled = read_user_pod(content(labels={"horae.dev/service": "s1"}))
        assert labelled
        assert not labelled.looks_own, "anybody may label a running pod"
        assert read_user_pod(content()) is not None

    @pytest.mark.parametrize("index", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "-1", ""])
    def test_an_index_that_is_none_is_left_out(self, index: str) -> None:
        assert user_pod(notes={"batch.kubernetes.io/job-completion-index": index}).group == f"job/train/{JOB_UID}"

    @pytest.mark.parametrize(
        ("more", "group", "size"),
        [
            ({}, f"job/train/{JOB_UID}", None),
            ({"labels": {"horae.dev/gang": "g", "horae.dev/gang-size": "3"}}, "gang/g", 3),
            ({"labels": {"horae.dev/gang": "g"}, "notes": {"horae.dev/gang-size": "4"}}, "gang/g", 4),
            (jobset(0), "jobset/set/", None),
            (jobset(0, **{"jobset.sigs.k8s.io/jobset-uid": "u"}), "jobset/set/u", None),
            ({"owner": None}, "pod/a/uid-a", 1),
        ],
    )
    def test_its_labels_tell_its_gang(self, more: dict[str, Any], group: str, size: int | None) -> None:
        pod = user_pod(**more)
        assert (pod.group, pod.said_size) == (group, size)

    @pytest.mark.parametrize(
        ("env", "size"),
        [
            ({"WORLD_SIZE": "3"}, 3),
            ({"PET_NNODES": "2", "WORLD_SIZE": "8", "PET_NPROC_PER_NODE": "4"}, 2),
            ({"PET_NNODES": "1:3", "PET_NPROC_PER_NODE": "4", "WORLD_SIZE": "8"}, None),
        ],
    )
    def test_the_training_operator_tells_pods_how_many_they_are(self, env: dict[str, str], size: int | None) -> None:
        labels = {"training.kubeflow.org/job-name": "t", "training.kubeflow.org/replica-type": "master"}
        pod = user_pod(labels=labels, owner=("PyTorchJob", "t", "u"), env=env)
        assert (pod.group, pod.said_size) == ("kubeflow/t/u", size)

    @pytest.mark.parametrize(
        ("more", "sentence"),
        [
            ({"labels": {"horae.dev/gang-size": "many"}}, "must be a number of pods"),
            ({"owner": ("ReplicaSet", "r", "u")}, "that a ReplicaSet made"),
            ({"spec": {"nodeSelector": {"disk": "fast"}}}, "nodes by disk"),
            (
                {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}},
                "node affinity",
            ),
        ],
    )
    def test_what_cannot_be_ordered_is_told(self, more: dict[str, Any], sentence: str) -> None:
        assert sentence in user_pod(**more).problem


class TestGangs:
    def test_a_job_is_complete_with_its_parallelism(self) -> None:
        one = view_of([user_pod("a")], JOBS)
        assert (one.wanted, one.lacks) == (2, "1 of its 2 pods are there")
        both = view_of([user_pod("b"), user_pod("a")], JOBS)
        assert ([pod.name for pod in both.fresh], both.lacks, both.controller) == (["a", "b"], "", Controller.ACTIVE)

    def test_pods_that_end_or_are_deleted_or_bound_are_not_counted(self) -> None:
        gone = {"deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 0}
        view = view_of([running("a"), user_pod("b", meta=gone), over("c", 75), user_pod("d")], JOBS)
        assert [pod.name for pod in view.fresh] == ["d"]

    def test_after_some_have_succeeded_the_rest_is_the_gang(self) -> None:
        view = view_of([over("a"), user_pod("b")], {JOB_UID: user_job(2, succeeded=1)})
        assert (view.wanted, view.lacks) == (1, "")
        labelled: dict[str, Any] = {"labels": {"horae.dev/gang": "g", "horae.dev/gang-size": "2"}}
        assert (
            view_of([over("a", **labelled), user_pod("b", **labelled)], {JOB_UID: user_job(2, succeeded=1)}).lacks == ""
        )

    def test_a_job_that_was_not_seen_yet_is_no_reason_to_begin(self) -> None:
        view = view_of([user_pod("a")], {})
        assert (bool(view.lacks), view.controller) == (True, Controller.GONE)

    def test_a_jobset_waits_for_all_its_jobs(self) -> None:
        replicas = {"jobset.sigs.k8s.io/replicatedjob-replicas": "2"}
        label = {"jobset.sigs.k8s.io/jobset-name": "set"}
        first = [user_pod(name, **jobset(0, **replicas)) for name in "ab"]
        jobs = {"job-0": user_job(2, "job-0", labels=label)}
        assert view_of(first, jobs).lacks
        jobs["job-1"] = user_job(2, "job-1", labels=label)
        assert view_of(first, jobs).lacks == "2 of its 4 pods are there"
        second = [user_pod(name, **jobset(1, **replicas)) for name in "cd"]
        assert view_of([*second, *first], jobs).lacks == ""
        assert [pod.name for pod in view_of([*second, *first], jobs).fresh] == ["a", "b", "c", "d"]

    def test_a_gang_whose_size_nobody_tells_is_not_ordered(self) -> None:
        assert "horae.dev/gang-size" in view_of([user_pod(labels={"horae.dev/gang": "g"}, owner=None)], {}).problem

    @pytest.mark.parametrize(
        ("job", "controller"),
        [
            (user_job(2, conditions=["Complete"]), Controller.COMPLETE),
            (user_job(2, conditions=["Failed"]), Controller.FAILED),
            (user_job(2, "another"), Controller.GONE),
        ],
    )
    def test_what_became_of_the_job_is_known_without_pods(self, job: Any, controller: Controller) -> None:
        assert view_of([], {job.uid: job}, [JOB_UID]).controller is controller

    def test_pods_made_by_hand_or_by_others_have_no_job(self) -> None:
        size = {"horae.dev/gang": "g", "horae.dev/gang-size": "1"}
        assert view_of([user_pod(labels=size, owner=None)], {}).controller is Controller.NONE
        assert view_of([user_pod(labels=size, owner=("RayCluster", "r", "u"))], {}).controller is Controller.UNKNOWN


class TestRequests:
    def test_a_gang_is_a_job_file(self) -> None:
        notes = {
            "horae.dev/user": "ann",
            "horae.dev/queue": "vision",
            "horae.dev/duration": "2h",
            "horae.dev/min-runtime": "5m",
        }
        pods = [user_pod(name, gpus=2, notes=notes, spec={"terminationGracePeriodSeconds": 90}) for name in "ab"]
        document, duration_s = document_of(pods)
        job = read_job(document)
        assert (job.name, job.queue, job.checkpoint.grace, duration_s) == ("train", "team/vision", 90.0, 7200.0)
        assert document["resources"]["gpus"] == 4
        assert document["min_runtime"] == "5m"
        assert user_of(pods) == "ann@team"

    @pytest.mark.parametrize(
        ("said", "queue", "trusted"),
        [
            ("org/x", "team/org/x", "org/x"),
            ("teammate", "team/teammate", "teammate"),
            ("team", "team", "team"),
            ("team/vision", "team/vision", "team/vision"),
        ],
    )
    def test_nobody_spends_the_share_of_another_namespace_unless_annotations_are_trusted(
        self, said: str, queue: str, trusted: str
    ) -> None:
        pods = [user_pod(notes={"horae.dev/user": "ann", "horae.dev/queue": said})]
        assert (document_of(pods)[0]["queue"], user_of(pods)) == (queue, "ann@team")
        assert (document_of(pods, trusted=True)[0]["queue"], user_of(pods, trusted=True)) == (trusted, "ann")

    def test_a_user_that_can_be_none_is_told(self) -> None:
        with pytest.raises(BadRequest, match="must be letters"):
            user_of([user_pod(notes={"horae.dev/user": "ann\nbob"})])

    def test_without_options_the_namespace_is_queue_and_user(self) -> None:
        document, _ = document_of([user_pod()])
        assert (document["queue"], user_of([user_pod()])) == ("team", "team")

    def test_a_node_label_asks_for_a_gpu_type(self) -> None:
        selector = {"nodeSelector": {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB", "kubernetes.io/os": "linux"}}
        assert document_of([user_pod(spec=selector)])[0]["resources"]["gpus"] == "v100:1"
        assert document_of([user_pod(notes={"horae.dev/gpu-type": "a100"})])[0]["resources"]["gpus"] == "a100:1"

    def test_pods_made_by_hand_are_not_preempted(self) -> None:
        assert document_of([user_pod(owner=None)])[0]["preemptible"] is False
        assert "preemptible" not in document_of([user_pod()])[0]

    @pytest.mark.parametrize(
        ("more", "sentence"),
        [
            ({"gpus": 0}, "pods that ask for GPUs"),
            ({"notes": {"horae.dev/quue": "a"}}, "Did you mean 'queue'"),
            ({"notes": {"horae.dev/steps": "many"}}, "is no number"),
            ({"notes": {"horae.dev/duration": "long"}}, "is no time"),
        ],
    )
    def test_mistakes_are_told(self, more: dict[str, Any], sentence: str) -> None:
        with pytest.raises(BadRequest, match=sentence):
            document_of([user_pod(**more)])

    def test_a_gang_has_gpus_of_one_type(self) -> None:
        with pytest.raises(BadRequest, match="one type"):
            document_of([user_pod("a"), user_pod("b", notes={"horae.dev/gpu-type": "a100"})])


class TestPacking:
    def test_pods_of_one_size_fill_nodes(self) -> None:
        assert pack([2, 2, 2], [("v1", 4), ("v2", 2)]) == ["v2", "v1", "v1"]
        assert pack([1] * 3, [("v1", 2), ("v2", 1)]) == ["v2", "v1", "v1"]

    def test_pods_without_gpus_go_anywhere(self) -> None:
        assert pack([0, 4], [("v1", 4)]) == ["v1", "v1"]

    def test_what_does_not_fit_is_told(self) -> None:
        assert pack([2, 2], [("v1", 3), ("v2", 1)]) is None
