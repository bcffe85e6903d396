"""Policy memory of decisions as bytes. Stored: change by addition.

The bytes are compressed. They hold a header, which is a line of JSON, and the arrays that the header lists.
"""

from __future__ import annotations

import json
import math
import zlib
from typing import Any

import numpy as np

from horae.core.json_field_types import MemoryWrite

VERSION = 1


def encode_memory(writes: tuple[MemoryWrite, ...]) -> bytes:
    """The memory writes of a decision as bytes."""
    header: list[Any] = []
    arrays: list[bytes] = []
    for name, rows, values in writes:
        if rows is None:
            header.append((name, float(values).hex()))
            continue
        numbers, column = np.asarray(rows, np.int64), np.asarray(values, np.float64)
        header.append((name, len(numbers), column.shape))
        arrays += [numbers.tobytes(), column.tobytes()]
    text = json.dumps({"v": VERSION, "writes": header}).encode()
    return zlib.compress(b"".join((text, b"\n", *arrays)), level=1)


def decode_memory(body: bytes) -> tuple[MemoryWrite, ...]:
    """The memory writes of these bytes. Raises ValueError or KeyError if they are something else."""
    try:
        line, _, arrays = zlib.decompress(body).partition(b"\n")
    except zlib.error as why:
        raise ValueError(str(why)) from why
    header = json.loads(line)
    if header["v"] != VERSION:
        raise ValueError(f"policy memory of version {header['v']}")
    writes: list[MemoryWrite] = []
    offset = 0
    for name, count, *shape in header["writes"]:
        if not shape:
            writes.append((name, None, float.fromhex(count)))
            continue
        rows = np.frombuffer(arrays, np.int64, count, offset).copy()
        size = math.prod(shape[0])
        values = np.frombuffer(arrays, np.float64, size, offset + rows.nbytes).reshape(shape[0]).copy()
        writes.append((name, rows, values))
        offset += rows.nbytes + values.nbytes
    return tuple(writes)
