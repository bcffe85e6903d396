"""Real processes under the service, on virtual GPUs: what plain jobs are charged, when gangs and placed jobs start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from horae.service.job_file import read_job
from horae.service.operations import Operations
from horae.service.roles import Caller, Role
from horae.service.server import ServeOptions, Server
from horae.service.views.views import ServiceViews
from tests.backends.real import end_all

ANN, ADMIN = Caller("ann", Role.USER), Caller("root", Role.ADMIN)
#: A job that says nothing, and ends as soon as it is stopped.
SLEEP = ["sleep", "60"]
#: Seconds for starts and stops of processes on a busy machine.
SLACK_S = 1.5


class Cluster:
    """A service with real processes on virtual GPUs."""

    def __init__(self, server: Server) -> None:
        self.server, self.operations = server, Operations(server.daemon)

    def submit(self, run: Any, count: int = 1, **said: Any) -> list[str]:
        jobs = [read_job({"run": run, "checkpoint": {"grace": "1s"}, **said}) for _ in range(count)]
        return list(self.operations.submit(ANN, jobs))

    @property
    def views(self) -> ServiceViews:
        """What people see now."""
        daemon = self.server.daemon
        return ServiceViews(daemon.status, daemon.tasks, self.server.store.epoch, daemon.clock())

    def job(self, name: str) -> dict[str, Any]:
        views = self.views
        return views.job(views.visible_row(ADMIN, name))

    def why(self, name: str) -> dict[str, Any]:
        views = self.views
        return views.why(ADMIN, views.visible_row(ADMIN, name))

    def reaches(self, name: str, *states: str, patience_s: float = 20.0) -> dict[str, Any]:
        """The job, once it is in one of these states."""
        wait(lambda: self.job(name)["state"] in states, f"{name} is in {states}", patience_s)
        return self.job(name)


def wait(look: Callable[[], Any], what: str, patience_s: float = 20.0) -> None:
    until_s = time.monotonic() + patience_s
    while not look():
        assert time.monotonic() < until_s, f"{what}: not within {patience_s} s"
        time.sleep(0.02)


def let_run(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    wait(lambda: time.monotonic() >= end_s, "time passes")


@contextmanager
def service(state: Path, **asked: Any) -> Iterator[Cluster]:
    server = Server(ServeOptions(state, **{"port": 0, "gpus": "v100:2", **asked}))
    try:
        yield Cluster(server)
        assert server.daemon.crashed is None
    finally:
        server.close()
        end_all(state)


# ------------------------------------------------- GPU time of jobs that do not report


@pytest.mark.parametrize("run", ["sleep 1.5", "sleep 1.5; exit 3"])
def test_a_plain_job_that_ends_at_once_has_had_its_gpus_since_its_start(run: str, tmp_path: Path) -> None:
    with service(tmp_path) as at:
        (name,) = at.submit(run, resources={"gpus": 2})
        ended = at.reaches(name, "finished", "failed")
    assert 3.0 <= ended["gpu_seconds"] <= 2 * (1.5 + SLACK_S)
    assert ended["ran_s"] == pytest.approx(ended["gpu_seconds"] / 2)


@pytest.mark.parametrize(("request_", "state"), [("cancel", "cancelled"), ("hold", "held")])
def test_a_plain_job_that_is_stopped_at_once_has_had_its_gpus_until_the_stop(
    request_: str, state: str, tmp_path: Path
) -> None:
    with service(tmp_path) as at:
        (name,) = at.submit("trap '' USR1; sleep 60", checkpoint={"grace": "1s"})
        wait(lambda: (at.server.state / "jobs" / name / "1" / "runner.json").exists(), "its process is there")
        let_run(1.5)
        at.operations.request(ANN, request_, [name])
        ended = at.reaches(name, state)
    assert 1.0 <= ended["gpu_seconds"] <= 1.5 + SLACK_S, "the grace period is not charged"


def test_a_plain_job_that_is_preempted_at_once_has_had_its_gpus_and_lost_its_work(tmp_path: Path) -> None:
    with service(tmp_path, gpus="v100:1", policy="srtf") as at:
        (long,) = at.submit(SLEEP, estimate={"duration": "1h"})
        at.reaches(long, "launching")
        let_run(1.5)
        (short,) = at.submit("sleep 0.2", estimate={"duration": "1s"})
        at.reaches(short, "finished")
        preempted = at.job(long)
        row = at.server.daemon.status.row(long)
        jobs = at.server.daemon.engine.jobs
        assert (jobs.lost_work[row] > 0, jobs.slice_s[row] > 2.0) == (True, True)
    assert preempted["preemptions"] == 1
    assert preempted["gpu_seconds"] >= 1.0


# ------------------------------------------------------------------ gangs and small jobs

RESERVE_S, SMALL_S = 2.0, 0.8


def free_gpus(views: ServiceViews, gpus: int) -> int:
    return gpus - sum(map(len, views.status.held.values()))


def why_of_gang(at: Cluster, gang: str, since_s: float) -> str:
    """What the gang is told, which is what is so in the same status; empty once it does not wait any more."""
    until_s = time.monotonic() + SLACK_S
    while True:
        views, waited_s = at.views, time.monotonic() - since_s
        row = views.visible_row(ADMIN, gang)
        if views.job(row)["state"] != "waiting":
            return ""
        told = views.why(ADMIN, row)
        if told["reason"] != "NotYetConsidered" and told["numbers"]["free"] == free_gpus(views, 8):
            break
        # A GPU came free, and the decision that gives it to a job is a moment away.
        assert time.monotonic() < until_s, told
        time.sleep(0.005)
    sentence = str(told["sentence"])
    assert (told["reason"], told["numbers"]["free"] < 8) == ("NoFreeGpus", True), told
    if "it has a reservation" in sentence:
        assert waited_s >= RESERVE_S - SLACK_S, told
    else:
        assert "jobs that fit pass it for " in sentence, told
        left_s = float(sentence.split("pass it for ")[1].split(" s more")[0])
        assert left_s == pytest.approx(max(0.0, RESERVE_S - waited_s), abs=SLACK_S), told
    return sentence


def test_by_default_a_gang_starts_as_soon_as_its_reservation_and_running_jobs_allow(tmp_path: Path) -> None:
    small, estimate = f"sleep {SMALL_S}", {"duration": "1s"}
    with service(tmp_path, gpus="v100:8", settings={"reserve": str(RESERVE_S)}) as at:
        assert at.server.daemon.status.policy == "fifo-backfill"
        stream = at.submit(small, 16, estimate=estimate)
        (gang,) = at.submit("sleep 0.2", resources={"gpus": 8}, estimate=estimate)
        since_s, told = time.monotonic(), []
        while sentence := why_of_gang(at, gang, since_s):
            told.append(sentence)
            assert time.monotonic() < since_s + 15, sentence
            waiting = sum(at.job(name)["state"] == "waiting" for name in stream[-16:])
            stream += at.submit(small, 8, estimate=estimate) if waiting < 8 else []
            time.sleep(0.03)
        waited_s = time.monotonic() - since_s
        assert any(at.job(name)["state"] == "waiting" for name in stream), "small jobs never ran out"
        at.operations.request(ANN, "cancel", [name for name in stream if at.job(name)["state"] == "waiting"])
        at.reaches(gang, "finished")
    reserved = ["it has a reservation" in sentence for sentence in told]
    assert reserved == sorted(reserved), "once it has a reservation, it keeps it"
    assert set(reserved) == {False, True}
    assert RESERVE_S - SLACK_S <= waited_s <= RESERVE_S + SMALL_S + SLACK_S, "who runs when the reservation begins ends"


# ------------------------------------------------------------------ GPUs that are being vacated


@pytest.mark.long
@pytest.mark.parametrize(
    "app", [{}, {"app": "tune"}, {"app": "tune", "app_scheduler": "halving:eta=2"}], ids=["jobs", "app", "halving"]
)
def test_a_job_for_which_gpus_are_vacated_starts_soon_on_others_that_come_free(
    app: dict[str, str], tmp_path: Path
) -> None:
    stubborn = "trap '' USR1 TERM; while true; do sleep 0.1; done"
    with service(tmp_path, policy="srtf") as at:
        (slow,) = at.submit(stubborn, estimate={"duration": "1h"}, checkpoint={"grace": "8s"}, **app)
        (other,) = at.submit("sleep 7.5", estimate={"duration": "20s"}, **app)
        # A job that says nothing counts as loading for five seconds, and keeps its GPUs until then.
        for name in (slow, other):
            at.reaches(name, "running")
        (placed,) = at.submit("sleep 0.2", estimate={"duration": "40s"}, **app)
        at.reaches(slow, "stopping")
        assert at.reaches(placed, "placed")["state"] == "placed"
        assert at.why(placed)["reason"] == "Vacating", at.why(placed)
        at.reaches(other, "finished")
        at.reaches(placed, "launching", "running", "finished", patience_s=2.0)
        assert at.job(slow)["state"] == "stopping", "the GPU that it was to have is still occupied"
        at.operations.request(ANN, "cancel", [slow])
