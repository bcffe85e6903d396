"""Why a job waits, or was given up, in words: the reason its last decision gave, with the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from horae.core.reasons import SENTENCES, Reason
from horae.core.standing import Standing


@dataclass(frozen=True)
class Explanation:
    """One dominant reason, the sentence for people, and the numbers it was made from."""

    job: str
    code: str
    sentence: str
    numbers: dict[str, float | str]


def explain(standing: Standing, job: str) -> Explanation:
    """Say why a job waits, or was given up; the numbers are those that the decision saw, not those of this moment."""
    row = standing.row(job)
    assert row is not None, f"there is no job {job!r}"
    explainer = Explainer(standing)
    return Explanation(job, standing.reason(row).code, explainer.sentence(row), explainer.numbers(row))


@dataclass(frozen=True)
class Explainer:
    """Explains many jobs of one standing: thousands wait for the same few reasons."""

    standing: Standing
    _told: dict[tuple[object, ...], str] = field(default_factory=dict)

    def sentence(self, row: int) -> str:
        """Why a job waits, for people."""
        at, column = self.standing, self._columns
        alike = (*(values[row] for values in column), at.retry_s.get(row), at.given_up.get(row))
        if alike not in self._told:
            self._told[alike] = SENTENCES[Reason(column[0][row])].format(**self.numbers(row))
        return self._told[alike]

    @cached_property
    def _columns(self) -> tuple[list[int], ...]:
        """Whatever sets what is told of one job apart from what is told of another."""
        return tuple(self.standing.columns[name].tolist() for name in ("reason", "types", "gpus_min", "queue"))

    def numbers(self, row: int) -> dict[str, float | str]:
        """What the sentences may speak of."""
        standing = self.standing
        cluster, evidence, column = standing.cluster, standing.evidence, standing.columns
        mask = int(column["types"][row])
        usable = [node for node in range(len(cluster.nodes)) if mask >> int(cluster.node_type[node]) & 1]
        free = evidence.node_free.tolist() if evidence else []
        seen = {node: free[node] for node in usable if node < len(free)}
        by_type: dict[int, int] = {}
        for node, count in seen.items():
            gpu_type = int(cluster.node_type[node])
            by_type[gpu_type] = by_type.get(gpu_type, 0) + count
        capacity = [int(count) for k, count in enumerate(standing.open_by_type) if mask >> k & 1]
        return {
            "gpus": int(column["gpus_min"][row]),
            "free": max(by_type.values(), default=0),
            "most": max(seen.values(), default=0),
            "capacity": max(capacity, default=0),
            "queue": standing.queue_paths[int(column["queue"][row])],
            "head": evidence.head if evidence else "",
            "retry_in_s": max(0.0, standing.retry_s.get(row, 0.0) - standing.now_s),
            "given_up": standing.given_up.get(row, ""),
        }
