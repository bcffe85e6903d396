"""A small real Kubernetes on this machine: etcd, API server and controllers, and four nodes whose kubelets are ours.

    python -m horae.testing.kubernetes_cluster build             # once, two to six minutes
    python -m horae.testing.kubernetes_cluster start FOLDER      # prints how to use it
    python -m horae.testing.kubernetes_cluster stop FOLDER

The API server, its controllers and etcd are real; the kubelets (`made_up_kubelet.py`) run pods as plain processes with
made-up GPUs. Everything listens on loopback only, on free ports, and everything is kept in FOLDER. Only processes that
were started here are ended: daemons by their recorded process, pods by the `KUBELET` in their environment.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError

from horae.backends.local.processes import environment_of, process_ids
from horae.backends.local.runner import start_time
from horae.core.errors import UserError
from horae.testing import made_up_kubelet
from horae.testing.daemons import Daemons, free_ports, kill_all, until, with_descendants
from horae.testing.kubernetes_build import API_SERVER, CONTROLLERS, INSTALL, binaries, build, is_built

ETCD = "etcd"
#: The namespace of `HORAE_USER`.
NAMESPACE = "horae"
#: Users of the API server: all rights, and those that `horae kubernetes manifests` gives to the service's account.
ADMIN_USER, HORAE_USER = "admin", "horae"
_BUILD = "python -m horae.testing.kubernetes_cluster build"
_TOKENS = """\
{admin},admin,admin,"system:masters"
{horae},system:serviceaccount:{namespace}:horae,horae,"system:serviceaccounts,system:serviceaccounts:{namespace}"
"""


@dataclass(frozen=True)
class MadeUpKubeNode:
    """One made-up node. `product` is its label nvidia.com/gpu.product."""

    name: str
    product: str
    rack: str
    gpus: int = 4
    cpus: int = 16
    memory_mb: int = 64_000


KUBE_NODES = (
    MadeUpKubeNode("v1", "Tesla-V100-SXM2-16GB", "rack1"),
    MadeUpKubeNode("v2", "Tesla-V100-SXM2-16GB", "rack1"),
    MadeUpKubeNode("p1", "Tesla-P100-PCIE-16GB", "rack2"),
    MadeUpKubeNode("p2", "Tesla-P100-PCIE-16GB", "rack2"),
)


class KubernetesTrouble(UserError):
    """Kubernetes cannot be started here, or refused something."""


def why_not() -> str:
    """Why no Kubernetes can be started on this machine, and how to change that; empty if it can."""
    missing = [program for program in (ETCD, "openssl") if not shutil.which(program)]
    if missing:
        return f"{', '.join(missing)} not installed; `{INSTALL}` installs them"
    return "" if is_built() else f"Kubernetes is not built; `{INSTALL}`, then `{_BUILD}`, builds it in minutes"


class KubernetesCluster:
    """A Kubernetes in a folder. `with KubernetesCluster(folder) as kubernetes:` starts it, and stops it in the end."""

    def __init__(
        self, folder: Path, nodes: Sequence[MadeUpKubeNode] = KUBE_NODES, controllers: bool = False, grace_s: int = 6
    ) -> None:
        """`controllers`: mark silent nodes after `grace_s`, collect pods of nodes that are gone, serve Jobs."""
        self.folder = folder.resolve()
        self.nodes = tuple(nodes)
        self._controllers, self._grace_s = controllers, grace_s
        self.daemons = Daemons(self.folder)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.stop)
            self.start()
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # --- starting and stopping

    def start(self) -> None:
        """Start what does not run yet, and wait until every node is ready."""
        if reason := why_not():
            raise KubernetesTrouble(f"Kubernetes cannot be started: {reason}.")
        self._write_files()
        self.start_etcd()
        self.start_api_server()
        if self._controllers:
            self.start_controllers()
        for node in self.nodes:
            self.start_node(node)
        self.wait_for_nodes(*(node.name for node in self.nodes))

    def stop(self) -> None:
        """End all daemons and pods of this folder, and drop what etcd holds. Harmless if nothing runs."""
        for name in self.daemons.names():
            self.daemons.end(name)
        until(lambda: not self._kill_pods(str(self.folder)), f"the pods in {self.folder} to end")
        for name in ("etcd", "nodes"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def start_etcd(self) -> None:
        """Start etcd. It does not wait for the disk: this is no cluster to keep."""
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        options = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        self.daemons.start(ETCD, [shutil.which(ETCD) or ETCD, *words, "--unsafe-no-fsync"], self.environment)

    def start_api_server(self) -> None:
        """Start the API server, and wait until it is ready."""
        key = self.folder / "service-account.key"
        options = {
            "etcd-servers": f"http://127.0.0.1:{self._ports['etcd']}",
            "bind-address": "127.0.0.1",
            "secure-port": self._ports["server"],
            "cert-dir": self.folder / "certificates",
            "service-cluster-ip-range": "10.96.0.0/16",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-signing-key-file": key,
            "service-account-key-file": key,
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "RBAC",
            # There are no tokens for the accounts of pods, and nodes are ready as soon as their kubelets say so.
            "disable-admission-plugins": "ServiceAccount,TaintNodesByCondition",
            "endpoint-reconciler-type": "none",
            # Names of made-up nodes do not resolve.
            "kubelet-preferred-address-types": "InternalIP",
            "max-requests-inflight": 2000,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        self.daemons.start(API_SERVER, [binaries() / API_SERVER, *words], self.environment)
        until(self.api_server_is_ready, "the API server", self.daemons.log(API_SERVER))

    def start_controllers(self) -> None:
        """Start the controllers: silent nodes become unknown after `grace_s`."""
        options = {
            "kubeconfig": self.kubeconfig(ADMIN_USER),
            "bind-address": "127.0.0.1",
            "secure-port": self._ports["controllers"],
            "port": 0,
            "leader-elect": "false",
            "service-account-private-key-file": self.folder / "service-account.key",
            "node-monitor-period": "1s",
            "node-monitor-grace-period": f"{self._grace_s}s",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        self.daemons.start(CONTROLLERS, [binaries() / CONTROLLERS, *words], self.environment)

    def start_node(self, node: MadeUpKubeNode | str) -> None:
        """Start the kubelet of a node; `wait_for_nodes` waits for it. It adopts the pods of its predecessor."""
        name = node if isinstance(node, str) else node.name
        folder = self.node_folder(name)
        if not isinstance(node, str):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "kubelet.json").write_text(json.dumps(self._kubelet_config(node)), encoding="utf-8")
        self.daemons.start(name, [sys.executable, "-I", "-S", made_up_kubelet.__file__, folder], self.environment)

    def kill_node(self, node: str) -> None:
        """End a kubelet as `kill -9` does. Its pods go on."""
        self.daemons.end(node)

    def kill_machine(self, node: str) -> None:
        """End a kubelet and all its pods, as a power cut does: it will start with another boot id."""
        self.daemons.end(node)
        (self.node_folder(node) / "boot").unlink(missing_ok=True)
        until(lambda: not self._kill_pods(str(self.node_folder(node))), f"the pods of {node} to end")

    def kill(self, daemon: str) -> None:
        """End etcd, the API server or the controllers as `kill -9` does."""
        self.daemons.end(daemon)

    def freeze(self, daemon: str) -> None:
        """Stop a daemon without ending it (SIGSTOP)."""
        self.daemons.send(daemon, signal.SIGSTOP)

    def thaw(self, daemon: str) -> None:
        """Let a frozen daemon go on (SIGCONT)."""
        self.daemons.send(daemon, signal.SIGCONT)

    def silence(self, node: str, silent: bool = True) -> None:
        """Withhold the heartbeat of a node, or send it again. Its pods are tended all the same."""
        quiet = self.node_folder(node) / "quiet"
        quiet.touch() if silent else quiet.unlink(missing_ok=True)

    # --- asking it

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the daemons, and of `kubectl`."""
        return {"PATH": os.environ.get("PATH", os.defpath), "KUBECONFIG": str(self.folder / f"kubeconfig-{ADMIN_USER}")}

    def kubeconfig(self, user: str = HORAE_USER) -> Path:
        """The file with which a user reaches the API server."""
        return self.folder / f"kubeconfig-{user}"

    def node_folder(self, node: str) -> Path:
        """Where the kubelet of a node keeps its pods."""
        return self.folder / "nodes" / node

    def api_server_is_ready(self) -> bool:
        """Whether the API server answers and has read all it needs."""
        try:
            return self._open("GET", "/readyz", None, "", 2.0) == b"ok"
        except (OSError, KubernetesTrouble):
            return False

    def ask(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """An answer of the API server to an administrator, such as `ask("GET", "/api/v1/nodes")`."""
        data = None if body is None else json.dumps(body).encode()
        return json.loads(self._open(method, path, data, content_type, 30.0))

    def create(self, objects: Sequence[dict[str, Any]]) -> None:
        """Create objects, such as those of `horae kubernetes manifests`; those that are there are left alone."""
        for made in objects:
            group = "/api/v1" if "/" not in made["apiVersion"] else f"/apis/{made['apiVersion']}"
            space = made["metadata"].get("namespace")
            plural = f"{made['kind'].lower()}s"
            try:
                self.ask("POST", f"{group}{f'/namespaces/{space}' if space else ''}/{plural}", made)
            except KubernetesTrouble as why:
                if "409" not in str(why):
                    raise

    def wait_for_nodes(self, *nodes: str, ready: str = "True") -> None:
        """Wait until the Ready condition of every one of the nodes is `True`, `False` or `Unknown`."""
        until(lambda: all(self.readiness(node) == ready for node in nodes), f"the nodes {', '.join(nodes)}")

    def readiness(self, node: str) -> str:
        """The Ready condition of a node; empty if there is none."""
        try:
            conditions = self.ask("GET", f"/api/v1/nodes/{node}")["status"].get("conditions", [])
        except (OSError, KubernetesTrouble):
            return ""
        return next((entry["status"] for entry in conditions if entry["type"] == "Ready"), "")

    def _open(self, method: str, path: str, data: bytes | None, content_type: str, limit_s: float) -> bytes:
        token = self._secrets[ADMIN_USER]
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type}
        request = urllib.request.Request(f"{self._server}{path}", data, headers, method=method)
        context = ssl.create_default_context(cafile=self._certificate)
        try:
            with urllib.request.urlopen(request, timeout=limit_s, context=context) as answer:
                found: bytes = answer.read()
                return found
        except urllib.request.HTTPError as error:
            raise KubernetesTrouble(f"{method} {path} failed with {error.code}: {error.read().decode()}") from None
        except URLError as error:
            raise ConnectionError(str(error.reason)) from None

    # --- files

    @property
    def _server(self) -> str:
        return f"https://127.0.0.1:{self._ports['server']}"

    @property
    def _certificate(self) -> Path:
        """The API server's certificate and the authority that signed it, both made by the API server itself."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def _ports(self) -> dict[str, int]:
        found: dict[str, int] = json.loads((self.folder / "ports.json").read_text(encoding="utf-8"))
        return found

    @property
    def _secrets(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.folder / "secrets.json").read_text(encoding="utf-8"))
        return found

    def _write_files(self) -> None:
        """Write keys and configuration, once: a restarted cluster keeps its ports."""
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if (self.folder / "ports.json").exists():
            return
        names = ("etcd", "peer", "server", "controllers")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        tokens = {user: secrets.token_urlsafe(24) for user in (ADMIN_USER, HORAE_USER)}
        _write_private(self.folder / "secrets.json", json.dumps(tokens))
        _write_private(self.folder / "tokens.csv", _TOKENS.format(**tokens, namespace=NAMESPACE))
        _openssl("genrsa", "-out", str(self.folder / "service-account.key"), "2048")
        key, certificate = self.folder / "kubelet.key", self.folder / "kubelet.crt"
        request = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=kubelet")
        _openssl(*request, "-keyout", str(key), "-out", str(certificate))
        (self.folder / "ports.json").write_text(json.dumps(ports), encoding="utf-8")
        for user, token in tokens.items():
            _write_private(self.kubeconfig(user), json.dumps(self._kubeconfig(token)))

    def _kubeconfig(self, token: str) -> dict[str, Any]:
        """A kubeconfig file. JSON is YAML."""
        cluster = {"server": self._server, "certificate-authority": str(self._certificate)}
        context = {"cluster": "made-up", "user": "user", "namespace": NAMESPACE}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "made-up", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "made-up", "context": context}],
            "current-context": "made-up",
        }

    def _kubelet_config(self, node: MadeUpKubeNode) -> dict[str, Any]:
        return {
            "name": node.name,
            "server": self._server,
            "token": self._secrets[ADMIN_USER],
            "certificate": str(self._certificate),
            "log_certificate": str(self.folder / "kubelet.crt"),
            "log_key": str(self.folder / "kubelet.key"),
            "labels": {"nvidia.com/gpu.product": node.product, "topology.kubernetes.io/rack": node.rack},
            "gpus": node.gpus,
            "cpus": node.cpus,
            "memory_mb": node.memory_mb,
            "beat_s": 1.0,
        }

    def living_pods(self, folder: str = "") -> list[int]:
        """Processes of pods whose kubelet is in a folder, such as `node_folder`; of all pods by default."""
        below = folder or str(self.folder)
        return [pid for pid in process_ids() if pid != os.getpid() and self._is_pod(pid, below) and start_time(pid)]

    def _kill_pods(self, folder: str) -> int:
        """Kill the processes of pods whose kubelet is in a folder, and return their number."""
        roots = self.living_pods(folder)
        kill_all(with_descendants(roots))
        return len(roots)

    @staticmethod
    def _is_pod(pid: int, folder: str) -> bool:
        marks = (f"KUBELET={folder}", f"KUBELET={folder}/")
        return any(entry == marks[0] or entry.startswith(marks[1]) for entry in environment_of(pid))


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def _openssl(*words: str) -> None:
    ran = subprocess.run(["openssl", *words], capture_output=True, text=True)
    if ran.returncode:
        raise KubernetesTrouble(f"openssl {words[0]} failed: {ran.stderr.strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build Kubernetes, or start or stop that of a folder."""
    parser = argparse.ArgumentParser(
        prog="python -m horae.testing.kubernetes_cluster", description="A small real Kubernetes, with kubelets of ours."
    )
    parser.add_argument("action", choices=("build", "start", "stop"))
    parser.add_argument("folder", type=Path, nargs="?", help="where everything is kept, such as build/kubernetes")
    options = parser.parse_args(arguments)
    if options.action != "build" and options.folder is None:
        parser.error(f"{options.action} needs a folder, such as build/kubernetes")
    began_s = time.monotonic()
    try:
        if options.action == "build":
            build()
            sys.stdout.write(f"Built: {binaries()}\n")
            return 0
        cluster = KubernetesCluster(options.folder, controllers=True)
        if options.action == "stop":
            cluster.stop()
            return 0
        cluster.start()
    except UserError as why:
        sys.stderr.write(f"{why}\n")
        return 1
    sys.stdout.write(
        f"# Kubernetes is ready after {time.monotonic() - began_s:.1f} s. Now: kubectl get nodes\n"
        f"export KUBECONFIG={cluster.kubeconfig(ADMIN_USER)}\n"
        f"# python -m horae.testing.kubernetes_cluster stop {cluster.folder}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
