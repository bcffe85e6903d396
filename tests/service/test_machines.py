"""Hosts and the engine's nodes: whatever a backend sees and operators do, the engine follows."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.backends.protocol import Seen, Sight
from horae.core.cluster import BadCluster, Cluster, Node
from horae.core.events import Event, NodeDraining, NodeJoined, NodeLost, NodeObserved
from horae.core.gpu_ledger import GpuLedger
from horae.service.machines import BACKEND, changed_nodes, engine_names, node_numbers, reopened

V1 = Node("v1", "v100", 4)


@dataclass
class Hosts:
    """A ledger that follows what a backend sees."""

    ledger: GpuLedger = field(default_factory=lambda: GpuLedger(Cluster((V1,))))
    sight: Sight | None = None

    def see(self, *nodes: Seen) -> list[Event]:
        self.sight = Sight(nodes)
        return self.compare()

    def compare(self) -> list[Event]:
        assert self.sight
        events = list(changed_nodes(self.sight, self.ledger, 0.0).events)
        self.apply(*events)
        return events

    def apply(self, *events: Event) -> None:
        for event in events:
            if isinstance(event, NodeJoined):
                assert self.ledger.join(event.node), f"{event.node} is no node that the engine can have"
            elif isinstance(event, NodeLost):
                self.ledger.close(event.node, lost=True)
            elif isinstance(event, NodeDraining):
                assert not event.evict
                self.ledger.close(event.node, lost=False, by=event.by)

    def number(self, host: str = "v1") -> int:
        return node_numbers(self.ledger.cluster)[host]

    def drain(self, host: str = "v1") -> None:
        self.apply(NodeDraining(0.0, self.ledger.cluster.nodes[self.number(host)].name, by="ann"))

    def resume(self, host: str = "v1") -> None:
        self.apply(*reopened(self.sight, self.ledger, self.number(host), 0.0))

    def state(self, host: str = "v1") -> tuple[str, int, str | None]:
        """Name, GPU count, and who has closed a host's node; the name is empty if the node is lost."""
        number, ledger = self.number(host), self.ledger
        name, up = ledger.cluster.nodes[number].name, ledger.node_up[number]
        assert not up or ledger.node_draining[number] == (name in ledger.closed_by)
        return name if up else "", ledger.node_gpus[number], ledger.closed_by.get(name)


def test_what_is_as_it_was_changes_nothing() -> None:
    assert Hosts().see(Seen("v1", "v100", 4)) == []


def test_nodes_come_go_and_return() -> None:
    hosts = Hosts()
    assert hosts.see() == [NodeLost(0.0, "v1")]
    assert hosts.see(Seen("v2", "k80", 2)) == [NodeJoined(0.0, Node("v2", "k80", 2))]
    assert hosts.see(Seen("v1", "v100", 4)) == [NodeLost(0.0, "v2"), NodeJoined(0.0, V1)]


@pytest.mark.parametrize("seen", [Seen("v1", "v100", 8), Seen("v1", "h100", 2)])
def test_a_larger_machine_or_other_gpus_are_another_node(seen: Seen) -> None:
    hosts = Hosts()
    assert hosts.see(seen) == [NodeLost(0.0, "v1"), NodeJoined(0.0, seen.as_node("v1~2"))]
    assert hosts.state() == ("v1~2", seen.gpus, None)
    assert hosts.see(Seen("v1", "a100", 1)) == [NodeLost(0.0, "v1~2"), NodeJoined(0.0, Node("v1~3", "a100", 1))]


def test_a_smaller_machine_is_the_same_node_lost_and_back() -> None:
    hosts = Hosts()
    smaller = Node("v1", "v100", 1)
    assert hosts.see(Seen.of(smaller)) == [NodeLost(0.0, "v1"), NodeJoined(0.0, smaller)]
    assert hosts.see(Seen.of(V1)) == [NodeJoined(0.0, V1)]


def test_another_node_waits_until_the_old_one_is_empty() -> None:
    hosts = Hosts()
    hosts.ledger.hold(7, (0, 1))
    hosts.ledger.occupy(7)
    assert hosts.see(Seen("v1", "v100", 8)) == [NodeLost(0.0, "v1")]
    assert hosts.sight
    assert changed_nodes(hosts.sight, hosts.ledger, 0.0).waiting
    assert hosts.compare() == []
    hosts.ledger.vacate(7)
    assert hosts.compare() == [NodeJoined(0.0, Node("v1~2", "v100", 8))]


