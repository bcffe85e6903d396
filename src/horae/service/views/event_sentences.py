"""What the journal says, in sentences for people: who preempted whom and why, what was launched where, how jobs ended.

Progress reports and what nodes are seen to run are left out: there are too many of the ones, and nothing to
do about the others. So is that jobs have left, which ended long ago.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from horae.backends.task import Task
from horae.core.bidding import Ask
from horae.core.commands import Decided, GivenUp, Launch, Placed, Stop, StopWhy
from horae.core.events import (
    AgentChanged,
    BidReceived,
    Event,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobProgressed,
    JobReleased,
    JobsRetired,
    JobStarted,
    JobStopped,
    JobSubmitted,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    SettingsChanged,
)
from horae.core.queues import Queue
from horae.core.reasons import RULES, Reason
from horae.core.status import ClusterStatus
from horae.service.daemon import TIME_LIMIT
from horae.service.gpu_locations import describe


@dataclass(frozen=True)
class EventSentence:
    """One thing that happened; `job` is empty where it concerns the cluster."""

    kind: str
    job: str
    what: str
    #: The app that it concerns, where that is no single job.
    app: str = ""


@dataclass(frozen=True)
class EventSentences:
    """Tells records, with the names that are known now."""

    standing: ClusterStatus
    tasks: Mapping[str, Task]

    def tell(self, record: Event | Decided) -> Iterator[EventSentence]:
        """What a record says, one sentence for each thing that happened."""
        match record:
            case Decided():
                yield from self._decision(record)
            case JobProgressed() | NodeObserved() | JobsRetired():
                pass
            case NodeJoined() | NodeLost() | NodeDraining() | SettingsChanged():
                yield _cluster_news(record)
            case AgentChanged() | BidReceived():
                yield _agent_news(record)
            case _:
                yield self._job_news(record)

    def _job_news(
        self,
        record: JobSubmitted
        | JobCancelled
        | JobHeld
        | JobReleased
        | JobStarted
        | LaunchFailed
        | JobStopped
        | JobFinished
        | JobFailed,
    ) -> EventSentence:
        match record:
            case JobSubmitted():
                return EventSentence("submitted", record.spec.id, self._submitted(record))
            case JobCancelled(by=by):
                what = "Cancelled: it ran for longer than it may." if by == TIME_LIMIT else f"Cancelled{_by(by)}."
                return EventSentence("cancelled", record.job, what)
            case JobHeld():
                return EventSentence("held", record.job, f"Held{_by(record.by)}.")
            case JobReleased():
                return EventSentence("released", record.job, f"Released{_by(record.by)}.")
            case JobStarted():
                return EventSentence("started", record.job, f"Attempt {record.attempt} is up and works.")
            case LaunchFailed():
                why = f": {record.why.rstrip('.')}" if record.why else ""
                return EventSentence(
                    "launch-failed", record.job, f"Attempt {record.attempt} could not be started{why}."
                )
            case JobStopped():
                held = self._share(record.job, record.work_done)
                return EventSentence("stopped", record.job, f"Attempt {record.attempt} has stopped; {held} is saved.")
            case JobFinished():
                return EventSentence("finished", record.job, f"Finished, in attempt {record.attempt}.")
            case JobFailed():
                what = f"Attempt {record.attempt} failed with exit code {record.exit_code}{_signal(record.exit_code)}"
                return EventSentence(
                    "failed", record.job, f"{what}; {self._share(record.job, record.work_done)} is saved."
                )
            case _:
                assert_never(record)

    def _submitted(self, record: JobSubmitted) -> str:
        spec = record.spec
        kinds = f" of type {' or '.join(spec.gpu_types)}" if spec.gpu_types else ""
        gpus = "1 GPU" if spec.gpus == 1 else f"{spec.gpus} GPUs"
        return f"Submitted{_by(self._user(spec.id))} to queue {spec.queue}: {gpus}{kinds}."

    # --------------------------------------------------------------- decisions

    def _decision(self, record: Decided) -> Iterator[EventSentence]:
        for given_up in record.given_up:
            yield _given_up(given_up)
        for app in record.unanswered:
            yield EventSentence("bid", "", f"App {app} did not bid in time: the built-in agent does.", app)
        for ask in record.asks:
            # One that is still open is repeated by every decision.
            if ask.asked_s == record.at_s:
                yield _asked(ask)
        for stop in record.stops:
            yield EventSentence(stop.why.replace(" ", "-"), stop.job, self._stop(stop))
        for job in record.withdrawn:
            yield EventSentence("withdrawn", job, "The GPUs that were set aside for it are not, any more.")
        for placed in record.placed:
            yield EventSentence("placed", placed.job, self._placed(placed))
        for launch in record.launches:
            yield EventSentence("launched", launch.job, self._launch(launch))

    def _stop(self, stop: Stop) -> str:
        """Why an attempt has to go, for whom, and the rule behind it."""
        begin = f"Attempt {stop.attempt} was told to stop: "
        match stop.why:
            case StopWhy.PREEMPTED:
                return f"{begin}preempted{self._for(stop.by)}.{_rule(stop)}"
            case StopWhy.MOVED:
                return f"{begin}it moves to other GPUs{self._for(stop.by)}."
            case StopWhy.HELD | StopWhy.CANCELLED:
                return f"{begin}the job was {stop.why}."
            case StopWhy.NODE_LOST:
                return f"{begin}a node it ran on is lost, or no longer runs it."
            case StopWhy.DRAINED:
                return f"{begin}its node is being drained."
            case StopWhy.STRAY:
                return f"{begin}it ran though it should not have."
            case StopWhy.GIVEN_UP:
                return f"{begin}its app gave the job up."
            case StopWhy.PAUSED:
                return f"{begin}its app lets other trials go first."
            case _:
                assert_never(stop.why)

    def _for(self, job: str) -> str:
        """The job that the GPUs go to, and whose it is."""
        if not job:
            return ""
        user = self._user(job)
        return f" by job {job}{f' of {user}' if user else ''}, which gets its GPUs"

    def _placed(self, placed: Placed) -> str:
        return f"{self._gpus(placed.gpu_ids)} are set aside for it; it starts when the last of them is free."

    def _launch(self, launch: Launch) -> str:
        saved = f", from {self._share(launch.job, launch.work_done)} on" if launch.work_done > 0 else ""
        return f"Attempt {launch.attempt} is launched on {self._gpus(launch.gpu_ids)}{saved}."

    def _gpus(self, gpu_ids: tuple[int, ...]) -> str:
        known = [gpu for gpu in gpu_ids if gpu < self.standing.cluster.gpus]
        return " and ".join(describe(self.standing.cluster, known)) or f"{len(gpu_ids)} GPUs"

    def _share(self, job: str, work_done: float) -> str:
        row = self.standing.row(job)
        if row is None:
            return "some part of its work"
        share = work_done / self.standing.spec(row).work if np.isfinite(work_done) else 0.0
        return f"{min(max(share, 0.0), 1.0):.0%} of its work"

    def _user(self, job: str) -> str:
        task = self.tasks.get(job)
        return task.user if task else ""


def _by(who: str) -> str:
    return f" by {who}" if who else ""


def _rule(stop: Stop) -> str:
    """The order by which the job waits after the decision that stopped it, if it waits by one."""
    rule = RULES.get(Reason(stop.reason))
    return f" {rule}." if rule else ""


def _given_up(one: GivenUp) -> EventSentence:
    return EventSentence("given-up", one.job, f"Its app gave it up {one.why}.".replace("  ", " "))


def _signal(code: int) -> str:
    """The signal behind an exit code above 128, as shells count."""
    try:
        return f" ({signal.Signals(code - 128).name})" if code > 128 else ""
    except ValueError:
        return ""


def _asked(ask: Ask) -> EventSentence:
    offered = sum(count for _, count, _ in ask.offer)
    what = f"App {ask.app} is asked for its bid in auction {ask.auction}: {offered} GPUs are on offer."
    return EventSentence("offer", "", what, ask.app)


def _agent_news(record: AgentChanged | BidReceived) -> EventSentence:
    """What apps' own agents do. It concerns no single job."""
    if isinstance(record, AgentChanged):
        what = "bids for itself now" if record.present else "leaves bidding to the built-in agent"
        return EventSentence("agent", "", f"App {record.app} {what}{_by(record.by)}.", record.app)
    answer = record.answer
    if answer.problem:
        what = f"App {answer.app} gave a bid that cannot be used: {answer.problem}"
    else:
        what = f"App {answer.app} bid for {len(answer.table)} bundles in auction {answer.auction}."
    return EventSentence("bid", "", what, answer.app)


