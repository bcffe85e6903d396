"""Why a job waits, in words and numbers.

Tests core/compared_by.py and core/reasons.py.
"""

from __future__ import annotations

import re

import pytest

from horae.core.events import JobFinished, JobHeld, JobProgressed, JobStopped, LaunchFailed
from horae.core.explain import _vacating, explain
from horae.core.queues import Queue
from horae.core.reasons import SENTENCES, Reason
from tests.builders import Cell, job


def said(cell: Cell, name: str) -> tuple[str, str]:
    told = explain(cell.engine.status(), name)
    return told.code, told.sentence


def test_a_job_that_lacks_gpus_hears_how_many_it_needs_and_how_many_are_free() -> None:
    cell = Cell("v100:1x4,k80:1x8")
    cell.submit(0, job("a", gpus=3, gpu_types=("v100",)), job("b", gpus=2, gpu_types=("v100",)))
    code, sentence = said(cell, "b")
    assert code == "NoFreeGpus"
    assert re.search(
        r"needs 2 GPUs of one type, and of a type it accepts 1 is free; 1 job has the other 3 GPUs", sentence
    )


def test_a_gang_between_scraps_hears_how_much_is_free_and_how_much_of_it_on_one_node() -> None:
    cell = Cell("3x2", placement="consolidated")
    cell.submit(0, *(job(name) for name in "abcdef"))
    cell.at(1, *(JobFinished(1, name, 1) for name in "ace"))
    cell.submit(2, job("gang", gpus=2))
    code, sentence = said(cell, "gang")
    assert code == "Fragmented"
    assert re.search(r"^3 GPUs are free.* 2 .*at most 1 on one node", sentence)


def test_a_job_hears_how_many_nodes_it_needs_and_how_many_have_room() -> None:
    cell = Cell("3x4", placement="consolidated")
    cell.submit(0, *(job(f"corner{n}", gpus=2, nodes=1) for n in range(5)))
    cell.submit(1, job("gang", gpus=8, nodes=2), job("huge", gpus=20, nodes=4))
    code, sentence = said(cell, "gang")
    assert (code, explain(cell.engine.status(), "gang").numbers["fitting_nodes"]) == ("NoFreeGpus", 0)
    assert "needs 2 nodes of one type with 4 GPUs free on each, and no node has so many" in sentence
    assert said(cell, "huge")[0] == "ClusterTooSmall"
    assert "needs 4 nodes of one type with 5 GPUs each, and the cluster now has 0 that can" in said(cell, "huge")[1]
    cell.at(2, *(JobFinished(2, f"corner{n}", 1) for n in (0, 1, 2)))
    code, sentence = said(cell, "gang")
    assert (code, cell.gpus("gang")) == ("Fragmented", ())
    assert "with 4 GPUs free on each, and 1 node has so many, though 8 GPUs are free" in sentence


def test_a_job_behind_others_hears_of_its_nodes_too() -> None:
    cell = Cell("2x2", "srtf")
    cell.submit(0, job("short", gpus=2, work=10), job("corner", gpus=1, work=10), job("gang", gpus=4, nodes=2))
    assert said(cell, "gang")[0] == "BehindShorter"
    assert said(cell, "gang")[1].endswith("It asks for 2 nodes with 2 GPUs each, and no node has so many free.")


def test_a_job_over_its_quota_hears_which_queue_is_full() -> None:
    cell = Cell("1x4", queues=[Queue("org", gpus_max=1)])
    cell.submit(0, job("a", queue="org/x"), job("b", queue="org/y"))
    assert said(cell, "b")[1].startswith("Queue org has 1 of at most 1 GPU and the job needs 1;")


def test_a_job_behind_a_reservation_hears_for_whom_the_gpus_are() -> None:
    cell = Cell("1x4", settings={"reserve": "0"})
    cell.submit(0, job("first", gpus=2), job("gang", gpus=4), job("long", work=500))
    assert said(cell, "long")[0] == "ReservedForLarger"
    assert said(cell, "long")[1].startswith("Job gang has waited longest")