@pytest.mark.parametrize("back", [Seen("v1", "v100", 4), Seen("v1", "v100", 2), Seen("v1", "v100", 8)])
def test_what_an_operator_has_closed_stays_closed(back: Seen) -> None:
    hosts = Hosts()
    hosts.see(Seen("v1", "v100", 4))
    hosts.drain()
    hosts.see()
    hosts.see(back)
    assert hosts.state()[2] == "ann"
    hosts.see(Seen(back.name, back.gpu_type, back.gpus, open=False))
    hosts.see(back)
    assert hosts.state()[2] == "ann", "the backend does not reopen it"
    hosts.resume()
    assert hosts.state()[2] is None


def test_the_backend_reopens_only_what_it_has_closed() -> None:
    hosts = Hosts()
    assert hosts.see(Seen("v1", "v100", 4, open=False)) == [NodeDraining(0.0, "v1", by=BACKEND)]
    hosts.drain()
    hosts.resume()
    assert hosts.state()[2] == BACKEND, "an operator does not reopen what the backend keeps closed"
    assert hosts.see(Seen("v1", "v100", 4)) == [NodeJoined(0.0, V1)]
    assert hosts.state()[2] is None


def test_what_runs_on_a_host_is_told_of_its_node() -> None:
    cluster, joined = (
        Cluster((V1, Node("v1~2", "v100", 8), Node("v2", "v100", 4))),
        NodeJoined(0, Node("v2~2", "k80", 1)),
    )
    told = [NodeObserved(0.0, host, ()) for host in ("v1", "v2", "v3")]
    names = [event.node for event in engine_names(told, [joined], cluster) if isinstance(event, NodeObserved)]
    assert names == ["v1~2", "v2~2", "v3"]


@pytest.mark.parametrize(("name", "gpus"), [("v1~2", 4), ("", 4), ("v1", 0)])
def test_a_node_that_cannot_be_is_not_seen(name: str, gpus: int) -> None:
    with pytest.raises(BadCluster):
        Seen(name, "v100", gpus)


_SEEN = st.builds(
    Seen, st.sampled_from(["v1", "v2"]), st.sampled_from(["v100", "k80"]), st.integers(1, 3), open=st.booleans()
)
_STEP = st.one_of(
    st.lists(_SEEN, max_size=2, unique_by=lambda seen: seen.name).map(lambda seen: Sight(tuple(seen))),
    st.sampled_from(["drain v1", "resume v1", "drain v2", "resume v2"]),
)


@given(st.lists(_STEP, max_size=12))
def test_the_engine_follows_whatever_happens(steps: list[Sight | str]) -> None:
    hosts, drained = Hosts(), set[str]()
    for step in steps:
        if isinstance(step, Sight):
            hosts.see(*step.nodes)
        elif (host := step.split()[1]) in node_numbers(hosts.ledger.cluster) and hosts.state(host)[0]:
            (hosts.drain if step.startswith("drain") else hosts.resume)(host)
            drained = drained | {host} if step.startswith("drain") else drained - {host}
        assert not hosts.sight or hosts.compare() == [], "a second look finds nothing to do"
        for seen in hosts.sight.nodes if hosts.sight else ():
            name, gpus, closed_by = hosts.state(seen.name)
            node = hosts.ledger.cluster.nodes[hosts.number(seen.name)]
            assert (node.name, node.gpu_type, gpus) == (name, seen.gpu_type, seen.gpus)
            assert closed_by == ("ann" if seen.name in drained else None if seen.open else BACKEND)
        up = [node for node, there in zip(hosts.ledger.cluster.nodes, hosts.ledger.node_up, strict=True) if there]
        assert len(up) == len({node.host for node in up}), "a host has one node at a time"


def test_other_cpus_or_memory_are_the_same_node_joined_again_as_closed_as_it_was() -> None:
    hosts = Hosts()
    counted = Node("v1", "v100", 4, cpus=16, memory_mb=1000)
    assert hosts.see(Seen.of(counted)) == [NodeJoined(0.0, counted)]
    assert hosts.see(Seen.of(counted)) == []
    hosts.drain()
    fewer = Node("v1", "v100", 4, cpus=8, memory_mb=1000)
    assert hosts.see(Seen.of(fewer)) == [NodeJoined(0.0, fewer), NodeDraining(0.0, "v1", by="ann")]
    assert hosts.state() == ("v1", 4, "ann")
    assert hosts.ledger.nodes()[0] == fewer
