"""A small real Ray on this machine: a head and three nodes with made-up GPUs, for tests and demonstrations.

    python -m horae.testing.ray_cluster install            # once: Ray, in an environment of its own, 400 MB
    python -m horae.testing.ray_cluster start FOLDER       # prints how to use it
    python -m horae.testing.ray_cluster stop FOLDER

Each node has an address of its own in a network namespace of the cluster's own (testing/network_namespace.py), since
Ray listens on all addresses. The dashboard is let out to a free port on loopback, so that a service on this machine
reaches it; `let_in` lets the jobs reach the service. Everything is kept in FOLDER, which needs a short path, and only
processes of the namespace are ended. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from horae.backends.driver import OutOfSight
from horae.backends.ray.dashboard import Dashboard
from horae.backends.ray.dashboard_answers import living_nodes, read_nodes
from horae.core.errors import UserError
from horae.testing.network_namespace import NetworkNamespace, why_no_namespace

VERSION = "2.60.0"
INSTALL = "make ray"
#: Longest path of a Unix socket on Linux, and what Ray adds to its folder's path for one, in bytes.
_SOCKET_PATH, _RAYS_PART = 107, 66
#: Seconds for a start or a stop, far more than it takes: a busy machine is no failure.
_PATIENCE_S = 120.0
#: A node that hangs is noticed after 6 s instead of 33.
_HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
_HEAD, _DASHBOARD_PORT, _GCS_PORT = "head", 8265, 6379


@dataclass(frozen=True)
class MadeUpRayNode:
    """One made-up node."""

    name: str
    gpu_type: str
    gpus: int = 4
    cpus: int = 8
    rack: str = ""

    @property
    def labels(self) -> str:
        """Labels as `ray start` reads them."""
        rack = f",horae.dev/rack={self.rack}" if self.rack else ""
        return f"ray.io/accelerator-type={self.gpu_type.upper()}{rack}"


NODES = (MadeUpRayNode("v1", "v100"), MadeUpRayNode("v2", "v100"), MadeUpRayNode("p1", "p100"))


class RayTrouble(UserError):
    """Ray cannot be started here."""


def home() -> Path:
    """The environment that Ray is installed in: `HORAE_RAY`, or a folder in the user's cache."""
    chosen = os.environ.get("HORAE_RAY")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else cache / "horae" / "engines" / "ray"


def why_not() -> str:
    """Why no Ray can be started on this machine, and how to change that; empty if it can."""
    if not (home() / "bin" / "ray").exists():
        return f"Ray is not installed in {home()}; `{INSTALL}` installs it"
    return why_no_namespace()


def install() -> None:
    """Install Ray into an environment of its own, unless it is there."""
    if (home() / "bin" / "ray").exists():
        return
    venv.create(home(), with_pip=True)
    command = [str(home() / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, f"ray[default]=={VERSION}"], check=True)