def test_a_job_whose_launch_failed_hears_when_it_is_tried_again() -> None:
    cell = Cell("1x1", slow_starts=True)
    cell.submit(0, job("a"))
    cell.at(99, LaunchFailed(99, "a", 1))
    code, sentence = said(cell, "a")
    assert code == "BackingOff"
    assert "has failed 1 time in a row" in sentence
    assert "again in 1 s" in sentence


def test_a_gang_larger_than_the_cluster_hears_what_there_is() -> None:
    cell = Cell("v100:1x4,k80:1x8")
    cell.submit(0, job("a", gpus=9))
    assert re.search(r"needs 9 GPUs.*cluster now has 8", said(cell, "a")[1])


def test_a_held_job_hears_what_to_do() -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a"))
    cell.at(1, JobHeld(1, "a"))
    code, sentence = said(cell, "a")
    assert code == "Held"
    assert "`horae release a`" in sentence


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_sentence_that_its_numbers_can_fill(reason: Reason) -> None:
    cell = Cell("1x1")
    cell.submit(0, job("a"))
    cell.engine.jobs.reason[0] = int(reason)
    told = explain(cell.engine.status(), "a")
    assert told.sentence
    assert "{" not in told.sentence
    assert set(SENTENCES) == set(Reason)


def test_codes_of_reasons_never_change_their_numbers() -> None:
    shown = {reason.code: int(reason) for reason in Reason}
    assert shown.items() >= {"NotYetConsidered": 1, "Fragmented": 4, "OverQuota": 5, "BehindShare": 15}.items()
    assert len(set(shown.values())) == len(Reason)


def test_of_two_queues_that_which_is_really_full_is_named() -> None:
    cell = Cell("1x8", queues=[Queue("org", gpus_max=3), Queue("org/x", gpus_max=2)])
    cell.submit(0, job("a", gpus=2, queue="org/y"), job("b", gpus=2, queue="org/x"))
    assert said(cell, "b")[1].startswith("Queue org has 2 of at most 3 GPUs and the job needs 2;"), "x has room for it"


def test_a_job_whose_turn_comes_later_hears_how_many_are_before_it() -> None:
    cell = Cell("1x1", "time-slice")
    cell.submit(0, *(job(name, work=1e6) for name in "abc"))
    waiting = [name for name in "abc" if name not in cell.running]
    ahead = [explain(cell.engine.status(), name).numbers["ahead"] for name in waiting]
    assert ahead == [0, 1]


def test_a_trial_at_a_rung_hears_for_how_many_it_waits() -> None:
    cell = Cell("1x3")
    cell.submit(0, *(job(name, work=100, app="search", app_scheduler="halving:eta=2,rungs=1") for name in "abc"))
    cell.at(50, JobProgressed(50, "a", 1, 50.0, loss=1.0))
    told = explain(cell.engine.status(), "a")
    assert (told.code, told.numbers["others"]) == ("AtRung", 2)


def test_a_job_that_saved_nothing_is_told_so_once_that_is_known() -> None:
    cell = Cell("1x1", "srtf", slow_stops=True)
    cell.submit(0, job("a", work=100))
    cell.submit(10, job("b", work=5))
    assert "saved nothing" not in said(cell, "a")[1], "it may still save"
    cell.at(12, JobStopped(12, "a", 1, 0.0))
    assert said(cell, "a")[1].endswith("It saved nothing before it was preempted and begins anew, for at least 20 s.")


def test_a_job_that_saved_is_told_nothing_of_that_kind() -> None:
    cell = Cell("1x1", "srtf", slow_stops=True)
    cell.submit(0, job("a", work=100))
    cell.submit(10, job("b", work=5))
    cell.at(12, JobStopped(12, "a", 1, 10.0))
    assert "saved nothing" not in said(cell, "a")[1]


@pytest.mark.parametrize(
    ("occupied", "moves", "said"),
    [
        (0, False, "; it starts in a moment"),
        (0, True, "; it starts when it has left its GPUs"),
        (1, False, ", and 1 of them is in use by jobs that save their work; it starts when they have"),
        (2, True, ", and 2 of them are in use by jobs that save their work; it starts when they have"),
    ],
)
def test_gpus_that_nobody_uses_any_more_are_not_counted(occupied: int, moves: bool, said: str) -> None:
    assert _vacating(occupied, moves) == said
