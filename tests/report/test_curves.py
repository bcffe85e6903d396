"""Curves of a sweep: pictures and pages that hold what was measured, whatever the policies are called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from horae.report.pages.curves import COLUMNS, SHOWN, Axis, Curve, Panel, draw_panel, render_page, spread, write_plot
from horae.report.tables import MEASURES
from tests.report.markup import EVIL, Outline

RATES = Axis("input rate (jobs/hour)", (4.0, 5.2, 5.6))
ROUNDS = Axis("round length (minutes)", (60.0, 360.0, 2880.0), unit=60.0)
HOUR_S = 3600.0


def curve(label: str, *mean: float, half_width: float = np.nan) -> Curve:
    return Curve(label, np.array(mean), np.full(len(mean), half_width))


def panel(*curves: Curve, path: str = "avg_jct_s") -> Panel:
    return Panel.of(path, curves)


def drawn(axis: Axis, shown: Panel):
    figure = Figure()
    draw_panel(figure, axis, shown, labelled=True)
    figure.draw_without_rendering()
    return figure.axes[0]


def test_everything_shown_is_a_measure_of_reports() -> None:
    assert set(SHOWN) | set(COLUMNS) <= {measure.path for measure in MEASURES}


def test_times_are_in_hours_even_where_they_are_days() -> None:
    shown = panel(curve("slow", 10 * 24 * HOUR_S), curve("never ended", np.nan))
    assert shown.y_label == "JCT, average (hours)"
    assert shown.point(0, 0) == "240"
    assert shown.point(1, 0) == "–"


def test_short_times_are_in_a_unit_that_suits_them() -> None:
    assert panel(curve("fast", 90.0, 30.0)).y_label == "JCT, average (seconds)"


def test_a_point_tells_its_interval_where_there_is_one() -> None:
    assert panel(curve("a", 2 * HOUR_S, half_width=360.0)).point(0, 0) == "2 ± 0.10"
    assert panel(curve("a", 0.25, half_width=0.01), path="utilization").point(0, 0) == "25.0% ± 1.0%"


def test_a_page_is_whole_says_what_was_measured_and_needs_nothing_from_outside() -> None:
    curves = [curve(EVIL, 4 * HOUR_S, 5 * HOUR_S, 6 * HOUR_S, half_width=600), curve("b", 1e4, np.nan, 5e4)]
    text = render_page(RATES, [Panel.of(path, curves) for path in SHOWN], f"about {EVIL}")
    outline = Outline(text)
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert all(address.startswith("#") for address in outline.addresses)
    assert "<script>" not in text
    assert "5 ± 0.17" in text
    assert all(title in text for title, _ in SHOWN.values())
    assert text == render_page(RATES, [Panel.of(path, curves) for path in SHOWN], f"about {EVIL}")


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_plot_is_a_picture_and_the_same_every_time(tmp_path: Path, suffix: str, magic: bytes) -> None:
    for name in ("one", "two"):
        write_plot(
            tmp_path / f"{name}{suffix}", ROUNDS, panel(curve("$x$ <a>", 1e5, 2e5, 3e5, half_width=1e4)), "about"
        )
    first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert first == second
    assert first.startswith(magic)


def test_marks_stand_at_what_was_run_in_units_for_people() -> None:
    axes = drawn(ROUNDS, panel(curve("a", 1e5, 2e5, 3e5)))
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "6", "48"]
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "round length (minutes)"


def test_an_axis_is_logarithmic_where_values_lie_far_apart() -> None:
    assert not Axis("f", (0.0, 0.001, 0.9)).logarithmic
    assert not Axis("load", (0.5, 3.0)).logarithmic
    assert Axis("lease", (300.0, 3600.0)).logarithmic


def test_a_policy_that_nothing_changes_is_a_dotted_line_without_marks() -> None:
    flat = Curve("b", np.full(3, 2e5), np.full(3, np.nan), flat=True)
    first, second = drawn(RATES, panel(curve("a", 1e5, 2e5, 3e5), flat)).get_lines()
    assert (first.get_marker(), first.get_linestyle()) == ("o", "-")
    assert (second.get_marker(), second.get_linestyle()) == ("None", ":")
    assert second.get_ydata() == pytest.approx(np.full(3, 2e5 / HOUR_S))


@pytest.mark.parametrize(("path", "lines"), [("rho.max", 2), ("isolated_rho.max", 2), ("rho.jain", 1)])
def test_a_line_at_1_says_what_is_fair(path: str, lines: int) -> None:
    axes = drawn(RATES, panel(curve("a", 1.2, 1.3, 1.4), path=path))
    assert len(axes.get_lines()) == lines
    assert [list(line.get_ydata()) for line in axes.get_lines()[1:]] == [[1, 1]] * (lines - 1)


def test_any_measure_has_a_panel() -> None:
    panels = [Panel.of(measure.path, [curve("a", 1.0)]) for measure in MEASURES]
    assert all(shown.title and shown.y_label for shown in panels)
    assert {shown.path: shown.title for shown in panels}["makespan_s"] == "Makespan"


def test_curves_close_together_stand_on_a_scale_from_0() -> None:
    axes = drawn(RATES, panel(curve("a", 1e5, 2e5, 3e5), curve("b", 1e5, 3e5, 6e5)))
    assert axes.get_yscale() == "linear"
    assert axes.get_ylim()[0] == 0


def test_curves_far_apart_stand_on_a_logarithmic_scale_with_round_marks() -> None:
    axes = drawn(RATES, panel(curve("a", 10 * HOUR_S, 12 * HOUR_S, 15 * HOUR_S), curve("b", 3e4, 1e5, 300 * HOUR_S)))
    low, high = axes.get_ylim()
    marks = {
        text.get_text() for at, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True) if low < at < high
    }
    assert axes.get_yscale() == "log"
    assert {"10", "20", "50", "100", "200"} <= marks


def test_every_curve_is_named_beside_its_last_point() -> None:
    axes = drawn(RATES, panel(curve("a", 1e5, 2e5, 3e5), curve("b", 1e5, 2e5, np.nan), curve("c", *[np.nan] * 3)))
    assert {text.get_text(): text.xy for text in axes.texts} == {
        "a": (5.6, pytest.approx(3e5 / HOUR_S)),
        "b": (5.2, pytest.approx(2e5 / HOUR_S)),
    }


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.01, 0.2))
def test_labels_are_moved_apart_in_order_and_no_more_than_they_must(heights: list[float], gap: float) -> None:
    placed = spread(heights, gap)
    order = sorted(range(len(heights)), key=lambda k: (heights[k], k))
    steps = np.diff([placed[k] for k in order])
    assert (steps >= gap * (1 - 1e-9)).all()
    assert sum(placed) == pytest.approx(sum(heights))
    if (np.diff(sorted(heights)) >= gap).all():
        assert placed == pytest.approx(heights)


def test_words_about_curves_need_no_drawing_library() -> None:
    script = (
        "import sys, numpy as np; from horae.report.pages.curves import Curve, Panel;"
        "Panel.of('avg_jct_s', [Curve('a', np.ones(1), np.ones(1))]).point(0, 0);"
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
