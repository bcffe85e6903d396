"""Amounts that change at a constant rate."""

from __future__ import annotations

import numpy as np

from horae.core.straight_lines import along


def test_each_row_has_its_own_line_from_its_own_moment() -> None:
    base, slope, since_s = np.array([100.0, 50.0, 7.0]), np.array([2.0, 0.5, 0.0]), np.array([10.0, 0.0, 5.0])
    rows = np.array([2, 0, 1])
    assert along(20.0, rows, base, slope, since_s, -1.0).tolist() == [7.0, 80.0, 40.0]
    assert along(20.0, rows, base, slope, since_s, 1.0).tolist() == [7.0, 120.0, 60.0]


def test_no_rows_have_no_values() -> None:
    none = np.empty(0)
    assert along(1.0, np.empty(0, np.int64), none, none, none, 1.0).shape == (0,)
