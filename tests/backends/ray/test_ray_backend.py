"""The reconciler on a real Ray of this machine: every promise of a backend, and what happens when parts of Ray die."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from horae.backends.protocol import Place
from horae.core.events import Event, JobFinished
from horae.testing import BACKEND_CHECKS
from horae.testing.backend_contract import NODES
from horae.testing.ray_cluster import MadeUpRayNode, RayCluster
from tests.backends.ray.rig import RayRig, needs_ray, opened, started
from tests.backends.real import bash, start, text_of, until

pytestmark = needs_ray


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    nodes = [MadeUpRayNode(node.name, node.gpu_type, node.gpus, rack=node.rack) for node in NODES]
    with started(nodes) as cluster:
        yield cluster


@pytest.fixture
def rig(ray: RayCluster) -> Iterator[RayRig]:
    with opened(ray, RayRig) as made:
        yield made


def told(rig: RayRig, what: type[Event]) -> bool:
    """Whether the backend tells an event of a type now."""
    return any(isinstance(event, what) for event in rig.backend.watch(1.0))


@pytest.mark.parametrize("check", BACKEND_CHECKS.values(), ids=BACKEND_CHECKS)
def test_ray_keeps_every_promise_of_a_backend(rig: RayRig, check: Callable[[RayRig], None]) -> None:
    check(rig)


def test_an_uneven_gang_on_two_nodes_has_ranks_by_node_and_gpus_of_rays_choice(rig: RayRig) -> None:
    run = bash("echo $RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $(echo $CUDA_VISIBLE_DEVICES | tr , '\n' | wc -l)")
    rig.backend.start(start(run, places=(Place("k80", (1, 2)), Place("v100", (0,))), processes="gpu"))
    until(lambda: told(rig, JobFinished), "for the end")
    logs = [text_of(rig.backend.log("a-1", 1, piece)) for piece in (0, 1)]
    master = f"{rig.ray.address_of('k80')}:29017"
    assert sorted(logs[0].splitlines()) == [f"0/3 {master} 2", f"1/3 {master} 2"]
    assert logs[1] == f"2/3 {master} 1\n"
