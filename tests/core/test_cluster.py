"""Machines: how GPUs are numbered, how far apart they lie, and clusters that cannot be."""

from __future__ import annotations

import pytest

from horae.core.cluster import MAX_GPU_TYPES, BadCluster, Cluster, Node, Span


def machines() -> Cluster:
    """GPUs 0 and 1 on the first node, 2 to 4 on the second in the same rack, 5 on a node in another rack."""
    return Cluster((Node("a", "v100", 2, "r0"), Node("b", "k80", 3, "r0"), Node("c", "v100", 1, "r1")))


def test_gpus_are_numbered_node_by_node() -> None:
    cluster = machines()
    assert cluster.first_gpu.tolist() == [0, 2, 5, 6]
    assert cluster.gpu_node.tolist() == [0, 0, 1, 1, 1, 2]
    assert (cluster.gpu_types, cluster.gpu_type.tolist()) == (("v100", "k80"), [0, 0, 1, 1, 1, 0])
    assert (cluster.gpus, cluster.gpus_by_type.tolist()) == (6, [3, 3])


@pytest.mark.parametrize(
    ("gpu_ids", "span"),
    [((1,), Span.GPU), ((0, 1), Span.NODE), ((2, 3, 4), Span.NODE), ((1, 2), Span.RACK), ((0, 5), Span.CLUSTER)],
)
def test_how_far_apart_gpus_lie(gpu_ids: tuple[int, ...], span: Span) -> None:
    assert machines().nodes_as_machines.span(gpu_ids) is span


def test_all_gpus_of_a_type_can_be_taken_for_one_machine() -> None:
    by_type = machines().types_as_machines
    assert (by_type.names, by_type.of_gpu.tolist()) == (("v100", "k80"), [0, 0, 1, 1, 1, 0])
    assert by_type.span((0, 5)) is Span.NODE


def test_one_more_node_leaves_the_numbers_of_the_others() -> None:
    larger = machines().with_node(Node("d", "a100", 2))
    assert larger.first_gpu.tolist()[:4] == machines().first_gpu.tolist()
    assert larger.gpu_types == ("v100", "k80", "a100")
    assert larger.node_numbers["d"] == 3


def test_a_cluster_may_have_no_nodes_yet() -> None:
    empty = Cluster(())
    assert (empty.gpus, empty.gpu_types, empty.gpu_labels(())) == (0, (), [])
    assert empty.with_node(Node("a", "v100", 2)).gpus_by_type.tolist() == [2]


def test_nodes_are_cut_into_racks() -> None:
    cluster = Cluster.of([("v100", 3, 1), ("k80", 2, 1)], nodes_per_rack=2)
    assert [node.rack for node in cluster.nodes] == ["rack-0", "rack-0", "rack-1", "rack-1", "rack-2"]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Cluster((Node("a", "v100", 1), Node("a", "v100", 1))), "'a' is used twice"),
        (lambda: Node("a", "v100", 0), "at least 1"),
        (lambda: Node("", "v100", 1), "a name and a GPU type"),
        (lambda: Cluster(tuple(Node(f"n{k}", f"t{k}", 1) for k in range(MAX_GPU_TYPES + 1))), "up to 62 GPU types"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(make, complaint: str) -> None:
    with pytest.raises(BadCluster, match=complaint):
        make()
