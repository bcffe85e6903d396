"""The Microsoft Philly trace, in the table with one row a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from horae.core.job import JobSpec
from horae.core.throughputs import Throughputs
from horae.workload.formats.table import BadCell, Cell, Format, RowReader, Table, has_columns, number, read_csv, whole


def row_reader(table: Table, _: Throughputs | None) -> RowReader:
    """Read rows that stand in no order: time 0 is the earliest timestamp of the whole file.

    The file names no jobs, so a job's id is the number of its row, from 0. Its
    queue is the virtual cluster it ran in.
    """
    time_at, duration_at, gpus_at, cluster_at = table.places("timestamp", "duration", "num_gpus", "cluster")
    times = [_moment(row[time_at]) for row in table.rows if len(row) == table.width]
    earliest = min((moment for moment in times if moment is not None), default=None)

    def job(row_number: int, row: Sequence[Cell]) -> JobSpec:
        moment = _moment(row[time_at])
        if moment is None or earliest is None:
            raise BadCell(f"timestamp is {row[time_at]!r}, not a date and time such as 2017-10-09 07:01:55")
        return JobSpec(
            id=str(row_number),
            submit_s=(moment - earliest).total_seconds(),
            gpus=whole(row[gpus_at], "num_gpus"),
            work=number(row[duration_at], "duration"),
            queue=row[cluster_at],
        )

    return job


def _moment(text: str) -> datetime | None:
    """The moment a timestamp names, or None; one without a time zone counts as UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


PHILLY = Format(
    "philly",
    "CSV of the Microsoft Philly trace: timestamp, duration, num_gpus, cluster, ...",
    has_columns("timestamp", "duration", "num_gpus", "cluster"),
    read_csv,
    row_reader,
)
