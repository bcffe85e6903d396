"""Types of stored fields, with how JSON holds them. Stored: change by addition.

The markers are read by pydantic where records are encoded; importing this module does not import pydantic.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from horae.core.arrays import Bytes, Ints


class _AsList:
    """An array, held as a list of numbers."""

    def __init__(self, dtype: type) -> None:
        self._dtype = dtype

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda value: np.asarray(value, self._dtype),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.tolist()),
        )


class _InfinityAsNull:
    """A moment; null stands for never."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda value: np.inf if value is None else float(value),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: float(value) if value < np.inf else None
            ),
        )


class _AsWrite:
    """A write into a policy's memory, held as [name, rows or null, values]."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            _read_write, serialization=core_schema.plain_serializer_function_ser_schema(_write_write)
        )


def _read_write(value: Any) -> tuple[str, Ints | None, Any]:
    name, rows, values = value
    if rows is None:
        return name, None, float(values)
    return name, np.asarray(rows, np.int64), np.asarray(values, np.float64)


def _write_write(write: tuple[str, Ints | None, Any]) -> list[Any]:
    name, rows, values = write
    return [name, None if rows is None else rows.tolist(), np.asarray(values).tolist()]


IntColumn = Annotated[Ints, _AsList(np.int64)]
CodeColumn = Annotated[Bytes, _AsList(np.uint8)]
#: Seconds; infinite for never.
Moment = Annotated[float, _InfinityAsNull()]
#: One write into a policy's memory: column or scalar name, rows (None for a scalar), values.
MemoryWrite = Annotated[tuple[str, Ints | None, Any], _AsWrite()]
