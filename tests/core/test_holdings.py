"""The holders as columns, after any course of moves. Tests core/holdings.py and core/gpu_moves.py."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.cluster import Node
from horae.core.gpu_ledger import GpuLedger
from horae.core.gpu_moves import FREE, IDLE, NOBODY
from horae.core.holdings import HolderColumns
from tests.builders import cluster


def gpus_of(holdings: HolderColumns, h: int) -> tuple[int, ...]:
    """The GPUs of a holder, as its columns say."""
    gpus, gpu = [], int(holdings.columns[3, h])
    while gpu >= 0:
        gpus.append(gpu)
        gpu = int(holdings.next_gpu[gpu])
    assert len(gpus) == holdings.columns[2, h], "the GPU count is that of the list"
    return tuple(gpus)


def agree(ledger: GpuLedger) -> None:
    """All that the ledger keeps up to date is what one would count now."""
    holdings = ledger.holdings
    listed = {}
    for h in range(holdings.count):
        for row in holdings.columns[:2, h].tolist():
            if row != NOBODY:
                listed[row] = gpus_of(holdings, h)
                assert holdings.of_row[row] == h
    assert listed == {row: tuple(sorted(gpu_ids)) for row, gpu_ids in ledger.held.items()}
    assert np.count_nonzero(holdings.of_row != NOBODY) == len(ledger.held)
    for h in range(holdings.count):
        first = gpus_of(holdings, h)[0]
        assert holdings.columns[:2, h].tolist() == ledger.holders[:, first].tolist()
    free = ledger.gpu_open & (ledger.holders[0] == NOBODY)
    idle = free & (ledger.occupants[0] == NOBODY)
    machines = ledger.cluster
    for column, gpus in ((FREE, free), (IDLE, idle)):
        by_node = np.bincount(machines.gpu_node[gpus], minlength=len(machines.nodes))
        by_type = np.bincount(machines.gpu_type[gpus], minlength=len(machines.gpu_types))
        assert (ledger.by_node[column].tolist(), ledger.by_type[column].tolist()) == (
            by_node.tolist(),
            by_type.tolist(),
        )


class Shuffle:
    """Does to a ledger what numbers say, as far as it is legal."""

    def __init__(self) -> None:
        self.ledger = GpuLedger(cluster("a:2x2,b:1x3"))

    def do(self, what: int, row: int, gpu: int) -> None:
        ledger = self.ledger
        free = [g for g in range(ledger.cluster.gpus) if ledger.gpu_open[g] and ledger.holders[0, g] == NOBODY]
        match what:
            case 0 if row not in ledger.held and len(free) > gpu % 3:
                ledger.hold(row, tuple(sorted(free[: gpu % 3 + 1], reverse=gpu % 2 == 0)))
            case 1 if row not in ledger.held and ledger.held:
                host = sorted(ledger.held)[gpu % len(ledger.held)]
                if ledger.holders[1, ledger.held[host][0]] == NOBODY:
                    ledger.hold(row, ledger.held[host])
            case 2:
                ledger.drop(row)
            case 3 if row in ledger.held and row not in ledger.occupied and ledger.vacant(row):
                ledger.occupy(row)
            case 4:
                ledger.vacate(row)
            case 5:
                self.node(gpu)

    def node(self, number: int) -> None:
        """Nodes are drained, come back smaller, and are new."""
        nodes = self.ledger.cluster.nodes
        node = nodes[number % len(nodes)]
        match number % 4:
            case 0:
                self.ledger.close(node.name, lost=False)
            case 1:
                self.ledger.join(Node(node.name, node.gpu_type, max(1, node.gpus - 1), node.rack))
            case 2:
                self.ledger.join(node)
            case 3 if len(nodes) < 6:
                self.ledger.join(Node(f"new-{len(nodes)}", "c" if number % 8 == 3 else "a", 2))


@given(deeds=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 70), st.integers(0, 11)), max_size=60))
@settings(max_examples=300, deadline=None)
def test_holders_and_free_gpus_are_kept_up_to_date_whatever_happens(deeds: list[tuple[int, int, int]]) -> None:
    shuffle = Shuffle()
    for what, row, gpu in deeds:
        shuffle.do(what, row if what else row % 7, gpu)
        agree(shuffle.ledger)
    again = GpuLedger(cluster("1x1"))
    again.restore(shuffle.ledger.contents())
    agree(again)


def test_the_last_holder_takes_the_number_of_one_that_left_with_its_guest() -> None:
    ledger = GpuLedger(cluster("1x6"))
    ledger.hold(0, (0,))
    ledger.hold(1, (3, 2))
    ledger.hold(2, (3, 2))
    ledger.drop(0)
    holdings = ledger.holdings
    assert (holdings.count, holdings.of_row[:3].tolist(), gpus_of(holdings, 0)) == (1, [-1, 0, 0], (2, 3))


def test_rows_beyond_all_that_ever_held_gpus_have_an_entry_when_they_are_asked_for() -> None:
    ledger = GpuLedger(cluster("1x2"))
    ledger.hold(100, (1,))
    ledger.cover(500)
    holdings = ledger.holdings
    assert (len(holdings.of_row) >= 500, holdings.of_row[100], holdings.of_row[499]) == (True, 0, NOBODY)
    assert holdings.first_gpu_of(np.array([100])).tolist() == [1]
    ledger.drop(100)
    assert holdings.of_row[100] == NOBODY
