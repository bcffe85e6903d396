"""Traces in and out: jobs from a file of any known format, and back into Horae's own.

A row that cannot be a job is never dropped in silence: it is reported with file,
line and reason, and left out only when asked. Rows that do not describe a GPU job, such as
a job without GPUs, are left out and counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horae.core.errors import UserError, did_you_mean
from horae.core.job import JobSpec
from horae.core.throughputs import Throughputs
from horae.plugins.installed import FORMATS_GROUP, add_installed
from horae.workload.formats import native
from horae.workload.formats.elasticflow import ELASTICFLOW
from horae.workload.formats.gavel import GAVEL
from horae.workload.formats.native import HORAE
from horae.workload.formats.philly import PHILLY
from horae.workload.formats.slurm import SLURM
from horae.workload.formats.table import BadTrace, Format, LeftOut, Table, is_parquet
from horae.workload.formats.tiresias import TIRESIAS

#: Trace formats by name. Public: a program may add its own. The first that recognises a file's first line reads it.
FORMATS: dict[str, Format] = {
    trace_format.name: trace_format for trace_format in (HORAE, TIRESIAS, GAVEL, PHILLY, ELASTICFLOW, SLURM)
}

#: How many bad rows an error quotes.
ROWS_QUOTED = 3


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read as a job: file, line and reason."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a file, by submission time; jobs submitted together keep the file's order."""

    jobs: tuple[JobSpec, ...]
    format: str
    skipped: tuple[BadRow, ...] = ()
    #: Rows that do not describe a GPU job, counted by what they are.
    left_out: Mapping[str, int] = field(default_factory=dict)


class BadRows(UserError):
    """All bad rows of a file in one error: the first few and how many there are."""

    def __init__(self, path: Path, bad: Sequence[BadRow], rows: int, good: int) -> None:
        quoted = "; ".join(f"line {row.line}: {row.reason}" for row in bad[:ROWS_QUOTED])
        more = f"; and {len(bad) - ROWS_QUOTED:,} more" if len(bad) > ROWS_QUOTED else ""
        # Where no row is good there is nothing left to run without them.
        advice = "or pass --skip-bad to leave them out" if good else "or name the right --format"
        super().__init__(
            f"{len(bad):,} of {rows:,} rows in {path} cannot be jobs ({quoted}{more}). Fix them, {advice}."
        )
        self.rows = tuple(bad)


def load_trace(
    path: str | Path,
    format: str | None = None,  # noqa: A002, the word every user of traces expects
    skip_bad: bool = False,
    throughputs: Throughputs | None = None,
) -> Trace:
    """Read the jobs of a trace file; without a format name, its first line tells the format.

    Raises a UserError that quotes the first bad rows, unless `skip_bad` is set:
    then they are left out and returned as `Trace.skipped`. `throughputs` matter
    only for deadlines in Gavel's traces, which are multiples of a duration.
    """
    path = Path(path)
    chosen = detect_format(path) if format is None else _format_called(format, path)
    table = chosen.read(path)
    if not table.rows:
        raise BadTrace(f"{path} has a header but no jobs; add at least one row.")
    jobs, bad, left_out = _read_rows(table, chosen, throughputs)
    if bad and not (skip_bad and jobs):
        raise BadRows(path, bad, len(table.rows), len(jobs))
    if not jobs:
        counts = ", ".join(f"{reason}: {rows:,}" for reason, rows in left_out.items())
        raise BadTrace(f"{path} has no job to run (left out: {counts}); give a file with at least one.")
    return Trace(tuple(sorted(jobs, key=lambda job: job.submit_s)), chosen.name, tuple(bad), left_out)


def save_trace(path: str | Path, jobs: Sequence[JobSpec]) -> None:
    """Write jobs in Horae's own format: CSV or Parquet, as the file's name ends.

    Only the columns that say more than a default are written.
    """
    path = Path(path)
    writers = {".csv": native.write_csv, ".parquet": native.write_parquet}
    if path.suffix not in writers:
        raise UserError(f"A trace is written as .csv or .parquet, not as {path.name!r}; rename the file.")
    try:
        writers[path.suffix](path, jobs)
    except OSError as why:
        raise UserError(f"{path} cannot be written ({why.strerror or why}); choose another path.") from None


def detect_format(path: Path) -> Format:
    """Tell a file's format from its first bytes or its first line."""
    _check_file(path)
    if is_parquet(path):
        return HORAE
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        line = next((line.rstrip("\r\n") for line in file if line.strip()), None)
    if line is None:
        raise BadTrace(f"{path} is empty; give a trace with at least one job.")
    found = _recognising(line)
    if found is None:
        _look_at_packages(None)
        found = _recognising(line)
    if found is not None:
        return found
    raise BadTrace(
        f"{path} starts with {_shortened(line)!r}, which no known format does; "
        f"name one with --format ({', '.join(FORMATS)}) or add the missing columns."
    )


def _recognising(line: str) -> Format | None:
    return next((candidate for candidate in FORMATS.values() if candidate.recognises(line)), None)


def _look_at_packages(name: str | None) -> None:
    """Add the format of this name, or all formats, that installed packages offer."""
    add_installed(FORMATS_GROUP, FORMATS, _checked, name)


def _checked(name: str, chosen: Any) -> Format:
    if not isinstance(chosen, Format):
        raise UserError(f"The format {name!r} of an installed package is no Format: see horae.workload.formats.table.")
    return chosen


def _format_called(name: str, path: Path) -> Format:
    """The format of a name; also checks that the file can be read."""
    if name not in FORMATS:
        _look_at_packages(name)
    if name not in FORMATS:
        raise UserError(
            f"No trace format is called {name!r}.{did_you_mean(name, FORMATS)} Choose one of {', '.join(FORMATS)}."
        )
    _check_file(path)
    return FORMATS[name]


def _check_file(path: Path) -> None:
    """Refuse a path that holds no file."""
    if os.path.isdir(path):  # noqa: PTH112, it bears names too long to be paths
        raise BadTrace(f"{path} is a folder; name a trace file in it.")
    if not os.path.exists(path):  # noqa: PTH110
        raise BadTrace(f"There is no trace file {path}; check the path.")
    if not os.path.isfile(path):  # noqa: PTH113
        raise BadTrace(f"{path} is a pipe or a device, and a trace is read more than once; save it to a file first.")
    if not os.access(path, os.R_OK):
        raise BadTrace(f"The trace file {path} may not be read; change its permissions.")


def _read_rows(
    table: Table, chosen: Format, throughputs: Throughputs | None
) -> tuple[list[JobSpec], list[BadRow], Counter[str]]:
    """The jobs of a table, its bad rows, and the counts of rows that do not describe a GPU job."""
    read_row = chosen.row_reader(table, throughputs)
    jobs: list[JobSpec] = []
    bad: list[BadRow] = []
    left_out: Counter[str] = Counter()
    line_of: dict[str, int] = {}
    for number, (line, row) in enumerate(zip(table.lines, table.rows, strict=True)):
        try:
            if len(row) != table.width:
                raise BadTrace(f"it has {len(row)} columns instead of {table.width}")
            job = read_row(number, row)
            if line_of.setdefault(job.id, line) != line:
                raise BadTrace(f"job id {job.id!r} is taken by line {line_of[job.id]}")
        except LeftOut as why_not:
            left_out[str(why_not)] += 1
        except UserError as why:
            bad.append(BadRow(str(table.path), line, str(why).rstrip(".")))
        else:
            jobs.append(job)
    return jobs, bad, left_out


def _shortened(line: str, most: int = 60) -> str:
    return line if len(line) <= most else line[:most] + "..."
