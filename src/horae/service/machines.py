"""Hosts and engine nodes: what a backend sees, compared with what the engine has recorded. Pure.

A host is a machine under the name that people know. A node of the engine never grows or changes its GPU type, so a
host that comes back larger, or with other GPUs, becomes another node: `v1`, then `v1~2`. A host's node is its newest.

A node is closed by an operator of the service, or by the backend. Neither reopens what the other has closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from horae.backends.protocol import Seen, Sight
from horae.core.cluster import Cluster, Node
from horae.core.events import Event, NodeDraining, NodeJoined, NodeLost, NodeObserved
from horae.core.gpu_ledger import GpuLedger

#: `NodeDraining.by` of nodes that the backend has closed. No user can have this name.
BACKEND = "the backend"


@dataclass(frozen=True)
class NodeChanges:
    """Events by which the engine's nodes become what the backend sees."""

    events: tuple[Event, ...] = ()
    #: Whether a host's new node waits until the attempts on its old node are gone: both have the same GPUs.
    waiting: bool = False


def node_numbers(cluster: Cluster) -> dict[str, int]:
    """Number of each host's node."""
    return {node.host: number for number, node in enumerate(cluster.nodes)}


def changed_nodes(sight: Sight, ledger: GpuLedger, now_s: float) -> NodeChanges:
    """Nodes that are new, lost, back, smaller, larger, other machines, of other CPUs or memory, closed or reopened."""
    numbers, seen = node_numbers(ledger.cluster), {node.name: node for node in sight.nodes}
    lost = [ledger.cluster.nodes[k] for host, k in numbers.items() if ledger.node_up[k] and host not in seen]
    changes = [_changed_node(node, numbers.get(host), ledger, now_s) for host, node in seen.items()]
    events = [event for change in changes for event in change.events]
    return NodeChanges(
        (*(NodeLost(now_s, node.name) for node in lost), *events), any(change.waiting for change in changes)
    )


def engine_names(events: Sequence[Event], changes: Sequence[Event], cluster: Cluster) -> list[Event]:
    """Events of a backend, with the names that their hosts have in the engine after `changes`."""
    if not any(isinstance(event, NodeObserved) for event in events):
        return list(events)
    names = {node.host: node.name for node in cluster.nodes}
    names |= {event.node.host: event.node.name for event in changes if isinstance(event, NodeJoined)}
    return [
        replace(event, node=names.get(event.node, event.node)) if isinstance(event, NodeObserved) else event
        for event in events
    ]


def reopened(sight: Sight | None, ledger: GpuLedger, number: int, now_s: float) -> tuple[Event, ...]:
    """Events when an operator reopens a node: the backend may keep it closed."""
    node = ledger.nodes()[number]
    closed = any(seen.name == node.host and not seen.open for seen in sight.nodes) if sight else False
    return (NodeJoined(now_s, node), *([NodeDraining(now_s, node.name, by=BACKEND)] if closed else []))


def _changed_node(seen: Seen, number: int | None, ledger: GpuLedger, now_s: float) -> NodeChanges:
    """Events for a host that is there."""
    if number is None:
        return NodeChanges(_joined(seen, seen.as_node(seen.name), None, now_s))
    node, up = ledger.cluster.nodes[number], ledger.node_up[number]
    closed_by = ledger.closed_by.get(node.name)
    if seen.gpus > node.gpus or seen.gpu_type != node.gpu_type:
        lost = (NodeLost(now_s, node.name),) if up else ()
        if ledger.on_node(node.name):
            return NodeChanges(lost, waiting=True)
        return NodeChanges((*lost, *_joined(seen, seen.as_node(_next_name(node)), closed_by, now_s)))
    if not up or seen.gpus != ledger.node_gpus[number]:
        # The driver renumbers the remaining GPUs, so it is unknown which are gone: the node is lost and back.
        lost = (NodeLost(now_s, node.name),) if up and seen.gpus < ledger.node_gpus[number] else ()
        return NodeChanges((*lost, *_joined(seen, seen.as_node(node.name), closed_by, now_s)))
    if (seen.cpus, seen.memory_mb) != (node.cpus, node.memory_mb):
        return NodeChanges(_joined(seen, seen.as_node(node.name), closed_by, now_s))
    if closed_by == BACKEND and seen.open:
        return NodeChanges((NodeJoined(now_s, ledger.nodes()[number]),))
    if closed_by is None and not seen.open:
        return NodeChanges((NodeDraining(now_s, node.name, by=BACKEND),))
    return NodeChanges()


def _joined(seen: Seen, node: Node, closed_by: str | None, now_s: float) -> tuple[Event, ...]:
    """A node joins. It stays closed if an operator has closed it, or if the backend keeps it closed."""
    if closed_by is None or closed_by == BACKEND:
        closed_by = None if seen.open else BACKEND
    drained = [] if closed_by is None else [NodeDraining(now_s, node.name, by=closed_by)]
    return (NodeJoined(now_s, node), *drained)


def _next_name(node: Node) -> str:
    """Name of the next node of a host."""
    return f"{node.host}~{int(node.name.partition('~')[2] or 1) + 1}"
