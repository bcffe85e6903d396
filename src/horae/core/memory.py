"""A policy's memory: the numbers that it keeps from one decision to the next. Stored: names change by addition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.declared import Stored
from horae.core.json_field_types import MemoryWrite

#: A memory without columns has room for any number of rows.
_ANY_NUMBER = 1 << 62


@dataclass(frozen=True)
class MemorySpec:
    """What a policy keeps: columns by job (name to width; width 0 is a single number for each job) and scalars."""

    columns: dict[str, int] = field(default_factory=dict)
    #: Columns whose position is an app's number instead of a job's row.
    by_app: tuple[str, ...] = ()
    #: Columns whose values are rows: the row plus 1, 0 for no row. Retirement renumbers them.
    naming_rows: tuple[str, ...] = ()
    #: More columns, with a number for each GPU type.
    by_type: tuple[str, ...] = ()
    scalars: dict[str, float] = field(default_factory=dict)


class Memory:
    """A policy's memory. The engine owns it; every write is stored in the decision's record."""

    #: Columns are arrays, which carry their own type.
    STORED: ClassVar[dict[str, Stored]] = {"scalars": Stored(dict[str, float])}

    def __init__(self, spec: MemorySpec, gpu_types: int) -> None:
        self._spec, self._gpu_types = spec, gpu_types
        self._scalars: dict[str, float] = dict(spec.scalars)
        self._columns: dict[str, Floats] = {}
        self._writes: list[MemoryWrite] = []
        #: Rows and GPU types that every column has room for.
        self._room = (0, 0)
        self.fit(64, gpu_types)

    def fit(self, rows: int, gpu_types: int) -> None:
        """Make room for `rows` jobs and `gpu_types` GPU types; new entries are 0."""
        if rows <= self._room[0] and gpu_types == self._room[1]:
            return
        widths = {**self._spec.columns, **dict.fromkeys(self._spec.by_type, gpu_types)}
        for name, width in widths.items():
            old = self._columns.get(name)
            if old is not None and len(old) >= rows and (name not in self._spec.by_type or old.shape[1] == width):
                continue
            room = max(
                rows, 2 * len(old) if old is not None and len(old) < rows else 0, len(old) if old is not None else 0
            )
            # A column by GPU type has a second axis even before the first GPU is there.
            new = np.zeros((room, width) if width or name in self._spec.by_type else room)
            if old is not None:
                new[tuple(slice(size) for size in old.shape)] = old
            self._columns[name] = new
        lengths = [len(column) for column in self._columns.values()]
        self._room = (min(lengths, default=_ANY_NUMBER), gpu_types)

    def column(self, name: str, rows: Ints) -> Floats:
        """The numbers kept for these rows."""
        values: Floats = self._columns[name][rows]
        return values

    def whole_column(self, name: str) -> Floats:
        """The numbers kept for all rows, for compiled code: to be read only, and until the next decision."""
        return self._columns[name]

    def put(self, name: str, rows: Ints, values: Floats) -> None:
        """Keep numbers for these rows. Only rows whose numbers change are written, to keep the journal small."""
        before = self._columns[name][rows]
        differs = before != values
        changed = differs.any(axis=1) if differs.ndim > 1 else differs
        if changed.any():
            self.apply((name, rows[changed], np.broadcast_to(values, before.shape)[changed]))

    def scalar(self, name: str) -> float:
        """The number kept under this name."""
        return self._scalars[name]

    def put_scalar(self, name: str, value: float) -> None:
        """Keep a number under this name."""
        self.apply((name, None, float(value)))

    def apply(self, write: MemoryWrite) -> None:
        """Perform a write and log it for `drain`."""
        name, rows, values = write
        if rows is None:
            self._scalars[name] = values
        elif name in self._columns:
            # A column that the policy no longer declares is not kept.
            self._columns[name][rows] = values
        self._writes.append(write)

    def drain(self) -> tuple[MemoryWrite, ...]:
        """The writes since the last call."""
        writes = tuple(self._writes)
        self._writes.clear()
        return writes

    def contents(self, rows: int) -> dict[str, Any]:
        """Everything kept about the first `rows` jobs: for checkpoints and comparison."""
        columns = {name: _of_length(column, rows) for name, column in self._columns.items()}
        return {"scalars": dict(self._scalars), "columns": columns}

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Take over what `contents` gave; columns and scalars that were declared later keep their defaults."""
        self._scalars.update(contents["scalars"])
        for name, column in contents.get("columns", {}).items():
            self._columns[name] = _of_length(column, max(64, len(column))).copy()
        self._room = (0, 0)


def _of_length(column: Floats, rows: int) -> Floats:
    """The first `rows` rows of a column, padded with 0."""
    if len(column) >= rows:
        return column[:rows]
    return np.concatenate((column, np.zeros((rows - len(column), *column.shape[1:]))))
