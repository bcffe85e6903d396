"""Why a job waits, or was given up, in words: the reason from the last decision, with the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from horae.core.commands import Evidence
from horae.core.compared_by import compared_values, comparison_in_words
from horae.core.counted import CountingFormatter, counted, counted_or_no
from horae.core.limits import NO_LIMITS, in_words, limits_up, users_limits
from horae.core.reasons import NO_NODE_YET, NODE_SENTENCES, RULES, SENTENCES, WAITS_FOR_GPUS, Reason
from horae.core.states import ENDED, ENDING, PLACED, STOPPING, WAITING, State
from horae.core.status import ClusterStatus

#: What a job does that does not wait, by its state.
_DOING = {
    State.WAITING: "is about to be looked at",
    State.PLACED: "is about to start",
    State.LAUNCHING: "is starting",
    State.RUNNING: "runs",
    State.STOPPING: "is being stopped, to run again later",
    State.HOLDING: "is being stopped, to be held",
    State.CANCELLING: "is being stopped, for good",
    State.HELD: "is held",
    State.FINISHED: "has finished",
    State.FAILED: "has failed",
    State.CANCELLED: "was cancelled",
    State.TIMING_OUT: "is being stopped, since it has reached its time limit",
    State.TIMEOUT: "was ended by its time limit",
}
#: A guarantee that lasts longer than this has no end: the job is not preemptible.
_FOR_EVER_S = 1e7
#: A quota or limit: its sentence's first words, what to wait for, whose it is, GPUs in use and their maximum.
_Quota = tuple[str, str, str, int, int]
_LARGER_QUOTA = "jobs of that queue to end, cancel one, or ask an admin for a larger quota"
_LARGER_LIMIT = "some of these jobs to end, cancel one, or ask an admin for a larger limit"
_NO_QUOTA: _Quota = ("A queue or user that has since got more GPUs had", _LARGER_LIMIT, "", 0, 0)
_NO_EVIDENCE = Evidence(0.0, np.empty(0, np.int64))


@dataclass(frozen=True)
class Explanation:
    """The reason code of a job, the sentence for people, and the numbers in it."""

    job: str
    code: str
    sentence: str
    numbers: dict[str, float | str]


def explain(status: ClusterStatus, job: str, now_s: float | None = None) -> Explanation:
    """Say why a job waits, or was given up.

    The numbers are those of the last decision, not those of this moment; only remaining times are counted from `now_s`.
    """
    row = status.row(job)
    assert row is not None, f"there is no job {job!r}"
    reason = status.reason(row)
    if now_s is None or now_s < status.now_s:
        now_s = status.now_s
    words = _Words(status, row, now_s)
    numbers = words.numbers(reason)
    template = NODE_SENTENCES.get(reason, SENTENCES[reason]) if "nodes" in numbers else SENTENCES[reason]
    if reason is Reason.NOT_YET_CONSIDERED and not status.cluster.nodes:
        template = NO_NODE_YET
    sentence = CountingFormatter().format(template, **numbers, **words.phrases(reason, numbers))
    more = words.nodes_asked(reason, numbers) + words.unsaved()
    return Explanation(job, reason.code, sentence[0].upper() + sentence[1:] + more, numbers)


class _Words:
    """The numbers and phrases that sentences about a job are made from."""

    def __init__(self, status: ClusterStatus, row: int, now_s: float) -> None:
        self._status, self._row, self._now_s = status, row, now_s
        self._evidence = status.evidence or _NO_EVIDENCE
        mask = int(status.columns["types"][row])
        self._types = [gpu_type for gpu_type in range(len(status.cluster.gpu_types)) if mask >> gpu_type & 1]

    def numbers(self, reason: Reason) -> dict[str, float | str]:
        """The numbers that go with a reason."""
        column, row, status = self._status.columns, self._row, self._status
        numbers: dict[str, float | str] = {
            "gpus": int(column["gpus_min"][row]),
            "free": max((int(self._free[gpu_type]) for gpu_type in self._types), default=0),
            "most": self._most_on_a_node(),
            "capacity": max((int(status.open_by_type[gpu_type]) for gpu_type in self._types), default=0),
            "holders": self._over_types(self._evidence.jobs_by_type),
            "taken": self._over_types(self._evidence.gpus_by_type),
            "queue": status.queue_paths[int(column["queue"][row])],
            "head": self._evidence.head,
            "retry_in_s": max(0.0, status.retry_s.get(row, 0.0) - self._now_s),
            "launch_failures": int(column["launch_failures"][row]),
            "failures": int(column["failures"][row]),
            "given_up": status.given_up.get(row, ""),
            "app": status.spec(row).app_id,
        }
        if int(column["nodes"][row]):
            numbers |= self._nodes()
        match reason:
            case Reason.OVER_QUOTA:
                numbers |= dict(zip(("full", "full_used", "full_max"), self._full_quota()[2:], strict=True))
            case Reason.LACKS_CPUS_OR_MEMORY:
                numbers |= self._room()
            case Reason.VACATING:
                numbers |= self._gpus_set_aside()
            case Reason.AT_RUNG:
                numbers["others"] = self._trials_not_at_rung()
            case Reason.BEHIND_EARLIER | Reason.BEHIND_TURN:
                numbers["ahead"] = self._jobs_ahead(reason)
            case Reason.AWAITING_BIDS:
                numbers |= self._auction()
            case Reason.LEASED | Reason.KEPT_FOR_OTHERS:
                numbers |= self._first_kept()
            case Reason.BEHIND_SHORTER | Reason.BEHIND_LESS_SERVED | Reason.BEHIND_QUEUE if self._evidence.measure:
                numbers |= {"theirs": self._mean_of_holders(), "its_own": self._own_value()}
            case _:
                pass
        return numbers

    def phrases(self, reason: Reason, numbers: Mapping[str, float | str]) -> dict[str, str]:
        """The parts of sentences that are more than a number."""
        number = {name: value for name, value in numbers.items() if isinstance(value, int)}
        holders, taken = self._over_types(self._evidence.jobs_by_type), self._over_types(self._evidence.gpus_by_type)
        loss = float(self._status.columns["loss"][self._row])
        full = self._full_quota() if "full" in numbers else _NO_QUOTA
        return {
            "job": self._status.spec(self._row).id,
            "rule": RULES.get(reason, ""),
            "doing": _DOING[self._status.state(self._row)],
            "mean": f"{taken / holders:.1f}" if holders else "0",
            "compared": self._compared(),
            "failed": self._failed(),
            "its_loss": f"its own is at {loss:.4g}" if isfinite(loss) else "it has reported no loss",
            "again": _in(", at the latest looked at in", self._evidence.again_s - self._now_s),
            "next_look": _in("; it is looked at again in", self._evidence.again_s - self._now_s, " at the latest"),
            "holders_have": counted_or_no(holders, "job", "has", "have"),
            "free_are": f"{number['free'] or 'none'} {'is' if number['free'] <= 1 else 'are'} free",
            "smaller": "with fewer GPUs or " if number["gpus"] > 1 else "",
            "ahead_wait": counted_or_no(number.get("ahead", 0), "job", "waits", "wait"),
            "chosen_are": counted_or_no(number.get("chosen", 0), "GPU", "is", "are"),
            "vacating": _vacating(number.get("occupied", 0), self._status.state(self._row) is STOPPING),
            "passing": self._passing(),
            "kept": self._kept(numbers),
            "full_whose": full[0],
            "full_wait": full[1],
            "room_asked": _room_in_words(number.get("cpus_per_gpu", 0), number.get("memory_mb_per_gpu", 0)),
            "room_left": _room_in_words(number.get("most_cpus", 0), number.get("most_memory_mb", 0), "nothing"),
            "fitting_have": counted_or_no(number.get("fitting_nodes", 0), "node", "has", "have"),
        }

    def nodes_asked(self, reason: Reason, numbers: Mapping[str, float | str]) -> str:
        """How many nodes a job asks for, and how many could take it now; empty if it waits for none."""
        if "nodes" not in numbers or reason not in WAITS_FOR_GPUS:
            return ""
        asked = "It asks for {nodes:node} with {each:GPU} each, and {fitting_have} so many free."
        return " " + CountingFormatter().format(asked, **numbers, **self.phrases(reason, numbers))

    def unsaved(self) -> str:
        """That a job which waits begins anew, and how long it then works at least; empty if it goes on."""
        slice_s = float(self._status.columns["slice_s"][self._row])
        if slice_s == 0 or self._status.state(self._row) not in (WAITING, PLACED):
            return ""
        return f" It saved nothing before it was preempted and begins anew, for at least {slice_s:.0f} s."

    @property
    def _free(self) -> list[int]:
        """Free GPUs of each type after the decision."""
        node_type = self._status.cluster.node_type[: len(self._evidence.node_free)]
        types = len(self._status.cluster.gpu_types)
        return [int(count) for count in np.bincount(node_type, self._evidence.node_free, types)]

    def _most_on_a_node(self) -> int:
        """The most free GPUs on one node, of types that the job can use."""
        free = self._evidence.node_free
        usable = np.isin(self._status.cluster.node_type[: len(free)], self._types)
        return int(free[usable].max(initial=0))

    def _nodes(self) -> dict[str, float | str]:
        """Nodes of one type, and GPUs on each, that a job asks for; how many have so many free, and in all."""
        status, free = self._status, self._evidence.node_free
        nodes = int(status.columns["nodes"][self._row])
        each = int(status.columns["gpus_min"][self._row]) // nodes
        there = zip(status.nodes, status.node_up, status.node_draining, strict=True)
        able = np.array([up and not draining and node.gpus >= each for node, up, draining in there], np.bool_)
        return {
            "nodes": nodes,
            "each": each,
            "fitting_nodes": self._most_of_one_type(free >= each),
            "able_nodes": self._most_of_one_type(able),
        }

    def _most_of_one_type(self, chosen: NDArray[np.bool_]) -> int:
        """How many nodes are chosen, of the type that the job can use and that has most of them."""
        node_type = self._status.cluster.node_type[: len(chosen)][chosen]
        counts = np.bincount(node_type, minlength=len(self._status.cluster.gpu_types))
        return max((int(counts[gpu_type]) for gpu_type in self._types), default=0)

    def _over_types(self, by_type: tuple[int, ...]) -> int:
        """Sum over the GPU types that the job can use."""
        return sum(by_type[gpu_type] for gpu_type in self._types if gpu_type < len(by_type))

    def _passing(self) -> str:
        """Whether jobs that fit may pass this one, and until when."""
        column, row, after_s = self._status.columns, self._row, self._evidence.reserve_after_s
        if self._evidence.head == self._status.spec(row).id:
            return "; it has a reservation, so jobs that fit pass it only if they end before it could start"
        if int(column["gpus_min"][row]) == 1 or after_s == 0:
            return ""
        if not isfinite(after_s):
            return "; jobs that fit pass it, and the setting `reserve` of the policy would end that"
        left_s = max(0.0, float(column["waiting_since_s"][row]) + after_s - self._now_s)
        return f"; jobs that fit pass it for {left_s:.0f} s more at most, then it can have a reservation"

    def _failed(self) -> str:
        """What failed: launches since the job last worked, or else the job itself."""
        launches, failures = (int(self._status.columns[name][self._row]) for name in ("launch_failures", "failures"))
        if launches:
            return f"Its launch has failed {counted(launches, 'time')} in a row"
        return f"It has failed {counted(failures, 'time')}"

    def _compared(self) -> str:
        compared_by = self._evidence.measure
        return comparison_in_words(compared_by, self._mean_of_holders(), self._own_value()) if compared_by else ""

    def _mean_of_holders(self) -> float:
        """Mean of what jobs are compared by, over the jobs that hold GPUs of a type that this job can use."""
        jobs = self._over_types(self._evidence.jobs_by_type)
        sums = self._evidence.measured_by_type
        return sum(sums[gpu_type] for gpu_type in self._types if gpu_type < len(sums)) / jobs if jobs else 0.0

    def _own_value(self) -> float:
        """What jobs are compared by, of this job."""
        return float(compared_values(self._evidence.measure, self._status.columns, np.array([self._row]))[0])

    def _full_quota(self) -> _Quota:
        """The limit that the job would exceed: of its queue or the nearest above it, else of its user or of all."""
        needs = int(self._status.columns["gpus_min"][self._row])
        quotas = [*self._queue_quotas(), *self._limits()]
        return next((quota for quota in quotas if quota[3] + needs > quota[4]), quotas[-1] if quotas else _NO_QUOTA)

    def _queue_quotas(self) -> Iterator[_Quota]:
        """The quotas of the job's queue and the queues above it that have one."""
        status, queue = self._status, int(self._status.columns["queue"][self._row])
        while queue >= 0:
            settings = status.queues.get(status.queue_paths[queue])
            used = self._evidence.queue_used[queue] if queue < len(self._evidence.queue_used) else 0
            if settings and settings.gpus_max is not None:
                yield f"Queue {settings.path} has", _LARGER_QUOTA, settings.path, used, settings.gpus_max
            queue = status.queue_parents[queue]

    def _limits(self) -> Iterator[_Quota]:
        """The same of the limits on the GPUs of the job's user, and of jobs that are never preempted."""
        status, spec = self._status, self._status.spec(self._row)
        if spec.exempt:
            return
        held = [(status.spec(row), len(gpus)) for row, gpus in status.held.items() if not status.spec(row).exempt]
        own = users_limits(status.limits, spec.user) if spec.user else NO_LIMITS
        if own.gpus is not None:
            used = sum(gpus for other, gpus in held if other.user == spec.user)
            yield f"User {spec.user} has", _LARGER_LIMIT, spec.user, used, own.gpus
        if not spec.keeps_gpus:
            return
        kept = [(other, gpus) for other, gpus in held if other.keeps_gpus]
        if own.non_preemptible_gpus is not None:
            used = sum(gpus for other, gpus in kept if other.user == spec.user)
            words = f"The non-preemptible jobs of user {spec.user} have"
            yield words, _LARGER_LIMIT, spec.user, used, own.non_preemptible_gpus
        for whom, limits in limits_up(status.limits, spec.queue):
            if limits.non_preemptible_gpus is not None:
                inside = whom.partition(":")[2]
                used = sum(gpus for other, gpus in kept if not inside or f"{other.queue}/".startswith(f"{inside}/"))
                words = f"The non-preemptible jobs of {in_words(whom)} have"
                yield words, _LARGER_LIMIT, inside, used, limits.non_preemptible_gpus

    def _room(self) -> dict[str, float | str]:
        """CPUs and memory that the job asks for with each GPU, and the most of each on a node with free GPUs.

        What the job leaves to its share, or what no node counts, is 0.
        """
        column, free = self._status.columns, self._evidence.node_free
        usable = np.isin(self._status.cluster.node_type[: len(free)], self._types) & (free > 0)
        asked = {name: int(column[name][self._row]) for name in ("cpus_per_gpu", "memory_mb_per_gpu")}
        left = {"most_cpus": self._evidence.node_cpus, "most_memory_mb": self._evidence.node_memory_mb}
        most = {
            name: int(np.array(by_node, np.int64)[usable[: len(by_node)]].max(initial=0))
            for name, by_node in left.items()
        }
        return {**asked, **most}

    def _auction(self) -> dict[str, float | str]:
        """GPUs on offer that the job can use, the number of bidders, and the seconds until the last deadline."""
        asks, types = self._status.asks, {self._status.cluster.gpu_types[gpu_type] for gpu_type in self._types}
        offered = sum(count for _, count, gpu_type in asks[0].offer if gpu_type in types) if asks else 0
        answer_in_s = max((ask.deadline_s - self._now_s for ask in asks), default=0.0)
        return {"offered": offered, "bidders": len(asks), "answer_in_s": max(0.0, answer_in_s)}

    def _first_kept(self) -> dict[str, float | str]:
        """The job that keeps GPUs which this one could use, though it does not go first, and for how many seconds more.

        Of several, the one that keeps them least long; without the seconds if it does so until it ends.
        """
        names, until_s = self._evidence.kept_by, self._evidence.kept_until_s
        kept = [(until_s[gpu_type], names[gpu_type]) for gpu_type in self._types if gpu_type < len(names)]
        end_s, name = min([(end_s, name) for end_s, name in kept if name], default=(np.inf, ""))
        if not name:
            end_s = self._evidence.unprotected_s
        left = {"kept_for_s": max(0.0, end_s - self._now_s)} if end_s - self._now_s < _FOR_EVER_S else {}
        return {**({"kept_by": name} if name else {}), **left}

    def _kept(self, numbers: Mapping[str, float | str]) -> str:
        """Which job keeps its GPUs first, and how long."""
        name, left_s = numbers.get("kept_by", ""), numbers.get("kept_for_s")
        if left_s is None:
            return f": job {name} keeps its own until it ends" if name else ""
        return f": {f'job {name} keeps its own' if name else 'the first of them does'} for at most {left_s:.0f} s more"

    def _gpus_set_aside(self) -> dict[str, float | str]:
        """GPUs that are set aside for the job, and how many of them are still occupied at this moment."""
        chosen = set(self._status.held.get(self._row, ()))
        occupied = chosen & {gpu for gpu_ids in self._status.occupied.values() for gpu in gpu_ids}
        return {"chosen": len(chosen), "occupied": len(occupied)}

    def _trials_not_at_rung(self) -> int:
        """Trials of the job's app that are alive and do not wait at a rung."""
        column, over = self._status.columns, [int(state) for state in (*ENDED, *ENDING)]
        alive = (column["app"] == column["app"][self._row]) & ~np.isin(column["state"], over)
        return int(np.count_nonzero(alive & (np.asarray(column["turn"], np.int64) >= 0)))

    def _jobs_ahead(self, reason: Reason) -> int:
        """Jobs that wait, were part of the decision, and go before this job."""
        column, row = self._status.columns, self._row
        states = [int(state) for state in (WAITING, PLACED, STOPPING)]
        left_out = [int(other) for other in (Reason.NOT_YET_CONSIDERED, Reason.BACKING_OFF, Reason.AT_RUNG)]
        waits = np.isin(column["state"], states) & ~np.isin(column["reason"], left_out)
        if reason is Reason.BEHIND_TURN:
            since_s = column["waiting_since_s"]
            earlier = (since_s < since_s[row]) | ((since_s == since_s[row]) & (np.arange(len(waits)) < row))
            return int(np.count_nonzero(waits & earlier))
        return int(np.count_nonzero(waits[:row]))


def _vacating(occupied: int, moves: bool) -> str:
    """What a job with GPUs set aside waits for: other jobs on them, or its own stop if it is moved to them."""
    if not occupied:
        return "; it starts when it has left its GPUs" if moves else "; it starts in a moment"
    are = "is" if occupied == 1 else "are"
    return f", and {occupied} of them {are} in use by jobs that save their work; it starts when they have"


def _room_in_words(cpus: int, memory_mb: int, nothing: str = "its share of CPUs and memory") -> str:
    """CPUs and memory, without those that are 0."""
    parts = [counted(cpus, "CPU")] if cpus else []
    parts += [f"{memory_mb:,} MiB"] if memory_mb else []
    return " and ".join(parts) or nothing


def _in(words: str, seconds: float, more: str = "") -> str:
    """A time from now on in words; empty if it has no end."""
    return f"{words} {max(0.0, seconds):.0f} s{more}" if seconds < _FOR_EVER_S else ""


assert set(_DOING) == set(State)
