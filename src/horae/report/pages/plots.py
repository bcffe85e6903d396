"""The plots of a page as SVG. matplotlib is imported here, so import this module late."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from horae.core.arrays import Floats
from horae.core.history import History
from horae.report.formatting import time_ticks
from horae.report.metrics.gpu_holdings import Holdings
from horae.report.metrics.measure import Report
from horae.report.metrics.step_functions import overlap
from horae.report.pages.palette import BAD, GOOD, GRID, INK, LINES, MUTED, is_dashed, line_colour

RunRecord = tuple[History, Report]

#: How every figure looks.
STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.edgecolor": "#b9c1cd",
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.figsize": (7.4, 3.5),
    "figure.constrained_layout.use": True,
}

#: Ticks of a logarithmic time axis.
_LOG_TIMES = {
    "1 ms": 0.001, "10 ms": 0.01, "0.1 s": 0.1, "1 s": 1, "10 s": 10, "1 min": 60, "10 min": 600, "1 h": 3600,
    "6 h": 21600, "1 d": 86400, "1 wk": 604800, "30 d": 2592000, "1 y": 31536000, "10 y": 315360000,
}  # fmt: skip


def draw_jct(runs: Sequence[RunRecord]) -> str:
    """The share of jobs done within a time, by run."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        values = [_measured(report, report.outcomes.jct_s) for _, report in runs]
        for number, jct in enumerate(values):
            _cumulative(axes, jct, number)
        axes.set_xscale("log")
        _log_time_axis(axes, np.concatenate(values))
        _share_axis(axes, "share of jobs")
        axes.set_xlabel("done within, counted from submission")

    return svg("jct", draw)


def draw_delays(runs: Sequence[RunRecord]) -> str:
    """The share of jobs that had started within a time, by run."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        # A logarithmic axis has no 0, so a job that started at once is drawn at the first tick.
        values = [np.maximum(_measured(report, report.outcomes.queueing_s), 1.0) for _, report in runs]
        for number, delays in enumerate(values):
            _cumulative(axes, delays, number)
        axes.set_xscale("log")
        _log_time_axis(axes, np.concatenate([*values, [1.0, 60.0]]))
        _share_axis(axes, "share of jobs")
        axes.set_xlabel("started within, counted from submission")

    return svg("delays", draw)


def draw_slowdowns(runs: Sequence[RunRecord], metric: str) -> str:
    """The distribution of a slow-down, by its key in reports: bars for one run, cumulative lines for several."""
    values = [_slowdowns(report, metric) for _, report in runs]
    unit = "jobs" if metric == "isolated_rho" else "apps"

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        if len(values) == 1:
            _histogram(axes, values[0])
            _count_axis(axes, f"number of {unit}")
        else:
            for number, slowdowns in enumerate(values):
                _cumulative(axes, slowdowns, number)
            _share_axis(axes, f"share of {unit}")
        axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        _slowdown_axis(axes, np.concatenate(values))

    return svg(metric, draw)


def draw_usage(runs: Sequence[RunRecord]) -> str:
    """The share of GPUs held, over time."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, (history, _) in enumerate(runs):
            holdings, edges = Holdings.of(history.attempts), _edges(runs)
            held = overlap(holdings.begin_s, holdings.end_s, 1.0 / holdings.holders).binned(edges)
            _over_time(axes, share_of_gpus(history, held, edges), edges, number, len(runs))
        _share_axis(axes, "share of GPUs held")
        _time_axis(axes, *life_s(runs))

    return svg("usage", draw)


def share_of_gpus(history: History, held: Floats, edges: Floats) -> Floats:
    """GPUs held in each bin over those that were there: at most 1, for lost nodes may be held a little longer."""
    if history.presence is None:
        return held / history.cluster.gpus
    stays = history.presence
    there = overlap(stays.begin_s, stays.end_s, stays.gpus).binned(edges)
    return np.minimum(np.divide(held, there, out=np.zeros_like(held), where=there > 0), 1.0)


def draw_waiting(runs: Sequence[RunRecord]) -> str:
    """The number of jobs that wait, over time: submitted, not ended, and without GPUs."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, (history, _) in enumerate(runs):
            edges = _edges(runs)
            _over_time(axes, _waiting(history, edges), edges, number, len(runs))
        _count_axis(axes, "jobs waiting")
        _time_axis(axes, *life_s(runs))

    return svg("waiting", draw)


def _waiting(history: History, edges: Floats) -> Floats:
    """Jobs present less jobs that hold GPUs, on average in each bin."""
    attempts, submit_s = history.attempts, history.submit_s
    gone_s = np.where(np.isnan(history.end_s), np.inf, history.end_s)
    present = overlap(submit_s, np.minimum(gone_s, max(edges[-1], submit_s.max(initial=0)))).binned(edges)
    return np.maximum(present - overlap(attempts.begin_s, attempts.end_s).binned(edges), 0.0)


def _measured(report: Report, values: Floats) -> Floats:
    """The values of the window's jobs, without NaN."""
    inside = values[report.window.first_job : report.window.end_job]
    return inside[~np.isnan(inside)]


