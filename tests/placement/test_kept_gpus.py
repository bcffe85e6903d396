"""Who waits only because other jobs keep their GPUs for now, and until when."""

from __future__ import annotations

from horae.core.explain import Explanation, explain
from horae.core.reasons import Reason
from tests.builders import Cell, job


def why(cell: Cell, name: str) -> Explanation:
    return explain(cell.engine.status(), name)


def test_of_jobs_that_are_protected_the_one_with_the_least_time_left_is_named() -> None:
    cell = Cell("1x2", "srtf")
    cell.submit(0, job("long", work=9000, min_runtime_s=500), job("longer", work=9999, min_runtime_s=300))
    cell.submit(100, job("short", work=10))
    assert cell.reason("short") is Reason.LEASED
    told = why(cell, "short")
    assert (told.numbers["kept_by"], told.numbers["kept_for_s"]) == ("longer", 200)
    assert (
        "job longer keeps its own for at most 200 s more; it is looked at again in 200 s at the latest" in told.sentence
    )


def test_a_job_that_goes_before_it_is_not_named_however_soon_its_protection_ends() -> None:
    cell = Cell("1x2", "srtf")
    cell.submit(0, job("shorter", work=150, min_runtime_s=120), job("longer", work=9999, min_runtime_s=300))
    cell.submit(100, job("short", work=200))
    assert why(cell, "short").numbers["kept_by"] == "longer"


def test_a_job_that_would_wait_without_guarantees_too_is_told_the_order() -> None:
    cell = Cell("1x1", "srtf")
    cell.submit(0, job("long", work=9999, min_runtime_s=300))
    cell.submit(100, job("first", work=10), job("second", work=20))
    assert [cell.reason(name) for name in ("first", "second")] == [Reason.LEASED, Reason.BEHIND_SHORTER]


def test_a_job_that_is_protected_for_ever_keeps_its_gpus_until_it_ends() -> None:
    cell = Cell("1x1", "srtf")
    cell.submit(0, job("safe", work=9999, min_runtime_s=1e9))
    cell.submit(100, job("short", work=10))
    assert cell.reason("short") is Reason.LEASED
    assert "job safe keeps its own until it ends: nothing is to be done" in why(cell, "short").sentence


def test_a_job_that_stays_where_it_is_though_it_had_its_share_says_how_long() -> None:
    cell = Cell("1x1", "max-min", {"round": "360", "stay": "720"})
    cell.submit(0, job("runs", work=9999))
    cell.submit(10, job("waits", work=9999))
    assert cell.reason("waits") is Reason.BEHIND_SHARE, "both are owed as much, and the first is the first"
    cell.at(360)
    # One is owed 175 s, the other was given as many too many; each second brings them nearer by one of 720.
    told = why(cell, "waits")
    assert (told.code, told.numbers["kept_by"], told.numbers["kept_for_s"]) == ("Leased", "runs", 370)
    cell.at(720)
    assert why(cell, "waits").numbers["kept_for_s"] == 360, "its lease has begun anew"
    cell.at(1080)
    assert cell.reason("waits") is Reason.NONE


def test_where_jobs_take_turns_only_what_outlasts_the_slice_is_a_guarantee() -> None:
    cell = Cell("1x1", "time-slice", {"quantum": "100"})
    cell.submit(0, job("safe", work=9999, min_runtime_s=250))
    cell.submit(50, job("next", work=9999))
    assert cell.reason("next") is Reason.BEHIND_TURN
    cell.at(100)
    told = why(cell, "next")
    assert (told.code, told.numbers["kept_by"], told.numbers["kept_for_s"]) == ("Leased", "safe", 150)
