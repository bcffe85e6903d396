"""What is done for a gang of users' pods, state by state; no Kubernetes is needed.

Tests backends/kubernetes/adopted_gang.py, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.backends.adopted_job import FAILED, FINISHED, LAUNCH_FAILED, STOPPED, file_name
from horae.backends.kubernetes.adopted_gang import AdoptedGang, GangRecords, Member
from horae.backends.kubernetes.gang_pods import GangView, UserJob, UserPod, view_of
from horae.backends.kubernetes.gang_steps import GangMoment, GangStep, GangTodo, see_to
from horae.core.events import JobCancelled, JobHeld, JobReleased, JobStarted
from horae.core.states import State
from tests.backends.kubernetes.made_gangs import (
    JOB_UID,
    attempt,
    gang,
    kube_node,
    moment,
    over,
    running,
    user_job,
    user_pod,
)
from tests.backends.kubernetes.made_objects import NOW

DELETED = {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 20}
KILLED_AT_ONCE = {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0}


def view(*pods: UserPod, job: UserJob | None = None, owners: tuple[str, ...] = (JOB_UID,)) -> GangView:
    made = job or user_job(2)
    return view_of(pods, {made.uid: made}, owners)


def names(todo: GangTodo, step: GangStep) -> list[str]:
    return [name for each, _, name in todo.steps if each is step]


def see(
    found: AdoptedGang,
    /,
    *pods: UserPod,
    state: State | None = State.RUNNING,
    at: GangMoment | None = None,
    **more: Any,
) -> GangTodo:
    return see_to(found, view(*pods, **more), state, at or moment())


def member(name: str, node: str = "v1", **more: Any) -> Member:
    rank = "abcdef".index(name)
    given: dict[str, Any] = {"gpus": 1, "rank": rank, "boot": "first", "tried": True, **more}
    return Member(uid=f"uid-{name}", name=name, node=node, **given)


def bound(**more: Any) -> AdoptedGang:
    """A gang whose two pods are on v1."""
    return attempt(**{"members": [member("a"), member("b")], **more})


class TestWaiting:
    def test_pods_get_the_finalizer_once_the_service_has_the_job(self) -> None:
        pods = (user_pod("a", kept=False), user_pod("b"))
        assert see(gang(), *pods, state=None).steps == []
        assert names(see(gang(), *pods, state=State.WAITING), GangStep.KEEP) == ["a"]

    def test_a_deleted_pod_that_was_never_bound_is_let_go(self) -> None:
        todo = see(gang(), user_pod("a", meta=KILLED_AT_ONCE), user_pod("b"), user_pod("c"), state=State.WAITING)
        assert names(todo, GangStep.RELEASE) == ["a"]

    def test_a_gang_that_lacks_pods_is_held_after_a_while_and_released_when_all_are_there(self) -> None:
        job = gang()
        assert see(job, user_pod("a"), state=State.WAITING).events == []
        (held,) = see(job, user_pod("a"), state=State.WAITING, at=moment(1006)).events
        assert held == JobHeld(0.0, "train-1", "kubernetes: team, 1 of its 2 pods are there")
        assert see(job, user_pod("a"), state=State.HELD, at=moment(1007)).events == []
        (event,) = see(job, user_pod("a"), user_pod("b"), state=State.HELD, at=moment(1008)).events
        assert isinstance(event, JobReleased)
        assert see(job, user_pod("a"), user_pod("b"), state=State.WAITING, at=moment(1009)).events == []

    def test_a_hold_of_somebody_else_stays(self) -> None:
        assert see(gang(), user_pod("a"), user_pod("b"), state=State.HELD).events == []

    def test_a_job_whose_controller_is_gone_is_cancelled(self) -> None:
        job, other = gang(), user_job(2, "other")
        assert see(job, state=State.WAITING, job=other).events == []
        see(job, state=State.WAITING, job=other, at=moment(1004))
        (event,) = see(job, state=State.WAITING, job=other, at=moment(1008)).events
        assert event == JobCancelled(0.0, "train-1", "kubernetes: team")

    def test_of_a_job_that_is_over_in_horae_nothing_is_kept(self) -> None:
        todo = see(gang(), user_pod("a"), user_pod("b"), state=State.CANCELLED)
        assert (names(todo, GangStep.RELEASE), todo.events) == (["a", "b"], [])


class TestLaunching:
    def test_all_pods_are_on_record_and_bound_together(self) -> None:
        job = attempt()
        todo = see(job, user_pod("b"), user_pod("a"), state=State.LAUNCHING)
        assert [(each.name, each.node, each.rank, each.boot) for each in job.members] == [
            ("a", "v1", 0, "first"),
            ("b", "v1", 1, "first"),
        ]
        assert names(todo, GangStep.BIND) == ["a", "b"]

    def test_nothing_is_bound_before_all_have_the_finalizer(self) -> None:
        job = attempt()
        todo = see(job, user_pod("a", kept=False), user_pod("b"), state=State.LAUNCHING)
        assert (names(todo, GangStep.KEEP), names(todo, GangStep.BIND), job.members) == (["a"], [], [])

    def test_nothing_is_bound_while_pods_hold_the_gpus(self) -> None:
        job = attempt()
        assert see(job, user_pod("a"), user_pod("b"), state=State.LAUNCHING, at=moment(held={"v1": 3})).steps == []
        todo = see(job, user_pod("a"), user_pod("b"), state=State.LAUNCHING, at=moment(held={"v1": 2}))
        assert names(todo, GangStep.BIND) == ["a", "b"]

    def test_a_machine_that_started_again_before_the_pods_were_bound_says_nothing_about_them(self) -> None:
        job = attempt()
        see(job, user_pod("a"), user_pod("b"), state=State.LAUNCHING, at=moment(held={"v1": 3}))
        again = moment(1000, kube_node("v1", boot="second"))
        assert names(see(job, user_pod("a"), user_pod("b"), state=State.LAUNCHING, at=again), GangStep.BIND) == [
            "a",
            "b",
        ]
        see(job, running("a"), running("b"), at=again)
        assert (job.outcome, [each.ended for each in job.members]) == ("", [False, False])

    def test_after_a_crash_the_rest_is_bound(self) -> None:
        job = bound()
        at = moment(held={"v1": 1})
        assert names(see(job, running("a"), user_pod("b"), state=State.LAUNCHING, at=at), GangStep.BIND) == ["b"]

    def test_pods_that_do_not_come_fail_the_launch(self) -> None:
        job = attempt()
        see(job, user_pod("a"), state=State.LAUNCHING)
        see(job, user_pod("a"), state=State.LAUNCHING, at=moment(1031))
        assert job.outcome == f"{LAUNCH_FAILED}1 of its 2 pods are there"

    def test_pods_that_do_not_fit_fail_the_launch(self) -> None:
        job = attempt(seats=(("v1", 3), ("v2", 1)))
        see(job, user_pod("a", gpus=2), user_pod("b", gpus=2), state=State.LAUNCHING)
        assert job.outcome == f"{LAUNCH_FAILED}pods with 2 + 2 GPUs do not fit into 3 on v1 + 1 on v2"

    def test_a_stop_before_the_pods_are_chosen_is_done_at_once(self) -> None:
        job = attempt(stopping=True)
        assert see(job, user_pod("a"), user_pod("b"), state=State.STOPPING).steps == []
        assert job.outcome == STOPPED

    def test_the_start_is_told_once_when_all_run(self) -> None:
        job = bound()
        assert see(job, running("a"), user_pod("b", node="v1"), state=State.LAUNCHING).events == []
        (event,) = see(job, running("a"), running("b"), state=State.LAUNCHING, at=moment(20)).events
        assert event == JobStarted(0.0, "train-1", 1, 20.0)
        assert see(job, running("a"), running("b")).events == []

    def test_a_pod_that_its_node_refuses_fails_the_launch_for_all(self) -> None:
        job = bound()
        refused = user_pod("b", node="v1", phase="Failed", reason="OutOfnvidia.com/gpu")
        assert names(see(job, running("a"), refused, state=State.LAUNCHING), GangStep.DELETE) == ["a"]
        see(job, over("a", 75, meta=DELETED), refused, state=State.LAUNCHING)
        assert job.outcome == f"{LAUNCH_FAILED}OutOfnvidia.com/gpu"

    def test_a_pod_that_cannot_start_is_given_up(self) -> None:
        job = bound()
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": NOW}
        waiting = {"waiting": {"reason": "ImagePullBackOff"}}
        stuck = [user_pod(name, node="v1", state=waiting, conditions=[condition]) for name in "ab"]
        see(job, *stuck, state=State.LAUNCHING, at=moment(30))
        assert job.gave_up == ""
        see(job, *stuck, state=State.LAUNCHING, at=moment(61))
        assert job.gave_up == "ImagePullBackOff"
        assert names(see(job, *stuck, state=State.LAUNCHING, at=moment(62)), GangStep.DELETE) == ["a", "b"]

    def test_half_of_a_gang_does_not_wait_for_ever_for_gpus_that_others_have_taken(self) -> None:
        job, pods = bound(), (running("a"), user_pod("b"))
        for now_s in (1000.0, 1020.0, 5000.0, 5020.0):  # for most of the time the cluster is out of sight
            assert see(job, *pods, state=State.LAUNCHING, at=moment(now_s, held={"v1": 4})).steps == []
        assert job.gave_up == ""
        for now_s in range(5040, 5300, 20):
            see(job, *pods, state=State.LAUNCHING, at=moment(now_s, held={"v1": 4}))
        assert job.gave_up == "its pods did not find room on v1 within 300 s (launch-limit)"
        todo = see(job, *pods, state=State.LAUNCHING, at=moment(5300, held={"v1": 4}))
        assert names(todo, GangStep.DELETE) == ["a", "b"]
        ended = (over("a", 143, meta=DELETED), user_pod("b", meta=KILLED_AT_ONCE), user_pod("c"), user_pod("d"))
        see(job, *ended, state=State.LAUNCHING, at=moment(5301))
        assert job.outcome == f"{LAUNCH_FAILED}its pods did not find room on v1 within 300 s (launch-limit)"

    def test_pods_with_which_nothing_was_done_are_not_deleted_when_a_launch_is_given_up(self) -> None:
        job, pods = attempt(), (user_pod("a"), user_pod("b"))
        for now_s in range(1000, 1340, 20):
            todo = see(job, *pods, state=State.LAUNCHING, at=moment(now_s, held={"v1": 4}))
            assert todo.steps == []
        assert job.outcome == f"{LAUNCH_FAILED}its pods did not find room on v1 within 300 s (launch-limit)"

    def test_a_place_that_others_have_taken_does_not_end_pods_that_run(self) -> None:
        job = bound(begun=True)
        more = user_job(2, completions=4, succeeded=1)
        for now_s in range(1000, 2000, 20):
            see(job, over("a"), running("b"), user_pod("c"), job=more, at=moment(now_s, held={"v1": 4}))
        assert (job.gave_up, job.outcome) == ("", "")

    def test_pods_made_by_hand_that_cannot_start_are_told_why_and_not_deleted(self) -> None:
        alone: dict[str, Any] = {"owner": None, "labels": {"horae.dev/gang": "g", "horae.dev/gang-size": "2"}}
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": NOW}
        waiting = {"waiting": {"reason": "ImagePullBackOff"}}
        stuck = [user_pod(name, node="v1", state=waiting, conditions=[condition], **alone) for name in "ab"]
        job = bound(owners=())
        for now_s in (61, 62, 4000):
            assert see(job, *stuck, state=State.LAUNCHING, at=moment(now_s), owners=()).steps == []
        assert (job.gave_up, job.timers.stuck) == ("", "ImagePullBackOff")
        see(job, *(running(name, **alone) for name in "ab"), state=State.LAUNCHING, owners=())
        assert (job.begun, job.timers.stuck) == (True, "")

    def test_what_is_over_in_kubernetes_is_over(self) -> None:
        job = attempt()
        see(job, over("a", 1), state=State.LAUNCHING, job=user_job(2, conditions=["Failed"]))
        assert job.outcome == f"{FAILED}137"
        job = attempt()
        see(job, over("a"), over("b"), state=State.LAUNCHING, job=user_job(2, conditions=["Complete"]))
        assert job.outcome == FINISHED


class TestStopping:
    def test_pods_are_deleted_and_not_again_at_once(self) -> None:
        job = bound(stopping=True)
        pods = (running("a"), running("b"))
        assert names(see(job, *pods, state=State.STOPPING), GangStep.DELETE) == ["a", "b"]
        assert see(job, *pods, state=State.STOPPING, at=moment(1005)).steps == []
        assert names(see(job, *pods, state=State.STOPPING, at=moment(1011)), GangStep.DELETE) == ["a", "b"]

    def test_all_must_have_ended_and_75_saves(self) -> None:
        job = bound(stopping=True, begun=True)
        pods = (running("b", meta=DELETED), user_pod("c"), user_pod("d"))
        see(job, over("a", 75), *pods, state=State.STOPPING, at=moment(100))
        assert job.outcome == ""
        todo = see(job, over("a", 75), over("b", 75), user_pod("c"), user_pod("d"), state=State.STOPPING)
        assert (job.outcome, job.saved_s, job.work_saved) == (STOPPED, 100.0, 10.0)
        assert {"a", "b"} <= {*names(todo, GangStep.RELEASE)}

    def test_another_code_saves_nothing(self) -> None:
        job = bound(stopping=True, begun=True, run_s=100.0)
        see(job, over("a", 75), over("b", 143), state=State.STOPPING)
        assert (job.outcome, job.saved_s) == (STOPPED, 0.0)

    def test_who_finishes_while_it_is_stopped_has_finished(self) -> None:
        job = bound(stopping=True, begun=True)
        see(job, over("a"), over("b"), state=State.STOPPING, job=user_job(2, succeeded=2))
        assert job.outcome == FINISHED


class TestEnds:
    def test_a_terminal_phase_counts_when_the_node_answers(self) -> None:
        job = bound(begun=True)
        silent = (kube_node("v1", ready="Unknown"), kube_node("v2"))
        done = user_job(2, conditions=["Complete"])
        see(job, over("a"), over("b"), at=moment(1000, *silent), job=done)
        assert job.outcome == ""
        see(job, over("a"), over("b"), job=done)
        assert job.outcome == FINISHED

    @pytest.mark.parametrize("pods", [(), (running("a", meta=KILLED_AT_ONCE), running("b", meta=KILLED_AT_ONCE))])
    def test_pods_that_vanish_or_are_deleted_by_force_prove_nothing(self, pods: tuple[UserPod, ...]) -> None:
        job = bound(begun=True)
        for now_s in (1000.0, 2000.0, 9000.0):
            see(job, *pods, at=moment(now_s))
        assert job.outcome == ""

    def test_a_deleted_node_proves_nothing(self) -> None:
        job = bound(begun=True, stopping=True)
        see(job, over("a", 137), over("b", 137), at=moment(9000, kube_node("v2")))
        assert job.outcome == ""

    def test_a_node_that_horae_does_not_manage_any_more_is_believed(self) -> None:
        job = bound(begun=True, stopping=True)
        see(job, over("a", 75), over("b", 75), at=moment(1000, kube_node("v1", labels={"horae.dev/managed": "false"})))
        assert job.outcome == STOPPED

    def test_nothing_is_bound_to_a_node_that_horae_does_not_manage(self) -> None:
        taken_out = moment(1000, kube_node("v1", labels={"horae.dev/managed": "false"}))
        assert see(attempt(), user_pod("a"), user_pod("b"), state=State.LAUNCHING, at=taken_out).steps == []

    def test_pods_that_have_lost_their_owner_end_as_they_do(self) -> None:
        other, alone = user_job(2, "other"), {"owner": None}
        job = bound(begun=True)
        for now_s in (1000.0, 1010.0):
            todo = see(job, running("a", **alone), running("b", **alone), job=other, at=moment(now_s))
            assert (todo.steps, job.outcome) == ([], "")
        see(job, over("a", 3, **alone), over("b", **alone), job=other)
        assert job.outcome == f"{FAILED}3"

    def test_a_machine_that_has_started_again_does(self) -> None:
        job = bound(begun=True, stopping=True)
        see(job, running("a"), running("b"), at=moment(1000, kube_node("v1", boot="second")))
        assert job.outcome == STOPPED

    def test_an_operator_does(self) -> None:
        job = bound(begun=True, stopping=True, gone=("v1",))
        see(job, running("a"), running("b"), at=moment(1000, kube_node("v2")))
        assert job.outcome == STOPPED

    def test_a_pod_deleted_before_its_kubelet_looked_is_over_once_the_kubelet_must_have_looked(self) -> None:
        job = bound(stopping=True)
        pods = [user_pod(name, node="v1", meta=KILLED_AT_ONCE) for name in "ab"]
        see(job, *pods, state=State.STOPPING, at=moment(10))
        assert job.outcome == ""
        see(job, *pods, state=State.STOPPING, at=moment(31))
        assert job.outcome == STOPPED

    def test_a_job_with_more_to_do_gives_the_place_to_its_next_pod(self) -> None:
        job = bound(begun=True)
        more = user_job(2, completions=4, succeeded=1)
        todo = see(job, over("a"), running("b"), user_pod("c"), job=more)
        assert [(each.name, each.node, each.rank) for each in job.at_work] == [("b", "v1", 1), ("c", "v1", 0)]
        assert names(todo, GangStep.BIND) == ["c"]
        todo = see(job, over("a"), over("b"), over("c"), user_pod("d"), job=user_job(2, completions=4, succeeded=3))
        assert (names(todo, GangStep.BIND), job.outcome) == (["d"], "")


class TestFailing:
    def test_the_others_are_deleted_and_the_next_pods_are_the_next_attempt(self) -> None:
        job = bound(begun=True)
        assert names(see(job, over("a", 1), running("b")), GangStep.DELETE) == ["b"]
        see(job, over("a", 1), over("b", 143, meta=DELETED), user_pod("c"))
        assert job.outcome == STOPPED

    def test_a_job_that_gives_up_has_failed(self) -> None:
        job = bound(begun=True)
        see(job, over("a", 3), over("b", 0), job=user_job(2, conditions=["Failed"]))
        assert job.outcome == f"{FAILED}3"

    def test_a_job_that_waits_before_it_tries_again_runs_again(self) -> None:
        job = bound(begun=True)
        see(job, over("a", 1), over("b", 1))
        assert job.outcome == ""
        see(job, over("a", 1), over("b", 1), at=moment(1031))
        assert job.outcome == STOPPED

    def test_pods_made_by_hand_fail_at_once_and_their_deletion_cancels_the_job(self) -> None:
        alone: dict[str, Any] = {"owner": None, "labels": {"horae.dev/gang": "g", "horae.dev/gang-size": "2"}}
        job = bound(begun=True, owners=())
        see(job, over("a", 2, **alone), over("b", 0, **alone), owners=())
        assert job.outcome == f"{FAILED}2"
        job = bound(begun=True, owners=())
        todo = see(job, running("a", meta=DELETED, **alone), running("b", **alone), owners=())
        assert names(todo, GangStep.DELETE) == ["b"]
        todo = see(job, over("a", 143, meta=DELETED, **alone), over("b", 143, meta=DELETED, **alone), owners=())
        assert todo.events == [JobCancelled(0.0, "train-1", "kubernetes: team")]

    def test_a_deleted_job_cancels_the_running_attempt(self) -> None:
        job = bound(begun=True, owners=(JOB_UID,))
        other = user_job(2, "other")
        see(job, running("a"), running("b"), job=other)
        todo = see(job, running("a"), running("b"), job=other, at=moment(1004))
        assert JobCancelled(0.0, "train-1", "kubernetes: team") in todo.events


#: Of letters and signs that Kubernetes allows in namespaces, and in values of labels.
NAMESPACES, LABELS = st.text("a0-", min_size=1, max_size=5), st.text("aA0._-", min_size=1, max_size=5)


class TestRecords:
    @given(st.tuples(NAMESPACES, LABELS), st.tuples(NAMESPACES, LABELS))
    def test_each_gang_has_a_file_of_its_own(self, one: tuple[str, str], other: tuple[str, str]) -> None:
        names = {file_name(f"kubernetes:{namespace}/{name}@uid") for namespace, name in (one, other)}
        assert len(names) == len({one, other})

    def test_records_of_earlier_versions_are_read(self, tmp_path: Path) -> None:
        job = bound()
        GangRecords(tmp_path).save(job)
        (path,) = (tmp_path / "adopted").iterdir()
        record = json.loads(path.read_text())
        for name in ("pods", "ended_as"):
            del record[name]
        path.write_text(json.dumps(record))
        assert [*GangRecords(tmp_path).jobs.values()] == [job]

    def test_a_record_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        records, job = GangRecords(tmp_path), bound(machines={"v1": ("v100", 4, "rack-0")})
        records.save(job)
        (found,) = GangRecords(tmp_path).jobs.values()
        assert found == job
        assert found.members == job.members
        records.drop(job)
        assert GangRecords(tmp_path).jobs == {}
