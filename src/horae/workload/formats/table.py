"""A trace file as rows of cells, before anything is known about their meaning."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.throughputs import Throughputs

#: The first bytes of every Parquet file.
PARQUET_MAGIC = b"PAR1"

#: Text from CSV, numbers and text from Parquet; "" and None both mean that nothing was given.
Cell = Any

#: Turns row `number` (counted from 0) into a job. Raises a UserError for a bad row, and `LeftOut` for a row that is
#: correct but does not describe a GPU job.
RowReader = Callable[[int, Sequence[Cell]], JobSpec]


class BadTrace(UserError):
    """A trace file that cannot be read at all."""


class BadCell(UserError):
    """One cell of a trace that does not hold what its column promises."""


class LeftOut(Exception):
    """A correct row that does not describe a GPU job; the message says what such rows are, in the plural."""


@dataclass(frozen=True)
class Table:
    """All rows of a file, each with its line number."""

    path: Path
    header: tuple[str, ...]
    lines: list[int]
    rows: list[Sequence[Cell]]
    #: How many cells a row must have.
    width: int

    def places(self, *columns: str) -> list[int]:
        """The positions of the named columns in a row."""
        missing = [name for name in columns if name not in self.header]
        if missing:
            raise BadTrace(
                f"{self.path} lacks the column {missing[0]!r} (it has {', '.join(self.header) or 'none'}); "
                "add it, or name the right --format."
            )
        return [self.header.index(name) for name in columns]


@dataclass(frozen=True)
class Format:
    """One file format: how to know it, how to cut it into rows and how to read a row.

    `recognises` sees the first line of a text file. `row_reader` may look at the
    whole table first; the throughputs are for formats that count work in steps.
    """

    name: str
    summary: str
    recognises: Callable[[str], bool]
    read: Callable[[Path], Table]
    row_reader: Callable[[Table, Throughputs | None], RowReader]


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet does, whatever it is called."""
    with path.open("rb") as file:
        return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def has_columns(*columns: str) -> Callable[[str], bool]:
    """A test whether a line is a CSV header with at least these columns."""
    return lambda line: set(columns) <= set(_cells(line))


def read_csv(path: Path, delimiter: str = ",") -> Table:
    """Read a file whose first line names the columns, separated by commas or another character."""
    lines, rows = _numbered_rows(path, delimiter)
    header = tuple(str(name).strip() for name in rows[0])
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise BadTrace(f"{path} has two columns called {twice[0]!r}; rename one of them.")
    return Table(path, header, lines[1:], rows[1:], len(header))


def read_tabs(path: Path, widths: Sequence[int]) -> Table:
    """Read a tab-separated file without a header; the commonest of `widths` counts as the right one."""
    lines, rows = _numbered_rows(path, "\t")
    lengths = [len(row) for row in rows]
    return Table(path, (), lines, rows, max(widths, key=lengths.count))


def read_parquet(path: Path) -> Table:
    """Read a Parquet file; its rows count as lines from 1."""
    import polars  # imported late: it takes longer than reading most traces

    try:
        frame = polars.read_parquet(path, use_pyarrow=False)
    except (polars.exceptions.PolarsError, OSError) as why:
        raise BadTrace(f"{path} is not a Parquet file that can be read ({_first_line(why)}); write it again.") from None
    rows: list[Sequence[Cell]] = list(frame.rows())
    return Table(path, tuple(frame.columns), list(range(1, len(rows) + 1)), rows, frame.width)


def number(cell: Cell, column: str) -> float:
    """The number in a cell; whether it makes sense is for the job to judge."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise BadCell(f"{column} is {cell!r}, not a number") from None


def whole(cell: Cell, column: str) -> int:
    """The whole number in a cell; 4.0 is one, 4.5 is not."""
    value = number(cell, column)
    if not value.is_integer():
        raise BadCell(f"{column} is {cell!r}, not a whole number")
    return int(value)


def from_json(cell: Cell, column: str) -> object:
    """The value of a cell that holds JSON."""
    try:
        return json.loads(cell)
    except (TypeError, ValueError):
        raise BadCell(f"{column} is {cell!r}, not JSON") from None


def _numbered_rows(path: Path, delimiter: str) -> tuple[list[int], list[Sequence[Cell]]]:
    """The rows of a text file and the lines they begin on; blank lines are no rows."""
    text = io.StringIO(_read_text(path), newline="")
    # Quotes have a meaning in CSV alone; a command or a name between tabs or bars may hold any number of them.
    reader = csv.reader(text) if delimiter == "," else csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    lines: list[int] = []
    rows: list[Sequence[Cell]] = []
    begin = 1
    try:
        for row in reader:
            if len(row) > 1 or (row and row[0].strip()):
                lines.append(begin)
                rows.append(row)
            begin = reader.line_num + 1
    except csv.Error as why:
        raise BadTrace(f"{path}, line {begin}: {why}; fix the line.") from None
    if not rows:
        raise BadTrace(f"{path} is empty; give a trace with at least one job.")
    return lines, rows


def _read_text(path: Path) -> str:
    """The text of a file, without the mark some programs put at its beginning."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadTrace(f"{path} is not a text file in UTF-8; save it as one, or name the right --format.") from None


def _cells(line: str) -> list[str]:
    """The cells of one comma-separated line."""
    return [cell.strip() for cell in next(csv.reader([line]), [])]


def _first_line(why: Exception) -> str:
    return str(why).strip().partition("\n")[0]
