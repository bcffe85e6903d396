"""Jobs that ended long ago leave the engine: its state without them, and all rows and apps numbered anew.

This is the one place where a row changes. A journal names rows, so that leaving is an event of its own
(`JobsRetired`): records before it count with the old rows, those after it with the new ones.
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
    """Who stays. New numbers of rows and of apps are their positions here."""

    rows: Ints
    apps: Ints
    #: By old number: the new one, -1 for those that leave.
    _row: Ints
    _app: Ints

    @staticmethod
    def of(table: JobTable, gone: Ints) -> Retirement:
        """Let these rows leave, which are all jobs of their apps."""
        rows = np.setdiff1d(np.arange(len(table)), gone, assume_unique=True)
        apps = np.unique(table.app[rows])
        return Retirement(rows, apps, _positions(rows, len(table)), _positions(apps, len(table.apps)))

    def without(self, contents: Mapping[str, Any], memory: MemorySpec) -> dict[str, Any]:
        """The contents of an engine without the jobs that leave; `memory` says what its policy remembers.

        Each part is renumbered as it is declared in `state.py`.
        """
        left: dict[str, Any] = {**contents, "jobs": self._columns(contents["jobs"])}
        for path, stored in declared().items():
            if stored.rows is not Rows.NOTHING:
                *above, name = path
                holder = left
                for part in above:
                    holder[part] = dict(holder[part])
                    holder = holder[part]
                holder[name] = self._renumbered(holder[name], stored.rows)
        left["learnt"] = self._learnt(contents)
        left["memory"] = self._memory(contents["memory"], memory)
        return left

    def _renumbered(self, value: Any, rows: Rows) -> Any:
        """One part, with the new numbers of rows or apps in place of the old."""
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
        """Speeds that were learnt, less those of jobs that were a class of their own."""
        gone = (spec for spec, row in zip(state["specs"], self._row.tolist(), strict=True) if row < 0)
        own = {spec.id for spec in gone if spec.job_class == spec.id}
        return tuple(one for one in state["learnt"] if own.isdisjoint((one[0].job_class, one[0].neighbour)))

    def _memory(self, state: Mapping[str, Any], spec: MemorySpec) -> dict[str, Any]:
        """What the policy remembers: of rows, of apps, and of rows that are paired with others."""
        columns = {name: column[self.rows] for name, column in state["columns"].items()}
        for name in spec.by_app:
            columns[name] = np.zeros_like(columns[name])
            columns[name][: len(self.apps)] = state["columns"][name][self.apps]
        for name in spec.naming_rows:
            old = columns[name].astype(np.int64) - 1
            columns[name] = np.where(old >= 0, self._row[old] + 1.0, 0.0)
        return {**state, "columns": columns}


def _positions(kept: Ints, count: int) -> Ints:
    """By number: its position among those that are kept, or -1."""
    positions = np.full(count, -1, np.int64)
    positions[kept] = np.arange(len(kept))
    return positions
