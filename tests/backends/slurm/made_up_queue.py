"""Slurm's commands over a queue in memory, where jobs start, save and end at once."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from horae.backends.driver import OutOfSight
from horae.backends.slurm.commands import ChangeRefused, SlurmCommands
from horae.backends.slurm.job_request import HELD_BY_PLUGIN
from horae.backends.slurm.queue_listing import FAR, QueuedJob
from tests.backends.slurm.adopted import SUBMITTED, shown

_NOW = "2026-01-01T12:00:00"


class MadeUpQueue(SlurmCommands):
    """A partition `gpu` with the nodes v1 and v2, four v100 each."""

    def __init__(self) -> None:
        self.jobs: dict[str, QueuedJob] = {}
        self.details: dict[str, str] = {}
        self.nodes: dict[str, str] = {}
        self.changes: list[tuple[str, ...]] = []
        #: A word in commands that are refused, and the commands that were.
        self.refuses = ""
        self.refused: list[tuple[str, ...]] = []
        self.dead = False
        #: Whether jobs are hidden from the service, and whether Slurm's settings say so.
        self.hidden = self.private = False
        #: Clear it, and every command hangs.
        self.answering = threading.Event()
        self.answering.set()

    def add(self, job: str = "17", **more: Any) -> None:
        """A user submits a job, and the plugin holds it."""
        given = {"eligible": "N/A", **more}
        self.jobs[job] = replace(shown("PENDING", "JobHeldUser"), id=job, **given)
        self.details[job] = (
            f"JobId={job} JobName=train\n   Requeue=1 Account=(null)\n   NumNodes=1 TimeLimit=01:00:00\n"
            f"   AdminComment={HELD_BY_PLUGIN}\n   TresPerNode=gres:gpu:4\n"
            f"   StdOut=/home/ann/slurm-{job}.out\n"
        )

    def set(self, job: str, **more: Any) -> None:
        """Something happens to a job."""
        self.jobs[job] = replace(self.jobs[job], **more)

    def check_controller(self) -> None:
        self.answering.wait(20)
        if self.dead:
            raise OutOfSight("The Slurm controller does not answer.")

    def read(self, *command: str, nothing: str = "") -> str:
        self.answering.wait(20)
        if self.dead:
            raise OutOfSight("squeue failed")
        match command:
            case ["sinfo", *_]:
                hosts = [f"{name}|idle|gpu:v100:4|16|64000|v100|{name}|none" for name in ("v1", "v2")]
                return "\n".join(hosts)
            case ["squeue", *_, format_option] if format_option.startswith("JobArrayID"):
                return "" if self.hidden else "\n".join(_line(job) for job in self.jobs.values())
            case ["scontrol", "show", "job", job]:
                return self.details[job]
            case ["scontrol", "show", "config"]:
                private = "PrivateData = jobs\n" if self.private else ""
                return f"BOOT_TIME = 2026-01-01T00:00:00\nSlurmUser = slurm(1)\n{private}"
            case _:
                return ""

    def change(self, *command: str) -> None:
        if self.dead:
            raise OutOfSight("scontrol failed")
        if self.refuses and self.refuses in command:
            self.refused.append(command)
            raise ChangeRefused("not now")
        self.changes.append(command)
        match command:
            case ["scontrol", "update", job, *words]:
                self._update(job.partition("=")[2], dict(word.split("=", 1) for word in words))
            case ["scontrol", "release", job]:
                self.set(job, state="PENDING", reason="None", priority=1000)
                self._schedule(job)
            case ["scancel", "--full", "--signal=USR1", job] | ["scontrol", "requeuehold", job]:
                seen = self.jobs[job]
                code = 75 if command[0] == "scancel" else 0
                again = {"restarts": seen.restarts + 1, "submitted": _NOW, "eligible": _NOW}
                held = {"state": "SPECIAL_EXIT", "reason": "JobHeldUser", "priority": 0}
                self.set(job, **held, hosts=(), code=code, **again)
            case ["scancel", job]:
                self.set(job, state="CANCELLED", hosts=())
            case _:
                raise ChangeRefused(str(command))

    def _update(self, job: str, words: dict[str, str]) -> None:
        if "starttime" in words:
            self.set(job, eligible=FAR if words["starttime"] == FAR else SUBMITTED)
        self.nodes[job] = words.get("reqnodelist", self.nodes.get(job, ""))
        self._schedule(job)

    def _schedule(self, job: str) -> None:
        seen = self.jobs[job]
        if seen.state == "PENDING" and not seen.is_held and not seen.is_postponed:
            self.set(job, state="RUNNING", reason="None", hosts=tuple(self.nodes[job].split(",")), run_s=60.0)


def _line(job: QueuedJob) -> str:
    status = (job.code - 128) if job.code > 128 else job.code << 8
    run = f"{int(job.run_s) // 60}:{int(job.run_s) % 60:02d}"
    hosts = ",".join(job.hosts)
    head = f"{job.id}|{job.partition}|{job.user}|{job.state}|{job.reason}|{job.priority}|{hosts}"
    return f"{head}|{job.submitted}|{job.restarts}|{status}|{job.eligible}|{run}|{job.dependency or '(null)'}|"


def seconds(call: Any) -> float:
    """How long a call takes."""
    began_s = time.monotonic()
    call()
    return time.monotonic() - began_s
