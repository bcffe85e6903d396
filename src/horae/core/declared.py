"""How stored state is declared: each part once, with its type and what its row numbers mean.

Checkpoints, forks, retirement and comparison follow from these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Bytes, Floats, Ints


class Rows(Enum):
    """How a part of the state names jobs or apps, for when rows are numbered anew."""

    NOTHING = "names no row"
    KEYS = "a mapping by row"
    VALUES = "its values are rows, -1 for none"
    POSITIONS = "entry i belongs to row i"
    APPS = "its values are numbers of apps"


@dataclass(frozen=True)
class Stored:
    """One stored part: its type (None for arrays, which carry their own), and how it names rows."""

    type: Any
    rows: Rows = Rows.NOTHING


@dataclass(frozen=True)
class Column:
    """One column of the job table: element type, what a fresh row holds, whether people are shown it."""

    dtype: type
    start: float
    shown: bool
    rows: Rows

    def fresh(self, count: int) -> NDArray[Any]:
        """The column of `count` fresh rows."""
        return np.full(count, self.start, self.dtype)


def ints(start: int, shown: bool = False, rows: Rows = Rows.NOTHING) -> Ints:
    """Declare a column of integers."""
    return cast(Ints, Column(np.int64, start, shown, rows))


def floats(start: float, shown: bool = False) -> Floats:
    """Declare a column of floating-point numbers."""
    return cast(Floats, Column(np.float64, start, shown, Rows.NOTHING))


def codes(start: int, shown: bool = False) -> Bytes:
    """Declare a column of small codes."""
    return cast(Bytes, Column(np.uint8, start, shown, Rows.NOTHING))
