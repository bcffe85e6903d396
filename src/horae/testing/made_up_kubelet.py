"""A kubelet for tests: one node with made-up GPUs at a real API server, where pods are plain processes.

    python -I -S made_up_kubelet.py FOLDER      # FOLDER/kubelet.json says which node, and where the API server is

It does what Horae depends on as kubelets do it. A deleted pod gets SIGTERM, and SIGKILL when its grace period is over;
a second deletion may shorten that, counted from the first. Exit code and last message stand in the status before the
object goes. A pod for which there is no room is refused (`OutOfnvidia.com/gpu`, `OutOfcpu`, `OutOfmemory`). A pod that
was deleted by force still ends in order, and holds its GPUs until then. Processes outlive the kubelet, and the next one
adopts them. `pods/log` works. All it knows is in FOLDER/pods/UID.

A test withholds the heartbeat with a file FOLDER/quiet, and freezes, kills and starts the process as it likes.
Not as real kubelets: one container, restartPolicy Never, no image, no volumes, no users, no network of the pod's own;
the file for the last message is named by $TERMINATION_LOG. Standard library only, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import HTTPError, Request, urlopen

GPU = "nvidia.com/gpu"
#: Resources that a node can run out of.
RESOURCES = ("cpu", "memory", GPU)
#: The shim outlives the kubelet and records the exit. The pod's process leads a session of its own.
SHIM = (
    'setsid "$@" >>log 2>&1 </dev/null & echo $! >pid.new; mv pid.new pid; wait $!; echo $? >exit.new; mv exit.new exit'
)
NO_POD = '{"metadata": {}, "spec": {"containers": []}}'
ROUND_S, BEGIN_S = 0.05, 2.0
#: Kubelets never give a pod less time than this.
LEAST_GRACE_S = 2.0
#: What else a node says about its machine.
NODE_INFO = (
    "machineID systemUUID kernelVersion osImage containerRuntimeVersion kubeletVersion kubeProxyVersion "
    "operatingSystem architecture"
).split()
#: Answers that say "that pod is gone or another": the watch will tell.
PASSED = (404, 409, 422)
UNITS = {"m": 1e-3, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "k": 1e3, "M": 1e6, "G": 1e9}


def now() -> str:
    """The time as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read(file: Path) -> str:
    """The content of a file; empty if there is none."""
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def amount(text: str) -> float:
    """A quantity such as `500m` or `2Gi`."""
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    return float(text.removesuffix(unit)) * UNITS.get(unit, 1.0)


def requests_of(pod: dict[str, Any]) -> dict[str, float]:
    """What the containers of a pod ask for; limits count where there are no requests."""
    sums = dict.fromkeys(RESOURCES, 0.0)
    for container in pod["spec"]["containers"]:
        resources = container.get("resources", {})
        asked = {**resources.get("limits", {}), **resources.get("requests", {})}
        for name in RESOURCES:
            sums[name] += amount(str(asked.get(name, "0")))
    return sums


def variable(entry: dict[str, Any], pod: dict[str, Any]) -> str:
    """The value of a variable: as it is written, or a field of the pod such as metadata.annotations['a']."""
    field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
    if not field:
        return str(entry.get("value", ""))
    name, _, key = field.removeprefix("metadata.").partition("['")
    found = pod["metadata"].get(name, {} if key else "")
    return str(found.get(key.removesuffix("']"), "")) if key else str(found)


