"""Draws how time and memory grow with apps and GPUs. matplotlib is imported only to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horae.report.pages.palette import MUTED, line_colour

#: Below these nothing can be told from noise, and a logarithmic axis has no 0.
_LEAST_S, _LEAST_MB = 1e-4, 0.1


@dataclass(frozen=True)
class Grown:
    """One line of each panel: seconds and MB at every size."""

    label: str
    seconds: Sequence[float]
    mb: Sequence[float]


def grown(label: str, rows: Sequence[Mapping[str, Any]], ms: str, mb: str) -> Grown:
    """A line from two columns of a part's rows."""
    return Grown(label, [row[ms] / 1e3 for row in rows], [row[mb] for row in rows])


def sizes_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Apps and GPUs of the rows."""
    return [(row["apps"], row["gpus"]) for row in rows]


def draw_scaling(path: Path, title: str, sizes: Sequence[tuple[int, int]], lines: Sequence[Grown]) -> None:
    """Write two panels with logarithmic axes: CPU time and memory against apps."""
    from matplotlib import style
    from matplotlib.figure import Figure

    from horae.report.pages.plots import STYLE

    with style.context(["default", {**STYLE, "figure.figsize": (10.4, 4.4)}]):
        figure = Figure()
        time, memory = figure.subplots(1, 2)
        for k, line in enumerate(lines):
            _plot(time, sizes, [max(s, _LEAST_S) for s in line.seconds], line.label, k)
            _plot(memory, sizes, [max(mb, _LEAST_MB) for mb in line.mb], line.label, k)
        _finish(time, sizes, "CPU time", _seconds)
        _finish(memory, sizes, "memory added at the peak", lambda mb: f"{mb:,g} MB")
        time.legend(frameon=False, loc="upper left")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=MUTED)
        figure.savefig(path, dpi=160, facecolor="white", metadata={"Software": None})


def _plot(axes: Any, sizes: Sequence[tuple[int, int]], values: Sequence[float], label: str, line: int) -> None:
    axes.plot([apps for apps, _ in sizes], values, color=line_colour(line), marker="o", markersize=4, label=label)


def _finish(axes: Any, sizes: Sequence[tuple[int, int]], label: str, text: Callable[[float], str]) -> None:
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([apps for apps, _ in sizes], [f"{apps:,}\n{gpus:,}" for apps, gpus in sizes])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: text(value))
    axes.set_xlabel("apps, and below them GPUs")
    axes.set_ylabel(label)


def _seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 else f"{1e3 * value:g} ms"
