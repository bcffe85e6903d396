"""Horae's own trace format: a column for each field of a JobSpec, in CSV or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from horae.core.errors import did_you_mean
from horae.core.job import JobSpec
from horae.core.loss_curve import LossCurve
from horae.core.throughputs import Throughputs
from horae.workload.formats.table import (
    BadCell,
    BadTrace,
    Cell,
    Format,
    RowReader,
    Table,
    from_json,
    has_columns,
    is_parquet,
    number,
    read_csv,
    read_parquet,
    whole,
)


@dataclass(frozen=True)
class TraceColumn:
    """One column: the field of JobSpec it holds and how to read and write it."""

    name: str
    field: str
    read: Callable[[Cell, str], Any]
    #: Name of the column's type in polars.
    stored: str = "String"
    write: Callable[[Any], Cell] = lambda value: value
    required: bool = False


def _text(cell: Cell, _: str) -> str:
    return str(cell)


def _names(cell: Cell, column: str) -> tuple[str, ...]:
    """A JSON list of names."""
    names = from_json(cell, column)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadCell(f'{column} is {cell!r}, not a JSON list of names such as ["v100", "p100"]')
    return tuple(names)


def _speeds(cell: Cell, column: str) -> dict[str, float]:
    """A JSON map from GPU type to steps/s."""
    speeds = from_json(cell, column)
    if not isinstance(speeds, dict) or not all(_is_number(speed) for speed in speeds.values()):
        raise BadCell(f'{column} is {cell!r}, not a JSON map such as {{"v100": 11.2}}')
    return {gpu_type: float(speed) for gpu_type, speed in speeds.items()}


def _numbers(cell: Cell, column: str) -> tuple[float, ...]:
    """A JSON list of numbers."""
    numbers = from_json(cell, column)
    if not isinstance(numbers, list) or not all(_is_number(value) for value in numbers):
        raise BadCell(f"{column} is {cell!r}, not a JSON list of numbers such as [1, 1, 1.02, 1.05]")
    return tuple(float(value) for value in numbers)


def _codes(cell: Cell, column: str) -> tuple[int, ...]:
    """A JSON list of exit codes."""
    codes = from_json(cell, column)
    if not isinstance(codes, list) or not all(_is_number(code) and float(code).is_integer() for code in codes):
        raise BadCell(f"{column} is {cell!r}, not a JSON list of whole numbers such as [1, 137]")
    return tuple(int(code) for code in codes)


def _loss(cell: Cell, column: str) -> LossCurve:
    """A JSON map with the three numbers of a loss curve."""
    curve = from_json(cell, column)
    names = {field.name for field in fields(LossCurve)}
    if not isinstance(curve, dict) or set(curve) != names or not all(_is_number(value) for value in curve.values()):
        raise BadCell(f'{column} is {cell!r}, not a JSON map such as {{"first": 4, "last": 0.5, "halves_at": 600}}')
    return LossCurve(**{name: float(value) for name, value in curve.items()})


def _yes_or_no(cell: Cell, column: str) -> bool:
    """True or false."""
    word = str(cell).strip().lower()
    if word not in ("true", "false"):
        raise BadCell(f"{column} is {cell!r}, not true or false")
    return word == "true"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _map_json(value: Any) -> str:
    return json.dumps(dict(value), sort_keys=True, ensure_ascii=False)


def _list_json(value: Any) -> str:
    return json.dumps(list(value), ensure_ascii=False)


def _loss_json(value: LossCurve | None) -> str:
    return json.dumps(asdict(value)) if value else ""


COLUMNS = (
    TraceColumn("job_id", "id", _text, required=True),
    TraceColumn("submit_s", "submit_s", number, "Float64", required=True),
    TraceColumn("gpus", "gpus", whole, "Int64", required=True),
    TraceColumn("work", "work", number, "Float64", required=True),
    TraceColumn("unit", "unit", _text),
    TraceColumn("gpus_min", "gpus_min", whole, "Int64"),
    TraceColumn("gpus_max", "gpus_max", whole, "Int64"),
    TraceColumn("nodes", "nodes", whole, "Int64"),
    TraceColumn("cpus_per_gpu", "cpus_per_gpu", whole, "Int64"),
    TraceColumn("memory_mb_per_gpu", "memory_mb_per_gpu", whole, "Int64"),
    TraceColumn("job_class", "job_class", _text),
    TraceColumn("gpu_types", "gpu_types", _names, write=_list_json),
    TraceColumn("throughput", "throughput", _speeds, write=_map_json),
    TraceColumn("slowdown", "slowdown", _numbers, write=_list_json),
    TraceColumn("skew", "skew", number, "Float64"),
    TraceColumn("weight", "weight", number, "Float64"),
    TraceColumn("app", "app", _text),
    TraceColumn("queue", "queue", _text),
    TraceColumn("user", "user", _text),
    TraceColumn("exempt", "exempt", _yes_or_no, write=lambda value: str(bool(value)).lower()),
    TraceColumn("checkpoint_s", "checkpoint_s", number, "Float64"),
    TraceColumn("restore_s", "restore_s", number, "Float64"),
    TraceColumn("start_s", "start_s", number, "Float64"),
    TraceColumn("finish_s", "finish_s", number, "Float64"),
    TraceColumn("notice_s", "notice_s", number, "Float64"),
    TraceColumn("checkpoint_every_s", "checkpoint_every_s", number, "Float64"),
    TraceColumn("resumable", "resumable", _yes_or_no, write=lambda value: str(bool(value)).lower()),
    TraceColumn("min_runtime_s", "min_runtime_s", number, "Float64"),
    TraceColumn("deadline_s", "deadline_s", number, "Float64"),
    TraceColumn("max_restarts", "max_restarts", whole, "Int64"),
    TraceColumn("retry_exit_codes", "retry_exit_codes", _codes, write=_list_json),
    TraceColumn("app_scheduler", "app_scheduler", _text),
    TraceColumn("report_every", "report_every", number, "Float64"),
    TraceColumn("loss", "loss", _loss, write=_loss_json),
)

REQUIRED = tuple(column.name for column in COLUMNS if column.required)


def read(path: Path) -> Table:
    """Read a native trace; the first bytes, not the name, tell Parquet from CSV."""
    return read_parquet(path) if is_parquet(path) else read_csv(path)


def row_reader(table: Table, _: Throughputs | None) -> RowReader:
    """Read rows in which an empty cell leaves a field at its default."""
    by_name = {column.name: column for column in COLUMNS}
    for name in table.header:
        if name not in by_name:
            hint = did_you_mean(name, by_name)
            raise BadTrace(f"{table.path} has a column {name!r} that no trace has; rename or drop it.{hint}")
    table.places(*REQUIRED)
    columns = [by_name[name] for name in table.header]

    def job(_: int, row: Sequence[Cell]) -> JobSpec:
        fields: dict[str, Any] = {}
        for column, cell in zip(columns, row, strict=True):
            if cell is not None and cell != "":
                fields[column.field] = column.read(cell, column.name)
            elif column.required:
                raise BadCell(f"{column.name} is missing")
        return JobSpec(**fields)

    return job


def write_csv(path: Path, jobs: Sequence[JobSpec]) -> None:
    """Write a native trace as CSV."""
    columns = _columns_in_use(jobs)
    with path.open("w", newline="", encoding="utf-8") as file:
        # Only with "\r\n" does the module quote cells that hold a lone carriage return.
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow([column.name for column in columns])
        for job in jobs:
            writer.writerow([_as_text(column.write(getattr(job, column.field))) for column in columns])


def write_parquet(path: Path, jobs: Sequence[JobSpec]) -> None:
    """Write a native trace as Parquet."""
    import polars  # imported late: it takes longer than writing most traces

    columns = _columns_in_use(jobs)
    data = {column.name: [_or_none(column.write(getattr(job, column.field))) for job in jobs] for column in columns}
    schema = {column.name: getattr(polars, column.stored) for column in columns}
    polars.DataFrame(data, schema=schema).write_parquet(path)


def _columns_in_use(jobs: Sequence[JobSpec]) -> list[TraceColumn]:
    """The columns that say more than a default would; the unit is always worth saying."""
    pairs = [(job, JobSpec(job.id, job.submit_s, job.gpus, job.work)) for job in jobs]

    def in_use(column: TraceColumn) -> bool:
        return any(getattr(job, column.field) != getattr(bare, column.field) for job, bare in pairs)

    return [column for column in COLUMNS if column.required or column.name == "unit" or in_use(column)]


def _as_text(value: Cell) -> str:
    """A cell as CSV shows it; numbers keep every digit, whole ones lose the .0."""
    if value is None:
        return ""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _or_none(value: Cell) -> Cell:
    return None if value == "" else value


HORAE = Format(
    "horae",
    "Horae's own, CSV or Parquet: job_id, submit_s, gpus, work and, where needed, any other field of a job",
    has_columns(*REQUIRED),
    read,
    row_reader,
)
