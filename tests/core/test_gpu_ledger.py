"""Who has which GPU, by plan and in fact."""

from __future__ import annotations

import pytest

from horae.core.cluster import Cluster, Node
from horae.core.gpu_ledger import GpuLedger
from horae.core.gpu_moves import NOBODY
from tests.builders import cluster


def ledger(spec: str = "2x2") -> GpuLedger:
    return GpuLedger(cluster(spec))


def test_two_jobs_share_all_their_gpus_or_none() -> None:
    gpus = ledger()
    gpus.hold(0, (0, 1))
    with pytest.raises(AssertionError, match=r"row 0 holds \(0, 1\), not all of \(1, 2\) as 1"):
        gpus.hold(1, (1, 2))
    gpus.hold(1, (0, 1))
    with pytest.raises(AssertionError, match="no seat for 2"):
        gpus.hold(2, (0, 1))


def test_whoever_is_left_on_shared_gpus_moves_up_to_the_first_seat() -> None:
    gpus = ledger()
    for row in (0, 1):
        gpus.hold(row, (0, 1))
        assert gpus.vacant(row), "those who hold GPUs together may sit there together"
        gpus.occupy(row)
    assert (gpus.companion(0), gpus.companion(1)) == (1, 0)
    gpus.vacate(0)
    assert (gpus.holders[:, 0].tolist(), gpus.companion(1)) == ([1, NOBODY], NOBODY)


def test_a_job_may_hold_gpus_that_another_still_sits_on_but_not_sit_there_too() -> None:
    gpus = ledger()
    gpus.hold(0, (0,))
    gpus.occupy(0)
    gpus.drop(0)
    gpus.hold(1, (0, 1))
    assert not gpus.vacant(1)
    with pytest.raises(AssertionError, match="somebody sits on the GPUs"):
        gpus.occupy(1)


def test_a_job_waits_until_the_one_it_is_to_share_with_has_left_its_old_gpus() -> None:
    gpus = ledger()
    gpus.hold(0, (0, 1))
    gpus.occupy(0)
    gpus.drop(0)
    for row in (0, 1):
        gpus.hold(row, (0, 2))
    assert not gpus.vacant(1), "the first is stopped, to come back, and still sits on GPU 0"
    gpus.vacate(0)
    assert gpus.vacant(1)
    gpus.occupy(0)
    assert gpus.vacant(1)


def test_a_job_that_leaves_takes_its_own_claim_along_and_no_other() -> None:
    gpus = ledger()
    gpus.hold(0, (0,))
    gpus.occupy(0)
    gpus.drop(0)
    gpus.hold(0, (2,))
    gpus.vacate(0)
    assert gpus.held == {0: (2,)}, "it was moved: the new GPUs stay its own"
    gpus.occupy(0)
    gpus.vacate(0)
    assert (gpus.held, gpus.occupied, set(gpus.holders.flat)) == ({}, {}, {NOBODY})


def test_a_closed_node_gives_no_gpus_until_it_joins_again() -> None:
    gpus = ledger()
    gpus.hold(7, (1,))
    assert gpus.close(gpus.cluster.nodes[0].name, lost=True) == [7]
    assert (gpus.gpu_open.tolist(), gpus.open_by_type.tolist()) == ([False, False, True, True], [2])
    gpus.join(gpus.cluster.nodes[0])
    assert gpus.gpu_open.all()


def test_a_new_node_is_numbered_behind_the_others() -> None:
    gpus = ledger("k80:1x2")
    gpus.join(Node("new", "v100", 3))
    assert (gpus.cluster.gpu_types, gpus.open_by_type.tolist(), gpus.holders.shape[1]) == (("k80", "v100"), [2, 3], 5)


def test_a_new_claim_on_the_same_gpus_outlives_the_attempt_that_sat_there() -> None:
    gpus = ledger()
    gpus.hold(0, (0, 1))
    gpus.occupy(0)
    gpus.drop(0)
    gpus.hold(0, tuple(range(2)))
    gpus.vacate(0)
    assert gpus.held == {0: (0, 1)}


@pytest.mark.parametrize("moves", [True, False])
def test_a_restored_ledger_knows_which_claims_are_new(moves: bool) -> None:
    gpus, copy = ledger(), ledger()
    gpus.hold(0, (0, 1))
    gpus.occupy(0)
    if moves:
        gpus.drop(0)
        gpus.hold(0, tuple(range(2)))
    copy.restore(gpus.contents())
    copy.vacate(0)
    assert copy.held == ({0: (0, 1)} if moves else {})
    assert copy.holders[0].tolist() == ([0, 0, NOBODY, NOBODY] if moves else [NOBODY] * 4)


def test_a_node_comes_back_with_as_many_gpus_or_fewer_but_not_with_more_or_others() -> None:
    gpus = ledger("v100:1x2")
    [node] = gpus.cluster.nodes
    assert gpus.join(node)
    assert not gpus.join(Node(node.name, "v100", 3))
    assert not gpus.join(Node(node.name, "k80", 2))
    assert gpus.join(Node(node.name, "v100", 1))
    assert (gpus.gpu_open.tolist(), gpus.nodes()[0].gpus) == ([True, False], 1)


def test_who_drained_a_node_is_kept_until_it_joins() -> None:
    gpus = ledger("v100:2x2")
    first, second = gpus.cluster.nodes
    gpus.close(first.name, lost=False, by="ann")
    gpus.close(first.name, lost=True)
    gpus.close(second.name, lost=True)
    copy = ledger("v100:2x2")
    copy.restore(gpus.contents())
    assert copy.closed_by == gpus.closed_by == {first.name: "ann"}
    copy.join(first)
    assert copy.closed_by == {}


def test_an_older_checkpoint_says_only_that_a_node_is_drained() -> None:
    gpus = ledger("v100:3x1")
    drained, lost, _ = gpus.cluster.nodes
    gpus.close(drained.name, lost=False, by="ann")
    gpus.close(lost.name, lost=True)
    contents = gpus.contents()
    del contents["closed_by"]
    gpus.restore(contents)
    assert gpus.closed_by == {drained.name: ""}


def test_a_ledger_may_begin_without_gpus() -> None:
    gpus = GpuLedger(Cluster(()))
    assert (gpus.gpu_open.tolist(), gpus.open_by_type.tolist()) == ([], [])
    assert gpus.join(Node("a", "v100", 2))
    gpus.hold(0, (0, 1))
    gpus.occupy(0)
    assert gpus.on_node("a") == [0]
