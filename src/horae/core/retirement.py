"""Jobs that ended long ago leave the engine: its state without them, and all rows and apps numbered anew.

This is the one place where a row changes. A journal names rows, so that leaving is an event of its own
(`JobsRetired`): records before it count with the old rows, those after it with the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from horae.core.arrays import Ints
from horae.core.job_table import JobTable
from horae.core.memory import MemorySpec

Value = TypeVar("Value")

#: Parts of an engine's state that are maps by row.
_BY_ROW = ("pending", "evicted", "backoff", "launched", "stopped", "measured_from")


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

    def without(self, state: Mapping[str, Any], memory: MemorySpec) -> dict[str, Any]:
        """The state of an engine, less the jobs that leave; `memory` says what its policy remembers, and by what."""
        jobs = {name: column[self.rows] for name, column in state["jobs"].items()}
        return {
            **state,
            **{name: self._by_row(state[name]) for name in _BY_ROW},
            "specs": tuple(state["specs"][row] for row in self.rows.tolist()),
            "jobs": {**jobs, "app": self._app[jobs["app"]]},
            "active": self._row[state["active"]],
            "gpus": self._gpus(state["gpus"]),
            "learnt": self._learnt(state),
            "apps": self._books(state["apps"]),
            "memory": self._memory(state["memory"], memory),
        }

    def _by_row(self, values: Mapping[int, Value]) -> dict[int, Value]:
        return {int(self._row[row]): value for row, value in values.items() if self._row[row] >= 0}

    def _gpus(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The same ledger; nobody who leaves has GPUs."""
        seats = {name: np.where(state[name] >= 0, self._row[state[name]], -1) for name in ("holders", "occupants")}
        holdings = {name: self._by_row(state[name]) for name in ("held", "occupied")}
        return {**state, **seats, **holdings, "moving": tuple(self._row[list(state["moving"])].tolist())}

    def _learnt(self, state: Mapping[str, Any]) -> tuple[Any, ...]:
        """Speeds that were learnt, less those of jobs that were a class of their own."""
        gone = (spec for spec, row in zip(state["specs"], self._row.tolist(), strict=True) if row < 0)
        own = {spec.id for spec in gone if spec.job_class == spec.id}
        return tuple(one for one in state["learnt"] if own.isdisjoint((one[0].job_class, one[0].neighbour)))

    def _books(self, state: Mapping[str, Any]) -> dict[str, Any]:
        books = {name: self._by_row(state[name]) for name in ("losses", "given_up")}
        return {**books, "news": _kept(self._app[state["news"]] if state["news"] else ())}

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


def _kept(numbers: Iterable[Any]) -> list[int]:
    return [int(number) for number in numbers if number >= 0]
