"""Averages over seeds, with how far they can be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from horae.report.metrics.measure import Report
    from horae.report.tables import ReportFigure

#: Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom.
_T_95 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


def t_95(freedom: int) -> float:
    """The two-sided 95 % point of Student's t; beyond the table by Cornish and Fisher's series (error below 1e-5)."""
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    terms: tuple[float, ...] = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


def half_width_95(values: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the mean; NaN for one value, or if one is not known."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return t_95(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def mean_record(records: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Records of equal shape as one: numbers averaged, everything else as in the first."""
    return {**records[0], **_fold(records, _mean)}


def interval_record(records: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Half the width of the 95 % interval of every number in records of equal shape."""
    return _fold(records, half_width_95)


def render_intervals(by_policy: Sequence[Sequence[Report]]) -> Table:
    """A table of means with their 95 % intervals, one column a policy and one report a seed in each."""
    from rich import box
    from rich.table import Table

    from horae.report.tables import run_labels, shown

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", min_width=12)
    for label in run_labels([reports[0] for reports in by_policy]):
        table.add_column(label, justify="right")
    for measure in shown([report for reports in by_policy for report in reports]):
        table.add_row(*_interval_cells(measure, by_policy))
    table.caption = f"means of {len(by_policy[0])} seeds ± half of the 95 % confidence interval"
    return table


def _interval_cells(measure: ReportFigure, by_policy: Sequence[Sequence[Report]]) -> list[str]:
    """The label and one cell for each policy, all in the same unit."""
    from horae.report.formatting import number, percent, time_unit
    from horae.report.tables import NumberFormat

    samples = [[measure.of(report) for report in reports] for reports in by_policy]
    label, write = measure.label, percent if measure.number_format is NumberFormat.SHARE else number
    if measure.number_format is NumberFormat.TIME:
        unit = time_unit(max((value for values in samples for value in values if math.isfinite(value)), default=0.0))
        label = f"{label} ({unit.symbol})"
        samples = [[value / unit.seconds for value in values] for values in samples]
    return [label, *(f"{write(fmean(values))} ± {write(half_width_95(values))}" for values in samples)]


def _fold(records: Sequence[Mapping[str, object]], fold: Callable[[Sequence[float]], float]) -> dict[str, object]:
    """Every number folded into one, None where a record lacks it; nested records likewise."""
    folded: dict[str, object] = {}
    for key in records[0]:
        values = [record.get(key) for record in records]
        inner = [value for value in values if isinstance(value, Mapping)]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(inner) == len(records):
            folded[key] = _fold(inner, fold)
        elif numbers:
            folded[key] = fold(numbers) if len(numbers) == len(records) else None
    return folded


def _mean(values: Sequence[float]) -> float:
    """The mean; a count that never changes stays the count it is."""
    return values[0] if all(value == values[0] for value in values) else fmean(values)
