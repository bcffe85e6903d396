"""Rows of the store's tables: many in one statement."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Table, func, select

Name = TypeVar("Name", str, int)

#: Names or numbers in one statement; databases limit this.
_NAMES = 500
#: Rows in one statement of SQLite: as many as possible of these, in this order.
_ROWS = (64, 8, 1)


def insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows. SQLite gets many in a statement: for each statement, other threads may take the interpreter."""
    if rows and connection.dialect.name != "sqlite":
        connection.execute(table.insert(), rows)
        return
    names = table.columns.keys()
    for some in _batches(rows):
        values = tuple([row[name] for row in some for name in names])
        connection.exec_driver_sql(_insert_statement(table, len(some)), values)


def last_number(connection: Connection, number: ColumnElement[int]) -> int:
    """The largest number in a column; 0 if it is empty."""
    return connection.scalar(select(func.max(number))) or 0


def chunks(names: list[Name]) -> Iterator[list[Name]]:
    """Split names or numbers into pieces that fit one statement."""
    return (names[start : start + _NAMES] for start in range(0, len(names), _NAMES))


def _batches(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Split rows into batches of 64, 8 and 1, so that there are few statements to prepare."""
    start = 0
    for size in _ROWS:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@cache
def _insert_statement(table: Table, rows: int) -> str:
    row = f"({', '.join('?' * len(table.columns))})"
    names = ", ".join(f'"{name}"' for name in table.columns.keys())  # noqa: SIM118, not a dict
    return f'INSERT INTO "{table.name}" ({names}) VALUES {", ".join([row] * rows)}'