def _cluster_news(record: NodeJoined | NodeLost | NodeDraining | SettingsChanged) -> EventSentence:
    match record:
        case NodeJoined(node=node):
            return EventSentence(
                "node-joined", "", f"Node {node.name} takes jobs: {node.gpus} GPUs of type {node.gpu_type}."
            )
        case NodeLost():
            return EventSentence("node-lost", "", f"Node {record.node} is gone, with whatever ran there.")
        case NodeDraining():
            more = "; those it runs are stopped" if record.evict else ""
            return EventSentence("node-draining", "", f"Node {record.node} takes no new jobs{more}.")
        case SettingsChanged():
            return EventSentence("settings", "", _settings(record))
        case _:
            assert_never(record)


def _settings(record: SettingsChanged) -> str:
    pairs = ", ".join(f"{key}={value}" for key, value in record.settings.items())
    parts = []
    if record.policy is not None:
        parts.append(f"The policy is now {record.policy}{f' with {pairs}' if pairs else ''}.")
    elif pairs:
        parts.append(f"The policy's settings changed: {pairs}.")
    parts += [_queue(queue) for queue in record.queues]
    return " ".join(parts) or "Nothing was changed."


def _queue(queue: Queue) -> str:
    most = "no maximum" if queue.gpus_max is None else f"at most {queue.gpus_max}"
    return f"Queue {queue.path} has weight {queue.weight:g}, rule {queue.rule}, at least {queue.gpus_min} GPUs, {most}."
