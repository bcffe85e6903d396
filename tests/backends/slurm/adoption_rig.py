"""A real Slurm with the plugin, jobs of two users in it, and a whole service beside it that can be killed."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from horae.backends.slurm.queue_listing import QUEUE_FORMAT, QueuedJob, read_queue
from horae.backends.slurm.submit_plugin import install
from horae.testing.slurm_cluster import PARTITION, SlurmCluster
from tests.backends.real import until

#: Two users that every Debian has, and that are not root.
USERS = ("nobody", "games")
SETTINGS = ("JobSubmitPlugins=lua", "RequeueExitHold=75")
#: A Python that all users may run.
PYTHON = "/usr/bin/python3"
WITNESS = Path(__file__).with_name("adopted_witness.py")


class AdoptionRig:
    """Slurm in a folder, and a service process that adopts its partition."""

    def __init__(self, folder: Path, slurm: SlurmCluster, policy: str = "fifo", settings: Sequence[str] = ()) -> None:
        self.folder, self.slurm, self.state = folder, slurm, folder / "state"
        self._options = ["--policy", policy, *(word for each in settings for word in ("--set", each))]
        self.marks = folder / "marks"
        self.marks.mkdir(mode=0o777)
        self.marks.chmod(0o777)
        self.service: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """The environment of `horae` beside this Slurm."""
        return {**os.environ, **{name: self.slurm.environment[name] for name in ("SLURM_CONF", "PATH")}}

    def horae(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Horae; commands that ask a service ask this one."""
        address = self.state / "address.json"
        asks = {"HORAE_TOKEN_FILE": str(self.state / "token")}
        asks |= {"HORAE_URL": json.loads(address.read_text())["url"]} if address.exists() else {}
        command = [sys.executable, "-m", "horae", *words]
        return subprocess.run(command, env=self.environment() | asks, capture_output=True, text=True, timeout=240)

    # --- the service

    def serve(self) -> None:
        """Start the service, and wait until it answers."""
        command = [sys.executable, "-m", "horae", "serve", "--state", str(self.state), "--port", "0"]
        environment = self.environment()
        with (self.folder / "serve.log").open("ab") as log:
            self.service = subprocess.Popen(
                [*command, "--backend", "slurm", "--adopt", PARTITION, *self._options],
                env=environment,
                stdout=log,
                stderr=log,
            )
        until(lambda: self._is_up() or self._has_ended(), "for the service", patience_s=240)
        assert not self._has_ended(), (self.folder / "serve.log").read_text()

    def _is_up(self) -> bool:
        try:
            address = json.loads((self.state / "address.json").read_text())
            return bool(address["pid"] == self.service.pid and self.get("/v1/settings"))  # type: ignore[union-attr]
        except (OSError, ValueError, httpx.HTTPError):
            return False

    def _has_ended(self) -> bool:
        return self.service is not None and self.service.poll() is not None

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the service: in good order, or with SIGKILL."""
        if self.service and self.service.poll() is None:
            self.service.send_signal(number)
        if self.service:
            self.service.wait(30)
        self.service = None

    def get(self, path: str) -> Any:
        """What the API answers."""
        url = json.loads((self.state / "address.json").read_text())["url"]
        token = (self.state / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.get(f"{url}{path}", headers=headers, timeout=20, trust_env=False)
        return answer.raise_for_status().json()

    def post(self, path: str, body: Any) -> Any:
        """What the API answers to a request."""
        url = json.loads((self.state / "address.json").read_text())["url"]
        headers = {"Authorization": f"Bearer {(self.state / 'token').read_text().strip()}"}
        return (
            httpx.post(f"{url}{path}", json=body, headers=headers, timeout=20, trust_env=False)
            .raise_for_status()
            .json()
        )

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Jobs of the service by their Slurm id, which is in their name."""
        found = self.get("/v1/jobs?all=true")["jobs"]
        return {job["id"].rpartition("-")[0].rpartition(".")[2]: job for job in found}

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


def patiently(look: Callable[[], Any], what: str = "") -> Any:
    """Wait until something is true. Services start, and Slurm schedules, in seconds: on a busy machine in many."""
    return until(look, what, patience_s=180.0)


def until_quiet(rig: AdoptionRig, patience_s: float) -> None:
    """Wait until all jobs of the service have ended."""
    ended = {"finished", "failed", "cancelled", "timeout"}
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        if {job["state"] for job in rig.jobs().values()} <= ended:
            return
        time.sleep(0.2)
    states = {job["id"]: (job["state"], job["attempt"]) for job in rig.jobs().values()}
    raise AssertionError(f"not over after {patience_s:g} s: {states}")
