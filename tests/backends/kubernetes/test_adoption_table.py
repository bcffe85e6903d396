"""Twenty pods of two Jobs, preempted again and again, while the service and the API server are killed.

The API server and the Job controller are real, kubelets are ours, pods are processes.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from horae.testing.kubernetes_build import API_SERVER
from horae.testing.kubernetes_cluster import KubernetesTrouble, MadeUpKubeNode
from tests.backends.kubernetes.adoption_rig import TEAM, PodRig, pod_template
from tests.backends.kubernetes.pod_witness import made_by
from tests.backends.kubernetes.stage import needs_kubernetes, pods, running_cluster
from tests.engine_folder import engine_folder
from tests.service.served_process import patiently

pytestmark = [*needs_kubernetes, pytest.mark.long]
NODES = tuple(MadeUpKubeNode(name, "Tesla-V100-SXM2-16GB", "rack-0") for name in ("v1", "v2", "v3"))
#: Two Jobs of as many pods with a GPU each; the nodes have room for one Job at a time.
PODS, STEPS, STEP_S = 10, 280, 0.1
ACCOUNTS = {"ann": "ann-account", "bob": "bob-account"}
LEAST_PREEMPTIONS = 15


@pytest.fixture
def rig() -> Iterator[PodRig]:
    with engine_folder("kube") as folder, running_cluster(NODES, adopt=[TEAM]) as kubernetes:
        made = PodRig(folder, kubernetes, "time-slice", ["quantum=4"])
        try:
            yield made
        finally:
            made.end(signal.SIGKILL)


class Census:
    """Notes every pod that was ever seen: its owner, its account, whether it was bound."""

    def __init__(self, rig: PodRig) -> None:
        self.rig, self.seen = rig, dict[str, dict[str, Any]]()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._enough.wait(0.1):
            with suppress(OSError, KubernetesTrouble):
                self.seen.update({pod["metadata"]["uid"]: pod for pod in self.rig.pods().values()})

    def close(self) -> dict[str, dict[str, Any]]:
        self._enough.set()
        self._thread.join()
        return self.seen


def stopped_attempts(rig: PodRig) -> set[tuple[str, int]]:
    """Attempts in which a pod has saved its work."""
    return {(line["job"], line["attempt"]) for line in rig.lines() if line["what"] == "saved"}


def wait_for_preemptions(rig: PodRig, count: int) -> None:
    patiently(lambda: len(stopped_attempts(rig)) >= count, f"for {count} preemptions")


def check_witnesses(lines: list[dict[str, Any]]) -> None:
    """Nothing ran twice at a time, no step was lost, and every item of work was done."""
    assert [line for line in lines if line["what"] == "twice"] == []
    ends = [line for line in lines if line["what"] == "end"]
    assert sorted((line["job"], line["item"]) for line in ends) == [(job, n) for job in ACCOUNTS for n in range(PODS)]
    assert {(line["step"], line["made"]) for line in ends} == {(STEPS, made_by(STEPS))}
    last: dict[tuple[str, int], int] = {}
    for line in lines:
        item = (line["job"], line["item"])
        if line["what"] == "begin":
            assert line["step"] == last.get(item, 0), f"{line} begins where nothing was saved"
        else:
            last[item] = line["step"]
    begun = [(line["job"], line["attempt"], line["item"]) for line in lines if line["what"] == "begin"]
    assert len(begun) == len({*begun}), "each item begins once in an attempt"


def test_twenty_pods_of_two_jobs_survive_preemptions_and_crashes(
    rig: PodRig, record_property: Callable[[str, object], None]
) -> None:
    template = pod_template(f"echo $$ >> {rig.marks}/foreign; sleep 900", scheduler="somebody-else", gpus=0)
    foreign = {"metadata": {"name": "theirs"}, "spec": {**template["spec"], "nodeName": "v1"}}
    elsewhere = {"metadata": {"name": "handed"}, "spec": pod_template("sleep 900")["spec"]}
    rig.kubernetes.ask("POST", f"/api/v1/namespaces/{TEAM}/pods", foreign)
    rig.kubernetes.ask("POST", "/api/v1/namespaces/default/pods", elsewhere)
    rig.wait_for_running("theirs", 1)
    rig.serve()
    census, began_s = Census(rig), time.monotonic()
    uids = {
        name: rig.witnesses(name, PODS, STEPS, STEP_S, account=account, notes={"horae.dev/user": name})
        for name, account in ACCOUNTS.items()
    }
    for kills in range(1, 4):
        wait_for_preemptions(rig, 3 * kills)
        rig.end(signal.SIGKILL)
        if kills == 2:
            rig.kubernetes.kill(API_SERVER)
            rig.serve()
            time.sleep(3)
            rig.kubernetes.start_api_server()
        else:
            rig.serve()
    rig.until_quiet(900)
    seconds, seen, lines = time.monotonic() - began_s, census.close(), rig.lines()
    check_witnesses(lines)
    preempted = len(stopped_attempts(rig))
    record_property("preemptions", preempted)
    record_property("seconds", round(seconds))
    assert preempted >= LEAST_PREEMPTIONS
    # Attempts are counted right: those of the service are those that the pods were told.
    jobs = rig.jobs()
    assert {name: (job["user"], job["state"]) for name, job in jobs.items()} == {
        name: (f"{name}@{TEAM}", "finished") for name in ACCOUNTS
    }
    begun = {name: {line["attempt"] for line in lines if line["job"] == name} for name in ACCOUNTS}
    assert {name: job["attempt"] for name, job in jobs.items()} == {name: max(found) for name, found in begun.items()}
    assert {name: len(found) for name, found in begun.items()} == {name: max(found) for name, found in begun.items()}
    for name, account in ACCOUNTS.items():
        mine = [pod for pod in seen.values() if pod["metadata"]["name"].startswith(name)]
        witnesses = {line["pod"] for line in lines if line["job"] == name}
        assert witnesses <= {pod["metadata"]["name"] for pod in mine}
        assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in mine} == {uids[name]}
        assert {pod["spec"]["serviceAccountName"] for pod in mine} == {account}
        assert rig.status_of(name)["succeeded"] == PODS
    usage = json.loads(rig.horae("report", "usage", "-o", "json").stdout)["usage"]
    assert {row["user"]: row["finished"] for row in usage} == {f"{name}@{TEAM}": 1 for name in ACCOUNTS}
    # Others never noticed.
    (theirs,) = rig.pods("theirs").values()
    assert (theirs["status"]["phase"], theirs["metadata"].get("finalizers")) == ("Running", None)
    assert len((rig.marks / "foreign").read_text().split()) == 1
    (handed,) = pods(rig.kubernetes, "default").values()
    assert (handed["spec"].get("nodeName"), handed["metadata"].get("finalizers")) == (None, None)
    patiently(lambda: not any(pod["metadata"].get("finalizers") for pod in rig.pods().values()), "for finalizers")
