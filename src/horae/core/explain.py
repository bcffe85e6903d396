"""Why a job waits, or was given up, in words: the reason its last decision gave, with the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np

from horae.core.commands import Evidence
from horae.core.compared_by import told, values
from horae.core.reasons import RULES, SENTENCES, Reason
from horae.core.states import ENDED, PLACED, STOPPING, WAITING, State
from horae.core.status import ClusterStatus

#: What a job does that does not wait.
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
}
#: Jobs that are not preemptible are guaranteed their GPUs for longer than this.
_FOR_EVER_S = 1e7
_NO_EVIDENCE = Evidence(0.0, np.empty(0, np.int64))


@dataclass(frozen=True)
class Explanation:
    """One dominant reason, the sentence for people, and the numbers it was made from."""

    job: str
    code: str
    sentence: str
    numbers: dict[str, float | str]


def explain(standing: ClusterStatus, job: str, now_s: float | None = None) -> Explanation:
    """Say why a job waits, or was given up.

    The numbers are those that the decision saw, not those of this moment; only how long something will still take is
    counted from now.
    """
    row = standing.row(job)
    assert row is not None, f"there is no job {job!r}"
    reason = standing.reason(row)
    if now_s is None or now_s < standing.now_s:
        now_s = standing.now_s
    words = _Words(standing, row, now_s)
    numbers = words.numbers(reason)
    return Explanation(job, reason.code, SENTENCES[reason].format(**numbers, **words.phrases(reason)), numbers)


class _Words:
    """What the sentences may speak of, for one job."""

    def __init__(self, standing: ClusterStatus, row: int, now_s: float) -> None:
        self._at, self._row, self._now_s = standing, row, now_s
        self._seen = standing.evidence or _NO_EVIDENCE
        mask = int(standing.columns["types"][row])
        self._types = [kind for kind in range(len(standing.cluster.gpu_types)) if mask >> kind & 1]

    def numbers(self, reason: Reason) -> dict[str, float | str]:
        """The numbers that go with a reason; those of free GPUs go with all."""
        column, row, at = self._at.columns, self._row, self._at
        numbers: dict[str, float | str] = {
            "gpus": int(column["gpus_min"][row]),
            "free": max((int(self._free[kind]) for kind in self._types), default=0),
            "most": self._most(),
            "capacity": max((int(at.open_by_type[kind]) for kind in self._types), default=0),
            "holders": self._sum(self._seen.jobs_by_type),
            "taken": self._sum(self._seen.gpus_by_type),
            "queue": at.queue_paths[int(column["queue"][row])],
            "head": self._seen.head,
            "retry_in_s": max(0.0, at.retry_s.get(row, 0.0) - self._now_s),
            "launch_failures": int(column["launch_failures"][row]),
            "failures": int(column["failures"][row]),
            "given_up": at.given_up.get(row, ""),
            "app": at.spec(row).app_id,
        }
        match reason:
            case Reason.OVER_QUOTA:
                numbers |= self._full_queue()
            case Reason.VACATING:
                numbers |= self._chosen()
            case Reason.AT_RUNG:
                numbers["others"] = self._others()
            case Reason.BEHIND_EARLIER | Reason.BEHIND_TURN:
                numbers["ahead"] = self._ahead(reason)
            case Reason.AWAITING_BIDS:
                numbers |= self._auction()
            case Reason.BEHIND_SHORTER | Reason.BEHIND_LESS_SERVED if self._seen.measure:
                numbers |= {"theirs": self._theirs(), "its_own": self._its_own()}
            case _:
                pass
        return numbers

    def phrases(self, reason: Reason) -> dict[str, str]:
        """The parts of sentences that are more than a number."""
        holders, taken = self._sum(self._seen.jobs_by_type), self._sum(self._seen.gpus_by_type)
        loss = float(self._at.columns["loss"][self._row])
        return {
            "job": self._at.spec(self._row).id,
            "rule": RULES.get(reason, ""),
            "doing": _DOING[self._at.state(self._row)],
            "mean": f"{taken / holders:.1f}" if holders else "0",
            "compared": self._compared(),
            "failed": self._failed(),
            "its_loss": f"its own is at {loss:.4g}" if isfinite(loss) else "it has reported no loss",
            "again": _in(", at the latest looked at in", self._seen.again_s - self._now_s),
            "until": _in(", the first of them for", self._seen.unprotected_s - self._now_s, " more"),
        }

    @property
    def _free(self) -> list[int]:
        """Free GPUs of each type when the decision was done."""
        node_type = self._at.cluster.node_type[: len(self._seen.node_free)]
        kinds = len(self._at.cluster.gpu_types)
        return [int(count) for count in np.bincount(node_type, self._seen.node_free, kinds)]

    def _most(self) -> int:
        """The most free GPUs of one node that the job could use."""
        free = self._seen.node_free
        usable = np.isin(self._at.cluster.node_type[: len(free)], self._types)
        return int(free[usable].max(initial=0))

    def _sum(self, by_type: tuple[int, ...]) -> int:
        return sum(by_type[kind] for kind in self._types if kind < len(by_type))

    def _failed(self) -> str:
        """What failed: the machine's launches of it since it last worked, or else the job itself."""
        launches, failures = (int(self._at.columns[name][self._row]) for name in ("launch_failures", "failures"))
        return f"Its launch has failed {launches} times in a row" if launches else f"It has failed {failures} times"

    def _compared(self) -> str:
        return told(self._seen.measure, self._theirs(), self._its_own()) if self._seen.measure else ""

    def _theirs(self) -> float:
        """The mean of what jobs are compared by, over those that have GPUs the job could use."""
        jobs = self._sum(self._seen.jobs_by_type)
        sums = self._seen.measured_by_type
        return sum(sums[kind] for kind in self._types if kind < len(sums)) / jobs if jobs else 0.0

    def _its_own(self) -> float:
        return float(values(self._seen.measure, self._at.columns, np.array([self._row]))[0])

    def _full_queue(self) -> dict[str, float | str]:
        """The queue that may not have so many GPUs more: its own, or the nearest above it."""
        at, needs = self._at, int(self._at.columns["gpus_min"][self._row])
        queue, tightest = int(at.columns["queue"][self._row]), ("", 0, 0)
        while queue >= 0:
            settings = at.queues.get(at.queue_paths[queue])
            used = self._seen.queue_used[queue] if queue < len(self._seen.queue_used) else 0
            if settings and settings.gpus_max is not None:
                tightest = (settings.path, used, settings.gpus_max)
                if used + needs > settings.gpus_max:
                    break
            queue = at.queue_parents[queue]
        return dict(zip(("full", "full_used", "full_max"), tightest, strict=True))

    def _auction(self) -> dict[str, float | str]:
        """What is offered to whom, and how long these may still take to answer."""
        asks, kinds = self._at.asks, {self._at.cluster.gpu_types[kind] for kind in self._types}
        offered = sum(count for _, count, kind in asks[0].offer if kind in kinds) if asks else 0
        answer_in_s = max((ask.deadline_s - self._now_s for ask in asks), default=0.0)
        return {"offered": offered, "bidders": len(asks), "answer_in_s": max(0.0, answer_in_s)}

    def _chosen(self) -> dict[str, float | str]:
        """GPUs that are set aside for it, and those of them that somebody still sits on, at this moment."""
        chosen = set(self._at.held.get(self._row, ()))
        return {"chosen": len(chosen), "occupied": len(chosen & {g for ids in self._at.occupied.values() for g in ids})}

    def _others(self) -> int:
        """Trials of its app that are alive and do not wait at a rung."""
        column, over = self._at.columns, [int(one) for one in (*ENDED, State.CANCELLING)]
        alive = (column["app"] == column["app"][self._row]) & ~np.isin(column["state"], over)
        return int(np.count_nonzero(alive & (np.asarray(column["turn"], np.int64) >= 0)))

    def _ahead(self, reason: Reason) -> int:
        """Jobs that wait, were looked at and go before it."""
        column, row = self._at.columns, self._row
        states = [int(one) for one in (WAITING, PLACED, STOPPING)]
        resting = [int(one) for one in (Reason.NOT_YET_CONSIDERED, Reason.BACKING_OFF, Reason.AT_RUNG)]
        waits = np.isin(column["state"], states) & ~np.isin(column["reason"], resting)
        if reason is Reason.BEHIND_TURN:
            since_s = column["waiting_since_s"]
            earlier = (since_s < since_s[row]) | ((since_s == since_s[row]) & (np.arange(len(waits)) < row))
            return int(np.count_nonzero(waits & earlier))
        return int(np.count_nonzero(waits[:row]))


def _in(words: str, seconds: float, more: str = "") -> str:
    """A time from now on in words, if it has an end that anybody would wait for."""
    return f"{words} {max(0.0, seconds):.0f} s{more}" if seconds < _FOR_EVER_S else ""


assert set(_DOING) == set(State)
