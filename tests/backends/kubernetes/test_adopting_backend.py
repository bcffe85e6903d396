"""The adopting backend over an API server in memory: what it offers, does and tells.

Tests backends/kubernetes/adoption.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horae.backends.found_jobs import FindsJobs, TakenJob
from horae.backends.kubernetes.adoption import KubernetesAdoption
from horae.backends.kubernetes.gang_steps import GangPatience
from horae.backends.kubernetes.namespace_lease import NamespaceLeases
from horae.backends.kubernetes.objects import NODE_NOTE, SERVICE_LABEL
from horae.backends.protocol import Place
from horae.core.events import (
    JobCancelled,
    JobFinished,
    JobStarted,
    JobStopped,
    LaunchFailed,
    NodeObserved,
)
from horae.core.states import State
from tests.backends.adoption_stage import AdoptionStage
from tests.backends.kubernetes.fake_server import status
from tests.backends.kubernetes.made_gangs import JOB_UID
from tests.backends.kubernetes.made_objects import node
from tests.backends.kubernetes.made_up_api import JOBS, NODES, PODS, MadeUpApi
from tests.backends.real import until

KEY, JOB = f"kubernetes:team/train@{JOB_UID}", "train-1"
QUICK = GangPatience(
    look_every_s=0.02, look_soon_s=0.01, launch_s=0.3, lacking_s=0.1, orphan_s=0.1, remade_s=0.2, fence_s=0.3
)
FINALIZER = ["horae.dev/journalled"]


class Stage(AdoptionStage):
    """An API server, and a Job of two pods."""

    key, job, place = KEY, JOB, Place("v1", (0, 1))

    def __init__(self, folder: Path) -> None:
        self.server = MadeUpApi()
        self.options: dict[str, Any] = {}
        self.namespaces: tuple[str, ...] = ("team",)
        super().__init__(folder)

    def open(self) -> None:
        fence = f"{sys.executable} -S -c \"import sys; open('{self.folder}/fenced', 'a').write(sys.argv[1])\""
        given = {"patience": QUICK, "fence": fence, **self.options}
        self.backend = KubernetesAdoption(self.folder, self.namespaces, self.server.api(), **given)

    def add(self) -> None:
        self.server.job("a", "b")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.backend.close()


def test_a_gang_goes_through_its_life(stage: Stage) -> None:
    assert isinstance(stage.backend, FindsJobs)
    stage.server.job("a", "b")
    stage.follow()
    (found,) = until(stage.backend.found, "for the gang")
    assert (found.key, found.user, found.document["resources"]) == (KEY, "team", {"gpus": 2})
    stage.follow(State.WAITING, "No GPUs are free.")
    until(lambda: stage.server.finalizers() == {"a": FINALIZER, "b": FINALIZER}, "for the finalizers")
    until(lambda: stage.server.told("b"), "for the reason")
    assert stage.server.told("a") == ["train-1 waits. No GPUs are free."]
    stage.follow(State.LAUNCHING)
    stage.start()
    assert stage.until_told(JobStarted).attempt == 1
    assert stage.server.where() == {"a": "v1", "b": "v1"}
    notes = stage.server.objects[PODS]["b"]["metadata"]["annotations"]
    assert notes == {"horae.dev/job": JOB, "horae.dev/attempt": "1", "horae.dev/rank": "1"}
    stage.follow(State.STOPPING)
    stage.backend.stop(JOB, 1)
    assert stage.until_told(JobStopped).attempt == 1
    stage.backend.forget(JOB, 1)
    until(lambda: {*stage.server.where()} == {"ax", "bx"}, "for the old pods to go")
    stage.events.clear()
    stage.follow(State.LAUNCHING)
    stage.start(2, Place("v2", (0, 1)))
    assert stage.until_told(JobStarted).attempt == 2
    assert stage.server.where() == {"ax": "v2", "bx": "v2"}
    for name in ("ax", "bx"):
        stage.server.end(name, 0)
    stage.server.put(JOBS, {**stage.server.objects[JOBS]["train"], "status": {"succeeded": 2}})
    assert stage.until_told(JobFinished) == JobFinished(5.0, JOB, 2)
    until(lambda: stage.server.finalizers() == {"ax": [], "bx": []}, "for the finalizers to go")


def test_nothing_is_done_before_the_service_has_said_what_it_knows(stage: Stage) -> None:
    stage.server.job("a", "b")
    stage.reopen()
    stage.turns(3)
    assert stage.server.changes == []
    assert stage.backend.sight() is None


def test_the_next_process_binds_the_rest_of_a_gang(stage: Stage) -> None:
    stage.server.refuses["POST /api/v1/namespaces/team/pods/b/binding"] = status(503)
    stage.server.job("a", "b")
    stage.follow()
    until(stage.backend.found, "for the gang")
    stage.follow(State.LAUNCHING)
    stage.start()
    until(lambda: stage.server.where() == {"a": "v1", "b": ""}, "for half of it")
    stage.reopen()
    stage.server.refuses.clear()
    stage.follow(State.LAUNCHING)
    assert stage.until_told(JobStarted).attempt == 1
    assert stage.server.where() == {"a": "v1", "b": "v1"}


def test_a_binding_that_is_refused_fails_the_launch_and_frees_the_rest(stage: Stage) -> None:
    stage.server.refuses["POST /api/v1/namespaces/team/pods/b/binding"] = status(422, "not this node")
    stage.server.job("a", "b")
    stage.follow()
    until(stage.backend.found, "for the gang")
    stage.follow(State.LAUNCHING)
    stage.start()
    assert stage.until_told(LaunchFailed).why == "not this node"
    assert {*stage.server.where().values()} == {""}


def test_an_incomplete_gang_is_not_offered_and_is_told_so(stage: Stage) -> None:
    stage.follow()
    stage.server.pod("a", owner=None, labels={"horae.dev/gang": "g", "horae.dev/gang-size": "2"})
    assert until(lambda: stage.server.told("a"), "for the reason") == ["1 of its 2 pods are there."]
    assert stage.backend.found() == []


@pytest.mark.parametrize(("trusted", "user", "queue"), [(False, "ann@team", "team/org/x"), (True, "ann", "org/x")])
def test_users_and_queues_are_within_the_namespace_unless_the_operator_trusts_annotations(
    stage: Stage, trusted: bool, user: str, queue: str
) -> None:
    stage.options["trust_annotations"] = trusted
    stage.reopen()
    stage.server.pod("a", owner=None, notes={"horae.dev/user": "ann", "horae.dev/queue": "org/x"})
    stage.follow()
    (found,) = until(stage.backend.found, "for the gang")
    assert (found.user, found.document["queue"]) == (user, queue)


def test_what_the_service_refuses_its_user_is_told(stage: Stage) -> None:
    stage.server.job("a", "b")
    stage.follow()
    until(stage.backend.found, "for the gang")
    stage.backend.refuse(KEY, "No node has so many GPUs.")
    until(lambda: stage.server.told("a") == ["Not taken in. No node has so many GPUs."], "for the word")
    until(lambda: not stage.backend.found(), "for a pause")


def test_the_next_process_takes_up_what_runs(stage: Stage) -> None:
    stage.run()
    changes = [each for each in stage.server.changes if each[1].endswith("/binding")]
    stage.reopen()
    stage.follow(State.RUNNING)
    assert stage.until_told(JobStarted).attempt == 1
    stage.until_told(NodeObserved)
    assert NodeObserved(5.0, "v1", ((JOB, 1),)) in stage.events
    assert [each for each in stage.server.changes if each[1].endswith("/binding")] == changes


def test_a_deleted_node_stays_in_sight_and_ends_nothing_until_an_operator_is_sure(stage: Stage) -> None:
    stage.run()
    stage.server.remove(NODES, "v1")
    seen = until(lambda: _closed(stage, "v1"), "for the node to be closed")
    assert (seen.gpus, seen.why) == (4, "deleted")
    for name in ("a", "b"):
        stage.server.end(name, 137)
    stage.events.clear()
    stage.backend.stop(JOB, 1)
    stage.follow(State.STOPPING)
    stage.server.pod("trigger", spec={"schedulerName": "other"})
    until(lambda: _closed(stage, "v1"), "for a look")
    assert not any(isinstance(event, JobStopped) for event in stage.backend.watch(5.0))
    stage.backend.gone("v1")
    assert stage.until_told(JobStopped).attempt == 1


def _closed(stage: Stage, name: str) -> Any:
    sight = stage.backend.sight()
    nodes = {node.name: node for node in (sight.nodes if sight else ())}
    return name in nodes and not nodes[name].open and nodes[name]


def test_pods_of_others_close_their_node(stage: Stage) -> None:
    stage.follow()
    until(stage.backend.sight, "for the sight")
    stage.server.pod("theirs", owner=None, node="v2", phase="Running", spec={"schedulerName": "other"})
    seen = until(lambda: _closed(stage, "v2"), "for the node to be closed")
    assert seen.why == "pod team/theirs with 1 GPU"
    assert "Work of others runs on v2" in stage.backend.trouble


def test_only_a_node_that_is_silent_for_long_is_fenced(stage: Stage) -> None:
    stage.run()
    stage.follow(State.STOPPING)
    stage.server.put(NODES, node("v1", labels={"horae.dev/managed": "false"}))
    stage.turns(40)
    stage.server.put(NODES, node("v1", ready="Unknown", nodeInfo={"bootID": "first"}))
    stage.turns(3)
    stage.server.put(NODES, node("v1", nodeInfo={"bootID": "first"}))
    stage.turns(40)
    assert not (stage.folder / "fenced").exists(), "taken out, or silent for a moment"
    stage.server.put(NODES, node("v1", ready="Unknown", nodeInfo={"bootID": "first"}))
    stage.until_told(JobStopped)
    assert (stage.folder / "fenced").read_text() == "v1"


def test_a_server_that_is_away_is_out_of_sight_and_nothing_is_concluded(stage: Stage) -> None:
    stage.run()
    stage.server.refuses["GET /"] = status(503)
    until(lambda: stage.backend.sight() is None, "for the silence")
    assert "out of sight" in stage.backend.trouble
    stage.events.clear()
    stage.server.refuses.clear()
    until(stage.backend.sight, "for sight")
    stage.turns(3)
    stage.events += stage.backend.watch(5.0)
    assert not any(isinstance(event, JobStopped | JobCancelled) for event in stage.events)


def test_the_log_says_where_the_output_is(stage: Stage) -> None:
    stage.run()
    assert stage.backend.log(JOB, 1).read_text() == "The output of train is in its pods: kubectl logs -n team a\n"


def test_a_gang_is_followed_by_its_pods_whatever_their_labels_and_owners_say(stage: Stage) -> None:
    stage.run()
    marks = {"labels": {"horae.dev/gang": "another", SERVICE_LABEL: "s1"}, "annotations": {NODE_NOTE: "v1"}}
    for name, changed in (("a", {"ownerReferences": []}), ("b", marks)):
        pod = stage.server.objects[PODS][name]
        stage.server.put(PODS, {**pod, "metadata": {**pod["metadata"], **changed}})
    stage.server.remove(JOBS, "train")
    pod = stage.server.objects[PODS]["b"]
    stage.server.put(PODS, {**pod, "metadata": {**pod["metadata"], "ownerReferences": []}})
    stage.turns(20)
    assert stage.backend.found() == []
    for name in ("a", "b"):
        stage.server.end(name, 0)
    assert stage.until_told(JobFinished).attempt == 1
    assert not any(isinstance(event, JobCancelled) for event in stage.events)
    until(lambda: stage.server.finalizers() == {"a": [], "b": []}, "for the finalizers to go")


def test_the_end_on_a_node_that_was_taken_out_is_believed(stage: Stage) -> None:
    stage.run()
    stage.server.put(NODES, node("v1", labels={"horae.dev/managed": "false"}))
    assert until(lambda: _closed(stage, "v1"), "for the node to be closed").why == "not managed any more"
    stage.server.put(JOBS, {**stage.server.objects[JOBS]["train"], "status": {"succeeded": 2}})
    for name in ("a", "b"):
        stage.server.end(name, 0)
    assert stage.until_told(JobFinished).attempt == 1


@pytest.mark.parametrize("labels", [{}, {"horae.dev/gang": "g", "horae.dev/gang-size": "1"}])
def test_a_pod_made_by_hand_is_let_go_when_its_job_is_cancelled(stage: Stage, labels: dict[str, str]) -> None:
    stage.server.pod("alone", owner=None, labels=labels)
    stage.follow()
    (found,) = until(stage.backend.found, "for the gang")
    stage.backend.follow({found.key: TakenJob("alone-1", State.WAITING)})
    until(lambda: stage.server.finalizers() == {"alone": FINALIZER}, "for the finalizer")
    stage.backend.follow({found.key: TakenJob("alone-1", State.CANCELLED)})
    until(lambda: stage.server.finalizers() == {"alone": []}, "for the finalizer to go")
    until(lambda: any("For Horae, alone-1 is over" in text for text in stage.server.told("alone")), "for the word")


def test_a_pod_made_by_hand_whose_binding_is_refused_waits_and_is_launched_again(stage: Stage) -> None:
    stage.server.refuses["/binding"] = status(422, "not this node")
    stage.server.pod("alone", owner=None)
    stage.follow()
    (found,) = until(stage.backend.found, "for the gang")
    stage.key, stage.job = found.key, "alone-1"
    stage.follow(State.LAUNCHING)
    stage.start(1, Place("v1", (0,)))
    assert stage.until_told(LaunchFailed).why == "not this node"
    assert "deletionTimestamp" not in stage.server.objects[PODS]["alone"]["metadata"]
    stage.server.refuses.clear()
    stage.backend.forget("alone-1", 1)
    stage.start(2, Place("v2", (0,)))
    assert stage.until_told(JobStarted).attempt == 2


def test_a_job_that_the_service_has_forgotten_is_not_taken_in_again(stage: Stage) -> None:
    stage.server.job("a", "b")
    stage.follow()
    until(stage.backend.found, "for the gang")
    stage.follow(State.CANCELLED)
    until(lambda: stage.server.told("a"), "for the word")
    stage.follow()
    for _ in range(2):
        stage.turns(3)
        assert stage.backend.found() == []
        stage.reopen()
        stage.follow()
    stage.server.remove(JOBS, "train")
    for name in ("a", "b"):
        stage.server.remove(PODS, name)
    until(lambda: not list((stage.folder / "adopted").iterdir()), "for the record to go")


class TestTrouble:
    """Trouble of one namespace or gang is its own."""

    @pytest.fixture
    def both(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
        """A service for two namespaces."""
        monkeypatch.setattr("horae.backends.kubernetes.adoption.SYNC_S", 1.0)
        stage.namespaces = ("other", "team")
        stage.reopen()
        return stage

    @pytest.mark.parametrize("plural", ["pods", "jobs"])
    def test_a_namespace_that_cannot_be_listed_holds_up_no_other(self, both: Stage, plural: str) -> None:
        both.server.refuses[f"/namespaces/other/{plural}"] = status(403, "not allowed")
        both.run()
        until(lambda: both.backend.trouble, "for the sentence")
        assert both.backend.trouble == (
            "Namespace other is out of sight: not allowed. Nothing is concluded about its jobs."
        )
        both.server.refuses.clear()
        until(lambda: not both.backend.trouble, "for sight")

    def test_of_gangs_that_are_out_of_sight_nothing_is_concluded(self, both: Stage) -> None:
        both.run()
        both.server.refuses["/namespaces/team/"] = status(403)
        until(lambda: "Namespace team is out of sight" in both.backend.trouble, "for the sentence")
        both.events.clear()
        both.server.remove(JOBS, "train")
        for name in ("a", "b"):
            both.server.remove(PODS, name)
        both.turns(20)
        assert both.backend.watch(5.0) == []
        assert "vanished" not in both.backend.trouble
        both.reopen()
        both.follow(State.RUNNING)
        both.until_told(NodeObserved)
        assert NodeObserved(5.0, "v1", ((JOB, 1),)) in both.events

    def test_a_lease_that_is_lost_stops_its_namespace_alone(self, both: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        leases = NamespaceLeases(both.server.api(), both.namespaces, "s1")
        lost = {"other": "Namespace other belongs to another Horae service."}
        monkeypatch.setattr(leases, "check", lambda: lost)
        both.options["leases"] = leases
        both.reopen()
        both.run()
        assert both.backend.trouble.startswith("Namespace other belongs to another Horae service. ")

    @pytest.mark.parametrize("code", [403, 500])
    def test_a_pod_that_cannot_be_deleted_holds_up_no_other_gang(self, stage: Stage, code: int) -> None:
        stage.run()
        stage.server.refuses["DELETE /api/v1/namespaces/team/pods/a"] = status(code, "not allowed")
        stage.backend.stop(JOB, 1)
        stage.follow(State.STOPPING)
        until(lambda: stage.backend.trouble, "for the sentence")
        assert stage.backend.trouble == (
            "The API server refuses changes of pods in team: see Events of the pods, and the rights that "
            "`horae kubernetes manifests --adopt team` prints."
        )
        assert any("Horae cannot stop train-1, attempt 1: " in text for text in stage.server.told("a"))
        stage.server.pod("alone", owner=None)
        (found,) = until(stage.backend.found, "for another gang")
        assert found.document["name"] == "alone"
        assert stage.backend.sight()
        stage.events += stage.backend.watch(5.0)
        assert not any(isinstance(event, JobStopped) for event in stage.events)
