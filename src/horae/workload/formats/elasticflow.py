"""The traces published with ElasticFlow (Microsoft ITP, 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from horae.core.job import JobSpec
from horae.core.throughputs import Throughputs
from horae.workload.formats.table import Cell, Format, RowReader, Table, has_columns, number, read_csv, whole


def row_reader(table: Table, _: Throughputs | None) -> RowReader:
    """Read rows; submission times keep the origin that the clusters of one collection share."""
    id_at, submit_at, duration_at, gpus_at = table.places("job_id", "submission_time", "duration", "num_gpu")

    def job(_: int, row: Sequence[Cell]) -> JobSpec:
        return JobSpec(
            id=row[id_at],
            submit_s=number(row[submit_at], "submission_time"),
            gpus=whole(row[gpus_at], "num_gpu"),
            work=number(row[duration_at], "duration"),
        )

    return job


ELASTICFLOW = Format(
    "elasticflow",
    "CSV of ElasticFlow's traces: job_id, submission_time, duration, num_gpu",
    has_columns("job_id", "submission_time", "duration", "num_gpu"),
    read_csv,
    row_reader,
)
