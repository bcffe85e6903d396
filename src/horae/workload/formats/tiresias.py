"""The job files of Tiresias' simulator."""

from __future__ import annotations

from collections.abc import Sequence

from horae.core.job import JobSpec
from horae.core.throughputs import Throughputs
from horae.workload.formats.table import Cell, Format, RowReader, Table, has_columns, number, read_csv, whole


def row_reader(table: Table, _: Throughputs | None) -> RowReader:
    """Read rows whose work is `duration` seconds; `iterations` and `interval` say nothing more."""
    id_at, gpus_at, submit_at, duration_at = table.places("job_id", "num_gpu", "submit_time", "duration")
    model_at = table.header.index("model_name") if "model_name" in table.header else None

    def job(_: int, row: Sequence[Cell]) -> JobSpec:
        return JobSpec(
            id=row[id_at],
            submit_s=number(row[submit_at], "submit_time"),
            gpus=whole(row[gpus_at], "num_gpu"),
            work=number(row[duration_at], "duration"),
            job_class="" if model_at is None else row[model_at],
        )

    return job


TIRESIAS = Format(
    "tiresias",
    "CSV of Tiresias' simulator: job_id, num_gpu, submit_time, duration, model_name, ...",
    has_columns("job_id", "num_gpu", "submit_time", "duration"),
    read_csv,
    row_reader,
)
