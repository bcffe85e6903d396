"""A real Kubernetes with users' Jobs and pods in it, and a whole service beside it that can be killed.

Jobs are run by the real Job controller. Kubelets are ours, pods are processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from horae.testing.kubernetes_cluster import HORAE_USER, KubernetesCluster, KubernetesTrouble
from tests.backends.kubernetes.stage import pods
from tests.service.served_process import ServedProcess, patiently

#: The namespace of the users.
TEAM = "team"
WITNESS = Path(__file__).with_name("pod_witness.py")
#: Waits for SIGTERM, then saves and asks to be run again.
SAVES = "trap 'exit 75' TERM; i=0; while [ $i -lt 6000 ]; do sleep 0.1; i=$((i + 1)); done"


class PodRig(ServedProcess):
    """A Kubernetes, and a service process that adopts its users' namespace."""

    def __init__(
        self, folder: Path, kubernetes: KubernetesCluster, policy: str = "fifo", settings: Sequence[str] = ()
    ) -> None:
        words = ["--backend", "kubernetes", "--adopt", TEAM, "--policy", policy]
        words += [word for each in settings for word in ("--set", each)]
        super().__init__(folder, words, {"KUBECONFIG": str(kubernetes.kubeconfig(HORAE_USER))})
        self.kubernetes, self.marks = kubernetes, folder / "marks"
        self.marks.mkdir()

    # --- what users do

    def job(self, name: str, pods: int = 1, script: str = SAVES, **more: Any) -> str:
        """Make a Job; returns its uid."""
        given = {"backoffLimit": 6, **more.pop("job", {})}
        completions = given.pop("completions", pods)
        template = pod_template(script, **more)
        spec = {"parallelism": pods, "completions": completions, "template": template, **given}
        meta = {"name": name, "namespace": TEAM, "labels": more.get("job_labels", {})}
        made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
        found = self.kubernetes.ask("POST", f"/apis/batch/v1/namespaces/{TEAM}/jobs", made)
        return str(found["metadata"]["uid"])

    def witnesses(self, name: str, pods: int, steps: int, step_s: float = 0.1, **more: Any) -> str:
        """Make a Job whose pods bear witness."""
        words = [sys.executable, "-I", "-S", str(WITNESS), str(self.marks), name, str(pods), str(steps), str(step_s)]
        return self.job(name, pods, script=f"exec {' '.join(words)}", **more)

    def pod(self, name: str, script: str = SAVES, **more: Any) -> None:
        """Make a pod by hand."""
        template = pod_template(script, **more)
        meta = {**template["metadata"], "name": name, "namespace": TEAM, "ownerReferences": more.get("owners", [])}
        self.kubernetes.ask("POST", f"/api/v1/namespaces/{TEAM}/pods", {"metadata": meta, "spec": template["spec"]})

    def delete(self, kind: str, name: str) -> None:
        """Delete a Job, with its pods, or a pod."""
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        self.kubernetes.ask("DELETE", f"{group}/namespaces/{TEAM}/{kind}/{name}", {"propagationPolicy": "Background"})

    # --- what can be seen

    def pods(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Pods of the users whose names begin so."""
        return {name: pod for name, pod in pods(self.kubernetes, TEAM).items() if name.startswith(prefix)}

    def running(self, prefix: str) -> list[str]:
        """Names of pods that run and were not deleted."""
        return [
            name for name, pod in self.pods(prefix).items() if pod["status"]["phase"] == "Running" and not _going(pod)
        ]

    def waiting(self, prefix: str) -> list[str]:
        """Names of pods that wait to be bound."""
        return [name for name, pod in self.pods(prefix).items() if not pod["spec"].get("nodeName") and not _going(pod)]

    def wait_for_running(self, prefix: str, count: int) -> list[str]:
        """Wait until as many pods run."""
        found: list[str] = patiently(
            lambda: len(names := self.running(prefix)) == count and names, f"for {count} pods of {prefix}"
        )
        return found

    def events(self, pod: str) -> list[str]:
        """What `kubectl describe pod` shows: Horae's Events of a pod."""
        listed = self.kubernetes.ask("GET", f"/api/v1/namespaces/{TEAM}/events?fieldSelector=involvedObject.name={pod}")
        return [
            f"{each['reason']}: {each['message']}"
            for each in listed["items"]
            if each["source"].get("component") == "horae"
        ]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Jobs of the service by name."""
        return {job["id"].rpartition("-")[0]: job for job in self.records()}

    def state_of(self, name: str) -> tuple[str, int]:
        """State and attempt of a job; ("", 0) if the service does not have it."""
        job = self.jobs().get(name, {"state": "", "attempt": 0})
        return job["state"], job["attempt"]

    def wait_for(self, name: str, *states: str) -> int:
        """Wait until a job is in one of these states; returns its attempt."""
        patiently(lambda: self.state_of(name)[0] in states, f"for {name} to be {states}")
        return self.state_of(name)[1]

    def status_of(self, job: str) -> dict[str, Any]:
        """The status of a Job in Kubernetes."""
        try:
            found: dict[str, Any] = self.kubernetes.ask("GET", f"/apis/batch/v1/namespaces/{TEAM}/jobs/{job}")["status"]
        except KubernetesTrouble:
            return {}
        return found

    def lines(self) -> list[dict[str, Any]]:
        """What all witnesses have written; a line that is being written is left out."""
        path = self.marks / "lines"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]


def _going(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def pod_template(script: str, **more: Any) -> dict[str, Any]:
    """The template of a pod with GPUs that asks for Horae."""
    notes = {
        name: f"metadata.annotations['horae.dev/{key}']" for name, key in (("ATTEMPT", "attempt"), ("POD_RANK", "rank"))
    }
    fields = {**notes, "POD_NAME": "metadata.name"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    env += [{"name": name, "value": value} for name, value in more.get("env", {}).items()]
    resources = {"limits": {"nvidia.com/gpu": str(more.get("gpus", 1))}, "requests": {"cpu": "10m"}}
    container = {"name": "c", "image": "none", "command": ["sh", "-c", script], "env": env, "resources": resources}
    spec = {
        "schedulerName": more.get("scheduler", "horae"),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 20,
        "serviceAccountName": more.get("account", "default"),
        "containers": [container],
        **more.get("spec", {}),
    }
    return {"metadata": {"labels": more.get("labels", {}), "annotations": more.get("notes", {})}, "spec": spec}
