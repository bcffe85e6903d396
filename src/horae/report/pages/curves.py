"""Curves of a sweep: a number of each policy as one parameter changes, as text, as a picture and as a page.

matplotlib and jinja2 are imported only to draw and to write a page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horae.core.arrays import Floats
from horae.core.counted import counted
from horae.report.formatting import number, percent, time_unit
from horae.report.pages.palette import MUTED, line_colour
from horae.report.tables import MEASURES, NumberFormat, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from horae.report.pages.html import PageFigure

#: What a page draws, by the path of the number in a report: a title, and a note for the reader.
SHOWN = {
    "avg_jct_s": ("Average completion time", "From submission to the end of a job, over the measured jobs."),
    "p95_jct_s": ("Slowest jobs", "95 of 100 measured jobs were done within this time."),
    "app_completion_s.avg": ("Completion time of apps", "From an app's first submission to the end of its last job."),
    "rho.max": ("Worst slowdown versus fair share", "The app that fared worst against 1/N of the cluster (rho)."),
    "rho.jain": ("Evenness of slowdowns", "Jain's index of rho: 1 when all are slowed down alike."),
    "rho.over_1": ("Better off alone", "Share of the apps whose rho is above 1."),
    "app_isolated_rho.max": (
        "Worst slowdown of apps versus isolated run",
        "The app that fared worst against an ideal equal division among apps, the same for all policies.",
    ),
    "isolated_rho.max": (
        "Worst slowdown versus isolated run",
        "The measured job that fared worst against an ideal equal division.",
    ),
    "gpu_hours": ("GPU time", "GPU-hours that the measured jobs held: for the same jobs, less is more efficient."),
    "utilization": ("GPUs in use", "Share of all GPU-time that jobs held while measured ones were there."),
    "preemptions": ("Preemptions", "How often measured jobs lost their GPUs, wholly or to move elsewhere."),
    "restart_overhead.share": ("Time lost to restarts", "Share of the GPU-time of measured jobs that did no work."),
}

#: What a table of points shows.
COLUMNS = (
    "avg_jct_s", "rho.max", "rho.jain", "app_isolated_rho.max", "isolated_rho.max", "gpu_hours", "utilization",
    "preemptions",
)  # fmt: skip

#: Slow-downs, of which 1 is a fair one.
_SLOWDOWNS = tuple(f"{key}.{part}" for key in ("rho", "app_isolated_rho", "isolated_rho") for part in ("avg", "max"))

#: An axis that spans more than this is logarithmic: on a linear one the low curves would lie on each other.
_WIDE = 8.0
#: Papers publish these curves in hours, so no larger unit is used: two hours or more are written in hours.
_LONGEST_S = 2 * 3600.0
#: With more values than this not every value has a tick.
_MOST_MARKS = 12
#: Height of a label over that of the axes, with some air.
_LABEL_HEIGHT = 0.06


@dataclass(frozen=True)
class Axis:
    """The parameter that a sweep varies."""

    label: str
    values: tuple[float, ...]
    #: How many of the values' unit make one of the unit that people read.
    unit: float = 1.0

    @property
    def logarithmic(self) -> bool:
        """Whether the values lie too far apart for equal distances."""
        return self.values[0] > 0 and self.values[-1] >= _WIDE * self.values[0]

    def text(self, value: float) -> str:
        """A value as its tick label shows it."""
        return f"{value / self.unit:g}"


@dataclass(frozen=True)
class Curve:
    """One policy: a mean at every value of the axis, and half of its 95 % interval, NaN where there is none."""

    label: str
    mean: Floats
    half_width: Floats
    #: Whether the policy does not have the parameter: it was run once, and has the same mean everywhere.
    flat: bool = False

    def scaled(self, unit: float) -> Curve:
        """The same curve in a unit that is `unit` times larger."""
        return replace(self, mean=self.mean / unit, half_width=self.half_width / unit)


@dataclass(frozen=True)
class Panel:
    """One number of a report, of all policies, in a unit for people."""

    path: str
    title: str
    note: str
    y_label: str
    number_format: NumberFormat
    curves: tuple[Curve, ...]

    @staticmethod
    def of(path: str, curves: Sequence[Curve]) -> Panel:
        """From curves in the units of reports."""
        measure = next(measure for measure in MEASURES if measure.path == path)
        title, note = SHOWN.get(path, (measure.label[:1].upper() + measure.label[1:], ""))
        label = measure.label
        if measure.number_format is NumberFormat.TIME:
            longest_s = max((float(np.nanmax(c.mean)) for c in curves if not np.isnan(c.mean).all()), default=0.0)
            unit = time_unit(min(longest_s, _LONGEST_S))
            label, curves = f"{label} ({unit.plural})", [curve.scaled(unit.seconds) for curve in curves]
        return Panel(path, title, note, label, measure.number_format, tuple(curves))

    def text(self, value: float) -> str:
        """A value as people write it."""
        return percent(value) if self.number_format is NumberFormat.SHARE else number(value)

    def point(self, curve: int, position: int) -> str:
        """The mean at a position of the axis as text, with its half-width if it has one."""
        mean, half_width = float(self.curves[curve].mean[position]), float(self.curves[curve].half_width[position])
        has_interval = not (math.isnan(mean) or math.isnan(half_width))
        return f"{self.text(mean)} ± {self.text(half_width)}" if has_interval else self.text(mean)


class PanelTable(NamedTuple):
    """The numbers of a panel as a table."""

    title: str
    note: str
    rows: list[Row]


def write_plot(path: Path, axis: Axis, panel: Panel, about: str) -> None:
    """Write one panel as a picture, in the format that the name of the file ends with: .png or .svg."""
    from matplotlib import style
    from matplotlib.figure import Figure

    from horae.report.pages.plots import STYLE

    with style.context(["default", {**STYLE, "figure.figsize": (8.4, 4.6), "svg.hashsalt": "curves"}]):
        figure = Figure()
        draw_panel(figure, axis, panel, labelled=True)
        figure.suptitle(about, x=0.01, ha="left", fontsize=10, color=MUTED)
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, dpi=160, facecolor="white", metadata=metadata)


def write_page(path: Path, axis: Axis, panels: Sequence[Panel], about: str) -> None:
    """Write all panels as one page: everything it needs is inside the one file."""
    path.write_text(render_page(axis, panels, about), encoding="utf-8")


def render_page(axis: Axis, panels: Sequence[Panel], about: str) -> str:
    """The page as text. The same curves give the same bytes. `about` says what was run."""
    from horae.report.pages.html import render

    names = [curve.label for curve in panels[0].curves]
    policies = counted(len(names), "policy", "policies")
    return render(
        "curves.html",
        title=f"{policies} by {axis.label.partition(' (')[0]}",
        lead=about,
        names=names,
        figures=[_figure(k, axis, panel) for k, panel in enumerate(panels)],
        tables=[PanelTable(panel.title, f"{panel.y_label} by {axis.label}", _rows(axis, panel)) for panel in panels],
    )


def _figure(number: int, axis: Axis, panel: Panel) -> PageFigure:
    """A panel as a drawing of the page; `number` tells the ids of its SVG from those of the other panels."""
    from markupsafe import Markup

    from horae.report.pages.html import PageFigure
    from horae.report.pages.plots import svg

    drawing = svg(f"curve-{number}", lambda figure: draw_panel(figure, axis, panel, labelled=False))
    return PageFigure(panel.title, panel.note, Markup(drawing))


def _rows(axis: Axis, panel: Panel) -> list[Row]:
    """The numbers of a panel, so that nobody has to read them off a curve."""
    rows = []
    for k, value in enumerate(axis.values):
        cells = tuple(panel.point(curve, k) for curve in range(len(panel.curves)))
        rows.append(Row(axis.text(value), cells, frozenset()))
    return rows


def draw_panel(figure: Figure, axis: Axis, panel: Panel, labelled: bool) -> None:
    """Draw lines with a mark at every value that was run, intervals as bands and, if `labelled`, names at the ends."""
    from horae.report.pages.plots import line_style

    axes = figure.subplots()
    for k, curve in enumerate(panel.curves):
        # A mark says that a run was made there.
        marks = {"linestyle": "dotted"} if curve.flat else {"marker": "o", "markersize": 4}
        axes.plot(axis.values, curve.mean, **{**line_style(k), **marks})
        low, high = curve.mean - curve.half_width, curve.mean + curve.half_width
        axes.fill_between(axis.values, low, high, color=line_colour(k), alpha=0.14, linewidth=0)
    if panel.path in _SLOWDOWNS:
        axes.axhline(1.0, color=MUTED, linewidth=0.8, zorder=0.9)
    _value_axis(axes, panel)
    _swept_axis(axes, axis)
    if labelled:
        _label_ends(axes, axis, panel.curves)


def _swept_axis(axes: Any, axis: Axis) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    if axis.logarithmic:
        axes.set_xscale("log")
    if len(axis.values) <= _MOST_MARKS:
        axes.xaxis.set_major_locator(FixedLocator(axis.values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: axis.text(value))
    axes.set_xlabel(axis.label)


def _value_axis(axes: Any, panel: Panel) -> None:
    """From 0 up, or logarithmic where the curves lie far apart."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    values = np.concatenate([curve.mean for curve in panel.curves])
    finite = values[np.isfinite(values)]
    if len(finite) and finite.min() > 0 and finite.max() / finite.min() > _WIDE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(_log_marks(float(finite.min()), float(finite.max()))))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(
        lambda value, _: percent(value) if panel.number_format is NumberFormat.SHARE else f"{value:,g}"
    )
    axes.set_ylabel(panel.y_label)


