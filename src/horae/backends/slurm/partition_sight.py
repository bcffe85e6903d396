"""The nodes of a partition as the service sees them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from horae.backends.protocol import Seen, Sight
from horae.backends.slurm.command_output import SlurmHost
from horae.backends.slurm.driver import seen_nodes
from horae.core.cluster import BadCluster


def sight_of(
    hosts: Mapping[str, SlurmHost], racks: Mapping[str, str], foreign: Mapping[str, Iterable[str]]
) -> tuple[Sight, str]:
    """The nodes that are not lost, and what is wrong, in sentences that name no job.

    A node on which jobs run that Horae does not order takes no new jobs: which GPUs they have is not known.
    """
    seen, misnamed = [], []
    for node in (node for host in hosts.values() for node in seen_nodes(host, racks.get(host.name, ""))):
        is_open = node.is_open and not foreign.get(node.name)
        try:
            shown = Seen(node.name, node.gpu_type, node.gpus, node.rack or "rack-0", is_open)
        except BadCluster:
            misnamed.append(node.name)
            continue
        if not node.is_lost:
            seen.append(shown)
    trouble = [f"Jobs that Horae does not order run on {', '.join(foreign)}: closed for new jobs."] * bool(foreign)
    trouble += [f"Cannot be used because of their names: {', '.join(misnamed)}."] * bool(misnamed)
    return Sight(tuple(seen)), " ".join(trouble)
