"""`horae serve --backend slurm` on a real Slurm of this machine. Tests backends/__init__.py, too: how it is opened."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from horae.backends import BackendOptions, CannotUseSlurm, open_backend
from horae.core.cluster import BadCluster
from horae.service.server import ServeOptions, Server
from horae.testing.slurm_cluster import PARTITION, MadeUpNode, SlurmCluster, why_not
from horae.workload.clusters import parse_cluster
from tests.backends.real import until
from tests.engine_folder import engine_folder
from tests.service.live import eventually, submit
from tests.service.served import all_become, logs, records, served, three_jobs_take_turns

#: A training script of three steps, and where it finds horae_train.
_TRAINS = """
import horae_train
run, steps = horae_train.Run(total=3), []
for step in run:
    steps.append(step)
    run.report(0.5)
print(steps)
"""
_PACKAGE = Path(__file__).parents[2] / "packages" / "horae-train" / "src"

needs_slurm = [pytest.mark.engine, pytest.mark.skipif(bool(why_not()), reason=f"needs Slurm: {why_not()}")]


@pytest.fixture
def hosts() -> list[str]:
    return ["v1"]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> Iterator[SlurmCluster]:
    nodes = [MadeUpNode(host, "v100", "rack-0") for host in hosts]
    with engine_folder("slurm") as folder, SlurmCluster(folder / "slurm", nodes) as cluster:
        for variable in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(variable, cluster.environment[variable])
        yield cluster


def on(slurm: SlurmCluster, state: Path, **more: Any) -> ServeOptions:
    """A service on the Slurm."""
    shared = slurm.folder.parent / "shared"
    return ServeOptions(state, port=0, backend="slurm", partition=PARTITION, shared=shared, **more)


def test_slurm_needs_a_partition_and_a_shared_folder(tmp_path: Path) -> None:
    with pytest.raises(CannotUseSlurm, match="--partition gpu --shared DIR"):
        open_backend("slurm", BackendOptions(tmp_path))


class TestOnRealSlurm:
    pytestmark = needs_slurm

    def test_a_partition_that_is_not_there_is_told_at_the_start(self, slurm: SlurmCluster, tmp_path: Path) -> None:
        with pytest.raises(CannotUseSlurm, match="no partition 'gpus'"):
            open_backend("slurm", BackendOptions(tmp_path, partition="gpus", shared=slurm.folder.parent / "shared"))

    @pytest.mark.long
    def test_three_jobs_take_turns_on_one_node(self, slurm: SlurmCluster, tmp_path: Path) -> None:
        turns = {"policy": "time-slice", "settings": {"quantum": "2"}}
        with served(on(slurm, tmp_path / "state", **turns, url="http://head:8642", allow_plain_http=True)) as client:
            three_jobs_take_turns(client)

    @pytest.mark.parametrize("hosts", [["v1", "v2"]])
    def test_half_of_the_gpus_of_a_job_on_two_nodes_are_on_each(self, slurm: SlurmCluster, tmp_path: Path) -> None:
        with served(on(slurm, tmp_path / "state"), nodes=2) as client:
            says = "echo $LOCAL_WORLD_SIZE of $WORLD_SIZE"
            jobs = submit(client, {"run": says, "processes": "gpu", "resources": {"gpus": 4, "nodes": 2}})
            all_become("finished", client, jobs)
            (record,) = records(client, jobs)
            assert record["attempts"][0]["on"] == ["v1[0,1]", "v2[0,1]"]
            assert "2 of 4" in logs(client, jobs)[0]

    @pytest.mark.parametrize("hosts", [["v1", "v2"]])
    def test_a_python_that_the_nodes_do_not_have_is_told(self, slurm: SlurmCluster, tmp_path: Path) -> None:
        python = {"python": "/nowhere/python"}
        with served(on(slurm, tmp_path / "state", backend_settings=python), nodes=2) as client:
            one, two = ({"run": "true", "resources": {"gpus": 2, "nodes": nodes}} for nodes in (1, 2))
            for job in submit(client, one, two):
                sentence = "its runner ended before the job began: exec: /nowhere/python: not found."
                until(lambda: sentence in client.get(f"/v1/jobs/{job}/events").text, "for the reason")  # noqa: B023

    def test_a_job_on_a_node_reports_over_tls(self, slurm: SlurmCluster, tmp_path: Path) -> None:
        ca = trustme.CA()
        ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
        ca.cert_pem.write_to_path(tmp_path / "ca.pem")
        tls = {"tls_cert": tmp_path / "cert.pem", "tls_ca": tmp_path / "ca.pem"}
        with served(on(slurm, tmp_path / "state", **tls)) as client:
            run = ["env", f"PYTHONPATH={_PACKAGE}", sys.executable, "-c", _TRAINS]
            jobs = submit(client, {"run": run, "estimate": {"steps": 3}})
            all_become("finished", client, jobs)
            assert client.base_url.scheme == "https"
            assert logs(client, jobs) == ["[0, 1, 2]\n"], "every report got through"
            assert [job["loss"] for job in records(client, jobs)] == [0.5], "and told the loss"

    def test_a_partition_is_read_as_a_cluster(self, slurm: SlurmCluster, tmp_path: Path) -> None:
        cluster = parse_cluster(f"slurm:{PARTITION}")
        assert [(node.name, node.gpu_type, node.gpus, node.rack) for node in cluster.nodes] == [
            ("v1", "v100", 4, "rack-0")
        ]
        with pytest.raises(BadCluster, match=r"slurm:nowhere cannot be read\. Slurm shows no nodes"):
            parse_cluster("slurm:nowhere")
        server = Server(on(slurm, tmp_path / "state"))
        try:
            eventually(lambda: server.daemon.status.cluster.nodes)
            assert server.daemon.status.cluster.nodes == cluster.nodes, "as a service sees it"
        finally:
            server.close()

    def test_slurm_gives_what_a_job_asks_for_with_each_gpu(self, slurm: SlurmCluster, tmp_path: Path) -> None:
        with served(on(slurm, tmp_path / "state")) as client:
            resources = {"gpus": 2, "cpus_per_gpu": 1, "memory_per_gpu": "3MiB"}
            job = {"run": ["sleep", "60"], "resources": resources}
            said = client.post("/v1/jobs", json=[job]).json()
            assert not [note for note in said["notes"] if "ignores" in note]
            asked = until(lambda: slurm.run("squeue", "-h", "-t", "R", "-o", "%C %m").split(), "for the Slurm job")
            assert client.post("/v1/jobs", json=[{**job, "resources": {"image": "train:1"}}]).status_code == 400
            client.post(f"/v1/jobs/{said['ids'][0]}/cancel")
            all_become("cancelled", client, said["ids"])
        assert asked == ["2", "6M"], "CPUs and memory of the node for two GPUs"