def _log_marks(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis: 1, 2, 5, 10 ... while that is few, else powers of ten."""
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    return [step * 10.0**power for power in powers for step in steps]


def _label_ends(axes: Any, axis: Axis, curves: Sequence[Curve]) -> None:
    """The name of each curve beside its last point; names that would overlap are moved apart, with a line back."""
    ends = [
        (k, int(np.flatnonzero(np.isfinite(c.mean))[-1])) for k, c in enumerate(curves) if np.isfinite(c.mean).any()
    ]
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    points = [(axis.values[last], float(curves[k].mean[last])) for k, last in ends]
    heights = [float(to_axes.transform(point)[1]) for point in points]
    for (k, _), point, height in zip(ends, points, spread(heights, _LABEL_HEIGHT), strict=True):
        axes.annotate(
            curves[k].label,
            xy=point,
            xytext=(1.04, height),
            textcoords="axes fraction",
            color=line_colour(k),
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": line_colour(k), "linewidth": 0.7, "alpha": 0.5, "shrinkB": 4},
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights apart until neighbours are at least `gap` from each other, none further than it must.

    Neighbours too close become a block around the mean of where its members would be; blocks that
    then meet are merged.
    """
    order = sorted(range(len(heights)), key=lambda k: (heights[k], k))
    blocks: list[list[int]] = []
    for k in order:
        blocks.append([k])
        while len(blocks) > 1 and _bottom(blocks[-1], heights, gap) < _top(blocks[-2], heights, gap) + gap:
            last = blocks.pop()
            blocks[-1] += last
    placed = [0.0] * len(heights)
    for block in blocks:
        for n, k in enumerate(block):
            placed[k] = _bottom(block, heights, gap) + n * gap
    return placed


def _bottom(block: Sequence[int], heights: Sequence[float], gap: float) -> float:
    return sum(heights[k] for k in block) / len(block) - gap * (len(block) - 1) / 2


def _top(block: Sequence[int], heights: Sequence[float], gap: float) -> float:
    return _bottom(block, heights, gap) + gap * (len(block) - 1)
