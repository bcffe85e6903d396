"""Reports side by side for people; the jobs file."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horae.core.history import History
from horae.report.formatting import NOTHING, number, percent, time_unit
from horae.report.metrics.measure import JOB_COLUMNS, Report, job_rows

if TYPE_CHECKING:
    from rich.table import Table


class NumberFormat(Enum):
    """How a number is written."""

    TIME = "time"
    SHARE = "share"
    PLAIN = "plain"


@dataclass(frozen=True)
class ReportFigure:
    """One row of a comparison: where the number is, what to call it, and which way is better."""

    path: str
    label: str
    number_format: NumberFormat = NumberFormat.PLAIN
    #: None where neither is better.
    more_is_better: bool | None = False
    #: Path of another number: the row is left out where that number is 0 in every report.
    if_any: str = ""

    def of(self, report: Report) -> float:
        """The number in a report."""
        return _number(self.path, report)

    def has_any(self, report: Report) -> bool:
        """Whether the row applies to a report."""
        return not self.if_any or _number(self.if_any, report) != 0


def _number(path: str, report: Report) -> float:
    value: Any = reduce(getattr, path.split("."), report)
    return float(value)


#: The rows of a comparison, in the order in which people ask.
MEASURES = (
    ReportFigure("finished", "jobs finished", more_is_better=True),
    ReportFigure("avg_jct_s", "JCT, average", NumberFormat.TIME),
    ReportFigure("median_jct_s", "JCT, median", NumberFormat.TIME),
    ReportFigure("p95_jct_s", "JCT, p95", NumberFormat.TIME),
    ReportFigure("p99_jct_s", "JCT, p99", NumberFormat.TIME),
    ReportFigure("app_completion_s.avg", "app completion time, average", NumberFormat.TIME, if_any="jobs_in_company"),
    ReportFigure("app_completion_s.p95", "app completion time, p95", NumberFormat.TIME, if_any="jobs_in_company"),
    ReportFigure("makespan_s", "makespan", NumberFormat.TIME),
    ReportFigure("queueing_delay_s.avg", "wait for first start, average", NumberFormat.TIME),
    ReportFigure("queueing_delay_s.p95", "wait for first start, p95", NumberFormat.TIME),
    ReportFigure("waiting_s.avg", "waiting in all, average", NumberFormat.TIME),
    ReportFigure("rho.avg", "slowdown vs fair share (rho), average"),
    ReportFigure("rho.max", "rho, worst"),
    ReportFigure("rho.over_1", "rho, share above 1", NumberFormat.SHARE),
    ReportFigure("rho.jain", "rho, Jain's index", more_is_better=True),
    ReportFigure("app_isolated_rho.avg", "app slowdown vs isolated run, average", if_any="jobs_in_company"),
    ReportFigure("app_isolated_rho.max", "app_isolated_rho, worst", if_any="jobs_in_company"),
    ReportFigure(
        "app_isolated_rho.over_1", "app_isolated_rho, share above 1", NumberFormat.SHARE, if_any="jobs_in_company"
    ),
    ReportFigure(
        "app_isolated_rho.jain", "app_isolated_rho, Jain's index", more_is_better=True, if_any="jobs_in_company"
    ),
    ReportFigure("isolated_rho.avg", "slowdown vs isolated run, average"),
    ReportFigure("isolated_rho.max", "isolated_rho, worst"),
    ReportFigure("isolated_rho.over_1", "isolated_rho, share above 1", NumberFormat.SHARE),
    ReportFigure("isolated_rho.jain", "isolated_rho, Jain's index", more_is_better=True),
    ReportFigure("utilization", "GPU utilisation", NumberFormat.SHARE, more_is_better=True),
    ReportFigure(
        "shared_gpu_share", "GPU-time held by two jobs at once", NumberFormat.SHARE, None, if_any="shared_gpu_share"
    ),
    ReportFigure("fragmentation", "fragmentation of idle GPUs", NumberFormat.SHARE),
    ReportFigure("preemptions", "preemptions"),
    ReportFigure("restart_overhead.share", "GPU-time lost to restarts", NumberFormat.SHARE),
    ReportFigure(
        "lost_work.share", "GPU-time of work lost by starting over", NumberFormat.SHARE, if_any="lost_work.gpu_seconds"
    ),
    ReportFigure("gpu_hours", "GPU-hours held"),
    ReportFigure("deadlines.met", "deadlines met", more_is_better=True, if_any="deadlines.jobs"),
    ReportFigure("deadlines.missed", "deadlines missed", if_any="deadlines.jobs"),
    ReportFigure("deadlines.relaxed", "deadlines relaxed", more_is_better=None, if_any="deadlines.relaxed"),
    ReportFigure("given_up", "trials given up by their apps", more_is_better=None, if_any="given_up"),
    ReportFigure(
        "given_up_gpu_hours", "GPU-hours of trials given up", more_is_better=None, if_any="given_up_gpu_hours"
    ),
    ReportFigure("auctions.held", "auctions held", more_is_better=None, if_any="auctions.held"),
    ReportFigure(
        "auctions.gpus_won", "GPUs won in auctions, before payments", more_is_better=None, if_any="auctions.held"
    ),
    ReportFigure("auctions.paid_share", "part of them paid with", NumberFormat.SHARE, None, if_any="auctions.held"),
)

#: What a run cost, by the names of `process_cost`.
_COSTS = {"cpu_s": "CPU time (s)", "wall_s": "wall time (s)", "peak_rss_mb": "peak memory (MB)"}


@dataclass(frozen=True)
class Row:
    """One number of several reports as text. `best` are the positions of the best cells; empty if all are equal."""

    label: str
    cells: tuple[str, ...]
    best: frozenset[int]


def comparison_rows(reports: Sequence[Report], measures: Sequence[ReportFigure] = MEASURES) -> list[Row]:
    """Each number of all reports, times of a row in one unit. Cells with the same text count as equal."""
    return [_row(measure, [measure.of(report) for report in reports]) for measure in shown(reports, measures)]


def shown(reports: Sequence[Report], measures: Sequence[ReportFigure] = MEASURES) -> list[ReportFigure]:
    """The rows that apply to at least one of these reports."""
    return [measure for measure in measures if any(measure.has_any(report) for report in reports)]


def _row(measure: ReportFigure, values: list[float]) -> Row:
    finite = [value for value in values if math.isfinite(value)]
    label, texts = measure.label, [number(value) for value in values]
    if measure.number_format is NumberFormat.TIME:
        unit = time_unit(max(finite, default=0.0))
        label = f"{label} ({unit.symbol})"
        texts = [number(value / unit.seconds) for value in values]
    elif measure.number_format is NumberFormat.SHARE:
        texts = [percent(value) for value in values]
    if len(set(texts)) < 2 or not finite or measure.more_is_better is None:
        return Row(label, tuple(texts), frozenset())
    top = texts[values.index(max(finite) if measure.more_is_better else min(finite))]
    return Row(label, tuple(texts), frozenset(k for k, text in enumerate(texts) if text == top))


def run_labels(reports: Sequence[Report]) -> list[str]:
    """The policies' names. A name that occurs twice gets the settings in which the runs differ."""
    names = [report.policy for report in reports]
    labels = []
    for report in reports:
        twins = [other.settings for other in reports if other.policy == report.policy]
        differing = {key: value for key, value in report.settings.items() if any(t.get(key) != value for t in twins)}
        settings = ", ".join(f"{key}={value}" for key, value in differing.items())
        labels.append(f"{report.policy} ({settings})" if settings and names.count(report.policy) > 1 else report.policy)
    return labels


