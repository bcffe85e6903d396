"""A policy's memory: the numbers it wants remembered between decisions. Stored: names change by addition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.declared import Stored
from horae.core.stored_types import MemoryWrite


@dataclass(frozen=True)
class MemorySpec:
    """What a policy wants remembered: columns by job (width 0: one number a job) and scalars."""

    columns: dict[str, int] = field(default_factory=dict)
    #: Those of them that lie by the numbers of apps, and those that name a row: its number plus 1, 0 for none.
    by_app: tuple[str, ...] = ()
    naming_rows: tuple[str, ...] = ()
    #: Columns with one number for each GPU type.
    by_type: tuple[str, ...] = ()
    scalars: dict[str, float] = field(default_factory=dict)


class Memory:
    """A policy's memory. The engine owns it; every write is logged into the decision's record."""

    #: Columns are arrays, which carry their own type.
    STORED: ClassVar[dict[str, Stored]] = {"scalars": Stored(dict[str, float])}

    def __init__(self, spec: MemorySpec, gpu_types: int) -> None:
        self._spec, self._gpu_types = spec, gpu_types
        self._scalars: dict[str, float] = dict(spec.scalars)
        self._columns: dict[str, Floats] = {}
        self._writes: list[MemoryWrite] = []
        self.fit(64, gpu_types)

    def fit(self, rows: int, gpu_types: int) -> None:
        """Make room for so many jobs and GPU types; what is new is 0."""
        widths = {**self._spec.columns, **dict.fromkeys(self._spec.by_type, gpu_types)}
        for name, width in widths.items():
            old = self._columns.get(name)
            if old is not None and len(old) >= rows and (name not in self._spec.by_type or old.shape[1] == width):
                continue
            room = max(
                rows, 2 * len(old) if old is not None and len(old) < rows else 0, len(old) if old is not None else 0
            )
            new = np.zeros((room, width) if width else room)
            if old is not None:
                new[tuple(slice(size) for size in old.shape)] = old
            self._columns[name] = new

    def column(self, name: str, rows: Ints) -> Floats:
        """The remembered numbers of these jobs."""
        values: Floats = self._columns[name][rows]
        return values

    def put(self, name: str, rows: Ints, values: Floats) -> None:
        """Remember numbers of these jobs; those that are remembered already are no writes, for the journal's sake."""
        before = self._columns[name][rows]
        other = before != values
        changed = other.any(axis=1) if other.ndim > 1 else other
        if changed.any():
            self.apply((name, rows[changed], np.broadcast_to(values, before.shape)[changed]))

    def scalar(self, name: str) -> float:
        """A remembered number."""
        return self._scalars[name]

    def put_scalar(self, name: str, value: float) -> None:
        """Remember one number."""
        self.apply((name, None, float(value)))

    def apply(self, write: MemoryWrite) -> None:
        """Perform a write and log it."""
        name, rows, values = write
        if rows is None:
            self._scalars[name] = values
        elif name in self._columns:
            # Of a column that nobody declares any more nothing need be remembered.
            self._columns[name][rows] = values
        self._writes.append(write)

    def drain(self) -> tuple[MemoryWrite, ...]:
        """The writes since the last call."""
        writes = tuple(self._writes)
        self._writes.clear()
        return writes

    def contents(self, rows: int) -> dict[str, Any]:
        """Everything remembered about the first `rows` jobs: for checkpoints and comparison."""
        columns = {name: _of_length(column, rows) for name, column in self._columns.items()}
        return {"scalars": dict(self._scalars), "columns": columns}

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Remember what `contents` gave; what the policy has come to declare since then begins afresh."""
        self._scalars.update(contents["scalars"])
        for name, column in contents.get("columns", {}).items():
            self._columns[name] = _of_length(column, max(64, len(column))).copy()


def _of_length(column: Floats, rows: int) -> Floats:
    """The first rows of a column, 0 where it ends before."""
    if len(column) >= rows:
        return column[:rows]
    return np.concatenate((column, np.zeros((rows - len(column), *column.shape[1:]))))
