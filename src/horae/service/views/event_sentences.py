"""Journal records as sentences: who preempted a job and why, where it was launched, how it ended.

Progress reports, node observations and retirements have no sentence: there are too many of them, or nothing
follows for the user.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from horae.backends.task import Task
from horae.core.bidding import Ask
from horae.core.cluster import host_of
from horae.core.commands import Decided, GivenUp, Launch, Placed, Stop, StopWhy
from horae.core.counted import counted, counted_or_no
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
    JobTimedOut,
    LaunchFailed,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    NumbersRaised,
    SettingsChanged,
)
from horae.core.limits import in_words
from horae.core.queues import Queue
from horae.core.reasons import RULES, Reason
from horae.core.status import ClusterStatus


@dataclass(frozen=True)
class EventSentence:
    """One thing that happened. `job` is empty if it concerns the cluster or an app."""

    kind: str
    job: str
    what: str
    #: The app, if the event concerns an app and no single job.
    app: str = ""


@dataclass(frozen=True)
class EventSentences:
    """Makes sentences from records, with the users, jobs and GPUs of a cluster status."""

    status: ClusterStatus
    tasks: Mapping[str, Task]

    def sentences_of(self, record: Event | Decided) -> Iterator[EventSentence]:
        """The sentences of a record, one for each thing that happened."""
        match record:
            case Decided():
                yield from self._decision(record)
            case JobProgressed() | NodeObserved() | JobsRetired() | NumbersRaised():
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
        | JobTimedOut
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
            case JobCancelled():
                return EventSentence("cancelled", record.job, f"Cancelled{_by_user(record.by)}.")
            case JobTimedOut():
                return EventSentence("timeout", record.job, "It has run for as long as it may (`max_duration`).")
            case JobHeld():
                return EventSentence("held", record.job, f"Held{_by_user(record.by)}.")
            case JobReleased():
                return EventSentence("released", record.job, f"Released{_by_user(record.by)}.")
            case JobStarted():
                up = f"has been up for {record.up_s:.1f} s" if record.up_s > 0 else "is up and works"
                return EventSentence("started", record.job, f"Attempt {record.attempt} {up}.")
            case LaunchFailed():
                why = f": {record.why.rstrip('.')}" if record.why else ""
                return EventSentence(
                    "launch-failed", record.job, f"Attempt {record.attempt} could not be started{why}."
                )
            case JobStopped():
                saved = f"{self._share(record.job, record.work_done)} is saved"
                if not record.work_done > 0:
                    saved = "nothing is saved, so the next one begins anew"
                return EventSentence("stopped", record.job, f"Attempt {record.attempt} has stopped; {saved}.")
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
        types = f" of type {' or '.join(spec.gpu_types)}" if spec.gpu_types else ""
        nodes = f" on {counted(spec.nodes, 'node')}, alike" if spec.nodes > 1 else " on one node" if spec.nodes else ""
        gpus = f"{counted(spec.gpus, 'GPU')}{types}{nodes}"
        return f"Submitted{_by_user(self._user(spec.id))} to queue {spec.queue}: {gpus}."

    # --------------------------------------------------------------- decisions

    def _decision(self, record: Decided) -> Iterator[EventSentence]:
        for given_up in record.given_up:
            yield _given_up(given_up)
        for app in record.unanswered:
            yield EventSentence("bid", "", f"App {app} did not bid in time: the built-in agent does.", app)
        for ask in record.asks:
            # Every decision repeats the offers that are still open.
            if ask.asked_s == record.at_s:
                yield _asked(ask)
        for stop in record.stops:
            yield EventSentence(stop.why.replace(" ", "-"), stop.job, self._stop(stop))
        for job in record.withdrawn:
            yield EventSentence("withdrawn", job, "The GPUs that were set aside for it are free for other jobs again.")
        for placed in record.placed:
            yield EventSentence("placed", placed.job, self._placed(placed))
        for launch in record.launches:
            yield EventSentence("launched", launch.job, self._launch(launch))

    def _stop(self, stop: Stop) -> str:
        """Why an attempt must stop, for which job, and by which rule."""
        begin = f"Attempt {stop.attempt} was told to stop: "
        match stop.why:
            case StopWhy.PREEMPTED:
                if stop.reason == Reason.OVER_QUOTA:
                    taker = self._for(stop.by, "goes first within the quota of their queue")
                    return f"{begin}preempted{taker or ', since its queue may have fewer GPUs now'}."
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
            case StopWhy.TIMEOUT:
                return f"{begin}it has reached its time limit."
            case StopWhy.PAUSED:
                return f"{begin}its app lets other trials go first."
            case _:
                assert_never(stop.why)

    def _for(self, job: str, why: str = "gets its GPUs") -> str:
        """The job for which another is stopped, its user, and why that one."""
        if not job:
            return ""
        user = self._user(job)
        return f" by job {job}{f' of {user}' if user else ''}, which {why}"

    def _placed(self, placed: Placed) -> str:
        if len(placed.gpu_ids) == 1:
            return f"{self._gpus(placed.gpu_ids)} is set aside for it; it starts when that GPU is free."
        return f"{self._gpus(placed.gpu_ids)} are set aside for it; it starts when the last of them is free."

    def _launch(self, launch: Launch) -> str:
        saved = f", from {self._share(launch.job, launch.work_done)} on" if launch.work_done > 0 else ""
        return f"Attempt {launch.attempt} is launched on {self._gpus(launch.gpu_ids)}{saved}."

    def _gpus(self, gpu_ids: tuple[int, ...]) -> str:
        known_gpus = [gpu for gpu in gpu_ids if gpu < self.status.cluster.gpus]
        return " and ".join(self.status.cluster.gpu_labels(known_gpus)) or counted(len(gpu_ids), "GPU")

    def _share(self, job: str, work_done: float) -> str:
        row = self.status.row(job)
        if row is None:
            return "some part of its work"
        share = work_done / self.status.spec(row).work if np.isfinite(work_done) else 0.0
        return f"{min(max(share, 0.0), 1.0):.0%} of its work"

    def _user(self, job: str) -> str:
        task = self.tasks.get(job)
        return task.user if task else ""


def _by_user(who: str) -> str:
    return f" by {who}" if who else ""


def _rule(stop: Stop) -> str:
    """The ordering rule by which the stopped job waits now; empty if it waits for another reason."""
    rule = RULES.get(Reason(stop.reason))
    return f" {rule}." if rule else ""


def _given_up(given_up: GivenUp) -> EventSentence:
    return EventSentence("given-up", given_up.job, f"Its app gave it up {given_up.why}.".replace("  ", " "))


def _signal(code: int) -> str:
    """The signal of an exit code above 128, as shells count."""
    try:
        return f" ({signal.Signals(code - 128).name})" if code > 128 else ""
    except ValueError:
        return ""


def _asked(ask: Ask) -> EventSentence:
    offered = sum(count for _, count, _ in ask.offer)
    on_offer = counted_or_no(offered, "GPU", "is", "are")
    what = f"App {ask.app} is asked for its bid in auction {ask.auction}: {on_offer} on offer."
    return EventSentence("offer", "", what, ask.app)


def _agent_news(record: AgentChanged | BidReceived) -> EventSentence:
    """The sentence of an event of an app's own agent."""
    if isinstance(record, AgentChanged):
        what = "bids for itself now" if record.present else "leaves bidding to the built-in agent"
        return EventSentence("agent", "", f"App {record.app} {what}{_by_user(record.by)}.", record.app)
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
                "node-joined", "", f"Node {node.host} takes jobs: {counted(node.gpus, 'GPU')} of type {node.gpu_type}."
            )
        case NodeLost():
            return EventSentence("node-lost", "", f"Node {host_of(record.node)} is gone, with whatever ran there.")
        case NodeDraining():
            closed = f" (closed by {record.by})" if record.by else ""
            more = "; those it runs are stopped" if record.evict else ""
            what = f"Node {host_of(record.node)} takes no new jobs{closed}{more}."
            return EventSentence("node-draining", "", what)
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
    parts += [f"The limits of {in_words(whom)} changed." for whom in record.limits]
    if record.unknown_queues is not None:
        parts.append(f"Queues that nobody configured: {record.unknown_queues}.")
    return " ".join(parts) or "Nothing was changed."


def _queue(queue: Queue) -> str:
    most = "no maximum" if queue.gpus_max is None else f"at most {queue.gpus_max}"
    least = f"at least {counted(queue.gpus_min, 'GPU')}"
    return f"Queue {queue.path} has weight {queue.weight:g}, rule {queue.rule}, {least}, {most}."
