"""The world: the simulated backend. It runs attempts in simulated time and makes faults.

The world answers commands as a backend would, with events at the same or later times. It
knows the true speed and work of every job; the engine sees only the events.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from math import floor

import numpy as np
from numpy.typing import NDArray

from horae.core.cluster import Cluster, Node, Span
from horae.core.commands import Launch, Stop
from horae.core.events import (
    PRECEDENCE,
    Event,
    JobFinished,
    JobProgressed,
    JobStarted,
    JobStopped,
    LaunchFailed,
    NodeJoined,
    NodeLost,
)
from horae.core.job import JobSpec
from horae.core.job_table import JobTable
from horae.core.throughputs import Speeds, Throughputs
from horae.simulator.faults import Faults

_SECONDS_A_DAY = 86400.0
#: Fewest void entries that are worth removing.
_MANY = 1000


@dataclass(slots=True, eq=False)
class _Process:
    """The processes of one attempt. Events scheduled for it are void once it is not alive.

    Its speed changes when another job begins or stops sharing its GPUs. `pieces` are (time, work done
    by then, work per second from then on).
    """

    job: str
    row: int
    attempt: int
    gpu_ids: tuple[int, ...]
    span: Span
    works_from_s: float
    #: Factor on the attempt's speed, below 1 for stragglers.
    luck: float
    pieces: list[tuple[float, float, float]]
    #: Amounts of work at which the attempt has yet to report, in falling order, and when the next report is due.
    reports: list[float]
    reports_s: float = np.inf
    ends_s: float = np.inf
    alive: bool = True

    def done(self, now_s: float) -> float:
        """Work of the job done by `now_s`, over all attempts."""
        for since_s, done, rate in reversed(self.pieces):
            if since_s <= now_s:
                return done + rate * (now_s - since_s)
        return self.pieces[0][1]


@dataclass(slots=True)
class _Truth:
    """The true state of a job: work in its checkpoint, whether it ever worked, and its current attempt."""

    spec: JobSpec
    saved: float = 0.0
    ran: bool = False
    process: _Process | None = None


class World:
    """The simulated backend: performs launches and stops, and takes nodes away and back."""

    def __init__(
        self,
        table: JobTable,
        cluster: Cluster,
        restart_cost_s: float,
        faults: Faults | None,
        seed: int,
        truth: Throughputs | None = None,
    ) -> None:
        self._table, self._cluster = table, cluster
        #: True speeds; the engine may believe others.
        self._speeds = table.speeds if truth is None else Speeds(truth)
        #: Processes that work, by their GPUs.
        self._working: dict[tuple[int, ...], list[_Process]] = {}
        self._restart_cost_s = restart_cost_s
        self._faults = faults or Faults()
        self._rng = np.random.default_rng(seed)
        self._truth: dict[str, _Truth] = {}
        # Scheduled events, a heap: time, precedence, a counter that breaks ties, the event, the process
        # it depends on (if any), and whether it is a report that may still become late or doubled.
        self._coming: list[tuple[float, int, int, Event, _Process | None, bool]] = []
        self._counter = 0
        #: Estimated number of void entries of `_coming`, such as the ends of processes that were stopped.
        self._void = 0
        for node in cluster.nodes:
            self._lose_later(node, 0.0)

    def rates(self) -> NDArray[np.float64]:
        """True work per second of every job (rows) on its GPU count of each type (columns), at the narrowest span."""
        table = self._table
        if self._speeds is table.speeds:
            return table.rates[: len(table)].copy()
        rates = [self._speeds.rates(spec, table.gpu_types) for spec in table.specs]
        return np.array(rates).reshape(len(table), len(table.gpu_types))

    # ------------------------------------------------------- what comes next

    @property
    def next_s(self) -> float:
        """Time of the next scheduled event; infinite if there is none."""
        return self._coming[0][0] if self._coming else np.inf

    def pop(self, now_s: float) -> list[Event]:
        """All events up to `now_s`, in order of time and precedence."""
        events: list[Event] = []
        while self._coming and self._coming[0][0] <= now_s:
            at_s, _, _, event, process, fresh = heapq.heappop(self._coming)
            if process is not None and not _coming_true(event, process):
                continue
            if process is not None:
                event = self._happen(event, process, at_s)
            if isinstance(event, NodeLost | NodeJoined):
                self._change_node(event)
            if fresh and self._goes_astray(event):
                continue
            events.append(event)
        return events

    def _happen(self, event: Event, process: _Process, at_s: float) -> Event:
        """Update the process for its event, schedule its next report, and complete the event."""
        truth = self._truth[process.job]
        match event:
            case JobFinished() | LaunchFailed():
                process.alive, truth.process = False, None
                self._rest(process, at_s)
            case JobProgressed() if event.work_done > 0:
                del process.reports[-1]
                self._report_later(process)
            case JobStarted():
                truth.ran = True
                self._work(process, at_s)
            case JobProgressed():
                self._progress_later(process, at_s)
                done = process.done(at_s)
                return replace(event, work_done=done, loss=_loss(truth.spec, done))
        return event

    def _goes_astray(self, event: Event) -> bool:
        """Send a second copy of a report, or send this report later, by the faults; True if it is late."""
        faults = self._faults
        if faults.duplicated_reports and self._rng.random() < faults.duplicated_reports:
            self._resend(event)
        if faults.late_reports and self._rng.random() < faults.late_reports:
            self._resend(event)
            return True
        return False

    def _resend(self, event: Event) -> None:
        late = replace(event, at_s=event.at_s + self._rng.uniform(0.0, self._faults.late_s))
        self._push(late)

    def _push(self, event: Event, process: _Process | None = None, fresh: bool = False) -> None:
        self._counter += 1
        heapq.heappush(self._coming, (event.at_s, PRECEDENCE[type(event)], self._counter, event, process, fresh))

    def take_note_of(self, event: Event) -> None:
        """Take an operator's event about nodes: a new node joins, or the processes of a lost node die."""
        if isinstance(event, NodeJoined) and event.node.name not in self._cluster.node_numbers:
            self._cluster = self._cluster.with_node(event.node)
        if isinstance(event, NodeLost) and event.node in self._cluster.node_numbers:
            self._lose(event)

    # ---------------------------------------------------------- the commands

    def launch(self, row: int, launch: Launch, now_s: float) -> None:
        """Start the process of an attempt: it prepares or loads its checkpoint, and then works."""
        spec = self._table.specs[row]
        truth = self._truth.get(launch.job)
        if truth is None:
            truth = self._truth[launch.job] = _Truth(spec)
        assert truth.process is None, f"{launch} while attempt {truth.process} is not gone"
        works_from_s = now_s + self._load_s(truth)
        luck, reports = self._straggle(), _reports(launch, truth.saved)
        process = _Process(
            launch.job, row, launch.attempt, launch.gpu_ids, launch.span, works_from_s, luck, [], reports
        )
        process.pieces.append((works_from_s, truth.saved, self._rate(process, None)))
        truth.process = process
        if self._faults.launch_failures and self._rng.random() < self._faults.launch_failures:
            failed_s = now_s + self._faults.launch_failure_s
            self._push(LaunchFailed(failed_s, launch.job, launch.attempt, "injected"), process, fresh=True)
            return
        self._push(JobStarted(works_from_s, launch.job, launch.attempt), process, fresh=True)
        self._finish_later(process)
        self._report_later(process)
        self._progress_later(process, works_from_s)

    def _load_s(self, truth: _Truth) -> float:
        """Seconds from a launch to the first work."""
        if not truth.ran:
            return truth.spec.start_s or 0.0
        return self._restart_cost_s if truth.spec.restore_s is None else truth.spec.restore_s

    def _rate(self, process: _Process, neighbour: _Process | None) -> float:
        specs, gpu_type = self._table.specs, int(self._cluster.gpu_type[process.gpu_ids[0]])
        beside = specs[neighbour.row] if neighbour else None
        name, gpus = self._cluster.gpu_types[gpu_type], len(process.gpu_ids)
        return self._speeds.rate(specs[process.row], name, gpus, process.span, beside) * process.luck

    def _finish_later(self, process: _Process) -> None:
        """Schedule the end of a process at its current speed."""
        since_s, done, rate = process.pieces[-1]
        spec = self._table.specs[process.row]
        process.ends_s = since_s + max(0.0, spec.work - done) / rate + (spec.finish_s or 0.0)
        self._push(JobFinished(process.ends_s, process.job, process.attempt), process, fresh=True)

    def _report_later(self, process: _Process) -> None:
        """Schedule the next report of a process at its current speed."""
        if not process.reports:
            process.reports_s = np.inf
            return
        since_s, done, rate = process.pieces[-1]
        amount, spec = max(process.reports[-1], done), self._table.specs[process.row]
        process.reports_s = since_s + (amount - done) / rate
        report = JobProgressed(process.reports_s, process.job, process.attempt, amount, _loss(spec, amount))
        self._push(report, process, fresh=True)

    def _work(self, process: _Process, now_s: float) -> None:
        """A process begins to work; if another process works on the same GPUs, both change their speed."""
        here = self._working.setdefault(process.gpu_ids, [])
        for other in here:
            self._set_speed(process, other, now_s)
            self._set_speed(other, process, now_s)
        here.append(process)

    def _rest(self, process: _Process, now_s: float) -> None:
        """A process ends its work; a process that shared its GPUs has them alone from now on."""
        here = self._working.get(process.gpu_ids, [])
        if process not in here:
            return
        here.remove(process)
        for other in here:
            self._set_speed(other, None, now_s)
        if not here:
            del self._working[process.gpu_ids]

    def _leaving(self, process: _Process, now_s: float) -> bool:
        """Whether a process has done its work and is in its `finish_s`."""
        spec = self._table.specs[process.row]
        return bool(spec.finish_s) and process.done(now_s) >= spec.work

    def _done_before(self, heard_s: float, process: _Process, now_s: float) -> bool:
        """Whether a process has done its work before it hears of a stop."""
        return heard_s > now_s and process.done(heard_s) >= self._table.specs[process.row].work

    def _set_speed(self, process: _Process, neighbour: _Process | None, now_s: float) -> None:
        if self._leaving(process, now_s):
            return
        process.pieces.append((now_s, process.done(now_s), self._rate(process, neighbour)))
        self._finish_later(process)
        self._report_later(process)
        self._void += 2 if process.reports else 1

    def stop(self, stop: Stop, now_s: float) -> None:
        """Save and end the process of an attempt. Nothing happens if the process ends by itself: its report follows."""
        truth = self._truth.get(stop.job)
        process = truth.process if truth else None
        if truth is None or process is None or process.attempt != stop.attempt:
            return
        heard_s = now_s + (truth.spec.notice_s or 0.0)
        if process.alive and (self._leaving(process, now_s) or self._done_before(heard_s, process, now_s)):
            return
        save_s = 0.0
        if process.alive:
            if truth.spec.resumable:
                truth.saved = min(truth.spec.work, process.done(heard_s))
            save_s = max(truth.spec.checkpoint_s or 0.0, truth.spec.notice_s or 0.0)
        process.alive, truth.process = False, None
        self._rest(process, now_s)
        self._void += 1
        if self._void > max(_MANY, len(self._coming) // 2):
            self._sweep()
        self._push(JobStopped(now_s + save_s, stop.job, stop.attempt, truth.saved), fresh=True)

    def _sweep(self) -> None:
        """Remove void events: jobs that are preempted often would fill the memory with them."""
        self._coming = [entry for entry in self._coming if entry[4] is None or _coming_true(entry[3], entry[4])]
        heapq.heapify(self._coming)
        self._void = 0

    def _straggle(self) -> float:
        faults = self._faults
        if faults.stragglers and self._rng.random() < faults.stragglers:
            return float(self._rng.uniform(faults.straggler_speed, 1.0))
        return 1.0

    def _progress_later(self, process: _Process, now_s: float) -> None:
        every_s = self._faults.progress_every_s
        if every_s > 0:
            self._push(JobProgressed(now_s + every_s, process.job, process.attempt, 0.0), process, fresh=True)

    # -------------------------------------------------------------- the nodes

    def _change_node(self, event: NodeLost | NodeJoined) -> None:
        """A node is lost, with the processes on it, or returns."""
        if isinstance(event, NodeJoined):
            self._lose_later(event.node, event.at_s)
            return
        self._lose(event)
        away_s = self._rng.exponential(self._faults.node_repair_s)
        node = self._cluster.nodes[self._cluster.node_numbers[event.node]]
        self._push(NodeJoined(event.at_s + away_s, node))

    def _lose(self, event: NodeLost) -> None:
        """The processes on a node die; their jobs keep the work of their own last checkpoints."""
        number = self._cluster.node_numbers[event.node]
        here = range(int(self._cluster.first_gpu[number]), int(self._cluster.first_gpu[number + 1]))
        for truth in self._truth.values():
            process = truth.process
            if process is not None and process.alive and any(gpu in here for gpu in process.gpu_ids):
                process.alive = False
                truth.saved = self._saved(truth.spec, process, event.at_s)
                self._rest(process, event.at_s)

    def _saved(self, spec: JobSpec, process: _Process, now_s: float) -> float:
        """Work in the job's own last checkpoint when its process dies."""
        if not spec.resumable:
            return 0.0
        worked_s = max(0.0, now_s - process.works_from_s)
        if spec.checkpoint_every_s > 0:
            worked_s = floor(worked_s / spec.checkpoint_every_s) * spec.checkpoint_every_s
        return min(spec.work, process.done(process.works_from_s + worked_s))

    def _lose_later(self, node: Node, now_s: float) -> None:
        if self._faults.node_losses_per_day > 0:
            in_s = self._rng.exponential(_SECONDS_A_DAY / self._faults.node_losses_per_day)
            self._push(NodeLost(now_s + in_s, node.name))


def _coming_true(event: Event, process: _Process) -> bool:
    """Whether a scheduled event of a process is not void: the process is alive and the event was not rescheduled."""
    match event:
        case JobFinished():
            return process.alive and event.at_s == process.ends_s
        case JobProgressed() if event.work_done > 0:
            return process.alive and event.at_s == process.reports_s
    return process.alive


def _reports(launch: Launch, saved: float) -> list[float]:
    """Amounts of work to report, in falling order. A single report covers all amounts in the checkpoint."""
    if not launch.report_at:
        return []
    ahead = [amount for amount in reversed(launch.report_at) if amount > saved]
    return ahead if len(ahead) == len(launch.report_at) else [*ahead, saved]


def _loss(spec: JobSpec, work_done: float) -> float | None:
    return spec.loss.at(work_done) if spec.loss else None
