"""`horae serve --backend ray` on a real Ray of this machine. Tests backends/__init__.py, too: how it is opened."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from horae.backends import BackendOptions, CannotUseRay, open_backend
from horae.backends.ray.dashboard import BadRayAddress
from horae.service.server import ServeOptions
from horae.testing.ray_cluster import MadeUpRayNode, RayCluster
from tests.backends.ray.rig import needs_ray, started
from tests.backends.real import until
from tests.engine_folder import engine_folder
from tests.service.live import submit
from tests.service.served import all_become, logs, records, served

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
            with served(asked, nodes=2) as client:
                job = {"run": _TWO_TURNS, "resources": {"gpus": 4}, "checkpoint": {"grace": 10}}
                jobs = submit(client, *({**job, "name": f"job{number}"} for number in range(2)))
                until(lambda: all(record["attempt"] for record in records(client, jobs)), "for both to begin", 180.0)
            with served(ServeOptions(tmp_path / "state", port=port), nodes=2) as client:
                all_become("finished", client, jobs, patience_s=240.0)
                assert [record["attempt"] for record in records(client, jobs)] == [2, 2]
                assert logs(client, jobs) == ["HTTP/1.1 200 OK\r\nattempt 2\n"] * 2
