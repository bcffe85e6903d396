"""Retirement: jobs that ended long ago are removed from the engine's state; rows and apps get new numbers.

Rows change nowhere else. A journal names rows, so retirement is an event of its own (`JobsRetired`): records
before it use the old rows, records after it the new rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from horae.core.arrays import Ints
from horae.core.declared import Rows
from horae.core.job_table import COLUMNS, JobTable
from horae.core.memory import MemorySpec
from horae.core.state import declared

Value = TypeVar("Value")


@dataclass(frozen=True)
class Retirement:
    """The rows and apps that stay. Their positions here are their new numbers."""

    rows: Ints
    apps: Ints
    #: New number by old number; -1 for rows and apps that are retired.
    _row: Ints
    _app: Ints

    @staticmethod
    def of(table: JobTable, retired: Ints) -> Retirement:
        """The retirement of these rows. They must be all jobs of their apps."""
        rows = np.setdiff1d(np.arange(len(table)), retired, assume_unique=True)
        apps = np.unique(table.app[rows])
        return Retirement(rows, apps, _positions(rows, len(table)), _positions(apps, len(table.apps)))

    def without(self, contents: Mapping[str, Any], memory: MemorySpec) -> dict[str, Any]:
        """The contents of an engine without the retired jobs; `memory` declares what its policy keeps.

        Each value is renumbered as it is declared in `state.py`.
        """
        remaining: dict[str, Any] = {**contents, "jobs": self._columns(contents["jobs"])}
        for path, stored in declared().items():
            if stored.rows is not Rows.NOTHING:
                *above, name = path
                parent = remaining
                for key in above:
                    parent[key] = dict(parent[key])
                    parent = parent[key]
                parent[name] = self._renumbered(parent[name], stored.rows)
        remaining["learnt"] = self._learnt(contents)
        remaining["memory"] = self._memory(contents["memory"], memory)
        return remaining

    def _renumbered(self, value: Any, rows: Rows) -> Any:
        """A stored value with the new numbers of rows or apps in place of the old."""
        match rows:
            case Rows.NOTHING:
                return value
            case Rows.KEYS:
                return {int(self._row[row]): entry for row, entry in value.items() if self._row[row] >= 0}
            case Rows.VALUES if isinstance(value, np.ndarray):
                return np.where(value >= 0, self._row[value], -1)
            case Rows.VALUES:
                return tuple(self._row[list(value)].tolist())
            case Rows.POSITIONS:
                return tuple(value[row] for row in self.rows.tolist())
            case Rows.APPS if isinstance(value, np.ndarray):
                return self._app[value]
            case Rows.APPS:
                return [int(self._app[app]) for app in value if self._app[app] >= 0]

    def _columns(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of the jobs that stay."""
        stay = {name: column[self.rows] for name, column in columns.items()}
        return stay | {
            name: self._renumbered(stay[name], column.rows) for name, column in COLUMNS.items() if name in stay
        }

    def _learnt(self, state: Mapping[str, Any]) -> tuple[Any, ...]:
        """Learnt speeds without those of retired jobs whose job class is their own id."""
        retired = (spec for spec, row in zip(state["specs"], self._row.tolist(), strict=True) if row < 0)
        own_classes = {spec.id for spec in retired if spec.job_class == spec.id}
        return tuple(
            (setting, speed)
            for setting, speed in state["learnt"]
            if own_classes.isdisjoint((setting.job_class, setting.neighbour))
        )

    def _memory(self, state: Mapping[str, Any], spec: MemorySpec) -> dict[str, Any]:
        """The policy's memory: columns by row, by app, and columns whose values are rows."""
        columns = {name: column[self.rows] for name, column in state["columns"].items()}
        for name in spec.by_app:
            columns[name] = np.zeros_like(columns[name])
            columns[name][: len(self.apps)] = state["columns"][name][self.apps]
        for name in spec.naming_rows:
            old = columns[name].astype(np.int64) - 1
            columns[name] = np.where(old >= 0, self._row[old] + 1.0, 0.0)
        return {**state, "columns": columns}


def _positions(kept: Ints, count: int) -> Ints:
    """Position of each number below `count` among the kept numbers; -1 for the others."""
    positions = np.full(count, -1, np.int64)
    positions[kept] = np.arange(len(kept))
    return positions
