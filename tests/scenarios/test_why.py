"""`horae why` is right: for every reason a scenario, through the service, in which it is the true one.

Each counts for itself what stands in the way (GPUs by what really runs, not by what the engine believes), then takes
it out of the way and sees the job start.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.backends.fake import FakeJob
from horae.core.cluster import Node
from horae.core.events import JobFailed, JobFinished, SettingsChanged
from horae.core.explain import explain
from horae.core.queues import Queue
from horae.core.reasons import RULES, SENTENCES, Reason
from horae.core.states import STATES, WAITING, State
from horae.service.job_file import read_job
from horae.service.views.views import Filters
from tests.builders import Cell
from tests.builders import job as spec
from tests.service.stepped_service import ADMIN, ANN, SteppedService

FOR_EVER = FakeJob()
TWO_NODES = (Node("n0", "v100", 2), Node("n1", "v100", 2))
ROOT = Path(__file__).parents[2]

Scenario = Callable[[Path], None]
SCENARIOS: dict[Reason, Scenario] = {}


def where(reason: Reason) -> Callable[[Scenario], Scenario]:
    """The scenario in which a reason is the true one."""

    def add(scenario: Scenario) -> Scenario:
        SCENARIOS[reason] = scenario
        return scenario

    return add


def cell(folder: Path, policy: str, **more: Any) -> SteppedService:
    """A service whose jobs run until they are cancelled."""
    made = SteppedService(folder, policy, **more)
    made.world.default = FOR_EVER
    return made


def job(at: SteppedService, name: str = "job", gpus: int = 1, steps: int = 0, **said: Any) -> str:
    """Submit a job; with `steps`, one that does a step a second."""
    estimate = {"estimate": {"steps": steps, "throughput": {"v100": 1.0}}} if steps else {}
    return at.submit(name=name, resources={"gpus": gpus}, **estimate, **said)


def together(at: SteppedService, *said: dict[str, Any]) -> list[str]:
    """Submit jobs at once, so that one decision looks at all of them."""
    ids: list[str] = []
    jobs = [read_job({"run": ["true"], **one}) for one in said]
    at.ask(lambda: ids.extend(at.operations.submit(ANN, jobs)))
    return ids


def why(at: SteppedService, name: str, code: str) -> dict[str, Any]:
    """What a job is told, which must be this code."""
    views = at.views()
    told = views.why(ADMIN, views.visible_row(ADMIN, name))
    assert told["reason"] == code, told
    assert told["sentence"].endswith(".")
    # What lists show is the same.
    shown, _ = views.jobs(ADMIN, Filters(states=tuple(State), limit=0, fields=("id", "why")))
    assert next(record["why"] for record in shown if record["id"] == name) in ("", told["sentence"])
    return told


def free(at: SteppedService) -> dict[str, int]:
    """GPUs of each node that takes jobs on which nothing runs, by what really runs."""
    closed = {node["node"] for node in at.views().nodes() if node["state"] != "up"}
    left = {node.name: node.gpus for node in at.nodes if node.name not in closed}
    for life in at.world.running.values():
        for place in life.start.places:
            if place.node in left:
                left[place.node] -= len(place.gpus)
    return left


def cancel(at: SteppedService, *names: str) -> None:
    """Have jobs cancelled, and wait until they are gone."""
    at.ask(lambda: at.operations.request(ADMIN, "cancel", list(names)))
    at.to(at.now_s + 1)


def starts(at: SteppedService, name: str) -> bool:
    """Whether a job runs now."""
    return at.state(name) in ("launching", "running")


@pytest.mark.parametrize("reason", Reason)
def test_there_is_a_scenario_in_which_it_is_the_true_one(reason: Reason, tmp_path: Path) -> None:
    assert reason in SCENARIOS, f"{reason.name} is told to users, and no test shows that it can be true"
    SCENARIOS[reason](tmp_path)


# ------------------------------------------------------------- one for each


@where(Reason.NONE)
def _(folder: Path) -> None:
    at = cell(folder, "fifo")
    runs = job(at)
    at.to(1)
    assert "it runs" in why(at, runs, "None")["sentence"]
    cancel(at, runs)
    assert "it was cancelled" in why(at, runs, "None")["sentence"]
    at.world.default = FakeJob(lasts_s=1.0)
    ends = job(at)
    at.to(at.now_s + 3)
    assert "it has finished" in why(at, ends, "None")["sentence"]


@where(Reason.NOT_YET_CONSIDERED)
def _(folder: Path) -> None:
    at = cell(folder, "fifo")
    at.daemon._decide = lambda: False  # type: ignore[method-assign]
    waits = job(at)
    assert free(at) == {"v100": 2}, "nothing but the decision is missing"
    why(at, waits, "NotYetConsidered")
    del at.daemon._decide
    at.to(1)
    assert starts(at, waits)


@where(Reason.HELD)
def _(folder: Path) -> None:
    at = cell(folder, "fifo")
    blocker = job(at, gpus=2)
    held = job(at, "mine")
    at.ask(lambda: at.operations.request(ANN, "hold", [held]))
    cancel(at, blocker)
    assert free(at) == {"v100": 2}
    assert f"`horae release {held}`" in why(at, held, "Held")["sentence"]
    at.ask(lambda: at.operations.request(ANN, "release", [held]))
    at.to(at.now_s + 1)
    assert starts(at, held)


@where(Reason.NO_FREE_GPUS)
def _(folder: Path) -> None:
    at = cell(folder, "fifo-backfill", gpus=4)
    first, second, wide = job(at, gpus=2), job(at), job(at, gpus=2)
    assert sum(free(at).values()) == 1 < 2
    told = why(at, wide, "NoFreeGpus")
    assert told["sentence"].startswith(
        "It needs 2 GPUs of one type, and of a type it accepts 1 is free; 2 jobs have the other 3"
    )
    assert (told["numbers"]["holders"], told["numbers"]["taken"]) == (2, 3)
    cancel(at, second)
    assert starts(at, wide)
    assert starts(at, first)


@where(Reason.LACKS_CPUS_OR_MEMORY)
def _(folder: Path) -> None:
    at = cell(folder, "fifo-backfill", nodes=(Node("n0", "v100", 4, cpus=8),))
    greedy, waits = together(at, *({"resources": {"gpus": 1, "cpus_per_gpu": cpus}} for cpus in (7, 2)))
    told = why(at, waits, "LacksCpusOrMemory")
    assert told["sentence"].startswith("It waits for CPUs or memory on nodes with free GPUs (3 of a type it accepts)")
    assert (told["numbers"]["cpus_per_gpu"], told["numbers"]["most_cpus"]) == (2, 1)
    cancel(at, greedy)
    assert starts(at, waits)


@where(Reason.FRAGMENTED)
def _(folder: Path) -> None:
    at = cell(folder, "fifo-backfill", nodes=TWO_NODES, placement="consolidated")
    jobs = [job(at) for _ in range(4)]
    on = {place.start.places[0].node: place.start.job for place in at.world.running.values()}
    cancel(at, *on.values())
    gang = job(at, gpus=2)
    assert free(at) == {"n0": 1, "n1": 1}
    told = why(at, gang, "Fragmented")
    assert told["sentence"].startswith("2 GPUs are free, but not close enough together for its 2 (at most 1 on one")
    cancel(at, next(one for one in jobs if starts(at, one)))
    assert 2 not in free(at).values(), "the gang has them"
    assert starts(at, gang)


@where(Reason.OVER_QUOTA)
def _(folder: Path) -> None:
    at = cell(folder, "fifo", gpus=4, queues=[Queue("org", gpus_max=2)])
    first, second = job(at, queue="org/a"), job(at, gpus=2, queue="org/b")
    assert free(at) == {"v100": 3}, "there is room for it"
    told = why(at, second, "OverQuota")
    assert told["sentence"].startswith("Queue org has 1 of at most 2 GPUs and the job needs 2;")
    at.ask(lambda: at.operations.configure(ADMIN, None, {}, [Queue("org", gpus_max=3)]))
    at.to(1)
    assert starts(at, second)
    assert starts(at, first)


@where(Reason.RESERVED_FOR_LARGER)
def _(folder: Path) -> None:
    at = cell(folder, "fifo-backfill", gpus=4, reserve="0")
    job(at, gpus=2, steps=100)
    gang = job(at, gpus=4, steps=100)
    long, short = job(at, "long", steps=500), job(at, "short", steps=50)
    assert free(at) == {"v100": 1}, "short has slipped in, and there is room for long"
    assert starts(at, short)
    assert why(at, long, "ReservedForLarger")["sentence"].startswith(f"Job {gang} has waited longest")
    why(at, gang, "NoFreeGpus")
    cancel(at, gang)
    assert starts(at, long)


@where(Reason.BACKING_OFF)
def _(folder: Path) -> None:
    at = cell(folder, "fifo")
    at.world.jobs["mine-1"] = FakeJob(launch_fails="no space left on device")
    mine = job(at, "mine")
    at.to(2.5)
    failures = at.daemon.engine.jobs.launch_failures[0]
    assert free(at) == {"v100": 2}
    told = why(at, mine, "BackingOff")
    assert f"failed {failures} times in a row" in told["sentence"]
    at.world.jobs["mine-1"] = FOR_EVER
    again_s = at.now_s + told["numbers"]["retry_in_s"]
    at.to(again_s - 0.1)
    assert why(at, mine, "BackingOff")["numbers"]["retry_in_s"] == pytest.approx(0.1)
    at.to(again_s + 0.5)
    assert starts(at, mine)


@where(Reason.VACATING)
def _(folder: Path) -> None:
    at = cell(folder, "srtf")
    at.world.default = FakeJob(stop_s=5.0)
    long = job(at, gpus=2, steps=1000)
    at.to(1)
    short = job(at, gpus=2, steps=10)
    at.to(2)
    assert free(at) == {"v100": 0}
    told = why(at, short, "Vacating")
    assert told["sentence"].startswith(
        "2 GPUs are chosen for it, and 2 of them are in use by jobs that save their work"
    )
    at.to(8)
    assert starts(at, short)
    assert at.state(long) == "waiting"


@where(Reason.CLUSTER_TOO_SMALL)
def _(folder: Path) -> None:
    at = cell(folder, "fifo", nodes=TWO_NODES)
    at.ask(lambda: at.operations.drain(ADMIN, "n1", evict=False))
    wide = job(at, gpus=3)
    assert free(at) == {"n0": 2}
    assert why(at, wide, "ClusterTooSmall")["sentence"].startswith("It needs 3 GPUs of one type it accepts and the cl")
    small = job(at)
    assert starts(at, small), "what cannot run blocks nobody"
    cancel(at, small)
    at.ask(lambda: at.operations.resume(ADMIN, "n1"))
    at.to(at.now_s + 1)
    assert starts(at, wide)


@where(Reason.BEHIND_EARLIER)
def _(folder: Path) -> None:
    at = cell(folder, "fifo", gpus=4)
    job(at, gpus=2)
    head, second, small = job(at, gpus=3), job(at, gpus=3), job(at)
    assert free(at) == {"v100": 2}, "enough for it, were it not for the two before it"
    told = why(at, small, "BehindEarlier")
    assert "go first: 2 jobs wait before it, and 1 job has the 2 GPUs" in told["sentence"]
    why(at, head, "NoFreeGpus")
    cancel(at, head)
    assert why(at, small, "BehindEarlier")["numbers"]["ahead"] == 1
    cancel(at, second)
    assert starts(at, small)


@where(Reason.BEHIND_SMALLER)
def _(folder: Path) -> None:
    at = cell(folder, "smallest-first")
    first, second, wide = job(at), job(at), job(at, gpus=2)
    assert (free(at), starts(at, first), starts(at, second)) == ({"v100": 0}, True, True)
    told = why(at, wide, "BehindSmaller")
    assert "it needs 2, and 2 jobs have the 2 GPUs it could use, 1.0 each on average" in told["sentence"]
    cancel(at, first, second)
    assert starts(at, wide)


@where(Reason.BEHIND_SHORTER)
def _(folder: Path) -> None:
    at = cell(folder, "srtf", gpus=1)
    short, long = job(at, steps=100), job(at, steps=1000)
    assert (free(at), starts(at, short)) == ({"v100": 0}, True)
    told = why(at, long, "BehindShorter")
    assert "they have 100 s left each on average, this one 0.3 h" in told["sentence"]
    assert (told["numbers"]["theirs"], told["numbers"]["its_own"]) == (100, 1000)
    cancel(at, short)
    assert starts(at, long)


@where(Reason.BEHIND_LESS_SERVED)
def _(folder: Path) -> None:
    at = cell(folder, "las", gpus=1, quantum="5")
    old = job(at)
    at.to(20)
    fresh = job(at)
    at.to(22)
    assert starts(at, fresh)
    told = why(at, old, "BehindLessServed")
    ran_s = at.views().job(at.views().visible_row(ADMIN, old))["ran_s"]
    assert told["numbers"]["its_own"] == pytest.approx(ran_s)
    assert 19 <= ran_s <= 22
    assert told["numbers"]["theirs"] < 3
    assert "this one 2" in told["sentence"]
    cancel(at, fresh)
    assert starts(at, old)


@where(Reason.BEHIND_QUEUE)
def _(folder: Path) -> None:
    """Both are in the second queue, where the one that runs goes on."""
    at = cell(folder, "tiresias", gpus=1, thresholds="3,100", patience="off")
    at.world.default = FakeJob(lasts_s=1000.0)
    first = job(at)
    at.to(4)
    second = job(at)
    at.to(20)
    assert starts(at, second)
    told = why(at, first, "BehindQueue")
    assert 3 <= told["numbers"]["its_own"] <= 4
    assert "then those ahead in its own: 1 job has the 1 GPU it could use" in told["sentence"]
    cancel(at, second)
    assert starts(at, first)


@where(Reason.BEHIND_TURN)
def _(folder: Path) -> None:
    at = cell(folder, "time-slice", gpus=1, quantum="10")
    first, second, third = job(at), job(at), job(at)
    at.to(4)
    told = why(at, third, "BehindTurn")
    assert told["numbers"]["ahead"] == 1, "the second waited longer"
    assert "looked at in 6 s" in told["sentence"]
    at.to(11.5)
    assert starts(at, second)
    at.to(21.5)
    assert starts(at, third)
    assert at.state(first) == "waiting"


@where(Reason.BEHIND_SHARE)
def _(folder: Path) -> None:
    at = cell(folder, "highest-rho", gpus=1, lease="10")
    first, second = together(at, {"estimate": {"steps": 100}}, {"estimate": {"steps": 1000}})
    waits = first if starts(at, second) else second
    told = why(at, waits, "BehindShare")
    assert "1 job has the 1 GPU it could use" in told["sentence"]
    assert (free(at), told["numbers"]["free"]) == ({"v100": 0}, 0)
    cancel(at, first if waits == second else second)
    assert starts(at, waits)


@where(Reason.BEHIND_BETTER)
def _(folder: Path) -> None:
    at = cell(folder, "slaq", quantum="10")
    flat, steep = job(at, steps=10_000), job(at, steps=10_000)
    for step, losses in ((10, (9.0, 9.0)), (20, (8.0, 8.0)), (30, (7.99, 6.0))):
        for name, loss in zip((flat, steep), losses, strict=True):
            report(at, name, step, loss, total=10_000)
    job(at, "new", steps=100)
    at.to(12)
    assert starts(at, steep)
    told = why(at, flat, "BehindBetter")
    assert "its own is at 7.99" in told["sentence"]
    assert free(at) == {"v100": 0}
    cancel(at, steep)
    assert starts(at, flat)


def halving(folder: Path) -> tuple[SteppedService, str, str]:
    """Two trials of an app, with rungs at a quarter and a half of 100 steps."""
    at = cell(folder, "fifo")
    said = {"app": "search", "app_scheduler": "halving:eta=2,rungs=2"}
    return at, job(at, "good", steps=100, **said), job(at, "poor", steps=100, **said)


def report(at: SteppedService, name: str, step: float, loss: float, total: float = 100) -> None:
    """A job says how far it is."""
    attempt = at.views().job(at.views().visible_row(ADMIN, name))["attempt"]
    at.ask(lambda: at.operations.progress(name, attempt, step, total, loss))
    at.to(at.now_s + 1)


@where(Reason.AT_RUNG)
def _(folder: Path) -> None:
    at, good, poor = halving(folder)
    report(at, good, 25, 1.0)
    assert free(at) == {"v100": 1}, "no GPU is missing"
    told = why(at, good, "AtRung")
    assert "compares its trials there, with 1 trial yet to come; `horae queue --app search`" in told["sentence"]
    report(at, poor, 25, 2.0)
    assert starts(at, good)


@where(Reason.GIVEN_UP)
def _(folder: Path) -> None:
    at, good, poor = halving(folder)
    report(at, good, 25, 1.0)
    report(at, poor, 25, 2.0)
    assert at.state(poor) == "cancelled"
    told = why(at, poor, "GivenUp")
    assert "at rung 1: its loss was 2, and the best 1 of 2 had 1 or less" in told["sentence"]
    assert "submit it again without the app" in told["sentence"]


@where(Reason.LEASED)
def _(folder: Path) -> None:
    at = cell(folder, "las", gpus=1, quantum="1000")
    safe = job(at, min_runtime="100s")
    at.to(20)
    fresh = job(at)
    assert at.views().job(0)["gpu_seconds"] > 0, "it has had more than the other, and would have to go"
    told = why(at, fresh, "Leased")
    assert "1 job has the 1 GPU it could use, and a lease, a minimum run time" in told["sentence"]
    left = rf"job {safe} keeps its own for at most (79|80|81) s more; it is looked at again in "
    assert re.search(left, told["sentence"])
    assert told["numbers"]["kept_by"] == safe
    assert 79 <= told["numbers"]["kept_for_s"] <= 81
    at.to(98)
    why(at, fresh, "Leased")
    at.to(102)
    assert starts(at, fresh)
    assert at.state(safe) == "waiting"


@where(Reason.KEPT_FOR_OTHERS)
def _(folder: Path) -> None:
    at = cell(folder, "srtf", gpus=2)
    at.world.default = FakeJob(ready_s=60)
    slow = job(at, steps=1000)
    at.world.default = FOR_EVER
    gang = job(at, gpus=2, steps=10)
    at.to(1)
    assert re.search(
        rf"loading .* keeps some of these .*: job {slow} keeps its own", why(at, gang, "Leased")["sentence"]
    )
    small = job(at, steps=100)
    assert free(at) == {"v100": 1}
    told = why(at, small, "KeptForOthers")
    assert "GPUs that are free (1 of a type it accepts)" in told["sentence"]
    at.to(121)
    assert starts(at, gang), "the other has loaded for 60 s and worked as long"
    assert at.state(slow) == "waiting"


@where(Reason.AWAITING_BIDS)
def _(folder: Path) -> None:
    at = cell(folder, "themis", gpus=2, lease="10", answer="3")
    blocker = job(at, gpus=2, steps=1000)
    mine = job(at, steps=100, app="mine")
    at.ask(lambda: at.operations.register_agent(ANN, "mine", present=True))
    cancel(at, blocker)
    assert free(at) == {"v100": 2}
    told = why(at, mine, "AwaitingBids")
    assert (
        "2 GPUs of a type it accepts can be had by auction, which waits for the bids of the agents of 1 app"
        in told["sentence"]
    )
    assert 0 < told["numbers"]["answer_in_s"] <= 3
    at.to(at.now_s + 3.5)
    assert starts(at, mine), "nobody bid, and the built-in agent did"


# ------------------------------------------------------- which of two is told


def test_who_was_fragmented_until_others_took_the_scraps_lacks_gpus(tmp_path: Path) -> None:
    at = cell(tmp_path, "fifo-backfill", nodes=TWO_NODES, placement="consolidated")
    jobs = [job(at) for _ in range(4)]
    on = {life.start.places[0].node: name for (name, _), life in at.world.running.items()}
    at.ask(lambda: at.operations.request(ADMIN, "hold", [one for one in jobs if one not in on.values()]))
    gang = job(at, gpus=2)
    at.to(1)
    why(at, gang, "Fragmented")
    scraps = [job(at), job(at)]
    assert all(starts(at, one) for one in scraps)
    assert free(at) == {"n0": 0, "n1": 0}
    assert why(at, gang, "NoFreeGpus")["numbers"]["free"] == 0


def test_a_gang_that_no_reservation_stands_in_the_way_of_is_fragmented(tmp_path: Path) -> None:
    nodes = (*TWO_NODES, Node("n2", "v100", 2))
    at = cell(tmp_path, "fifo-backfill", nodes=nodes, placement="consolidated", reserve="0")
    jobs = [job(at, steps=100) for _ in range(6)]
    on = {life.start.places[0].node: name for (name, _), life in at.world.running.items()}
    job(at, gpus=6, steps=100)
    pair = job(at, gpus=2, steps=5)
    cancel(at, *on.values())
    assert free(at) == {"n0": 1, "n1": 1, "n2": 1}
    why(at, pair, "Fragmented")
    cancel(at, next(one for one in jobs if starts(at, one)))
    assert starts(at, pair), "it ends before the reservation begins"


@pytest.mark.parametrize("policy", ["fifo", "fifo-backfill", "las", "srtf", "max-min", "themis"])
def test_a_full_quota_comes_before_any_order(policy: str, tmp_path: Path) -> None:
    at = cell(tmp_path, policy, queues=[Queue("team", gpus_max=1)])
    job(at, steps=100, queue="team")
    second = job(at, steps=1000, queue="team")
    third = job(at, steps=1000, queue="team")
    assert free(at) == {"v100": 1}
    for name in (second, third):
        assert "Queue team has 1 of at most 1 GPU " in why(at, name, "OverQuota")["sentence"]


@pytest.mark.parametrize("policy", ["fifo", "las", "max-min", "themis", "allox", "optimus", "gandiva"])
def test_too_small_a_cluster_comes_before_any_order(policy: str, tmp_path: Path) -> None:
    at = cell(tmp_path, policy, nodes=TWO_NODES)
    wide = job(at, gpus=4, steps=1000)
    at.ask(lambda: at.operations.drain(ADMIN, "n1", evict=True))
    at.to(2)
    assert why(at, wide, "ClusterTooSmall")["numbers"]["capacity"] == 2


def test_the_first_in_line_lacks_gpus_and_is_behind_nobody(tmp_path: Path) -> None:
    at = cell(tmp_path, "fifo")
    job(at, gpus=2)
    first, second = job(at), job(at)
    why(at, first, "NoFreeGpus")
    why(at, second, "BehindEarlier")


def test_who_has_the_reservation_lacks_gpus_whatever_the_order(tmp_path: Path) -> None:
    at = cell(tmp_path, "srtf", reserve="5")
    short, long = job(at, gpus=2, steps=100), job(at, gpus=2, steps=1000)
    why(at, long, "BehindShorter")
    at.to(6)
    shorter = job(at, gpus=2, steps=20)
    at.to(7)
    why(at, long, "NoFreeGpus")
    assert starts(at, short), "nobody is preempted while it has a reservation"
    assert why(at, shorter, "ReservedForLarger")["numbers"]["head"] == long
    cancel(at, long)
    assert starts(at, shorter)


def test_who_loses_an_auction_waits_for_those_who_won_and_between_auctions_all_wait_for_leases(tmp_path: Path) -> None:
    at = cell(tmp_path, "themis", gpus=1, lease="20")
    first, second = together(at, {"name": "first"}, {"name": "second"})
    lost = first if starts(at, second) else second
    why(at, lost, "BehindShare")
    at.to(3)
    late = job(at, steps=100)
    assert why(at, late, "Leased")["numbers"]["holders"] == 1
    assert re.search(r"keeps its own for at most 1[67] s more", why(at, lost, "Leased")["sentence"])


def test_a_job_that_failed_waits_before_it_is_tried_again() -> None:
    hand = Cell("1x1")
    hand.submit(0, spec("a", max_restarts=3), spec("b"))
    hand.tell(JobFailed(5, "a", 1, 1))
    assert hand.reason("a") is Reason.BACKING_OFF


def test_reasons_outlive_a_crash(tmp_path: Path) -> None:
    at = cell(tmp_path, "las", gpus=1, quantum="5")
    jobs = [job(at) for _ in range(3)]
    at.to(20)
    before = [explain(at.daemon.engine.status(), name) for name in jobs]
    at.crash()
    at.reopen()
    after = [explain(at.daemon.engine.status(), name, at.now_s) for name in jobs]
    assert [one.code for one in after] == [one.code for one in before]
    assert [one.numbers["holders"] for one in after] == [one.numbers["holders"] for one in before]


# --------------------------------------------------------------- whatever comes


POLICIES = {
    "fifo": {},
    "fifo-backfill": {"reserve": "0"},
    "srtf": {"reserve": "30"},
    "las": {"quantum": "20"},
    "smallest-first": {},
    "time-slice": {"quantum": "20"},
    "tiresias": {},
}


@given(
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(["best-effort", "consolidated"]),
    st.lists(st.tuples(st.integers(1, 4), st.integers(5, 200), st.sampled_from("ab"), st.booleans()), max_size=14),
    st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_whatever_comes_a_reason_is_true(policy: str, placement: str, jobs: list[Any], seed: int) -> None:
    quota = Queue("a", gpus_max=3)
    hand = Cell("2x2", policy, POLICIES[policy], placement, queues=[quota])
    rng = np.random.default_rng(seed)
    for number, (gpus, work, queue, safe) in enumerate(jobs):
        now_s = 10.0 * number
        one = spec(f"j{number}", gpus if queue == "b" else min(gpus, 3), work, queue=queue, min_runtime_s=15.0 * safe)
        hand.submit(now_s, one)
        check_reasons(hand, policy)
        if hand.running and rng.random() < 0.5:
            name = str(rng.choice(hand.running))
            hand.at(now_s + 5, JobFinished(now_s + 5, name, hand.attempt(name)))
            check_reasons(hand, policy)
    hand.at(10.0 * len(jobs) + 1, SettingsChanged(10.0 * len(jobs) + 1, queues=(Queue("a"),)))
    check_reasons(hand, policy)


def check_reasons(hand: Cell, policy: str) -> None:
    """Every reason against what the engine's GPUs are, node by node and queue by queue."""
    engine = hand.engine
    held = engine.gpus.held
    taken = {gpu for ids in held.values() for gpu in ids}
    nodes = [sum(1 for gpu in range(4) if gpu // 2 == node and gpu not in taken) for node in range(2)]
    used = sum(len(ids) for row, ids in held.items() if engine.jobs.specs[row].queue == "a")
    top = next((queue.gpus_max for queue in engine.queues.configured), None)
    protected = [row for row in held if engine.jobs.protected_until_s[row] > engine.now_s]
    line = [one for one in engine.jobs.specs if STATES[engine.jobs.state[hand.row(one.id)]] is WAITING]
    for one in line:
        told = explain(engine.status(), one.id)
        reason = hand.reason(one.id)
        full = one.queue == "a" and top is not None and used + one.gpus > top
        # Where jobs take GPUs from those after them, they take their part of the quota, too: the order comes first.
        assert full or reason is not Reason.OVER_QUOTA, (told, used)
        assert not full or reason is Reason.OVER_QUOTA or not policy.startswith("fifo"), (told, used)
        fits = sum(nodes) >= one.gpus
        match reason:
            case Reason.NO_FREE_GPUS:
                assert not fits, told
                assert told.numbers["free"] == sum(nodes)
            case Reason.FRAGMENTED:
                assert fits, told
                assert max(nodes) < one.gpus, told
                assert (told.numbers["free"], told.numbers["most"]) == (sum(nodes), max(nodes))
            case Reason.LEASED:
                assert protected, told
            case Reason.RESERVED_FOR_LARGER:
                assert engine.evidence is not None
                assert engine.evidence.head not in ("", one.id), told
            case Reason.BEHIND_EARLIER:
                assert policy == "fifo"
                assert told.numbers["ahead"] > 0, told
            case _ if reason in RULES:
                assert not fits or max(nodes) < one.gpus, told
                assert (told.numbers["holders"], told.numbers["taken"]) == (len(held), len(taken)), told
            case _:
                assert reason is Reason.OVER_QUOTA, told


# ------------------------------------------------------------------ the words


@pytest.mark.parametrize("reason", Reason)
def test_every_sentence_ends_with_what_to_do_next(reason: Reason) -> None:
    steps = (
        r"`horae|ask again|nothing is to be done|would (start|let)|wait for|return a node|sooner|submit it|goes on|slip"
    )
    *_, last = re.split(r"[;:]", SENTENCES[reason])
    assert re.search(steps, SENTENCES[reason]), SENTENCES[reason]
    assert last.strip()


def test_the_reference_has_every_code() -> None:
    page = (ROOT / "docs" / "reference" / "reasons.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    assert sorted(code for code, _, _ in told) == sorted(reason.code for reason in Reason)
    assert all(len(meaning) > 20 and len(step) > 10 for _, meaning, step in told)


# --------------------------------------------------- a gang behind small jobs


def _stream_past_a_gang(folder: Path, seconds: int, **settings: str) -> tuple[SteppedService, str, dict[float, str]]:
    """Small jobs of 4 s keep eight GPUs busy while a gang of eight waits; gives what the gang was told, by its wait."""
    at = cell(folder, "fifo-backfill", gpus=8, **settings)
    at.world.default = FakeJob(lasts_s=4.0)
    told: dict[float, str] = {}
    short, gang = {"steps": 100, "duration": "4s"}, ""
    for second in range(seconds):
        for _ in range(2):
            job(at, estimate=short)
        if second == 4:
            gang = job(at, gpus=8, estimate=short)
        at.to(second + 1.0)
        if gang and at.state(gang) == "waiting":
            told[at.now_s - 4] = why(at, gang, "NoFreeGpus")["sentence"]
    return at, gang, told


def test_small_jobs_pass_a_gang_until_it_has_a_reservation_and_it_is_told_so(tmp_path: Path) -> None:
    at, gang, told = _stream_past_a_gang(tmp_path, 24, reserve="6")
    assert "jobs that fit pass it for 3 s more at most, then it can have a reservation" in told[3.0]
    assert "it has a reservation, so jobs that fit pass it only if they end before it could start" in told[7.0]
    assert max(told) <= 6 + 4 + 1, "the reservation begins after 6 s, and a job that runs then takes 4 s at most"
    assert at.state(gang) == "finished"


def test_without_a_reservation_a_gang_is_told_that_jobs_pass_it_for_ever(tmp_path: Path) -> None:
    at, gang, told = _stream_past_a_gang(tmp_path, 24)
    assert at.state(gang) == "waiting"
    assert all(
        "jobs that fit pass it, and the setting `reserve` of the policy would end that" in it for it in told.values()
    )
