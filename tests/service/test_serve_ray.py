"""`horae serve --backend ray` on a real Ray of this machine. Tests backends/__init__.py, too: how it is opened."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from horae.backends import BackendOptions, CannotUseRay, open_backend
from horae.backends.ray.dashboard import BadRayAddress
from horae.service.server import ServeOptions, Server
from horae.testing.ray_cluster import MadeUpRayNode, RayCluster
from tests.backends.ray.rig import needs_ray, started
from tests.backends.real import until
from tests.engine_folder import engine_folder
from tests.service.live import eventually, submit

#: Waits in its first attempt until it is preempted; in its second it asks the service how it is, and ends.
_TWO_TURNS = """\
trap 'echo {\\"step\\": 50, \\"total\\": 100} > $HORAE_CHECKPOINT_DIR/saved.json; exit 75' USR1
while [ $HORAE_ATTEMPT = 1 ]; do sleep 0.1; done
address=${HORAE_URL#http://}
exec 3<>/dev/tcp/${address%:*}/${address#*:}
printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3
head -1 <&3
echo attempt $HORAE_ATTEMPT
"""


@pytest.mark.parametrize(
    "given", [{}, {"address": "http://head:8265"}, {"shared": Path("/mnt")}], ids=["nothing", "address", "folder"]
)
def test_ray_needs_an_address_and_a_shared_folder(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(CannotUseRay, match="--address http://head:8265 --shared DIR"):
        open_backend("ray", replace(BackendOptions(tmp_path), **given))


def test_an_address_that_cannot_be_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadRayAddress, match="'head:8265' is not the address"):
        open_backend("ray", BackendOptions(tmp_path, address="head:8265", shared=tmp_path / "shared"))


@pytest.fixture
def ray() -> Iterator[RayCluster]:
    with started([MadeUpRayNode("v1", "v100", gpus=2), MadeUpRayNode("v2", "v100", gpus=2)]) as cluster:
        yield cluster


def states(client: httpx.Client, jobs: list[str]) -> set[str]:
    return {client.get(f"/v1/jobs/{job}").json()["state"] for job in jobs}


def attempts(client: httpx.Client, jobs: list[str]) -> list[int]:
    return [client.get(f"/v1/jobs/{job}").json()["attempt"] for job in jobs]


class TestOnRealRay:
    pytestmark = needs_ray

    def test_gangs_over_two_nodes_take_turns_and_the_next_service_remembers_the_cluster(
        self, ray: RayCluster, tmp_path: Path
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        with engine_folder("ray") as shared:
            asked = ServeOptions(
                tmp_path / "state",
                port=port,
                policy="time-slice",
                settings={"quantum": "3"},
                backend="ray",
                address=ray.address,
                shared=shared,
                url=f"http://127.0.0.1:{port}",
            )
            ray.let_in(port)
            jobs = self._begin(asked)
            records, logs = self._end(ServeOptions(tmp_path / "state", port=port), jobs)
        assert [record["attempt"] for record in records] == [2, 2]
        assert logs == ["HTTP/1.1 200 OK\r\nattempt 2\n"] * 2

    def _begin(self, asked: ServeOptions) -> list[str]:
        """Submit two gangs of all four GPUs, and wait until the second has taken its turn."""
        server = Server(asked)
        try:
            with self._client(server) as client:
                eventually(lambda: [node["state"] for node in client.get("/v1/nodes").json()["nodes"]] == ["up", "up"])
                job = {"run": _TWO_TURNS, "resources": {"gpus": 4}, "checkpoint": {"grace": 10}}
                jobs = submit(client, *({**job, "name": f"job{number}"} for number in range(2)))
                until(lambda: all(attempts(client, jobs)), "for both to begin", patience_s=180.0)
                return jobs
        finally:
            server.close()

    def _end(self, asked: ServeOptions, jobs: list[str]) -> tuple[list[dict[str, int]], list[str]]:
        """Let the next service follow them to their end."""
        server = Server(asked)
        try:
            with self._client(server) as client:
                until(lambda: states(client, jobs) == {"finished"}, "for the jobs to finish", patience_s=240.0)
                records = [client.get(f"/v1/jobs/{each}").json() for each in jobs]
                return records, [client.get(f"/v1/jobs/{each}/logs").text for each in jobs]
        finally:
            server.close()

    def _client(self, server: Server) -> httpx.Client:
        headers = {"Authorization": f"Bearer {server.token_file.read_text().strip()}"}
        return httpx.Client(base_url=server.url, headers=headers, timeout=20, trust_env=False)
