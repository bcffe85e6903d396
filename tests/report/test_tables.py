"""Reports as tables, CSV and the jobs file; numbers as people write them."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from horae.core.cluster import Cluster
from horae.core.job import JobSpec
from horae.report.formatting import NOTHING, duration, number, percent, time_ticks, time_unit
from horae.report.metrics.measure import JOB_COLUMNS, measure
from horae.report.pages.page import render_page
from horae.report.tables import MEASURES, comparison_rows, render_table, run_labels, write_jobs_csv
from tests.report.sample import history_of

NODE = Cluster.of([("gpu", 1, 2)])


def report_of(policy: str, ends: list[float], **settings: str):
    jobs = [JobSpec(f"job,{k}", 0.0, 1, 100.0) for k in range(len(ends))]
    history = history_of(jobs, NODE, start_s=[end - 100 for end in ends], end_s=ends, policy=policy)
    return measure(replace(history, settings=settings))


SLOW, FAST = report_of("slow", [200.0, 300.0]), report_of("fast", [100.0, 200.0])


def text_of(table, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table)
    return console.file.getvalue()


def row(label: str, reports):
    return next(row for row in comparison_rows(reports) if row.label.startswith(label))


def test_the_best_of_a_row_is_marked_by_its_direction():
    assert row("JCT, average", [SLOW, FAST]).best == {1}
    assert row("GPU utilisation", [SLOW, FAST]).best == {1}
    assert row("makespan", [SLOW, FAST, FAST]).best == {1, 2}


def test_nothing_is_best_where_all_are_equal_or_alone():
    assert row("jobs finished", [SLOW, FAST]).best == frozenset()
    assert all(not line.best for line in comparison_rows([SLOW]))


def test_the_isolated_slowdown_of_apps_is_told_where_an_app_has_several_jobs():
    trials = [JobSpec(f"t{n}", 0.0, 1, 100.0, app="a") for n in range(2)]
    report = measure(history_of(trials, NODE, start_s=[0.0, 100.0], end_s=[100.0, 200.0]))
    assert row("app slowdown vs isolated run", [report, SLOW]).cells[0] == "2"
    assert not any("app_isolated_rho" in line.label for line in comparison_rows([SLOW, FAST]))


def test_what_winners_paid_is_told_where_somebody_held_auctions():
    jobs = [JobSpec("one", 0.0, 1, 100.0)]
    sold = replace(
        history_of(jobs, NODE, start_s=[0.0], end_s=[100.0], policy="any"),
        counters={"auctions": 3, "gpus_won": 40, "gpus_paid": 5},
    )
    told = [measure(sold), SLOW]
    assert row("auctions held", told).cells == ("3", "0")
    assert row("GPUs won in auctions", told).cells == ("40", "0")
    assert row("part of them paid with", told).cells == ("12.5%", NOTHING)
    assert not any("auctions" in line.label for line in comparison_rows([SLOW, FAST]))
    page = render_page([(sold, measure(sold))])
    assert '12.5%</div><div class="why">of 40 GPUs won in 3 auctions' in page
    assert "auctions" not in text_of(render_table([SLOW]))


def test_what_was_not_measured_is_shown_as_nothing_and_is_never_best():
    blank = replace(FAST, avg_jct_s=math.nan)
    assert row("JCT, average", [SLOW, blank]).cells == ("4.17", NOTHING)
    assert row("JCT, average", [SLOW, blank]).best == {0}
    assert row("JCT, average", [blank, blank]).best == frozenset()


def test_times_of_a_row_share_a_unit():
    assert row("JCT, average", [replace(SLOW, avg_jct_s=7200.0), replace(FAST, avg_jct_s=90.0)]).cells == ("2", "0.03")
    assert "JCT, average (h)" in {line.label for line in comparison_rows([replace(SLOW, avg_jct_s=7200.0)])}


def test_the_terminal_table_stars_the_best_and_shows_what_it_cost():
    shown = text_of(render_table([SLOW, FAST], costs=[{"cpu_s": 1.5}, {"cpu_s": 2.5}]))
    line = next(line for line in shown.splitlines() if "JCT, average" in line)
    assert line.split()[-3:] == ["4.17", "2.50", "*"]
    assert any(line.split()[-2:] == ["1.50", "2.50"] for line in shown.splitlines() if "CPU time" in line)


def test_a_name_with_markup_is_shown_as_it_is():
    assert "[bold]x" in text_of(render_table([SLOW], labels=["[bold]x"]))


def test_policies_of_the_same_name_are_told_apart_by_what_differs():
    runs = [report_of("las", [100.0], quantum="60", seed="1"), report_of("las", [100.0], quantum="600", seed="1"), FAST]
    assert run_labels(runs) == ["las (quantum=60)", "las (quantum=600)", "fast"]


def test_the_jobs_file_can_be_read_back(tmp_path):
    history = history_of([JobSpec('a,"b"', 0.0, 2, 50.0)], NODE, start_s=[10.0], end_s=[60.5])
    write_jobs_csv(tmp_path / "jobs.csv", history, measure(history))
    with (tmp_path / "jobs.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == JOB_COLUMNS
    assert lines[0]["job_id"] == 'a,"b"'
    assert (lines[0]["start_s"], lines[0]["end_s"], lines[0]["gpu_seconds"]) == ("10", "60.5", "101")
    assert float(lines[0]["rho"]) == pytest.approx(60.5 / 50)


def test_every_measure_finds_its_number():
    assert all(isinstance(measure_.of(FAST), float) for measure_ in MEASURES)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1.234, "1.23 s"),
        (90, "90 s"),
        (150, "2.50 min"),
        (7200, "2 h"),
        (1e6, "11.6 d"),
        (math.nan, NOTHING),
    ],
)
def test_durations_take_the_unit_that_suits_them(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3, "3"), (1234567.8, "1,234,568"), (99.94, "99.9"), (0.123, "0.12"), (math.inf, NOTHING)]
)
def test_numbers_have_about_three_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(("share", "text"), [(0, "0%"), (1, "100%"), (0.9999, "100.0%"), (0.5, "50.0%")])
def test_shares_are_per_cent(share, text):
    assert percent(share) == text


@pytest.mark.parametrize("length_s", [0.003, 0.7, 5, 59, 61, 3600, 9000, 86400, 1e6, 1e8])
def test_time_axes_have_a_few_marks_inside(length_s):
    ticks, unit = time_ticks(1000.0, 1000.0 + length_s)
    assert 3 <= len(ticks) <= 10
    assert ticks[0] == 1000.0
    assert ticks[-1] <= 1000.0 + length_s * (1 + 1e-6)
    assert unit == time_unit(length_s)
