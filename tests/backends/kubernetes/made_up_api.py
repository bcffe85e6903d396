"""An API server in memory with pods, Jobs and nodes, where kubelets and the Job controller do their part at once."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx2 as httpx

from horae.backends.kubernetes.api import KubernetesApi
from tests.backends.kubernetes.fake_server import Answer, api, change, lines, listed, status
from tests.backends.kubernetes.made_gangs import JOB_UID, content
from tests.backends.kubernetes.made_objects import NOW, node

#: Plural names of what there is.
NODES, PODS, JOBS = "nodes", "pods", "jobs"


class MadeUpApi:
    """Two nodes v1 and v2 with four GPUs each, and a namespace `team`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._version = 1
        self.objects: dict[str, dict[str, dict[str, Any]]] = {NODES: {}, PODS: {}, JOBS: {}}
        self._gone: list[tuple[str, dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []
        self.leases: dict[str, dict[str, Any]] = {}
        #: Method and path of all changes; parts of paths that are refused, with the answer.
        self.changes: list[tuple[str, str]] = []
        self.refuses: dict[str, Answer] = {}
        for name in ("v1", "v2"):
            self.put(NODES, node(name, nodeInfo={"bootID": "first"}))

    def api(self) -> KubernetesApi:
        """A client of it."""
        return api(self._answer)

    # --- what happens in the cluster

    def put(self, plural: str, found: dict[str, Any]) -> None:
        """Make or change an object."""
        with self._lock:
            self._version += 1
            found["metadata"]["resourceVersion"] = str(self._version)
            self.objects[plural][found["metadata"]["name"]] = found

    def remove(self, plural: str, name: str) -> None:
        """An object is gone."""
        with self._lock:
            self._version += 1
            found = self.objects[plural].pop(name)
            found["metadata"]["resourceVersion"] = str(self._version)
            self._gone.append((plural, found))

    def pod(self, name: str, **more: Any) -> None:
        """Somebody makes a pod; Horae's finalizer is not on it."""
        self.put(PODS, content(name, kept=False, **more))

    def job(self, *names: str, **status_: Any) -> None:
        """A Job `train` with these pods."""
        meta = {"name": "train", "namespace": "team", "uid": JOB_UID}
        spec = {"parallelism": len(names), "completions": len(names)}
        self.put(JOBS, {"metadata": meta, "spec": spec, "status": status_})
        for name in names:
            self.pod(name)

    def end(self, name: str, code: int) -> None:
        """A pod ends."""
        ended = {"terminated": {"exitCode": code, "startedAt": NOW, "finishedAt": NOW}}
        self._change(name, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": ended}]})

    def _change(self, name: str, new: dict[str, Any]) -> None:
        pod = self.objects[PODS][name]
        self.put(PODS, {**pod, "status": {**pod["status"], **new}})

    def where(self) -> dict[str, str]:
        """Nodes by pod; empty for pods that are not bound."""
        return {name: pod["spec"].get("nodeName", "") for name, pod in self.objects[PODS].items()}

    def finalizers(self) -> dict[str, list[str]]:
        """Finalizers by pod."""
        return {name: pod["metadata"].get("finalizers", []) for name, pod in self.objects[PODS].items()}

    def told(self, pod: str) -> list[str]:
        """Messages of the Events of a pod."""
        return [event["message"] for event in self.events if event["involvedObject"]["name"] == pod]

    # --- the API

    def _answer(self, request: httpx.Request) -> Answer:
        parts = request.url.path.strip("/").split("/")
        with self._lock:
            for part, answer in self.refuses.items():
                if part in f"{request.method} {request.url.path}":
                    return answer
            if request.method != "GET":
                self.changes.append((request.method, request.url.path))
                return self._write(request.method, parts, json.loads(request.content or b"{}"))
            if "leases" in parts:
                return httpx.Response(200, json=self.leases["team"]) if self.leases else status(404)
            plural = parts[-1]
            if "watch" not in request.url.params:
                return listed(self._version, *(each for each in self.objects[plural].values() if _is_in(each, parts)))
        time.sleep(0.01)
        with self._lock:
            return self._news(plural, parts, int(request.url.params["resourceVersion"]))

    def _news(self, plural: str, parts: list[str], since: int) -> Answer:
        gone = [change("DELETED", found) for each, found in self._gone if each == plural]
        found = [*gone, *(change("MODIFIED", found) for found in self.objects[plural].values())]
        found = [each for each in found if _is_in(each["object"], parts)]
        versions = [(int(each["object"]["metadata"]["resourceVersion"]), each) for each in found]
        return lines(*(each for version, each in sorted(versions, key=lambda pair: pair[0]) if version > since))

    def _write(self, method: str, parts: list[str], body: dict[str, Any]) -> Answer:
        match method, parts:
            case "POST", [*_, "selfsubjectaccessreviews"]:
                return httpx.Response(201, json={"status": {"allowed": True}})
            case "POST", [*_, "leases"]:
                self.leases["team"] = body
            case "POST", [*_, "events"]:
                self.events.append(body)
            case "POST", [*_, name, "binding"]:
                self._bind(name, body)
            case "PATCH", [*_, "leases", _]:
                self.leases["team"]["spec"] |= body["spec"]
            case "PATCH", [*_, name]:
                self._finalize(name, body["metadata"])
            case "DELETE", [*_, "leases", _]:
                self.leases.clear()
            case "DELETE", [*_, name]:
                assert body["preconditions"]["uid"] == self.objects[PODS][name]["metadata"]["uid"]
                self._delete(name)
            case _:
                return status(404)
        return httpx.Response(200, json={})

    def _bind(self, name: str, body: dict[str, Any]) -> None:
        """The pod is bound, and its kubelet starts it."""
        pod = self.objects[PODS][name]
        meta = {**pod["metadata"], "annotations": body["metadata"]["annotations"]}
        self.put(PODS, {**pod, "metadata": meta, "spec": {**pod["spec"], "nodeName": body["target"]["name"]}})
        running = {"running": {"startedAt": NOW}}
        self._change(name, {"phase": "Running", "containerStatuses": [{"state": running}]})

    def _finalize(self, name: str, meta: dict[str, Any]) -> None:
        pod = self.objects[PODS].get(name)
        if not pod:
            return
        if "finalizers" in meta:
            self.put(PODS, {**pod, "metadata": {**pod["metadata"], "finalizers": meta["finalizers"]}})
            return
        self.put(PODS, {**pod, "metadata": {**pod["metadata"], "finalizers": []}})
        if "deletionTimestamp" in pod["metadata"]:
            self.remove(PODS, name)

    def _delete(self, name: str) -> None:
        """The pod saves and ends with 75, and the Job controller makes another one."""
        pod = self.objects[PODS][name]
        if "deletionTimestamp" in pod["metadata"]:
            return
        gone = {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0}
        self.put(PODS, {**pod, "metadata": {**pod["metadata"], **gone}})
        if pod["spec"].get("nodeName"):
            self.end(name, 75)
        if pod["metadata"].get("ownerReferences") and JOBS in self.objects and self.objects[JOBS]:
            self.pod(f"{name}x")


def _is_in(found: dict[str, Any], parts: list[str]) -> bool:
    """Whether an object is in the namespace that a path names, if it names one."""
    return "namespaces" not in parts or found["metadata"]["namespace"] == parts[parts.index("namespaces") + 1]
