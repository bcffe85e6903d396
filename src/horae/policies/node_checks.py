"""Whether jobs that ask for a number of nodes can have them: placement has to choose their nodes."""

from __future__ import annotations

from collections.abc import Iterable

from horae.core.counted import counted
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.policy import Policy


class NodesNotHonoured(UserError):
    """A job that asks for a number of nodes where nobody would heed that."""


def check_nodes(jobs: Iterable[JobSpec], name: str, policy: Policy, flat: bool) -> None:
    """Refuse jobs that ask for nodes if placement goes by the GPU count alone, or the policy chooses nodes itself."""
    job = next((job for job in jobs if job.nodes), None)
    if job is None:
        return
    asks = f"Job {job.id} asks for {counted(job.nodes, 'node')}, alike, and"
    if flat:
        raise NodesNotHonoured(
            f"{asks} the placement `anywhere` goes by the GPU count alone: use --placement best-effort or another, or "
            "leave nodes out."
        )
    if getattr(policy, "chooses_machines", False):
        raise NodesNotHonoured(
            f"{asks} the policy {name} chooses nodes itself and does not know that: use another policy, or leave nodes "
            "out."
        )
