"""Larger and smaller clusters: exactly as many GPUs as asked for, whole nodes, the same mix."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.core.cluster import Cluster
from horae.core.errors import UserError
from horae.workload.cluster_sizes import resized
from horae.workload.clusters import parse_cluster


def mix(cluster: Cluster) -> Counter[tuple[str, int]]:
    return Counter((node.gpu_type, node.gpus) for node in cluster.nodes)


def test_the_same_size_is_the_same_cluster() -> None:
    cluster = parse_cluster("v100:3x4/2,k80:5x1")
    assert resized(cluster, 17) == cluster


@pytest.mark.parametrize(("gpus", "nodes"), [(64, (12, 6, 4)), (128, (24, 12, 8)), (512, (96, 48, 32))])
def test_halves_and_doubles_keep_the_mix_exactly(gpus: int, nodes: tuple[int, ...]) -> None:
    larger = resized(parse_cluster("48x4,24x2,16x1"), gpus)
    assert larger.gpus == gpus
    assert tuple(mix(larger).values()) == nodes


def test_racks_keep_their_size_and_a_cluster_of_one_rack_stays_in_it() -> None:
    in_racks = resized(parse_cluster("4x4/2"), 32)
    assert Counter(Counter(node.rack for node in in_racks.nodes).values()) == {2: 4}
    assert resized(parse_cluster("4x4"), 32).racks == ("rack-0",)
    assert len(resized(parse_cluster("4x4/2"), 8).racks) == 1


def test_types_grow_together() -> None:
    assert resized(parse_cluster("v100:36x1,p100:36x1,k80:36x1"), 100).gpus_by_type.tolist() in (
        [33, 33, 34], [33, 34, 33], [34, 33, 33],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "gpus", "told"),
    [
        ("15x4", 102, r"102 GPUs cannot .* choose 100 or 104\."),
        ("48x4,24x2,16x1", 6, r"\(4 x gpu, 2 x gpu, 1 x gpu\); choose 7\."),
        ("v100:2x8,k80:2x8", 8, r"choose 16\."),
        ("a:1x3,b:1x5", 9, r"choose 8 or 11\."),
        ("4x4", 4_000_000, r"at most 1,000,000"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(spec: str, gpus: int, told: str) -> None:
    with pytest.raises(UserError, match=told):
        resized(parse_cluster(spec), gpus)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3), st.integers(1, 40))
def test_no_whole_nodes_are_nearer_to_the_mix(groups: list[tuple[int, int]], gpus: int) -> None:
    cluster = Cluster.of([(f"t{k}", count, size) for k, (count, size) in enumerate(groups)])
    ideal = [count * gpus / cluster.gpus for count, _ in groups]
    ways = [
        sum((count - wish) ** 2 for count, wish in zip(counts, ideal, strict=True))
        for counts in product(*(range(1, gpus // size + 1) for _, size in groups))
        if sum(count * size for count, (_, size) in zip(counts, groups, strict=True)) == gpus
    ]
    if not ways:
        with pytest.raises(UserError, match="cannot be made"):
            resized(cluster, gpus)
        return
    found = list(mix(resized(cluster, gpus)).values())
    assert sum(n * size for n, (_, size) in zip(found, groups, strict=True)) == gpus
    assert sum((n - wish) ** 2 for n, wish in zip(found, ideal, strict=True)) == pytest.approx(min(ways))
