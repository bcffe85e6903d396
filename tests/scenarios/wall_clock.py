"""The second clock: real processes, the wall clock, an in-memory journal, and crashes.

The driver below knows nothing that the engine's interface does not say. Its machine (the
process table) survives a crash of the driver, as an operating system does.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from horae.core.cluster import Cluster
from horae.core.codec import decode, encode
from horae.core.commands import Command, Decided, Launch, Stop
from horae.core.engine import Engine
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, JobSubmitted
from horae.core.invariants import check
from horae.core.job import JobSpec
from horae.placement.rules import make_placement
from horae.policies import make_policy


class Crash(Exception):
    """The driver dies here."""


@dataclass
class Machine:
    """Real processes by (job, attempt). It outlives the drivers."""

    log: str
    processes: dict[tuple[str, int], subprocess.Popen[bytes]] = field(default_factory=dict)
    stopped: set[tuple[str, int]] = field(default_factory=set)

    def launch(self, spec: JobSpec, attempt: int) -> None:
        """Start an attempt, unless it was started before: a repeated command is harmless."""
        if (spec.id, attempt) not in self.processes:
            script = f"sleep {spec.work} && echo {spec.id} >> {self.log}"
            self.processes[spec.id, attempt] = subprocess.Popen(["sh", "-c", script], start_new_session=True)

    def stop(self, job: str, attempt: int) -> None:
        """Kill an attempt; what it had done is lost, for it keeps no checkpoint."""
        process = self.processes.get((job, attempt))
        if process is not None and process.poll() is None:
            process.kill()
            self.stopped.add((job, attempt))


class WallClockDriver:
    """Drives the engine by the real clock: journal first, then the deed."""

    def __init__(
        self, machine: Machine, cluster: Cluster, journal: list[str], policy: str, crash_at: int | None
    ) -> None:
        self.machine, self.journal, self.crash_at = machine, journal, crash_at
        self.engine = Engine(cluster, make_policy, policy, {}, make_placement("best-effort"))
        for line in journal:
            self.engine.apply(decode(json.loads(line)))
        # The wall clock goes on from where the journal ends, whatever it showed before.
        self._zero = time.monotonic() - self.engine.now_s
        self._told: set[tuple[str, int]] = set()
        self._perform(self.engine.outstanding())

    @property
    def now_s(self) -> float:
        """Seconds on the wall clock."""
        return time.monotonic() - self._zero

    def run(self, jobs: Sequence[JobSpec]) -> None:
        """Submit what the journal does not know yet, then go on until every job has ended."""
        for spec in jobs:
            if spec.id not in self.engine.jobs.rows:
                self._apply(JobSubmitted(self.now_s, spec))
        while True:
            for event in self._reports():
                self._apply(event)
            if self.engine.due(self.now_s):
                self._decide()
            elif len(self.engine.jobs.active) == 0:
                return
            else:
                time.sleep(0.002)

    def _decide(self) -> None:
        record = self.engine.with_evidence(self.engine.decide(self.now_s))
        self._write(record)
        self._perform(record.commands)

    def _apply(self, event: Event) -> None:
        self._write(event)
        self.engine.apply(event)
        check(self.engine)

    def _write(self, record: Event | Decided) -> None:
        if len(self.journal) == self.crash_at:
            raise Crash
        self.journal.append(json.dumps(encode(record)))

    def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Launch):
                self.machine.launch(self.engine.jobs.specs[self.engine.jobs.rows[command.job]], command.attempt)
            elif isinstance(command, Stop):
                self.machine.stop(command.job, command.attempt)

    def _reports(self) -> list[Event]:
        """What the processes did since the last look: started, ended, were killed."""
        events: list[Event] = []
        for (job, attempt), process in self.machine.processes.items():
            if (job, attempt) in self._told:
                continue
            code = process.poll()
            if code is None:
                row = self.engine.jobs.rows.get(job, -1)
                if row >= 0 and not self.engine.jobs.executing[row]:
                    events.append(JobStarted(self.now_s, job, attempt))
                continue
            self._told.add((job, attempt))
            if (job, attempt) in self.machine.stopped:
                events.append(JobStopped(self.now_s, job, attempt, 0.0))
            elif code == 0:
                events.append(JobFinished(self.now_s, job, attempt))
            else:
                events.append(JobFailed(self.now_s, job, attempt, code))
        return events
