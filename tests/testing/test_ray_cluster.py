"""A small real Ray: it starts, can be reached from here only where it is let out, and leaves nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.backends.ray.dashboard import Dashboard
from horae.testing import ray_cluster
from horae.testing.network_namespace import NetworkNamespace, why_no_namespace
from horae.testing.ray_cluster import INSTALL, NODES, RayCluster, RayTrouble, home, main
from tests.backends.ray.rig import needs_ray
from tests.backends.real import until
from tests.engine_folder import engine_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with engine_folder("ray") as folder:
        yield folder


class TestRealRay:
    pytestmark = needs_ray

    def test_it_is_a_command_and_its_nodes_die_hang_and_come_back(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        try:
            assert main(["start", str(folder)]) == 0
            (address,) = re.findall(r"--address (\S+)", capsys.readouterr().out)
            cluster = RayCluster(folder)
            namespace = cluster.namespace
            assert sorted(cluster.living()) == ["p1", "v1", "v2"]
            assert Dashboard(address).read("/api/version")["ray_version"] == ray_cluster.VERSION
            cluster.start()
            cluster.kill_node("v2")
            until(lambda: "v2" not in cluster.living(), "for the loss", 60.0)
            cluster.start_node("v2")
            cluster.wait_for_nodes("v2")
        finally:
            assert main(["stop", str(folder)]) == 0
        assert not namespace.exists
        assert sorted(path.name for path in folder.iterdir()) == ["log", "site", "tmp"]


@pytest.mark.skipif(bool(why_no_namespace()), reason=why_no_namespace())
class TestNetworkNamespace:
    """Tests testing/network_namespace.py."""

    @pytest.fixture
    def namespace(self) -> Iterator[NetworkNamespace]:
        made = NetworkNamespace("horae-test-ns")
        made.create(["10.77.9.1"])
        yield made
        made.remove()

    def serve(
        self, namespace: NetworkNamespace | None, folder: Path, address: str
    ) -> tuple[subprocess.Popen[bytes], int]:
        """A server that answers with the name of its folder's only file."""
        words = [sys.executable, "-u", "-m", "http.server", "--bind", address, "--directory", str(folder), "0"]
        command = namespace.inside(*words) if namespace else words
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        (port,) = re.findall(rb"port (\d+)", process.stdout.readline())
        return process, int(port)

    def fetch(self, url: str) -> bytes:
        words = ["-I", "-S", "-c", "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read())", url]
        return subprocess.run([sys.executable, *words], capture_output=True, timeout=20).stdout

    def test_a_port_is_let_out_and_its_processes_end_with_the_namespace(
        self, namespace: NetworkNamespace, tmp_path: Path
    ) -> None:
        (tmp_path / "inside.txt").touch()
        server, inner = self.serve(namespace, tmp_path, "10.77.9.1")
        port, passer = namespace.forward_out("10.77.9.1", inner)
        until(lambda: b"inside.txt" in self.fetch(f"http://127.0.0.1:{port}/"), "for an answer")
        namespace.remove()
        assert (server.wait(20), passer.wait(20)) == (-9, -9)
        assert not namespace.exists

    def test_a_port_is_let_in(self, namespace: NetworkNamespace, tmp_path: Path) -> None:
        (tmp_path / "outside.txt").touch()
        server, port = self.serve(None, tmp_path, "127.0.0.1")
        try:
            passer = namespace.forward_in(port)
            words = ["-I", "-S", "-c", "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read())"]

            def fetched() -> bytes:
                command = namespace.inside(sys.executable, *words, f"http://127.0.0.1:{port}/")
                return subprocess.run(command, capture_output=True, timeout=20).stdout

            until(lambda: b"outside.txt" in fetched(), "for an answer")
        finally:
            server.kill()
            server.wait()
        namespace.remove()
        assert passer.wait(20) == -9

    def test_what_nobody_lets_through_is_not_there(self, namespace: NetworkNamespace, tmp_path: Path) -> None:
        _, inner = self.serve(namespace, tmp_path, "0.0.0.0")
        assert self.fetch(f"http://127.0.0.1:{inner}/") == b""


def test_without_ray_it_says_what_installs_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HORAE_RAY", str(folder / "nowhere"))
    assert home() == folder / "nowhere"
    assert main(["start", str(folder / "ray")]) == 1
    assert INSTALL in capsys.readouterr().err


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "why_not", lambda: "")
    with pytest.raises(RayTrouble, match="too long"):
        RayCluster(tmp_path / ("x" * 100)).start()


def test_stopping_what_never_ran_is_harmless(folder: Path) -> None:
    assert main(["stop", str(folder)]) == 0
    assert [*folder.iterdir()] == []


def test_nodes_are_told_apart_by_labels() -> None:
    assert [node.labels for node in NODES][-1] == "ray.io/accelerator-type=P100"