def family(pid: int) -> list[int]:
    """A process and all its descendants: what a container would hold."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    return found


class Box:
    """The folder of a pod: gpus, pod.json, began, log, pid, term (when SIGTERM was sent), exit, message."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pod(self) -> dict[str, Any]:
        """The pod as it was when it began."""
        found: dict[str, Any] = json.loads(
            read(self.path / "pod.json") or '{"metadata": {}, "spec": {"containers": []}}'
        )
        return found

    def gpus(self) -> list[int]:
        """Numbers of the GPUs that the pod got."""
        found: list[int] = json.loads(read(self.path / "gpus") or "[]")
        return found

    def exit_code(self) -> int | None:
        """The exit code; None while the process is there, or about to be; 137 if it vanished with its shim."""
        if text := read(self.path / "exit"):
            return int(text)
        with contextlib.suppress(OSError, ValueError):
            marker = f"POD_UID={self.path.name}".encode()
            if marker in Path(f"/proc/{int(read(self.path / 'pid'))}/environ").read_bytes():
                return None
        return None if time.time() - self.path.stat().st_mtime < BEGIN_S else 137

    def end(self, grace_s: float) -> None:
        """Send SIGTERM once, and SIGKILL to the whole family when the grace period is over."""
        with contextlib.suppress(ProcessLookupError, ValueError):  # just gone, or not there yet: the next round sees
            pid = int(read(self.path / "pid"))
            if not (self.path / "term").exists():
                os.kill(pid, signal.SIGTERM)
                (self.path / "term").touch()
            elif time.time() - (self.path / "term").stat().st_mtime >= max(LEAST_GRACE_S, grace_s):
                for member in family(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(member, signal.SIGKILL)


class Kubelet:
    """One node. `round` compares the pods that it should have with those it has."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.boxes = folder, folder / "pods"
        self.boxes.mkdir(parents=True, exist_ok=True)
        self.config: dict[str, Any] = json.loads((folder / "kubelet.json").read_text())
        self.node = str(self.config["name"])
        self.tls = ssl.create_default_context(cafile=self.config["certificate"])
        #: Pods by uid, as the API has them; None until they were listed, and until then nothing is concluded.
        self.pods: dict[str, dict[str, Any]] | None = None
        #: Phases by uid that this kubelet has reported; the watch may not have brought them back yet.
        self.reported: dict[str, str] = {}
        #: Shims of this kubelet's pods, to be waited for.
        self.shims: list[subprocess.Popen[bytes]] = []

    # --- the API server

    def ask(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", timeout_s: float = 10
    ) -> Any:
        """The answer, still open. HTTPError is a no, any other OSError is no answer."""
        headers = {"Authorization": f"Bearer {self.config['token']}", "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.config["server"] + path, data, headers, method=method)
        return urlopen(request, timeout=timeout_s, context=self.tls)

    def merge(self, path: str, body: Any, how: str = "merge-patch") -> None:
        """Change an object in part."""
        self.ask("PATCH", path, body, f"application/{how}+json").close()

    def note(self, what: str, error: BaseException) -> None:
        """Say in the log what went wrong."""
        sys.stderr.write(f"{now()} {what}: {error}\n")
        sys.stderr.flush()

    # --- the node

    def register(self, port: int) -> None:
        """Make the Node object, or change that of before."""
        labels = {"kubernetes.io/hostname": self.node, **self.config["labels"]}
        try:
            self.ask("POST", "/api/v1/nodes", {"metadata": {"name": self.node, "labels": labels}}).close()
        except HTTPError as error:
            if error.code != 409:
                raise
        room = {"cpu": str(self.config["cpus"]), "memory": f"{self.config['memory_mb']}Mi", "pods": "110"}
        room[GPU] = str(self.config["gpus"])
        status = {
            "capacity": room,
            "allocatable": room,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": self.node}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {**dict.fromkeys(NODE_INFO, ""), "bootID": self.boot_id()},
        }
        self.merge(f"/api/v1/nodes/{self.node}/status", {"status": status})

    def boot_id(self) -> str:
        """What changes when the machine starts again. A test that cuts its power deletes the file."""
        file = self.folder / "boot"
        if not file.exists():
            file.write_text(os.urandom(8).hex())
        return read(file)

    def beat(self) -> None:
        """Renew the Ready condition, unless FOLDER/quiet is there: then the controller calls the node unknown."""
        while True:
            try:
                if not (self.folder / "quiet").exists():
                    self.renew_ready()
            except Exception as error:  # a deleted node stays deleted until the kubelet is started again
                self.note("beat", error)
            time.sleep(float(self.config["beat_s"]))

    def renew_ready(self) -> None:
        """Say that the node is ready. The time of the transition changes only if it was not."""
        with self.ask("GET", f"/api/v1/nodes/{self.node}") as answer:
            conditions = json.load(answer)["status"].get("conditions", [])
        before: dict[str, str] = next((entry for entry in conditions if entry["type"] == "Ready"), {})
        since = before["lastTransitionTime"] if before.get("status") == "True" else now()
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
        }
        ready |= {"lastHeartbeatTime": now(), "lastTransitionTime": since}
        self.merge(f"/api/v1/nodes/{self.node}/status", {"status": {"conditions": [ready]}}, "strategic-merge-patch")

    # --- pods

    def listen(self) -> None:
        """List the node's pods, then watch from there; whatever goes wrong, list again."""
        while True:
            try:
                for _ in self.changes():
                    pass
            except Exception as error:
                self.note("listen", error)
                time.sleep(0.3)

    def changes(self) -> Iterator[None]:
        """List and watch, once. The read time-out notices a server that hangs."""
        mine = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.node}"
        with self.ask("GET", mine) as answer:
            listed = json.load(answer)
        self.pods = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        since = f"&watch=1&timeoutSeconds=8&resourceVersion={listed['metadata']['resourceVersion']}"
        with self.ask("GET", mine + since, timeout_s=10) as lines:
            for line in lines:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                uid = event["object"]["metadata"]["uid"]
                self.pods[uid] = event["object"]
                if event["type"] == "DELETED":
                    del self.pods[uid]
                yield

    def round(self) -> None:
        """Tend every pod of the node; end processes whose pods are gone."""
        if self.pods is None:
            return
        wanted = dict(self.pods)
        self.shims = [shim for shim in self.shims if shim.poll() is None]
        for uid, pod in wanted.items():
            try:
                self.tend(uid, pod)
            except HTTPError as error:
                if error.code not in PASSED:
                    self.note(f"tend {pod['metadata']['name']}", error)
            except OSError as error:
                self.note(f"tend {pod['metadata']['name']}", error)
        for path in self.boxes.iterdir():
            box = Box(path)
            if path.name not in wanted and box.exit_code() is None:  # deleted by force: it still has its grace period
                box.end(float(box.pod()["spec"].get("terminationGracePeriodSeconds", 30)))

    def tend(self, uid: str, pod: dict[str, Any]) -> None:
        """Bring one pod forward: begin it, report its start, end it, report its end, let its object go."""
        meta, path = (
            pod["metadata"],
            f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}",
        )
        phase = self.reported.get(uid) or pod["status"].get("phase")
        leaving, grace_s = "deletionTimestamp" in meta, meta.get("deletionGracePeriodSeconds")
        box, over = Box(self.boxes / uid), phase in ("Succeeded", "Failed")
        begun = box.path.exists()
        code = box.exit_code() if begun else None
        if over:
            pass
        elif code is not None:
            over = True
            self.report_exit(pod, path, box, code)
        elif begun and leaving:
            box.end(float(grace_s or 0))
        elif begun and phase != "Running":
            self.report(pod, path, "Running", {"running": {"startedAt": read(box.path / "began")}})
        elif not begun:
            over = leaving or not self.begin(box, pod, path)
        if over and leaving and grace_s != 0:  # a finalizer may hold the object, then with a grace period of 0
            self.ask("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}).close()

    def report_exit(self, pod: dict[str, Any], path: str, box: Box, code: int) -> None:
        """Write exit code and last message into the status."""
        ended = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "message": read(box.path / "message")[-4096:],
            "startedAt": read(box.path / "began"),
            "finishedAt": now(),
        }
        self.report(pod, path, "Failed" if code else "Succeeded", {"terminated": ended})

    def report(self, pod: dict[str, Any], path: str, phase: str, state: Any, **more: str) -> None:
        """Write the status of a pod; 422 if the name is another pod's by now."""
        container = {"name": pod["spec"]["containers"][0]["name"], "image": "none", "imageID": "", "restartCount": 0}
        statuses = [{**container, "ready": phase == "Running", "state": state}] if state else []
        status = {"phase": phase, "hostIP": "127.0.0.1", "podIP": "127.0.0.1", "containerStatuses": statuses, **more}
        self.merge(f"{path}/status", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status})
        self.reported[pod["metadata"]["uid"]] = phase

    def begin(self, box: Box, pod: dict[str, Any], path: str) -> bool:
        """Start a pod's process, or refuse the pod for lack of room."""
        others = [other for other in map(Box, self.boxes.iterdir()) if other.exit_code() is None]
        if shortage := self.shortage(requests_of(pod), [requests_of(other.pod()) for other in others]):
            text = f"Pod Node didn't have enough resource: {shortage}"
            self.report(pod, path, "Failed", None, reason=f"OutOf{shortage}", message=text)
            return False
        taken = {gpu for other in others for gpu in other.gpus()}
        gpus = [gpu for gpu in range(int(self.config["gpus"])) if gpu not in taken][: int(requests_of(pod)[GPU])]
        draft = self.folder / "draft"
        draft.mkdir(exist_ok=True)
        for name, text in (("gpus", json.dumps(gpus)), ("pod.json", json.dumps(pod)), ("began", now()), ("log", "")):
            (draft / name).write_text(text)
        draft.rename(box.path)
        container = pod["spec"]["containers"][0]
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "KUBELET": str(self.folder),
            "POD_UID": box.path.name,
            "TERMINATION_LOG": str(box.path / "message"),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
            **{entry["name"]: variable(entry, pod) for entry in container.get("env", [])},
        }
        command = ["sh", "-c", SHIM, "shim", *container.get("command", []), *container.get("args", [])]
        self.shims.append(subprocess.Popen(command, cwd=box.path, env=env, start_new_session=True))
        return True

    def shortage(self, wanted: dict[str, float], others: list[dict[str, float]]) -> str:
        """The first resource of which there is not enough; empty if the pod fits."""
        room = {"cpu": float(self.config["cpus"]), "memory": self.config["memory_mb"] * 2.0**20}
        room[GPU] = float(self.config["gpus"])
        for name in RESOURCES:
            if wanted[name] > 0 and wanted[name] + sum(other[name] for other in others) > room[name]:
                return name
        return ""

    # --- logs

    def log_server(self) -> ThreadingHTTPServer:
        """Serves what the API server asks for `pods/log`; it checks no certificate."""
        kubelet = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kubelet.send_log(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        server, tls = ThreadingHTTPServer(("127.0.0.1", 0), Handler), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.config["log_certificate"], self.config["log_key"])
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        return server

    def send_log(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer /containerLogs/NAMESPACE/POD/CONTAINER[?follow=true]."""
        boxes = sorted(self.boxes.iterdir(), key=os.path.getmtime)  # the newest of a name counts
        by_name = {Box(path).pod()["metadata"].get("name"): Box(path) for path in boxes}
        box = by_name.get(handler.path.split("/")[3])
        handler.send_response(200 if box else 404)
        handler.end_headers()
        if not box:
            return
        with (box.path / "log").open("rb") as log:
            over = False
            while not over:
                over = "follow=true" not in handler.path or box.exit_code() is not None
                handler.wfile.write(log.read())
                time.sleep(0 if over else 0.1)

    def run(self) -> None:
        """Be a kubelet until killed."""
        server = self.log_server()
        while True:
            try:
                self.register(server.server_port)
                break
            except OSError as error:
                self.note("register", error)
                time.sleep(0.3)
        for work in (self.beat, self.listen, server.serve_forever):
            threading.Thread(target=work, daemon=True).start()
        while True:
            try:
                self.round()
            except Exception as error:
                self.note("round", error)
            time.sleep(ROUND_S)


if __name__ == "__main__":
    Kubelet(Path(sys.argv[1]).resolve()).run()
