"""How stored fields lie in JSON: arrays as lists, never as null, writes into memory as triples.

Tests core/json_field_types.py and core/arrays.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter

from horae.core.arrays import Bytes, Floats, Ints
from horae.core.json_field_types import CodeColumn, IntColumn, MemoryWrite, Moment


def test_a_column_is_a_list_and_comes_back_with_its_type() -> None:
    for kind, dtype in ((IntColumn, np.int64), (CodeColumn, np.uint8)):
        adapter = TypeAdapter(kind)
        text = adapter.dump_json(np.array([3, 0, 7], dtype))
        assert text == b"[3,0,7]"
        column = adapter.validate_json(text)
        assert (column.dtype, column.tolist()) == (dtype, [3, 0, 7])
        assert adapter.validate_json("[]").dtype == dtype


@pytest.mark.parametrize(("moment", "text"), [(1.5, b"1.5"), (np.inf, b"null"), (0, b"0.0")])
def test_never_is_null(moment: float, text: bytes) -> None:
    adapter = TypeAdapter(Moment)
    assert adapter.dump_json(moment) == text
    assert adapter.validate_json(text) == moment


def test_a_write_of_a_scalar_and_one_of_rows_come_back() -> None:
    adapter = TypeAdapter(MemoryWrite)
    assert adapter.dump_json(("looked", None, 5.0)) == b'["looked",null,5.0]'
    assert adapter.validate_json('["looked",null,5.0]') == ("looked", None, 5.0)
    text = adapter.dump_json(("owed", np.array([4, 6]), np.array([[1.0, 2.0], [0.0, 3.0]])))
    assert text == b'["owed",[4,6],[[1.0,2.0],[0.0,3.0]]]'
    name, rows, values = adapter.validate_json(text)
    assert (name, rows.tolist(), rows.dtype, values.tolist()) == ("owed", [4, 6], np.int64, [[1, 2], [0, 3]])


def test_array_types_are_those_that_the_columns_have() -> None:
    assert [np.zeros(1, kind.__args__[1].__args__[0]).dtype for kind in (Bytes, Ints, Floats)] == [
        np.uint8,
        np.int64,
        np.float64,
    ]
