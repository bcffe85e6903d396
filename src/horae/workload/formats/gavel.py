"""Gavel's traces: tab-separated, without a header, of ten or seven columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from horae.core.cluster import Span
from horae.core.job import JobSpec
from horae.core.throughputs import Setting, Throughputs
from horae.workload.formats.table import BadCell, Cell, Format, RowReader, Table, number, read_tabs, whole

#: The GPU type on which Gavel states durations.
REFERENCE_TYPE = "v100"

#: What an SLO of -1 stands for: none.
NO_SLO = -1.0

#: A larger number is hardly the size of a job; it tells arrivals from sizes.
LARGEST_LIKELY_SIZE = 1024


class Layout(NamedTuple):
    """Where each value stands in a row; -1 for what the layout does not have."""

    job_type: int
    steps: int
    gpus: int
    arrival: int
    weight: int = -1
    slo: int = -1


#: job_type, command, working_dir, num_steps_arg, needs_data_dir, total_steps, scale_factor, priority_weight,
#: SLO, arrival
TEN = Layout(job_type=0, steps=5, gpus=6, arrival=9, weight=7, slo=8)

#: job_type, command, num_steps_arg, needs_data_dir, total_steps, then these two in either order
ARRIVAL_THEN_SIZE = Layout(job_type=0, steps=4, arrival=5, gpus=6)
SIZE_THEN_ARRIVAL = Layout(job_type=0, steps=4, gpus=5, arrival=6)


def row_reader(table: Table, throughputs: Throughputs | None) -> RowReader:
    """Read rows whose work is in steps; a job's id is the number of its row, from 0."""
    layout = TEN if table.width == 10 else _seven(table)

    def job(row_number: int, row: Sequence[Cell]) -> JobSpec:
        job_type = row[layout.job_type].strip()
        gpus = whole(row[layout.gpus], "scale_factor")
        steps = number(row[layout.steps], "total_steps")
        slo = NO_SLO if layout.slo < 0 else number(row[layout.slo], "SLO")
        return JobSpec(
            id=str(row_number),
            submit_s=number(row[layout.arrival], "arrival"),
            gpus=gpus,
            work=steps,
            unit="steps",
            job_class=job_type,
            weight=1.0 if layout.weight < 0 else number(row[layout.weight], "priority_weight"),
            deadline_s=None if slo == NO_SLO else slo * _duration_s(job_type, gpus, steps, throughputs),
        )

    return job


def _duration_s(job_type: str, gpus: int, steps: float, throughputs: Throughputs | None) -> float:
    """How long a job takes on Gavel's reference type: an SLO is a multiple of that."""
    if throughputs is None:
        raise BadCell("its SLO is a multiple of a duration that only a table of speeds gives; pass --throughputs")
    span = Span.GPU if gpus == 1 else Span.NODE
    throughput = throughputs.get(Setting(job_type, REFERENCE_TYPE, gpus, span))
    if throughput is None or throughput.steps_per_s <= 0:
        raise BadCell(
            f"its SLO needs a throughput of {job_type!r} on {gpus} {REFERENCE_TYPE} GPUs; add it to the table"
        )
    return steps / throughput.steps_per_s


def _seven(table: Table) -> Layout:
    """Tell the two seven-column layouts apart by what their columns hold.

    Arrivals never fall and sizes are small whole numbers from 1 up: the order
    that breaks these rules in fewer rows is right, arrival then size when both
    break them equally often.
    """
    rows = [row for row in table.rows if len(row) == table.width]
    return min((ARRIVAL_THEN_SIZE, SIZE_THEN_ARRIVAL), key=lambda layout: _breaches(rows, layout))


def _breaches(rows: Sequence[Sequence[Cell]], layout: Layout) -> int:
    """In how many rows a layout would make arrivals fall or sizes unlikely."""
    arrivals = [_number_or_nan(row[layout.arrival]) for row in rows]
    sizes = [_number_or_nan(row[layout.gpus]) for row in rows]
    falls = sum(later < earlier for earlier, later in pairwise(arrivals))
    odd = sum(not (size.is_integer() and 1 <= size <= LARGEST_LIKELY_SIZE) for size in sizes)
    return falls + odd


def _number_or_nan(cell: Cell) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


GAVEL = Format(
    "gavel",
    "Gavel's tab-separated traces of 10 or 7 columns: job_type, command, ..., total_steps, scale_factor, arrival",
    lambda line: line.count("\t") + 1 in (7, 10),
    partial(read_tabs, widths=(10, 7)),
    row_reader,
)
