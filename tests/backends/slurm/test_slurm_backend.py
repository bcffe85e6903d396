"""The reconciler on a real Slurm of this machine: every promise of a backend. Tests backends/reconcile.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from horae.backends.attempt_round import ReconcilerSettings
from horae.backends.protocol import Place
from horae.backends.reconcile import Reconciler
from horae.backends.slurm.batch_job import SlurmSettings
from horae.backends.slurm.commands import SlurmCommands
from horae.backends.slurm.driver import SlurmDriver
from horae.core.events import Event, JobFinished, JobStarted
from horae.testing import BACKEND_CHECKS
from horae.testing.backend_contract import NODES
from horae.testing.slurm_cluster import PARTITION, MadeUpNode, SlurmCluster, why_not
from tests.backends.real import bash, start, text_of, until
from tests.contracts.backend_rigs import LocalRig
from tests.engine_folder import engine_folder

pytestmark = [pytest.mark.engine, pytest.mark.skipif(bool(why_not()), reason=f"needs Slurm: {why_not()}")]


class SlurmRig(LocalRig):
    """The same jobs, as Slurm jobs."""

    backend: Reconciler  # type: ignore[assignment]

    def __init__(self, state: Path, slurm: SlurmCluster) -> None:
        self.slurm = slurm
        super().__init__(state)

    def _open(self) -> None:
        driver = SlurmDriver(SlurmSettings("s1", PARTITION, self.state), SlurmCommands(self.slurm.environment))
        settings = ReconcilerSettings(look_every_s=0.2, ready_s=0.0)
        self.backend = Reconciler(driver, self.state, settings=settings)


@contextmanager
def opened(nodes: Sequence[MadeUpNode]) -> Iterator[SlurmRig]:
    with engine_folder("slurm") as folder, SlurmCluster(folder / "slurm", nodes) as slurm:
        made = SlurmRig(folder / "shared", slurm)
        yield made
        made.close()


@pytest.fixture
def rig() -> Iterator[SlurmRig]:
    with opened([MadeUpNode(node.name, node.gpu_type, node.rack, node.gpus) for node in NODES]) as made:
        yield made


def told(rig: SlurmRig, what: type[Event]) -> bool:
    """Whether the backend tells an event of a type now."""
    return any(isinstance(event, what) for event in rig.backend.watch(1.0))


@pytest.mark.parametrize("check", BACKEND_CHECKS.values(), ids=BACKEND_CHECKS)
def test_slurm_keeps_every_promise_of_a_backend(rig: SlurmRig, check: Callable[[SlurmRig], None]) -> None:
    check(rig)


def test_the_controller_dies_and_nobody_is_stopped(rig: SlurmRig) -> None:
    rig.start("runs")
    rig.up()
    rig.slurm.kill_controller()
    until(lambda: rig.backend.sight() is None, "for the silence")
    rig.reopen()
    until(lambda: "out of sight" in rig.backend.trouble, "for the trouble")
    rig.slurm.start_controller()
    rig.slurm.wait_for_nodes(*(node.name for node in NODES))
    until(lambda: told(rig, JobStarted), "for the start to be told again")
    assert rig.begun() == 1


def test_an_uneven_gang_on_two_nodes_has_ranks_by_node_and_gpus_of_slurms_choice() -> None:
    run = bash("echo $RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $(echo $CUDA_VISIBLE_DEVICES | tr , '\n' | wc -l)")
    with opened([MadeUpNode(name, "v100", "rack-0") for name in ("v1", "v2")]) as rig:
        rig.backend.start(start(run, places=(Place("v2", (1, 2)), Place("v1", (0,))), processes="gpu"))
        until(lambda: told(rig, JobFinished), "for the end")
        logs = [text_of(rig.backend.log("a-1", 1, piece)) for piece in (0, 1)]
    assert sorted(logs[0].splitlines()) == ["0/3 127.0.0.1:29017 2", "1/3 127.0.0.1:29017 2"]
    assert logs[1] == "2/3 127.0.0.1:29017 1\n"
