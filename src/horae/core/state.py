"""Everything the engine knows, declared once. Stored: change by addition.

A plain field is one line of `EngineState`; a part with a class of its own lists what it stores in that class
(`STORED`, or the columns of `JobTable`). Checkpoints, forks, retirement and comparison follow from these
declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Any, get_type_hints

import numpy as np

from horae.core.apps import AppBook
from horae.core.bidding import Bidding
from horae.core.cluster import Span
from horae.core.commands import Evidence, Launch, Stop, StopWhy
from horae.core.declared import Rows, Stored
from horae.core.evidence import EvidenceBasis, derive_evidence
from horae.core.gpu_ledger import GpuLedger
from horae.core.job_table import JobTable
from horae.core.memory import Memory, MemorySpec
from horae.core.queues import QueueTree, UnknownQueues
from horae.core.retired_jobs import RetiredJobs
from horae.core.speed_learning import SpeedLearner

#: Where a stored part stands: its name, below the name of the part that it belongs to.
Path = tuple[str, ...]


def part(start: Any, rows: Rows = Rows.NOTHING, stored: str = "") -> Any:
    """Declare a plain field: its first value (or what makes it), how it names rows, its stored name if another."""
    make = start if callable(start) else lambda: start
    return field(default_factory=make, metadata={"rows": rows, "stored": stored})


@dataclass(slots=True)
class EngineState:
    """Jobs, GPUs, queues and what is under way."""

    jobs: JobTable
    gpus: GpuLedger
    queues: QueueTree
    apps: AppBook
    bidding: Bidding
    learner: SpeedLearner
    #: What the policy remembers; made anew when another policy is chosen.
    memory: Memory = field(default_factory=lambda: Memory(MemorySpec(), 0))
    #: Of the last decision: what its reasons rest on, or what that can still be derived from.
    evidence: Evidence | None = None
    evidence_basis: EvidenceBasis | None = None

    now_s: float = part(0.0)
    #: When the next decision is due even if nothing happens.
    wake_s: float = part(np.inf)
    #: Name and settings of the policy.
    policy: tuple[str, dict[str, str]] = part(lambda: ("", {}))
    #: Rows with GPUs set aside that are not free yet, and the span they will have.
    pending: dict[int, Span] = part(dict, Rows.KEYS)
    #: Rows whose attempt must stop whatever the policy says.
    evicted: dict[int, StopWhy] = part(dict, Rows.KEYS)
    #: Attempts seen alive that should not be: (job, attempt).
    strays: list[tuple[str, int]] = part(list)
    #: Rows that failed, or whose launch did, and when to try again.
    backoff: dict[int, float] = part(dict, Rows.KEYS)
    #: The last command for each row that occupies GPUs.
    launched: dict[int, Launch] = part(dict, Rows.KEYS)
    stopped: dict[int, Stop] = part(dict, Rows.KEYS)
    #: Job numbers up to this one were used by jobs that the journal has lost.
    job_number_floor: int = part(0)
    #: Rows whose next attempt must have a number above this one: the journal lost attempts of theirs.
    attempt_floors: dict[int, int] = part(dict, Rows.KEYS)
    must_plan: bool = part(False)
    #: Whether the policy wants to be asked when a job begins to work.
    wake_on_start: bool = part(False, stored="heed_starts")
    #: Whether GPUs came free since the last decision.
    vacated: bool = part(False)
    #: What becomes of jobs for queues that nobody configured. Only the service reads it.
    unknown_queues: UnknownQueues = part(UnknownQueues.OPEN)
    #: Reports that came from an older attempt, or twice, and were ignored.
    dropped_reports: int = part(0)

    @property
    def unprotected_s(self) -> float:
        """When, by the last decision, the first job that blocks a wish loses its protection."""
        if self.evidence_basis is not None:
            return self.evidence_basis.unprotected_s if self.evidence_basis.some_wait else np.inf
        return self.evidence.unprotected_s if self.evidence is not None else np.inf

    def resolve_evidence(self) -> Evidence | None:
        """What the reasons of the last decision rest on; derived when it is first asked for."""
        if self.evidence_basis is not None:
            self.evidence = derive_evidence(self.evidence_basis, self.jobs, self.gpus, self.queues)
            self.evidence_basis = None
        return self.evidence

    def contents(self) -> dict[str, Any]:
        """Everything here, as plain values and columns: for checkpoints, retirement and comparison."""
        evidence = self.resolve_evidence()
        return {
            **{stored: copy(getattr(self, name)) for name, stored in _plain()},
            **self.jobs.contents(),
            **self.learner.contents(),
            **self.queues.contents(),
            "gpus": self.gpus.contents(),
            "past": self.jobs.past.contents(),
            "apps": self.apps.contents(),
            "talk": self.bidding.contents(),
            "memory": self.memory.contents(len(self.jobs)),
            "evidence": evidence and asdict(evidence),
        }

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Take over what `contents` gave, but for the policy's memory; a part that is missing stays as it is."""
        for name, stored in _plain():
            if stored in contents:
                setattr(self, name, copy(contents[stored]))
        self.queues.restore(contents)
        self.gpus.restore(contents["gpus"])
        self.learner.restore(contents)
        self.jobs.restore(self.gpus.cluster.gpu_types, contents["specs"], contents["jobs"], contents["active"])
        self.apps.restore(contents["apps"])
        if "past" in contents:
            self.jobs.past = RetiredJobs.restored(contents["past"])
        if "talk" in contents:
            self.bidding.restore(contents["talk"])
        self.evidence = Evidence(**contents["evidence"]) if contents.get("evidence") else None
        self.evidence_basis = None


@cache
def _plain() -> tuple[tuple[str, str], ...]:
    """Names of the plain fields, with their stored names."""
    return tuple(
        (entry.name, entry.metadata["stored"] or entry.name) for entry in fields(EngineState) if entry.metadata
    )


@cache
def declared() -> dict[Path, Stored]:
    """Every stored part by its path, but for columns of jobs (`job_table.COLUMNS`) and of the policy's memory."""
    hints, evidence = get_type_hints(EngineState), get_type_hints(Evidence)
    plain: dict[Path, Stored] = {
        (entry.metadata["stored"] or entry.name,): Stored(hints[entry.name], entry.metadata["rows"])
        for entry in fields(EngineState)
        if entry.metadata
    }
    return {
        **plain,
        **_below((), JobTable.STORED),
        **_below((), SpeedLearner.STORED),
        **_below((), QueueTree.STORED),
        **_below(("gpus",), GpuLedger.STORED),
        **_below(("past",), RetiredJobs.STORED),
        **_below(("apps",), AppBook.STORED),
        **_below(("talk",), Bidding.STORED),
        **_below(("memory",), Memory.STORED),
        **_below(("evidence",), {name: Stored(hint) for name, hint in evidence.items() if name != "node_free"}),
    }


def _below(path: Path, parts: Mapping[str, Stored]) -> dict[Path, Stored]:
    return {(*path, name): stored for name, stored in parts.items()}
