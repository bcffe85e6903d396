"""`horae serve --backend kubernetes` on a real API server. Tests cli/kubernetes.py, too. Pods are processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from horae.backends import BackendOptions, CannotUseKubernetes, open_backend
from horae.backends.kubernetes.api import BadKubeConfig
from horae.backends.kubernetes.manifests import rights_objects
from horae.backends.kubernetes.namespace_lease import NamespaceLeases
from horae.cli.main import main
from horae.core.errors import UserError
from horae.service.server import ServeOptions, Server
from horae.testing.kubernetes_cluster import HORAE_USER, NAMESPACE, KubernetesCluster, MadeUpKubeNode
from tests.backends.kubernetes.made_up_api import MadeUpApi
from tests.backends.kubernetes.stage import needs_kubernetes
from tests.backends.real import until
from tests.engine_folder import engine_folder
from tests.service.served import served, three_jobs_take_turns


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "--image IMAGE --volume CLAIM:/mnt/horae"),
        ({"adopt": "team", "image": "i"}, "adopts users' pods, or makes pods of its own"),
        ({"adopt": ",", "settings": {}}, "give --adopt NAMESPACE"),
        ({"adopt": "team", "settings": {"python": "x"}}, "There are: fence, launch-limit, trust-annotations"),
        ({"adopt": "team", "settings": {"trust-annotations": "maybe"}}, "must be yes or no, and is 'maybe'"),
        ({"adopt": "team", "settings": {"launch-limit": "1s"}}, "at least 10 seconds"),
        ({"image": "i", "volume": "claim"}, "is no shared volume"),
        ({"image": "i", "volume": "host:/mnt/a", "shared": Path("/mnt/b")}, "is not on the volume"),
        ({"image": "i", "volume": "host:/mnt/a", "settings": {"pithon": "x"}}, "Did you mean 'python'"),
    ],
)
def test_options_that_cannot_work_are_told(tmp_path: Path, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        open_backend("kubernetes", BackendOptions(tmp_path, **options))  # type: ignore[arg-type]


def test_without_a_kubeconfig_it_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(BadKubeConfig, match="Set KUBECONFIG"):
        open_backend("kubernetes", BackendOptions(tmp_path, image="i", volume=f"host:{tmp_path}"))


def test_without_its_library_it_says_what_to_install(tmp_path: Path) -> None:
    """In a process of its own, where the library cannot be imported."""
    program = (
        "import sys; sys.modules['lightkube'] = None\n"
        "from pathlib import Path; from horae.backends import BackendOptions, open_backend\n"
        "from horae.core.errors import UserError\n"
        "try: open_backend('kubernetes', BackendOptions(Path(), image='i', volume='host:/mnt'))\n"
        "except UserError as why: print(why)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert "pip install 'horae[kubernetes]'" in ran.stdout


def test_the_library_is_not_loaded_before_it_is_needed() -> None:
    program = "import sys, horae.cli.main, horae.backends, horae.cli.serve; print('lightkube' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "False\n"


def test_manifests_are_printed_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubernetes", "manifests", "--namespace", "train"]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == rights_objects("train")
    assert main(["kubernetes", "manifests", "--image", "horae:1", "--volume", "team:/mnt/horae"]) == 0
    kinds = [made["kind"] for made in yaml.safe_load_all(capsys.readouterr().out)]
    assert kinds[-2:] == ["Deployment", "Service"]
    assert main(["kubernetes", "manifests", "--adopt", "team-a,team-b"]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == rights_objects("horae", ["team-a", "team-b"])


@pytest.mark.parametrize("option", [["--volume", "team:/mnt/horae"], ["--storage", "1Ti"]])
def test_a_service_that_adopts_has_no_shared_folder_to_print(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kubernetes", "manifests", "--adopt", "team-a", "--image", "horae:1", *option]) != 0
    told = capsys.readouterr()
    assert (told.out, "leave out --volume and --storage" in told.err) == ("", True)


class TestRelease:
    """`horae kubernetes release` beside a service on another machine."""

    @pytest.fixture
    def server(self, monkeypatch: pytest.MonkeyPatch) -> MadeUpApi:
        made = MadeUpApi()
        monkeypatch.setattr("horae.backends.kubernetes.api.load_config", lambda context: None)
        monkeypatch.setattr("horae.backends.kubernetes.api.KubernetesApi", lambda config, namespace: made.api())
        return made

    def release(self, state: Path, *more: str) -> int:
        return main(["kubernetes", "release", "--adopt", "team", "--state", str(state), *more])

    def test_it_is_refused_while_the_lease_is_renewed(
        self,
        server: MadeUpApi,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        service = NamespaceLeases(server.api(), ("team",), "s1")
        service.claim()
        monkeypatch.setattr("time.sleep", lambda seconds: service.claim())
        assert self.release(tmp_path) != 0
        assert "The service s1@" in (told := capsys.readouterr().err)
        assert "still runs, for it renews its Lease: stop it first" in told
        assert server.leases
        assert self.release(tmp_path, "--sure") == 0
        assert not server.leases


class TestOnRealKubernetes:
    pytestmark = needs_kubernetes

    @pytest.fixture
    def cluster(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesCluster]:
        nodes = [MadeUpKubeNode("v1", "Tesla-V100-SXM2-16GB", "rack-0")]
        with engine_folder("kube") as folder, KubernetesCluster(folder / "k", nodes) as made:
            monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(HORAE_USER)))
            yield made

    def test_without_rights_it_says_so_and_with_them_three_jobs_take_turns(
        self, cluster: KubernetesCluster, tmp_path: Path
    ) -> None:
        shared = cluster.folder.parent / "shared"
        shared.mkdir()
        asked = ServeOptions(
            tmp_path / "state",
            port=0,
            policy="time-slice",
            settings={"quantum": "2"},
            backend="kubernetes",
            namespace=NAMESPACE,
            image="none",
            volume=f"host:{shared.resolve()}",
            url="http://head:8642",
            allow_plain_http=True,
        )
        with pytest.raises(CannotUseKubernetes, match="namespace"):
            Server(asked)
        cluster.create(rights_objects(NAMESPACE))
        with served(asked) as client:
            three_jobs_take_turns(client)
            until(lambda: not cluster.ask("GET", "/api/v1/pods")["items"], "for all pods to be forgotten")
        again = Server(ServeOptions(tmp_path / "state", port=0, allow_plain_http=True))
        again.close()