def render_table(
    reports: Sequence[Report],
    labels: Sequence[str] | None = None,
    costs: Sequence[Mapping[str, float]] = (),
) -> Table:
    """A table for the terminal, one column a report; the best of each row is bold and has a star.

    `labels` replaces the policies' names; `costs` adds rows from the `process_cost` of each run.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold", min_width=12)
    for label in labels or run_labels(reports):
        table.add_column(Text(label), justify="right", overflow="fold")
    others = "  " if len(reports) > 1 else ""
    for row in [*comparison_rows(reports), *_cost_rows(costs)]:
        cells = [
            Text(f"{cell} *", style="bold green") if k in row.best else Text(cell + others)
            for k, cell in enumerate(row.cells)
        ]
        table.add_row(row.label, *cells)
    if len(reports) > 1:
        table.caption = "* best of the row"
    return table


def _cost_rows(costs: Sequence[Mapping[str, float]]) -> list[Row]:
    if not costs:
        return []
    return [
        Row(label, tuple(number(cost[key]) if key in cost else NOTHING for cost in costs), frozenset())
        for key, label in _COSTS.items()
    ]


def write_jobs_csv(path: str | Path, history: History, report: Report | None = None) -> None:
    """Write the jobs file: one row a job in order of submission.

    Pass the run's report, if there is one, so that its outcomes are not computed again.
    """
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(JOB_COLUMNS)
        writer.writerows(job_rows(history, report))
