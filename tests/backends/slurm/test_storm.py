"""A service on a real Slurm that is killed with its jobs running, while Slurm's own daemons die, freeze and lie.

Nothing may run twice, no step may be lost, and nobody may be stopped because somebody was out of sight. HORAE_STORM=1
makes it long (`make test-slurm`), with outages longer than the fences, and shows figures.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from horae.testing.slurm_cluster import PARTITION, SlurmCluster, SlurmTrouble, why_not
from tests.engine_folder import engine_folder
from tests.service.cluster_storm import Probe, await_attempts, let_pass, seconds_to_begin, summary
from tests.service.crashes import Cluster, Storm, examine, service
from tests.service.mortal import CLUSTER_POINTS

pytestmark = [pytest.mark.engine, pytest.mark.skipif(bool(why_not()), reason=f"needs Slurm: {why_not()}")]

LONG = bool(os.environ.get("HORAE_STORM"))
SEED = int(os.environ.get("HORAE_SEED", "1"))

#: `sbatch` that lies once for each file it finds: submits and says it failed, or submits twice.
_LIAR = """\
#!/bin/sh
script=$(cat)
submit() {{ printf '%s\\n' "$script" | /usr/bin/sbatch "$@"; }}
if mv "{lies}/fails-$(ls {lies} | sed -n 's/^fails-//p' | head -1)" "{lies}/.told-$$" 2>/dev/null; then
  submit "$@"; echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1
fi
if mv "{lies}/twice-$(ls {lies} | sed -n 's/^twice-//p' | head -1)" "{lies}/.told-$$" 2>/dev/null; then
  submit "$@"
fi
submit "$@"
"""


class Site:
    """A Slurm of four nodes, whose `sbatch` lies when it is told to."""

    def __init__(self, folder: Path, slurm: SlurmCluster) -> None:
        self.slurm, self.lies, self.shared = slurm, folder / "lies", folder / "shared"
        self.lies.mkdir()
        liar = folder / "bin" / "sbatch"
        liar.parent.mkdir()
        liar.write_text(_LIAR.format(lies=self.lies))
        liar.chmod(0o755)
        self.cluster = Cluster(
            attempts=self.shared,
            words=("--backend", "slurm", "--partition", PARTITION, "--shared", str(self.shared)),
            env={"SLURM_CONF": str(slurm.conf), "PATH": f"{liar.parent}:{slurm.environment['PATH']}"},
            points=tuple(sorted(CLUSTER_POINTS)),
            kinds=("train", "train", "plain", "shell", "pair", "gang", "uneven"),
            gpu_types=("v100", "p100"),
            backlog=16,
        )

    def lie(self, how: str, times: int) -> None:
        for number in range(times):
            (self.lies / f"{how}-{number}").touch()

    @property
    def lies_left(self) -> list[str]:
        return [path.name for path in self.lies.iterdir() if not path.name.startswith(".")]

    def operate(self, enough: threading.Event) -> None:
        """Reopen nodes that Slurm drains when it gives the number of a job that runs to another."""
        while not enough.wait(1.0):
            with suppress(SlurmTrouble, subprocess.TimeoutExpired):
                rows = self.slurm.run("sinfo", "-h", "-N", "-o", "%N %T %E").splitlines()
                if nodes := {row.split()[0] for row in rows if row.split()[1].startswith("drain")}:
                    self.slurm.run("scontrol", "update", f"NodeName={','.join(sorted(nodes))}", "State=RESUME")

    def jobs_left(self) -> list[str]:
        """Slurm jobs that have not ended; the service's flag on the partition is to stay."""
        rows = self.slurm.run("squeue", "-h", "-o", "%j %T").splitlines()
        return [row for row in rows if not row.startswith("horae-service-")]


@pytest.fixture
def site() -> Iterator[Site]:
    with engine_folder("slurm") as folder, SlurmCluster(folder / "slurm") as slurm:
        made, enough = Site(folder, slurm), threading.Event()
        operator = threading.Thread(target=made.operate, args=(enough,))
        operator.start()
        try:
            yield made
        finally:
            enough.set()
            operator.join()


def make_slurm_suffer(site: Site, storm: Storm) -> None:
    """Have Slurm's daemons lie, die and freeze, some of them for longer than any fence."""
    slurm = site.slurm
    site.lie("fails", 2)
    site.lie("twice", 2)
    storm.kill_daemons(3, inside=0.8)
    storm.come_up()
    storm.submitter.submit([storm.submitter.job() for _ in range(6)])
    let_pass(0.5)
    slurm.kill_controller()  # forgets what it took in the last seconds
    storm.kill_daemons(1)
    slurm.start_controller()
    slurm.kill_node("v2")
    slurm.freeze("p1")
    storm.kill_daemons(2)
    storm.come_up()
    let_pass(20)
    slurm.thaw("p1")
    let_pass(40)
    slurm.start_node("v2")
    slurm.kill_node("p2")
    slurm.kill_controller()
    storm.kill_daemons(2)
    storm.come_up()
    let_pass(95)
    slurm.start_controller()
    slurm.start_node("p2")
    storm.kill_daemons(2, inside=1.0)
    slurm.kill_controller()
    let_pass(3)
    slurm.start_controller()


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason="takes ten minutes: `make test-slurm` runs it")
def test_nothing_runs_twice_and_no_step_is_lost_whoever_dies(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(tmp_path, "time-slice", ("quantum=4",), site.cluster) as running:
        storm = Storm(running, SEED, long=(400, 900))
        storm.begin()
        probe = Probe(running)
        make_slurm_suffer(site, storm)
        assert storm.come_up(), running.said()
        await_attempts(storm.submitter.marks, attempts=160, repeated=90)
        storm.end()
        probe.stop()
        begin_s = seconds_to_begin(running, storm.submitter.marks)
        assert not site.lies_left
        found = examine(storm)
        assert not site.jobs_left()
    with capsys.disabled():
        print(f"\n{summary(found, probe, begin_s)}")  # noqa: T201
    assert found.daemon_kills >= 10
    assert found.acknowledged >= 60
    assert (found.attempts >= 150, found.preemptions >= 80, found.over_nodes >= 20) == (True, True, True), found
    assert set(found.stops) <= {"preempted", "moved"}, "nobody is stopped because somebody was out of sight"
    assert found.failed_attempts == 0
    # Alone on the machine, half of the launches take less than a second, and 99 % of the answers less than .2 s.
    assert (begin_s[len(begin_s) // 2] < 5.0, probe.p99_s() < 1.0) == (True, True)


@pytest.mark.long
def test_a_service_and_a_controller_that_die_with_jobs_running_lose_nothing(site: Site, tmp_path: Path) -> None:
    """A slice of the storm."""
    with service(tmp_path, "time-slice", ("quantum=3",), site.cluster) as running:
        storm = Storm(running, SEED, long=(100, 150))
        storm.begin()
        site.lie("fails", 1)
        site.lie("twice", 1)
        let_pass(4)
        site.slurm.kill_controller()
        storm.kill_daemons(1)
        storm.come_up()
        let_pass(2)
        site.slurm.start_controller()
        storm.kill_daemons(1, inside=1.0)
        storm.end()
        found = examine(storm)
        assert not site.jobs_left()
    assert (found.daemon_kills >= 2, found.failed_attempts) == (True, 0)
    assert found.preemptions > 0
