"""Who heeds a number of nodes, and what the others say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies import make_policy
from horae.policies.node_checks import NodesNotHonoured, check_nodes
from horae.policies.outside import BadPolicy
from horae.simulator.checks import CannotRun
from tests.builders import job, run, times

GANG = job("gang", gpus=4, nodes=2)


def test_placement_has_to_choose_the_nodes() -> None:
    fifo, themis = make_policy("fifo", {}), make_policy("themis", {})
    check_nodes([GANG], "fifo", fifo, flat=False)
    check_nodes([job("plain")], "themis", themis, flat=True)
    with pytest.raises(NodesNotHonoured, match="`anywhere` goes by the GPU count alone: use --placement best-effort"):
        check_nodes([job("plain"), GANG], "fifo", fifo, flat=True)
    with pytest.raises(NodesNotHonoured, match="Job gang asks for 2 nodes, alike, and the policy themis chooses"):
        check_nodes([GANG], "themis", themis, flat=False)


@pytest.mark.parametrize(("policy", "more"), [("themis", {}), ("fifo", {"placement": "anywhere"})])
def test_a_simulation_that_would_not_heed_them_is_refused(policy: str, more: dict[str, str]) -> None:
    with pytest.raises(NodesNotHonoured, match="gang asks for 2 nodes"):
        run([GANG], "2x4", policy, **more)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("1x8", "asks for 2 nodes of one type with 2 GPUs each, and there is only 1 with so many"),
        ("4x1", "and the largest node it could use has 1 GPU"),
        ("a:1x4,b:1x4", "and there is only 1 with so many"),
    ],
)
def test_a_simulated_cluster_without_such_nodes_is_told(spec: str, sentence: str) -> None:
    with pytest.raises(CannotRun, match=sentence):
        run([GANG], spec)


@dataclass(frozen=True)
class Pinning:
    """Pins every job to the first machines, as many GPUs on each as it is told."""

    each: int = 2
    memory: ClassVar = MemorySpec()

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """All jobs, the first one only if there is room for one."""
        places = dict.fromkeys(range(4 // self.each), self.each)
        return Wishes(now.rows[:1], pins=(places,) if len(now) else ())


def test_pins_of_another_shape_are_a_mistake_of_the_policy() -> None:
    assert times(run([GANG], "4x4", Pinning(2)))["gang"] == (0, 100)
    with pytest.raises(
        BadPolicy, match=r"pin job 'gang' to 4 GPUs, and it asks for 2 nodes, alike: pin 2 on each of 2"
    ):
        run([GANG], "4x4", Pinning(4))


@dataclass(frozen=True)
class Resizing:
    """Wishes for one GPU more, or for two jobs on the same GPUs."""

    pairs: bool = False
    memory: ClassVar = MemorySpec()

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """The first job with the second, or larger."""
        if self.pairs:
            return Wishes(now.rows[:1], partner=now.rows[1:2])
        return Wishes(now.rows, gpus_min=now.gpus + 1, gpus_max=np.asarray(now.gpus + 1))


def test_other_sizes_and_partners_are_mistakes_of_the_policy() -> None:
    with pytest.raises(BadPolicy, match="give job 'gang' another GPU count than 4, and it asks for 2 nodes"):
        run([GANG], "4x4", Resizing())
    with pytest.raises(BadPolicy, match="pair jobs that ask for a number of nodes, which never share GPUs"):
        run([GANG, job("other", gpus=4, nodes=2)], "4x4", Resizing(pairs=True))