def _slowdowns(report: Report, metric: str) -> Floats:
    """Slow-downs of the window: jobs for isolated_rho, apps for the others."""
    if metric == "isolated_rho":
        return _measured(report, report.outcomes.isolated_rho)
    apps, window = report.outcomes.apps, report.window
    by_app = apps.rho if metric == "rho" else report.outcomes.isolated_rho_by_app
    inside = by_app[(apps.first_job >= window.first_job) & (apps.first_job < window.end_job)]
    return inside[~np.isnan(inside)]


def life_s(runs: Sequence[RunRecord]) -> tuple[float, float]:
    """From the first submission to the last end of all runs, so that they share an axis."""
    begins = [history.submit_s.min() for history, _ in runs if len(history.jobs)]
    ends = [history.attempts.end_s.max() for history, _ in runs if len(history.attempts.end_s)]
    begin_s = float(min(begins, default=0.0))
    return begin_s, max(float(max(ends, default=begin_s)), begin_s + 1.0)


def _edges(runs: Sequence[RunRecord]) -> Floats:
    """Edges of time bins; fewer for several runs, whose lines would hide each other."""
    return np.linspace(*life_s(runs), 501 if len(runs) == 1 else 161)


def _cumulative(axes: Any, values: Floats, run: int) -> None:
    """A cumulative distribution in at most 400 steps."""
    if not len(values):
        return
    shares = np.linspace(0, 1, min(len(values), 400) + 1)
    quantiles = np.sort(values)[np.ceil(shares * len(values)).astype(int).clip(1) - 1]
    axes.plot(quantiles, shares, drawstyle="steps-post", **line_style(run))


def _histogram(axes: Any, values: Floats) -> None:
    """Bars on a logarithmic axis with an edge at 1: slow-downs up to 1 in one colour, above 1 in another."""
    if not len(values):
        return
    positive = np.maximum(values, 1e-6)
    low, high = np.log10(positive.min()), np.log10(max(positive.max(), 1.0))
    width = max((high - low) / 40, 0.02)
    # Each bin ends a little late: rounding puts some slow-downs that are exactly 1 just above 1.
    edges = 10 ** (width * np.arange(np.floor(low / width) - 1, np.ceil(high / width) + 1)) * (1 + 1e-6)
    counts, _ = np.histogram(positive, edges)
    colours = [GOOD if edge < 1 + 1e-5 else BAD for edge in edges[1:]]
    axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=colours, edgecolor="white", linewidth=0.6)


def _over_time(axes: Any, values: Floats, edges: Floats, run: int, runs: int) -> None:
    """A filled area for one run, lines for several."""
    if runs == 1:
        axes.stairs(values, edges, fill=True, color=LINES[0], alpha=0.25, linewidth=0)
    options = line_style(run)
    axes.stairs(values, edges, baseline=None, **{**options, "linewidth": 1.4 if runs == 1 else 1.5})


def line_style(run: int) -> dict[str, Any]:
    """Colour and dashes of the run at a position, for matplotlib."""
    return {"color": line_colour(run), "linestyle": (0, (4, 2)) if is_dashed(run) else "solid", "linewidth": 1.8}


def _share_axis(axes: Any, label: str) -> None:
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.set_ylabel(label)


def _count_axis(axes: Any, label: str) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylabel(label)


def _time_axis(axes: Any, begin_s: float, end_s: float) -> None:
    ticks, unit = time_ticks(begin_s, end_s)
    axes.set_xlim(begin_s, end_s)
    axes.set_xticks(ticks, [f"{(tick - begin_s) / unit.seconds:g}" for tick in ticks])
    axes.set_xlabel(f"{unit.plural} since the first submission")


def _log_time_axis(axes: Any, values: Floats) -> None:
    positive = values[values > 0]
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (1.0, 10.0)
    inside = {text: tick_s for text, tick_s in _LOG_TIMES.items() if low / 1.5 <= tick_s <= high * 1.5}
    axes.set_xlim(min([low, *inside.values()]) / 1.1, max([high, *inside.values()]) * 1.1)
    axes.set_xticks(list(inside.values()), list(inside))
    axes.minorticks_off()


def _slowdown_axis(axes: Any, values: Floats) -> None:
    low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 1.0)
    low, high = min(max(low, 1e-6), 0.8) / 1.15, max(high, 1.25) * 1.15
    decades = [10.0**k * step for k in range(-6, 9) for step in ((1, 2, 5) if high / low < 300 else (1,))]
    ticks = [tick for tick in decades if low <= tick <= high]
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:,.0f}×" if tick >= 1 else f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("slowdown: left of 1× faster than the yardstick, right of it slower")


def svg(name: str, draw: Callable[[Figure], None]) -> str:
    """Draw a figure and return it as an SVG element for a page: no size, no date, ids of its own.

    Ids are prefixed with the figure's name because all figures share one page.
    """
    with style.context(["default", {**STYLE, "svg.hashsalt": name}]):
        figure, text = Figure(), io.StringIO()
        draw(figure)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    element = text.getvalue()
    element = re.sub(r"<metadata>.*?</metadata>", "", element[element.index("<svg") :], flags=re.DOTALL)
    element = re.sub(
        r'(<svg)[^>]*?(viewBox="[^"]*")[^>]*>', rf'\1 class="plot" \2 role="img" aria-label="{name}">', element
    )
    element = re.sub(r'id="', f'id="{name}-', element)
    element = re.sub(r'xlink:href="#', f'href="#{name}-', element)
    return element.replace("url(#", f"url(#{name}-")
