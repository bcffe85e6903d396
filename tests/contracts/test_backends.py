"""What every backend promises, checked on the fake one and on real processes; and what a service makes of it.

Tests backends/fake.py, backends/protocol.py and backends/task.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from horae.backends.fake import FakeBackend, FakeJob, FakeWorld
from horae.backends.protocol import Place, Seen, Start
from horae.backends.task import Task
from horae.core.cluster import Node
from horae.core.events import NodeObserved, NumbersRaised
from horae.policies import POLICIES
from horae.service.health import what_is_wrong
from horae.service.job_file import BadJobFile
from horae.service.operations import ClosedNode, SharedGpus
from horae.service.views.live_fairness import slowdowns_by_queue
from horae.testing import BACKEND_CHECKS, FakeRig, Rig, check_backend
from horae.testing.backend_contract import NODES
from tests.backends.job_accounts import needs_bubblewrap, needs_root
from tests.backends.real import end_all, task, until
from tests.contracts.backend_rigs import AccountRig, LocalRig, ReconcilerRig, SandboxRig
from tests.service.stepped_service import ADMIN, SteppedService


@pytest.fixture(
    params=[
        "fake",
        "local",
        pytest.param("local, in a sandbox", marks=[pytest.mark.long, needs_bubblewrap]),
        pytest.param("local, under accounts", marks=[pytest.mark.long, needs_root]),
        "fake behind the reconciler",
    ]
)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    rigs: dict[str, Callable[[], Rig]] = {
        "fake": FakeRig,
        "local": lambda: LocalRig(tmp_path / "state"),
        "local, in a sandbox": lambda: SandboxRig(tmp_path / "state"),
        "local, under accounts": lambda: AccountRig(tmp_path / "state"),
        "fake behind the reconciler": lambda: ReconcilerRig(tmp_path / "state"),
    }
    made = rigs[request.param]()
    yield made
    made.close()


@pytest.mark.parametrize("check", BACKEND_CHECKS.values(), ids=BACKEND_CHECKS)
def test_every_backend_keeps_every_promise(rig: Rig, check: Callable[[Rig], None]) -> None:
    check(rig)


def test_a_backend_that_breaks_a_promise_is_told_which() -> None:
    class Forgetful(FakeRig):
        def reopen(self) -> None:
            self.world = FakeWorld()
            self.backend = FakeBackend(NODES, self.world)

    with pytest.raises(AssertionError, match="an attempt is started once however often it is ordered"):
        check_backend(Forgetful)


def test_all_checks_run_one_after_the_other() -> None:
    check_backend(FakeRig)


# -------------------------------------------------------------- blind backends


def test_a_blind_backend_notes_what_to_do_and_tells_nothing_until_it_sees() -> None:
    rig = FakeRig()
    rig.start("runs")
    rig.backend.watch(0.0)
    rig.backend.blind = True
    rig.start("fails", "b-2")
    rig.backend.stop("a-1", 1)
    assert (rig.backend.sight(), rig.quiet(), rig.begun("b-2")) == (None, True, 0)
    assert rig.backend.trouble
    rig.backend.blind = False
    told = rig.events()
    assert [event.node for event in told if isinstance(event, NodeObserved)] == ["v100", "k80"], "all nodes again"
    assert (rig.begun("b-2"), rig.world.ends.keys(), rig.backend.trouble) == (1, {("a-1", 1)}, "")


def test_nobody_waits_10_ms_for_the_fake_backend_though_the_cluster_is_out_of_sight() -> None:
    rig = FakeRig()
    rig.backend.blind = True
    for call in (lambda: rig.start("runs"), lambda: rig.backend.watch(1.0), lambda: rig.backend.stop("a-1", 1)):
        begun_s = time.perf_counter()
        call()
        assert time.perf_counter() - begun_s < 0.01


def states(cell: SteppedService, jobs: list[str]) -> set[str]:
    return {cell.state(job) for job in jobs}


def test_a_restart_while_the_backend_is_blind_stops_nobody(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, gpus=4)
    cell.world.default = FakeJob(lasts_s=20.0)
    jobs = [cell.submit() for _ in range(4)]
    cell.to(2)
    cell.crash()
    cell.reopen(blind=True)
    cell.to(8)
    assert states(cell, jobs) == {"running"}
    assert what_is_wrong(cell.daemon) == "The cluster is out of sight."
    assert [node["state"] for node in cell.views().nodes()] == ["up"]
    cell.backend.blind = False
    cell.to(10)
    assert (states(cell, jobs), what_is_wrong(cell.daemon)) == ({"running"}, "")
    assert not any(run.stop_requested for run in cell.world.running.values())
    cell.to(40)
    assert states(cell, jobs) == {"finished"}
    assert cell.world.started == [(job, 1) for job in jobs]


def test_what_went_while_nobody_saw_it_runs_again(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path)
    cell.world.default = FakeJob(lasts_s=20.0)
    gone, ended = cell.submit(), cell.submit()
    cell.to(2)
    cell.backend.blind = True
    cell.to(4)
    cell.world.running.pop((gone, 1))
    cell.world.running[ended, 1].end_at_s = 5.0
    cell.to(10)
    assert states(cell, [gone, ended]) == {"running"}
    cell.backend.blind = False
    cell.to(12)
    assert (cell.state(gone), cell.state(ended)) == ("running", "finished")
    assert cell.world.started == [(gone, 1), (ended, 1), (gone, 2)]


def test_what_is_asked_for_while_the_backend_is_blind_is_done_later(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path)
    cell.world.default = FakeJob(lasts_s=20.0)
    runs = cell.submit()
    cell.backend.blind = True
    late = cell.submit()
    cell.ask(lambda: cell.operations.request(ADMIN, "cancel", [runs]))
    cell.crash()
    cell.reopen(blind=True)
    cell.to(3)
    assert (cell.state(runs), cell.state(late), cell.world.started) == ("cancelling", "launching", [(runs, 1)])
    cell.backend.blind = False
    cell.to(5)
    assert (cell.state(runs), cell.state(late), cell.world.started) == ("cancelled", "running", [(runs, 1), (late, 1)])


def test_attempts_that_the_journal_does_not_know_go_on_and_their_node_waits(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path, nodes=(Node("v1", "v100", 2),))
    ghost = Start("ghost-9", 3, Task("ghost-9", "ann", "ghost", ("true",), 1.0), "v100", (Place("v2", (0,)),))
    cell.backend.start(ghost)
    cell.to(1)
    assert list(cell.world.running) == [("ghost-9", 3)], "its node is not there"
    cell.backend.join(Node("v2", "v100", 2))
    cell.to(2)
    assert list(cell.world.running) == [("ghost-9", 3)], "nobody asked for its end"
    waits = cell.submit(resources={"gpus": 2})
    also = cell.submit(resources={"gpus": 2})
    cell.to(5)
    assert (cell.state(waits), cell.state(also)) == ("running", "waiting")
    cell.to(13)
    assert (cell.state(also), cell.daemon.orphans.attempts) == ("running", {})


def test_a_job_is_held_while_a_later_attempt_of_it_still_runs(tmp_path: Path) -> None:
    """The journal is older than the launch of its second attempt."""
    cell = SteppedService(tmp_path, nodes=(Node("v1", "v100", 2),))
    known = cell.submit(resources={"gpus": 2})
    cell.to(1)
    cell.crash()
    cell.reopen()
    cell.world.running.clear()
    cell.store.append([NumbersRaised(cell.now_s, 7, 5)])
    cell.crash()
    cell.reopen(blind=True)
    later = Start(known, 2, cell.daemon.tasks[known], "v100", (Place("v1", (0, 1)),))
    cell.backend.start(later)
    cell.backend.blind = False
    cell.to(3)
    assert list(cell.world.running) == [(known, 2)]
    assert cell.state(known) == "held"
    cell.to(20)
    assert cell.world.started[-1] == (known, 6), "numbers that may have been used are not given again"
    assert cell.submit() == "job-8"


# ------------------------------------------------------------- changing nodes


def node_of(cell: SteppedService) -> tuple[str, str, int, str]:
    """Name, GPU type, GPU count and state of the only node, as people see them."""
    (node,) = cell.views().nodes()
    return node["node"], node["gpu_type"], node["gpus"], node["state"]


@pytest.mark.parametrize("node", [Node("v100", "v100", 8), Node("v100", "h100", 2)], ids=["larger", "another type"])
@pytest.mark.parametrize("restarted", [True, False])
def test_a_machine_that_comes_back_as_another_takes_jobs(tmp_path: Path, node: Node, restarted: bool) -> None:
    cell = SteppedService(tmp_path, gpus=2)
    cell.world.default = FakeJob(lasts_s=30.0, stop_s=5.0)
    old = cell.submit(resources={"gpus": 2})
    cell.to(2)
    if restarted:
        cell.crash()
        cell.nodes = (node,)
        cell.reopen()
    else:
        cell.backend.join(node)
    cell.to(5)
    assert (node_of(cell)[3], list(cell.world.running)) == ("down", [(old, 1)]), "the old attempt still has the GPUs"
    cell.to(9)
    assert node_of(cell) == ("v100", node.gpu_type, node.gpus, "up")
    # A job that was submitted before there was an h100 cannot use it.
    assert (old, 2) in cell.world.started or cell.state(old) == "waiting"
    cell.to(50)
    new = cell.submit(resources={"gpus": node.gpus})
    cell.to(52)
    assert cell.state(new) == "running"
    (run,) = cell.world.running.values()
    assert [place.node for place in run.start.places] == ["v100"], "backends and people know the machine's own name"
    view = cell.views()
    assert view.job(view.visible_row(ADMIN, new))["on"] == [f"v100[{','.join(map(str, range(node.gpus)))}]"]
    with pytest.raises(BadJobFile, match=f"there are only {node.gpus}"):
        cell.submit(resources={"gpus": node.gpus + 1})
    cell.daemon._save_checkpoint()
    cell.crash()
    cell.nodes = (node,)
    cell.reopen()
    cell.to(100)
    assert cell.state(new) == "finished"
    assert len(cell.daemon.engine.gpus.cluster.nodes) == 2, "the machine is known by now"


def test_what_runs_on_a_machine_that_is_another_by_now_is_observed(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path)
    cell.world.default = FakeJob(lasts_s=20.0)
    cell.backend.join(Node("v100", "v100", 4))
    cell.to(1)
    stays, goes = cell.submit(), cell.submit()
    cell.to(2)
    cell.backend.blind = True
    cell.to(3)
    del cell.world.running[goes, 1]
    cell.backend.blind = False
    cell.to(5)
    assert cell.world.started == [(stays, 1), (goes, 1), (goes, 2)]


def test_an_operators_drain_survives_the_nodes_return(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path)
    node = Node("v100", "v100", 2)
    cell.ask(lambda: cell.operations.drain(ADMIN, "v100", evict=False))
    cell.backend.lose("v100")
    cell.to(1)
    assert node_of(cell)[3] == "down"
    cell.daemon._save_checkpoint()
    cell.crash()
    cell.nodes = ()
    cell.reopen()
    cell.backend.join(node)
    cell.to(2)
    job = cell.submit()
    assert (node_of(cell)[3], cell.state(job)) == ("draining", "waiting")
    cell.backend.join(Node("v100", "v100", 4))
    cell.to(3)
    assert node_of(cell) == ("v100", "v100", 4, "draining")
    cell.ask(lambda: cell.operations.resume(ADMIN, "v100"))
    cell.to(4)
    assert (node_of(cell)[3], cell.state(job)) == ("up", "running")


def test_a_node_that_the_backend_closes_keeps_its_jobs_and_takes_no_others(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path)
    node = Node("v100", "v100", 2)
    runs = cell.submit()
    cell.backend.join(node, is_open=False)
    cell.to(1)
    waits = cell.submit()
    assert (node_of(cell)[3], cell.state(runs), cell.state(waits)) == ("draining", "running", "waiting")
    with pytest.raises(ClosedNode, match="open it there"):
        cell.ask(lambda: cell.operations.resume(ADMIN, "v100"))
    cell.ask(lambda: cell.operations.drain(ADMIN, "v100", evict=False))
    cell.ask(lambda: cell.operations.resume(ADMIN, "v100"))
    cell.to(2)
    assert (node_of(cell)[3], cell.state(waits)) == ("draining", "waiting"), "the backend still keeps it closed"
    cell.backend.join(node)
    cell.to(3)
    assert (node_of(cell)[3], cell.state(runs), cell.state(waits)) == ("up", "running", "running")


def test_the_backend_does_not_reopen_what_an_operator_has_closed(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path)
    node = Node("v100", "v100", 2)
    cell.ask(lambda: cell.operations.drain(ADMIN, "v100", evict=False))
    for is_open in (False, True):
        cell.backend.join(node, is_open)
        cell.to(cell.now_s + 1)
    assert node_of(cell)[3] == "draining"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_service_may_begin_with_no_nodes_at_all(tmp_path: Path, policy: str) -> None:
    cell = SteppedService(tmp_path, policy, nodes=())
    cell.to(2)
    assert (cell.views().nodes(), cell.views().shares()[0]["entitled_gpus"]) == ([], 0)
    with pytest.raises(BadJobFile, match=r"No node was seen yet.*GPU of type v100: leave the type out"):
        cell.submit(resources={"gpus": "v100:1"})
    early = cell.submit()
    cell.ask(lambda: cell.operations.request(ADMIN, "cancel", [early]))
    assert slowdowns_by_queue(cell.daemon.status, cell.now_s) == {}
    jobs = [cell.submit(), cell.submit()]
    for job in jobs:
        told = cell.views().why(ADMIN, cell.views().visible_row(ADMIN, job))
        assert (told["reason"], cell.state(job)) == ("NotYetConsidered", "waiting")
        assert told["sentence"].startswith("No node of the cluster was seen yet")
    cell.daemon._save_checkpoint()
    cell.crash()
    cell.reopen()
    cell.to(3)
    cell.backend.join(Node("v1", "v100", 2))
    cell.to(60)
    assert [cell.state(job) for job in (*jobs, cell.submit())][:2] == ["finished", "finished"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_names_no_gpu_type_uses_types_that_come_later(tmp_path: Path, policy: str) -> None:
    cell = SteppedService(tmp_path, policy)
    cell.ask(lambda: cell.operations.drain(ADMIN, "v100", evict=False))
    anywhere, here = cell.submit(), cell.submit(resources={"gpus": "v100:1"})
    cell.to(2)
    cell.backend.join(Node("h1", "h100", 2))
    cell.to(30)
    assert (cell.state(anywhere), cell.state(here)) == ("finished", "waiting")


def test_policies_that_share_gpus_need_a_backend_that_can(tmp_path: Path) -> None:
    cell = SteppedService(tmp_path)
    cell.ask(lambda: cell.operations.configure(ADMIN, "gandiva", {}))
    cell.ask(lambda: cell.operations.configure(ADMIN, "fifo", {}))
    cell.backend.shares_gpus = False
    with pytest.raises(SharedGpus, match="gandiva lets two jobs share GPUs"):
        cell.ask(lambda: cell.operations.configure(ADMIN, "gandiva", {}))
    assert cell.daemon.status.policy == "fifo"


@pytest.mark.parametrize("node", [Node("v100", "v100", 8), Node("v100", "h100", 4)], ids=["larger", "another type"])
def test_real_jobs_run_on_a_machine_that_came_back_as_another(tmp_path: Path, node: Node) -> None:
    cell = SteppedService(tmp_path / "service", gpus=4, local=tmp_path / "state")
    try:
        cell.crash()
        cell.nodes = (node,)
        cell.reopen()
        assert cell.views().nodes()[0] | {"jobs": {}} == {
            **dict.fromkeys(("cpus", "memory_mb", "used_cpus", "used_memory_mb"), 0),
            "node": "v100",
            "gpu_type": node.gpu_type,
            "gpus": node.gpus,
            "used": 0,
            "state": "up",
            "rack": "rack-0",
            "jobs": {},
        }
        job = cell.submit(run="echo on $CUDA_VISIBLE_DEVICES", resources={"gpus": node.gpus})
        until(lambda: cell.daemon._cycle() or cell.state(job) == "finished", "for the job's end")
        assert cell.daemon.backend.log(job, 1).read_text().startswith("on")
    finally:
        cell.daemon.backend.close()
        end_all(tmp_path / "state")


def test_a_full_disk_is_trouble_of_the_local_backend_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = LocalRig(tmp_path / "state")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(rig.backend._folders, "remember", full)
            rig.backend.watch(0.0)
            rig.backend.stop("new-1", 1)
            until(lambda: rig.backend.watch(1.0) or rig.backend.trouble)
            assert rig.backend.trouble == "A job cannot be stopped: No space left on device."
        assert [event.job for event in until(lambda: rig.backend.watch(2.0))] == ["new-1"]
        assert rig.backend.trouble == ""
    finally:
        rig.close()


def test_a_sight_is_another_object_only_if_something_has_changed() -> None:
    backend = FakeBackend(NODES)
    before = backend.sight()
    backend.start(Start("a-1", 1, task(), "v100", (Place("v100", (0,)),)))
    backend.watch(1.0)
    assert backend.sight() is before
    backend.join(Node("v1", "v100", 1), is_open=False)
    sight = backend.sight()
    assert sight
    assert sight is not before
    assert sight.nodes[-1] == Seen("v1", "v100", 1, open=False)
