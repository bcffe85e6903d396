"""A real Slurm with the plugin, jobs of two users in it, and a whole service beside it that can be killed."""

from __future__ import annotations

import json
import pwd
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from horae.backends.slurm.queue_listing import QUEUE_FORMAT, QueuedJob, read_queue
from horae.backends.slurm.submit_plugin import install
from horae.testing.slurm_cluster import PARTITION, SlurmCluster
from tests.service.served_process import ServedProcess, patiently

#: Two users that every Debian has, and that are not root.
USERS = ("nobody", "games")
SETTINGS = ("JobSubmitPlugins=lua", "RequeueExitHold=75")
#: A Python that all users may run.
PYTHON = "/usr/bin/python3"
WITNESS = Path(__file__).with_name("adopted_witness.py")


class AdoptionRig(ServedProcess):
    """Slurm in a folder, and a service process that adopts its partition."""

    def __init__(self, folder: Path, slurm: SlurmCluster, policy: str = "fifo", settings: Sequence[str] = ()) -> None:
        words = ["--backend", "slurm", "--adopt", PARTITION, "--policy", policy]
        words += [word for each in settings for word in ("--set", each)]
        super().__init__(folder, words, {name: slurm.environment[name] for name in ("SLURM_CONF", "PATH")})
        self.slurm, self.marks = slurm, folder / "marks"
        self.marks.mkdir(mode=0o777)
        self.marks.chmod(0o777)

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Jobs of the service by their Slurm id, which is in their name."""
        return {job["id"].rpartition("-")[0].rpartition(".")[2]: job for job in self.records()}

    # --- Slurm

    def sbatch(self, *options: str, user: str = USERS[0], script: str = "sleep 600", partition: str = PARTITION) -> str:
        """Submit a job as a user does; returns its id."""
        words = ["sbatch", "--parsable", f"--partition={partition}", "--chdir=/", "--output=/dev/null", "--mem=50"]
        return self.as_user(user, *words, *options, text=f"#!/bin/sh\n{script}\n").strip()

    def as_user(self, user: str, *command: str, text: str = "") -> str:
        """Run a command of Slurm as a user."""
        ids = pwd.getpwnam(user)
        become = ["setpriv", f"--reuid={ids.pw_uid}", f"--regid={ids.pw_gid}", "--clear-groups"]
        return self.slurm.run(*become, *command, text=text)

    def queue(self) -> dict[str, QueuedJob]:
        """Slurm's list, ended jobs included."""
        return {
            job.id: job for job in read_queue(self.slurm.run("squeue", "-h", "-r", "--states=all", "-O", QUEUE_FORMAT))
        }

    def wait_for(self, job: str, *states: str) -> QueuedJob:
        """Wait until Slurm shows a job in one of these states."""
        found: QueuedJob = patiently(
            lambda: (seen := self.queue().get(job)) and seen.state in states and seen, f"for {job}"
        )
        return found

    def witness(self, user: str, steps: int, gpus: int, step_s: float = 0.1, nodes: int = 1) -> str:
        """Submit a job that bears witness."""
        program = self.marks / WITNESS.name  # others may not read the source tree
        shutil.copy(WITNESS, program)
        run = f"exec {PYTHON} -I -S {program} {self.marks} {steps} {step_s}"
        options = [f"--gres=gpu:{gpus}", f"--nodes={nodes}", "--comment=horae: duration=20s"]
        return self.sbatch(*options, user=user, script=run)

    def lines(self) -> list[dict[str, Any]]:
        """What all witnesses have written."""
        path = self.marks / "lines"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def prepare(folder: Path) -> SlurmCluster:
    """A Slurm that holds jobs for Horae, not started yet."""
    folder.chmod(0o755)  # jobs of other users find their scripts below it
    cluster = SlurmCluster(folder / "slurm", settings=SETTINGS)
    cluster.folder.mkdir()
    install(cluster.folder, PARTITION)
    return cluster
