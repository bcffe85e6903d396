"""Deadlines: counted, named where they were given up, and shown wherever reports are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from horae.core.history import History
from horae.core.states import State
from horae.report.metrics.measure import measure
from horae.report.pages.page import render_page
from horae.report.tables import comparison_rows
from tests.builders import job, run
from tests.cli.conftest import Horae, horae  # noqa: F401, the fixture is used

PRICES = {"prices": "fast:4,slow:1"}
SPEEDS = {"fast": 2.0, "slow": 1.0}


def three() -> History:
    """One that can be met, one that cannot, and one without."""
    jobs = [
        job("hopeless", work=100_000, deadline_s=600, throughput=SPEEDS),
        job("hurry", work=7200, deadline_s=4000, throughput=SPEEDS),
        job("patient", work=7200, throughput=SPEEDS),
    ]
    return run(jobs, "fast:1x1,slow:1x2", "cost-deadline", settings=PRICES)


def test_what_was_met_missed_and_given_up_is_counted_and_named() -> None:
    found = measure(three()).deadlines
    assert (found.jobs, found.met, found.missed) == (2, 1, 1)
    assert found.relaxed_jobs == ("hopeless",)


def test_a_policy_that_looks_at_no_deadline_gives_up_none_and_misses_more() -> None:
    jobs = [job(name, work=600, deadline_s=700) for name in "abc"]
    found = measure(run(jobs, "1x1", "fifo")).deadlines
    assert (found.jobs, found.met, found.missed, found.relaxed) == (3, 1, 2, 0)


def test_a_deadline_that_is_kept_to_the_second_is_met() -> None:
    assert measure(run([job("a", work=600, submit_s=7, deadline_s=600)], "1x1", "fifo")).deadlines.met == 1
    assert measure(run([job("a", work=600, submit_s=7, deadline_s=599)], "1x1", "fifo")).deadlines.met == 0


@pytest.mark.parametrize(
    ("state", "counts"),
    [(State.FINISHED, (1, 1, 0)), (State.FAILED, (1, 0, 1)), (State.CANCELLED, (0, 0, 0)), (State.WAITING, (1, 0, 1))],
)
def test_only_what_finished_in_time_is_met_and_what_was_cancelled_counts_for_nothing(
    state: State, counts: tuple[int, int, int]
) -> None:
    history = run([job("a", work=60, deadline_s=100)], "1x1", "fifo")
    ended = history.end_s if state is not State.WAITING else np.array([np.nan])
    found = measure(replace(history, state=np.array([state], np.uint8), end_s=ended)).deadlines
    assert (found.jobs, found.met, found.missed) == counts


def test_a_window_counts_its_own_deadlines() -> None:
    jobs = [job(f"{k}", work=10, submit_s=100.0 * k, deadline_s=5.0 + 10 * (k % 2)) for k in range(6)]
    history = run(jobs, "1x1", "fifo")
    parts = [measure(history, first, first + 3).deadlines for first in (0, 3)]
    assert [(part.jobs, part.met) for part in parts] == [(3, 1), (3, 2)]


def test_tables_and_pages_show_deadlines_only_where_there_are_any() -> None:
    dated, undated = three(), run([job("a")], "1x1", "fifo")
    rows = {row.label: row.cells for row in comparison_rows([measure(dated)])}
    assert (rows["deadlines met"], rows["deadlines missed"], rows["deadlines relaxed"]) == (("1",), ("1",), ("1",))
    assert not [row for row in comparison_rows([measure(undated)]) if "deadline" in row.label]
    page = render_page([(dated, measure(dated))])
    assert "Deadlines met" in page
    assert "<dd>hopeless</dd>" in page
    assert "Deadlines" not in render_page([(undated, measure(undated))])


def test_every_command_tells_them(horae: Horae, tmp_path: Path) -> None:  # noqa: F811
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_s,gpus,work,deadline_s\na,0,1,100000,600\nb,0,1,3600,9000\n")
    words: tuple[Any, ...] = ("--trace", trace, "--cluster", "v100:1x2", "--policy", "cost-deadline:prices=v100:1")
    simulated = ("simulate", *words[:-1], "cost-deadline", "--set", "prices=v100:1")
    record = horae(*simulated, "-o", "json").json["deadlines"]
    assert record == {"jobs": 2, "met": 1, "missed": 1, "relaxed": 1, "relaxed_jobs": ["a"]}
    assert "Deadlines relaxed: a" in horae(*simulated).out
    header, line = horae(*simulated, "-o", "csv").out.splitlines()
    assert dict(zip(header.split(","), line.split(","), strict=True))["deadlines.relaxed_jobs"] == "a"
    compared = horae("compare", *words, "--workers", 1, "-o", "json").json["policies"][0]
    assert compared["deadlines"] == record