class RayCluster:
    """A Ray in a folder. `with RayCluster(folder) as ray:` starts it, and stops it in the end.

    `packages` are folders with packages for the processes of Ray jobs, found after Ray's own.
    """

    def __init__(self, folder: Path, nodes: Sequence[MadeUpRayNode] = NODES, packages: Sequence[Path] = ()) -> None:
        self.folder = folder.resolve()
        self.nodes = tuple(nodes)
        self._packages = tuple(packages)
        self._record = self.folder / "cluster.json"
        #: Processes that this process has started: they are waited for, so that they leave no zombies.
        self._children: list[subprocess.Popen[bytes]] = []
        #: The last `ray start` of each node; it lives as long as the node.
        self._starts: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.stop)
            self.start()
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def namespace(self) -> NetworkNamespace:
        """The network of the cluster."""
        return NetworkNamespace(self._read()["namespace"])

    @property
    def address(self) -> str:
        """Where a service on this machine reaches the dashboard."""
        return f"http://127.0.0.1:{self._read()['port']}"

    @property
    def dashboard(self) -> Dashboard:
        """The dashboard."""
        return Dashboard(self.address)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Ray's processes."""
        path = f"{home() / 'bin'}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        own = {"HOME": str(self.folder), "TMPDIR": str(self.folder / "tmp"), "LC_ALL": "C.UTF-8", "PATH": path}
        return {**own, **_HEALTH, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(self.folder / "site")}

    def start(self) -> None:
        """Start what does not run yet, and wait until every node is there."""
        if reason := why_not():
            raise RayTrouble(f"Ray cannot be started: {reason}.")
        self._write_files()
        self.namespace.create([self.address_of(name) for name in (_HEAD, *(node.name for node in self.nodes))])
        self.start_head()
        for node in self.nodes:
            self.start_node(node.name)
        self.wait_for_nodes(*(node.name for node in self.nodes))

    def stop(self) -> None:
        """End all processes in the cluster's namespace, and remove it. Harmless if nothing runs."""
        if self._record.exists():
            self.namespace.remove()
            self._record.unlink()
            for place in self.folder.glob("[0-9]*"):
                shutil.rmtree(place, ignore_errors=True)
        for child in self._children:
            child.wait(_PATIENCE_S)
        self._children.clear()

    def let_in(self, port: int) -> None:
        """Let jobs reach a port of this machine, as 127.0.0.1 with the same port."""
        self._children.append(self.namespace.forward_in(port))

    def start_head(self) -> None:
        """Start the head with the dashboard, unless it runs, and wait until it answers."""
        if not self._runs(_HEAD):
            address = self.address_of(_HEAD)
            options = {
                "port": _GCS_PORT,
                "num-gpus": 0,
                "num-cpus": 2,
                "include-dashboard": "true",
                "dashboard-host": address,
                "dashboard-port": _DASHBOARD_PORT,
            }
            self._spawn(_HEAD, "--head", *(f"--{name}={value}" for name, value in options.items()))
        if "port" not in self._read():
            port, child = self.namespace.forward_out(self.address_of(_HEAD), _DASHBOARD_PORT)
            self._children.append(child)
            self._record.write_text(json.dumps({**self._read(), "port": port}), encoding="utf-8")
        _until(self.answers, "Ray's dashboard", self.folder / "log")

    def start_node(self, name: str) -> None:
        """Start a node, unless it runs; `wait_for_nodes` waits for it."""
        if not self._runs(name):
            node = next(node for node in self.nodes if node.name == name)
            resources = json.dumps({f"accelerator_type:{node.gpu_type.upper()}": 1})
            options = {
                "address": f"{self.address_of(_HEAD)}:{_GCS_PORT}",
                "num-gpus": node.gpus,
                "num-cpus": node.cpus,
                "resources": resources,
                "labels": node.labels,
            }
            self._spawn(name, *(f"--{option}={value}" for option, value in options.items()))

    def answers(self) -> bool:
        """Whether the dashboard answers, with all of Ray behind it."""
        with suppress(OutOfSight):
            return bool(self.living())
        return False

    def living(self) -> list[str]:
        """Names of the living nodes with GPUs; the head's if no other is there yet."""
        found = read_nodes(self.dashboard.read_state("nodes"))
        return [*living_nodes(found)] or [node.name for node in found if node.is_alive]

    def wait_for_nodes(self, *names: str) -> None:
        """Wait until the nodes are alive. On a busy machine Ray may give a start up: then it is tried again."""

        def alive() -> bool:
            for name in names:
                self.start_node(name)
            return self.answers() and {*names} <= {*self.living()}

        _until(alive, f"the nodes {names}", self.folder / "log")

    def kill_node(self, name: str) -> None:
        """End the raylet of a node as `kill -9` does. Its workers end with it."""
        self._kill("raylet", name)

    def kill_gcs(self) -> None:
        """End the head's store of all state as `kill -9` does. All of Ray ends with it, after a minute."""
        self._kill("gcs_server")

    def freeze(self, name: str) -> None:
        """Stop the raylet of a node without ending it (SIGSTOP). Its workers go on."""
        self._signal("raylet", name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a frozen raylet go on (SIGCONT). Ray has given its node up by then, and it ends."""
        self._signal("raylet", name, signal.SIGCONT)

    def process_of(self, program: str, name: str = _HEAD) -> int | None:
        """The process of `gcs_server` or of a node's `raylet`; None if it does not run."""
        address = self.address_of(name)
        for pid in self.namespace.process_ids():
            words = _words_of(pid)
            named = {word.partition("=")[2] for word in words if "node_ip" in word.replace("-", "_")}
            if words and Path(words[0]).name == program and address in named:
                return pid
        return None

    def _kill(self, program: str, name: str = _HEAD) -> None:
        self._signal(program, name, signal.SIGKILL)
        _until(lambda: not self._runs(name), f"the processes of {name} to end", self.folder / "log")

    def _runs(self, name: str) -> bool:
        """Whether a node runs, or is about to start or to end."""
        begun = self._starts.get(name)
        return (begun is not None and begun.poll() is None) or self.process_of("raylet", name) is not None

    def _signal(self, program: str, name: str, number: signal.Signals) -> None:
        pid = self.process_of(program, name)
        if pid is None:
            raise RayTrouble(f"There is no {program} of {name}.")
        os.kill(pid, number)

    def address_of(self, name: str) -> str:
        """The address of a node in the namespace. Clusters differ in it: `ray start` looks at all processes here."""
        return f"{self._read()['network']}.{1 + [_HEAD, *(node.name for node in self.nodes)].index(name)}"

    def _spawn(self, name: str, *options: str) -> None:
        """Start the processes of a node; they end together."""
        words = ["start", "--block", f"--node-name={name}", f"--node-ip-address={self.address_of(name)}"]
        # In one folder, nodes that start at the same time would choose the same names for their sockets.
        own = self.folder / self.address_of(name).rpartition(".")[2]
        more = ["--object-store-memory=80000000", "--disable-usage-stats", f"--temp-dir={own}"]
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            child = subprocess.Popen(
                self.namespace.inside(str(home() / "bin" / "ray"), *words, *more, *options),
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._children.append(child)
        self._starts[name] = child

    def _read(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._record.read_text(encoding="utf-8"))
        return found

    def _write_files(self) -> None:
        if len(os.fsencode(self.folder)) + _RAYS_PART > _SOCKET_PATH:
            raise RayTrouble(f"The folder {self.folder} cannot be used: its path is too long for Ray's Unix sockets.")
        for name in ("log", "tmp", "site"):
            (self.folder / name).mkdir(mode=0o755, parents=True, exist_ok=True)
        lines = ["import site", *(f"site.addsitedir({str(package)!r})" for package in self._packages), ""]
        (self.folder / "site" / "sitecustomize.py").write_text("\n".join(lines), encoding="utf-8")
        if not self._record.exists():
            name, network = f"horae-ray-{secrets.token_hex(3)}", f"10.77.{secrets.randbelow(256)}"
            self._record.write_text(json.dumps({"namespace": name, "network": network}), encoding="utf-8")


def _words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _last_words(log: Path) -> str:
    """The end of what each node printed."""
    return "; ".join(f"{path.name}: {path.read_text(errors='replace').strip()[-200:]}" for path in log.glob("*.out"))


def _until(ready: Callable[[], object], what: str, log: Path) -> None:
    """Wait until something is so."""
    end = time.monotonic() + _PATIENCE_S
    while not ready():
        if time.monotonic() > end:
            raise RayTrouble(f"Waited {_PATIENCE_S:g} s in vain for {what}. See {log}: {_last_words(log)}")
        time.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Install Ray, or start or stop the Ray of a folder."""
    parser = argparse.ArgumentParser(prog="python -m horae.testing.ray_cluster", description="A small real Ray.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("install", help="install Ray into an environment of its own")
    for action in ("start", "stop"):
        folder = actions.add_parser(action).add_argument("folder", type=Path)
        folder.help = "where everything is kept: a short path"
    options = parser.parse_args(arguments)
    try:
        return _act(options)
    except UserError as why:
        sys.stderr.write(f"{why}\n")
        return 1


def _act(options: argparse.Namespace) -> int:
    if options.action == "install":
        install()
        return 0
    cluster = RayCluster(options.folder)
    if options.action == "stop":
        cluster.stop()
        return 0
    began_s = time.monotonic()
    cluster.start()
    sys.stdout.write(
        f"# Ray is ready after {time.monotonic() - began_s:.0f} s: v1, v2 (4 V100 each), p1 (4 P100).\n"
        f"horae serve --backend ray --address {cluster.address} --shared DIR --url http://127.0.0.1:8642\n"
        f"# python -m horae.testing.ray_cluster stop {cluster.folder}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
