"""A Kubernetes of four nodes for a storm: what can be done to it, and what is done to it in a long one."""

from __future__ import annotations

import json
import random
import ssl
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from horae.testing.kubernetes_build import API_SERVER
from horae.testing.kubernetes_cluster import ETCD, HORAE_USER, NAMESPACE, KubernetesCluster, KubernetesTrouble
from tests.backends.kubernetes.cut_proxy import CutProxy
from tests.backends.kubernetes.stage import PODS, pods
from tests.backends.real import until
from tests.service.crashes import Cluster, Storm
from tests.service.mortal import KUBERNETES_POINTS

THEIRS = "/api/v1/namespaces/default/pods"


class StormSite:
    """A Kubernetes of four nodes, and what can be done to it."""

    def __init__(self, folder: Path, kubernetes: KubernetesCluster, seed: int) -> None:
        self.kubernetes, self.random = kubernetes, random.Random(f"site {seed}")
        self.shared = folder / "shared"
        self.shared.mkdir(mode=0o700)
        config = json.loads(kubernetes.kubeconfig(HORAE_USER).read_text())
        self._server, self._token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
        self.api = self._server["server"]
        self.proxy = CutProxy(int(self.api.rpartition(":")[2]))
        self._server["server"] = f"https://127.0.0.1:{self.proxy.port}"
        (folder / "kubeconfig").write_text(json.dumps(config))
        words = ["--backend", "kubernetes", "--namespace", NAMESPACE, "--image", "none"]
        words += ["--volume", f"host:{self.shared.resolve()}", "--with", f"python={sys.executable}"]
        self.cluster = Cluster(
            attempts=self.shared,
            words=tuple(words),
            env={"KUBECONFIG": str(folder / "kubeconfig")},
            points=tuple(sorted(KUBERNETES_POINTS)),
            kinds=("train", "train", "plain", "shell", "pair", "gang", "uneven"),
            gpu_types=("v100", "p100"),
            backlog=20,
        )
        self.faults: Counter[str] = Counter()

    def restart_api_server(self, away_s: float) -> None:
        """Kill the API server; afterwards the versions from before are out of date."""
        version = self._version()
        until(lambda: int(self._version()) > int(version) + 4, "for beats of the nodes")
        self.kubernetes.kill(API_SERVER)
        time.sleep(away_s)
        self.kubernetes.start_api_server()
        until(lambda: self._is_gone(version), "for the old version to be out of date")
        self.faults += Counter({"API server": 1, "410": 1})

    def _version(self) -> str:
        return str(self.kubernetes.ask("GET", "/api/v1/nodes")["metadata"]["resourceVersion"])

    def _is_gone(self, version: str) -> bool:
        """Whether a watch from an old version is answered with 410."""
        url = f"{self.api}/api/v1/nodes?watch=1&timeoutSeconds=1&resourceVersion={version}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._token}"})
        context = ssl.create_default_context(cafile=self._server["certificate-authority"])
        with suppress(OSError), urllib.request.urlopen(request, timeout=10, context=context) as lines:
            return any(json.loads(line)["object"].get("code") == 410 for line in lines)
        return False

    def freeze_api_server(self, frozen_s: float) -> None:
        self.kubernetes.freeze(API_SERVER)
        time.sleep(frozen_s)
        self.kubernetes.thaw(API_SERVER)
        self.faults["API server frozen"] += 1

    def restart_etcd(self, away_s: float) -> None:
        self.kubernetes.kill(ETCD)
        time.sleep(away_s)
        self.kubernetes.start_etcd()
        until(self.kubernetes.api_server_is_ready, "for the API server")
        self.faults["etcd"] += 1

    def kill_kubelet(self, node: str) -> None:
        self.kubernetes.kill_node(node)
        self.faults["kubelet"] += 1

    def cut(self) -> None:
        self.faults += Counter({"watch cut": 1, "connections cut": self.proxy.cut()})

    def add_foreign(self, node: str, lasts_s: int) -> None:
        """Somebody's pod takes a GPU of a node, as soon as the kubelet has one for it."""
        resources = {"limits": {"nvidia.com/gpu": "1"}}
        container = {"name": "c", "image": "none", "command": ["sleep", str(lasts_s)], "resources": resources}
        spec = {"nodeName": node, "restartPolicy": "Never", "containers": [container]}
        for number in range(200):
            name = f"theirs-{number}"
            self.kubernetes.ask("POST", THEIRS, {"metadata": {"name": name}, "spec": spec})
            until(lambda name=name: self._phase(name) != "Pending", "for their pod")
            if self._phase(name) != "Failed":
                self.faults["foreign pod"] += 1
                return
            time.sleep(0.2)
        raise AssertionError("somebody's pod found no GPU")

    def _phase(self, name: str) -> str:
        return str(self.kubernetes.ask("GET", f"{THEIRS}/{name}")["status"]["phase"])

    def foreign_ends(self) -> Counter[str]:
        return Counter(pod["status"]["phase"] for pod in pods(self.kubernetes, "default").values())

    def force_delete(self) -> None:
        """Somebody deletes a running pod of Horae by force."""
        found: dict[str, Any] = until(self.running, "for a running pod")
        with suppress(KubernetesTrouble):
            self.kubernetes.ask("DELETE", f"{PODS}/{self.random.choice(sorted(found))}", {"gracePeriodSeconds": 0})
        self.faults["force delete"] += 1

    def running(self) -> dict[str, Any]:
        return {name: pod for name, pod in pods(self.kubernetes).items() if pod["status"].get("phase") == "Running"}

    def delete_at_once(self, enough: threading.Event) -> None:
        """Delete three pods as soon as they are bound: some before their kubelet has looked at them."""
        seen = {*pods(self.kubernetes)}
        while not enough.wait(0.01) and self.faults["deleted at once"] < 3:
            with suppress(OSError, KubernetesTrouble):
                found = pods(self.kubernetes)
                for name in [name for name in {*found} - seen if found[name]["spec"].get("nodeName")]:
                    self.kubernetes.ask("DELETE", f"{PODS}/{name}")
                    self.faults["deleted at once"] += 1
                    seen.add(name)

    def taint(self, node: str) -> None:
        """Somebody takes a node out of service, and puts it back: Kubernetes deletes its pods."""
        path, taints = f"/api/v1/nodes/{node}", [{"key": "broken", "effect": "NoExecute"}]
        merge = "application/merge-patch+json"
        self.kubernetes.ask("PATCH", path, {"spec": {"taints": taints}}, merge)
        time.sleep(3)
        self.kubernetes.ask("PATCH", path, {"spec": {"taints": None}}, merge)
        self.faults["taint"] += 1


def make_kubernetes_suffer(site: StormSite, storm: Storm) -> None:
    """Have the cluster's parts die, freeze and do as they like, some of them for longer than any fence."""
    kubernetes, enough = site.kubernetes, threading.Event()
    storm.kill_daemons(3, inside=0.8)
    storm.come_up()
    site.cut()
    hasty = threading.Thread(target=site.delete_at_once, args=(enough,))
    hasty.start()
    time.sleep(4)
    site.restart_api_server(away_s=3)
    enough.set()
    hasty.join()
    site.kill_kubelet("v2")
    storm.kill_daemons(2)
    storm.come_up()
    site.force_delete()
    site.freeze_api_server(20)
    site.cut()
    site.restart_etcd(away_s=3)
    time.sleep(30)
    kubernetes.start_node("v2")
    site.kill_kubelet("p1")
    site.add_foreign("p2", lasts_s=15)
    kubernetes.kill(API_SERVER)
    storm.kill_daemons(2)
    storm.come_up()
    time.sleep(95)
    kubernetes.start_api_server()
    site.faults["API server"] += 1
    kubernetes.start_node("p1")
    site.cut()
    site.taint("v1")
    site.force_delete()
    storm.kill_daemons(3, inside=1.0)
