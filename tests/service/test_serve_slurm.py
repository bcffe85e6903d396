"""`horae serve --backend slurm` on a real Slurm of this machine. Tests backends/__init__.py, too: how it is opened."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from horae.backends import BackendOptions, CannotUseSlurm, open_backend
from horae.core.cluster import BadCluster, Node
from horae.service.server import ServeOptions, Server
from horae.testing.slurm_cluster import PARTITION, MadeUpNode, SlurmCluster, why_not
from horae.workload.clusters import parse_cluster
from tests.backends.real import until
from tests.engine_folder import engine_folder
from tests.service.live import eventually, submit

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

#: Counts to 80 in steps of 0.1 s, and goes on from its checkpoint if it is preempted.
_COUNTS = """\
cd $HORAE_CHECKPOINT_DIR
step=$(cat count 2>/dev/null || echo 0)
save() { echo $step > count; echo '{"step": '$step', "total": 80}' > saved.json; }
trap 'save; exit 75' USR1
while [ $step -lt 80 ]; do sleep 0.1; step=$((step + 1)); done
save; echo counted to $step at $HORAE_URL
"""


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    nodes = [MadeUpNode("v1", "v100", "rack-0")]
    with engine_folder("slurm") as folder, SlurmCluster(folder / "slurm", nodes) as cluster:
        for variable in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(variable, cluster.environment[variable])
        yield cluster


def states(client: httpx.Client, jobs: list[str]) -> set[str]:
    return {client.get(f"/v1/jobs/{job}").json()["state"] for job in jobs}


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
        asked = ServeOptions(
            tmp_path / "state",
            port=0,
            policy="time-slice",
            settings={"quantum": "2"},
            backend="slurm",
            partition=PARTITION,
            shared=slurm.folder.parent / "shared",
            url="http://head:8642",
            allow_plain_http=True,
        )
        server = Server(asked)
        try:
            token = server.token_file.read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=server.url, headers=headers, timeout=20, trust_env=False) as client:
                eventually(lambda: [node["state"] for node in client.get("/v1/nodes").json()["nodes"]] == ["up"])
                job = {"run": _COUNTS, "resources": {"gpus": 4}, "checkpoint": {"grace": 10}}
                jobs = submit(client, *({**job, "name": f"job{number}"} for number in range(3)))
                until(lambda: states(client, jobs) == {"finished"}, "for the jobs to finish", patience_s=120.0)
                records = [client.get(f"/v1/jobs/{each}").json() for each in jobs]
                logs = [client.get(f"/v1/jobs/{each}/logs").text for each in jobs]
        finally:
            server.close()
        assert max(record["attempt"] for record in records) > 1, "somebody was preempted"
        assert logs == ["counted to 80 at http://head:8642\n"] * 3

    def test_a_job_on_a_node_reports_over_tls(self, slurm: SlurmCluster, tmp_path: Path) -> None:
        ca = trustme.CA()
        ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
        ca.cert_pem.write_to_path(tmp_path / "ca.pem")
        asked = ServeOptions(
            tmp_path / "state",
            port=0,
            tls_cert=tmp_path / "cert.pem",
            tls_ca=tmp_path / "ca.pem",
            backend="slurm",
            partition=PARTITION,
            shared=slurm.folder.parent / "shared",
        )
        server = Server(asked)
        try:
            token = server.token_file.read_text().strip()
            headers, trusted = {"Authorization": f"Bearer {token}"}, ssl.create_default_context(cafile=server.ca)
            with httpx.Client(
                base_url=server.url, headers=headers, timeout=20, trust_env=False, verify=trusted
            ) as client:
                eventually(lambda: [node["state"] for node in client.get("/v1/nodes").json()["nodes"]] == ["up"])
                run = ["env", f"PYTHONPATH={_PACKAGE}", sys.executable, "-c", _TRAINS]
                jobs = submit(client, {"run": run, "estimate": {"steps": 3}})
                until(lambda: states(client, jobs) == {"finished"}, "for the job to finish", patience_s=60.0)
                log = client.get(f"/v1/jobs/{jobs[0]}/logs").text
                events = client.get(f"/v1/jobs/{jobs[0]}").json()
        finally:
            server.close()
        assert server.url.startswith("https://")
        assert log == "[0, 1, 2]\n", "every report got through"
        assert events["loss"] == 0.5, "and told the loss"

    def test_a_partition_is_read_as_a_cluster(self, slurm: SlurmCluster, tmp_path: Path) -> None:
        cluster = parse_cluster(f"slurm:{PARTITION}")
        assert cluster.nodes == (Node("v1", "v100", 4, "rack-0"),)
        with pytest.raises(BadCluster, match=r"slurm:nowhere cannot be read\. Slurm shows no nodes"):
            parse_cluster("slurm:nowhere")
        shared = slurm.folder.parent / "shared"
        server = Server(ServeOptions(tmp_path / "state", port=0, backend="slurm", partition=PARTITION, shared=shared))
        try:
            eventually(lambda: server.daemon.status.cluster.nodes)
            assert server.daemon.status.cluster.nodes == cluster.nodes, "as a service sees it"
        finally:
            server.close()

    def test_slurm_gives_what_a_job_asks_for_with_each_gpu(self, slurm: SlurmCluster, tmp_path: Path) -> None:
        shared = slurm.folder.parent / "shared"
        server = Server(ServeOptions(tmp_path / "state", port=0, backend="slurm", partition=PARTITION, shared=shared))
        try:
            token = server.token_file.read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=server.url, headers=headers, timeout=20, trust_env=False) as client:
                eventually(lambda: [node["state"] for node in client.get("/v1/nodes").json()["nodes"]] == ["up"])
                resources = {"gpus": 2, "cpus_per_gpu": 1, "memory_per_gpu": "3MiB"}
                job = {"run": ["sleep", "60"], "resources": resources}
                said = client.post("/v1/jobs", json=[job]).json()
                assert not [note for note in said["notes"] if "ignores" in note]
                asked = until(lambda: slurm.run("squeue", "-h", "-t", "R", "-o", "%C %m").split(), "for the Slurm job")
                assert client.post("/v1/jobs", json=[{**job, "resources": {"image": "train:1"}}]).status_code == 400
                client.post(f"/v1/jobs/{said['ids'][0]}/cancel")
                until(lambda: states(client, said["ids"]) == {"cancelled"}, "for the end")
        finally:
            server.close()
        assert asked == ["2", "6M"], "CPUs and memory of the node for two GPUs"
