"""A small real Slurm: it starts, stays on loopback, survives what is done to it, and leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.backends.local.processes import Process, environment_of, process_ids
from horae.testing import slurm_cluster
from horae.testing.slurm_cluster import INSTALL, SlurmCluster, SlurmTrouble, main, why_not
from tests.backends.real import until
from tests.listening import listening

needs_slurm = [pytest.mark.engine, pytest.mark.skipif(bool(why_not()), reason=f"needs Slurm: {why_not()}")]


def processes_of(cluster: SlurmCluster) -> list[int]:
    """Living processes that know the cluster: daemons, steps and jobs."""
    mine = f"SLURM_CONF={cluster.conf}"
    return [pid for pid in process_ids() if mine in environment_of(pid) and Process.of(pid).start_time]


class TestRealSlurm:
    pytestmark = needs_slurm

    @pytest.fixture
    def cluster(self, tmp_path: Path) -> Iterator[SlurmCluster]:
        with SlurmCluster(tmp_path / "slurm") as cluster:
            yield cluster
        assert processes_of(cluster) == []

    def test_it_listens_on_loopback_only(self, cluster: SlurmCluster) -> None:
        ports = [int(port) for port in re.findall(r"Port=(\d+)", cluster.conf.read_text())]
        assert [listening().get(port) for port in ports] == [{"0100007F"}] * 5

    def test_jobs_get_gpus_of_their_own_and_end_with_the_cluster(self, cluster: SlurmCluster, tmp_path: Path) -> None:
        script = f'#!/bin/sh\nsetsid sleep 60 &\necho "$CUDA_VISIBLE_DEVICES" >> {tmp_path}/gpus\nsleep 60\n'
        for _ in range(2):
            cluster.run("sbatch", "--nodelist=v1", "--gres=gpu:v100:2", "--mem=100", "--chdir=/tmp", text=script)
        gpus = tmp_path / "gpus"
        until(lambda: gpus.exists() and sorted(gpus.read_text().split()) == ["0,1", "2,3"], "for two jobs")
        cluster.kill_controller()
        cluster.stop()
        assert processes_of(cluster) == []

    def test_its_daemons_are_killed_and_started_one_by_one(self, cluster: SlurmCluster) -> None:
        cluster.kill_controller()
        assert not cluster.controller_answers()
        cluster.start_controller()
        cluster.kill_node("p2")
        cluster.start_node("p2")
        cluster.wait_for_nodes("v1", "v2", "p1", "p2")

    def test_what_runs_already_is_not_started_again(self, cluster: SlurmCluster) -> None:
        before = {path.name: path.read_text() for path in (cluster.folder / "pids").iterdir()}
        SlurmCluster(cluster.folder).start()
        assert {path.name: path.read_text() for path in (cluster.folder / "pids").iterdir()} == before

    def test_a_command_that_fails_says_so(self, cluster: SlurmCluster) -> None:
        with pytest.raises(SlurmTrouble, match="Invalid job id"):
            cluster.run("scontrol", "show", "job", "7")

    def test_it_is_a_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = str(tmp_path / "slurm")
        try:
            assert main(["start", folder]) == 0
            (variable,) = re.findall(r"^export (.*)$", capsys.readouterr().out, re.MULTILINE)
            shown = subprocess.run(["env", variable, "sinfo", "-h", "-N", "-p", "gpu"], capture_output=True, text=True)
            assert len(shown.stdout.splitlines()) == 4
        finally:
            assert main(["stop", folder]) == 0
        assert processes_of(SlurmCluster(Path(folder))) == []


def test_without_slurm_it_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_cluster, "_find", lambda program: None)
    assert main(["start", str(tmp_path)]) == 1
    assert INSTALL in capsys.readouterr().err


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_cluster, "_find", lambda program: program)
    with pytest.raises(SlurmTrouble, match="too long"):
        SlurmCluster(tmp_path / ("x" * 100)).start()


def test_stopping_what_never_ran_is_harmless(tmp_path: Path) -> None:
    assert main(["stop", str(tmp_path)]) == 0


def test_what_a_killed_slurmd_has_just_forked_is_ended_and_a_users_command_is_not(tmp_path: Path) -> None:
    cluster, sleep = SlurmCluster(tmp_path), shutil.which("sleep")
    assert sleep is not None
    forked = shutil.copy(sleep, tmp_path / "slurmd")
    env = {"SLURM_CONF": str(cluster.conf)}
    with subprocess.Popen([forked, "60"], env=env) as slurms, subprocess.Popen([sleep, "60"], env=env) as users:
        cluster.stop()
        ends = slurms.wait(20), users.poll()
        users.kill()
    assert ends == (-9, None)
