"""Parts of a real Ray die or hang under a gang on two nodes: nothing runs beside its successor, no step is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.backends.attempt_names import attempt_name
from horae.backends.attempt_round import ReconcilerSettings
from horae.backends.protocol import Place
from horae.backends.ray.dashboard import job_path
from horae.backends.reconcile import Reconciler
from horae.core.events import Event, JobStopped
from horae.testing.ray_cluster import MadeUpRayNode, RayCluster
from tests.backends.ray.rig import RayRig, needs_ray, opened, started
from tests.backends.real import bash, lives, start, text_of, until

pytestmark = needs_ray

#: Notes its process, and saves within its grace period.
_GANG = """
cd $HORAE_CHECKPOINT_DIR
echo $$ > pid-$RANK
trap 'sleep 1; echo "{\\"step\\": 50, \\"total\\": 100}" > saved.json; exit 75' USR1
echo up; sleep 60 & wait
"""
_PLACES = (Place("v1", (0, 1)), Place("v2", (0,)))


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    with started([MadeUpRayNode("v1", "v100"), MadeUpRayNode("v2", "v100")]) as cluster:
        yield cluster


class ImpatientRig(RayRig):
    """A service that believes in a death after 12 s of silence, not 90."""

    def _open(self) -> None:
        settings = ReconcilerSettings(look_every_s=0.2, ready_s=0.0, beat_limit_s=8.0, fence_s=12.0)
        self.backend = Reconciler(self.driver, self.state, settings=settings)

    def run_gang(self) -> list[int]:
        """Start a gang on both nodes; its processes once both are up."""
        self.backend.start(start(bash(_GANG), places=_PLACES, grace_s=10.0))
        logs = [self.backend.log("a-1", 1, piece) for piece in (0, 1)]
        until(lambda: all("up" in text_of(self.backend.log("a-1", 1, piece)) for piece in (0, 1)), f"for {logs}")
        saved = self.state / "jobs" / "a-1" / "checkpoint"
        return [int((saved / f"pid-{rank}").read_text()) for rank in (0, 1)]

    def ends(self, patience_s: float = 60.0) -> list[Event]:
        """What the backend tells until the attempt has ended."""
        told: list[Event] = []

        def ended() -> bool:
            told.extend(self.backend.watch(1.0))
            return any(isinstance(event, JobStopped) for event in told)

        until(ended, "for the end of the attempt", patience_s)
        return told


@pytest.fixture
def rig(ray: RayCluster) -> Iterator[ImpatientRig]:
    with opened(ray, ImpatientRig) as made:
        yield made
    for name in ("v1", "v2"):
        ray.start_node(name)
    ray.wait_for_nodes("v1", "v2")


def open_nodes(rig: ImpatientRig) -> list[str]:
    """Nodes that take jobs."""
    sight = rig.backend.sight()
    return [node.name for node in sight.nodes if node.open] if sight else []


def stopped(events: list[Event]) -> JobStopped:
    (end,) = [event for event in events if isinstance(event, JobStopped)]
    return end


def driver_of(ray: RayCluster) -> int:
    """The process of the gang's driver."""
    found = [
        pid for pid in ray.namespace.process_ids() if "drive" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    ]
    (pid,) = found
    return pid


def test_a_gang_whose_driver_is_killed_saves_and_ends_without_a_fence(rig: ImpatientRig) -> None:
    rig.run_gang()
    began_s = time.monotonic()
    os.kill(driver_of(rig.ray), signal.SIGKILL)
    assert stopped(rig.ends()).work_done == 50.0
    assert time.monotonic() - began_s < 8.0


def test_after_somebodys_stop_in_ray_the_job_has_its_grace_period(rig: ImpatientRig) -> None:
    rig.run_gang()
    rig.ray.dashboard.ask("POST", job_path(attempt_name(rig.service, "a-1", 1), "/stop"))
    assert stopped(rig.ends()).work_done == 50.0


def test_a_node_that_dies_ends_the_gang_and_comes_back(rig: ImpatientRig) -> None:
    pids = rig.run_gang()
    rig.ray.kill_node("v2")
    until(lambda: open_nodes(rig) == ["v1"], "for the loss")
    stopped(rig.ends())
    assert not any(map(lives, pids))
    rig.ray.start_node("v2")
    until(lambda: len(open_nodes(rig)) == 2, "for the return")


def test_on_a_node_that_hangs_a_piece_lives_and_its_attempt_with_it(rig: ImpatientRig) -> None:
    """Ray gives the node up after 6 s. The piece is told by its file, not by Ray, and says its last word itself."""
    pids = rig.run_gang()
    rig.ray.freeze("v2")
    try:
        until(lambda: open_nodes(rig) == ["v1"], "for the loss")
        told = rig.ends()
        assert not any(map(lives, pids)), "nothing may live when the attempt is told to have ended"
        assert stopped(told).work_done == 50.0
    finally:
        rig.ray.thaw("v2")
    until(lambda: rig.ray.process_of("raylet", "v2") is None, "for the raylet that was given up")


def test_work_of_others_closes_its_node_and_is_named(rig: ImpatientRig) -> None:
    node = f"node:{rig.ray.address_of('v1')}"
    script = (
        "import ray, time; ray.init(log_to_driver=False); trainer = type('Trainer', (), {'f': lambda self: 1}); "
        f"a = ray.remote(num_gpus=1, resources={{'{node}': 0.01}})(trainer).remote(); "
        "ray.get(a.f.remote()); time.sleep(60)"
    )
    rig.ray.dashboard.ask("POST", "/api/jobs/", {"entrypoint": f'python3 -c "{script}"', "submission_id": "theirs"})
    until(lambda: "Work of others runs on v1" in rig.backend.trouble, "for the stranger")
    (words,) = rig.driver.look().foreign["v1"]
    assert words.startswith("Ray actor Trainer of job")
    assert open_nodes(rig) == ["v2"]
