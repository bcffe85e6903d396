"""A whole engine as bytes: recovery starts from it and folds only later records. Stored: change by addition.

The bytes are compressed. They hold a header, which is a line of JSON, and then the values that the header lists:
the plain parts of the engine's state as JSON, and the columns as raw arrays. The header carries a version; parts
and columns are added as `state.py` declares them. Reading a checkpoint runs no code from it.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter

from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.state import Path, declared

VERSION = 1
_FORMAT = "horae checkpoint"
#: Entries of a part that are encoded at a time.
_SLICE = 500

#: A part or a column of the state, and its path.
Leaf = tuple[Path, Any]


class UnreadableCheckpoint(UserError):
    """A checkpoint that is damaged, or of a version that this release does not know."""


def save(engine: Engine) -> bytes:
    """The whole state of an engine as bytes."""
    return encode(_leaves(engine.contents()))


def copied(engine: Engine) -> list[Leaf]:
    """The whole state of an engine, for `encode`, which may run in another thread while the engine goes on."""
    # What is no column is a copy already, or never changes.
    return [
        (path, value.copy() if isinstance(value, np.ndarray) else value) for path, value in _leaves(engine.contents())
    ]


def encode(state: Iterable[Leaf]) -> bytes:
    """The bytes of a state."""
    parts: list[tuple[Path, bytes]] = []
    columns: list[tuple[Path, NDArray[Any]]] = []
    for path, value in state:
        if isinstance(value, np.ndarray):
            columns.append((path, value))
        else:
            parts.append((path, _as_json(path, value)))
    header = {
        "format": _FORMAT,
        "v": VERSION,
        "parts": [(path, len(text)) for path, text in parts],
        "columns": [(path, column.dtype.str, column.shape) for path, column in columns],
    }
    values = [*(text for _, text in parts), *(column.tobytes() for _, column in columns)]
    return zlib.compress(b"".join([json.dumps(header).encode(), b"\n", *values]), level=1)


def _as_json(path: Path, value: Any) -> bytes:
    """A part as JSON. A large one is encoded in slices: other threads run in between."""
    dump = _adapter(path).dump_json
    if not isinstance(value, tuple | dict) or len(value) <= _SLICE:
        return dump(value)
    entries = list(value.items()) if isinstance(value, dict) else value
    slices = (type(value)(entries[start : start + _SLICE]) for start in range(0, len(entries), _SLICE))
    texts = [dump(some) for some in slices]
    return texts[0][:1] + b",".join(text[1:-1] for text in texts) + texts[0][-1:]


def load(engine: Engine, body: bytes) -> None:
    """Give a fresh engine the state of the saved one."""
    try:
        line, _, values = zlib.decompress(body).partition(b"\n")
        header = json.loads(line)
        if header["format"] != _FORMAT:
            raise ValueError(header["format"])
        state = _read(header, values) if header["v"] == VERSION else None
    except (zlib.error, ValueError, KeyError, TypeError) as why:
        raise UnreadableCheckpoint("This checkpoint is damaged: recover from an older one, or the journal.") from why
    if state is None:
        raise UnreadableCheckpoint(
            f"This checkpoint is of version {header['v']} and this release of Horae reads version {VERSION}: "
            "use the release that wrote it."
        )
    engine.restore(state)


def _leaves(state: Mapping[str, Any], above: Path = ()) -> Iterator[Leaf]:
    """Parts and columns of the state, each with its path; None is left out."""
    for name, value in state.items():
        path = (*above, name)
        if isinstance(value, dict) and path not in declared():
            yield from _leaves(value, path)
        elif value is not None:
            yield path, value


def _read(header: Mapping[str, Any], values: bytes) -> dict[str, Any]:
    """The state from the header and the bytes after it."""
    state: dict[str, Any] = {}
    offset = 0
    for path, size in header["parts"]:
        # Parts that a later release added are skipped.
        if tuple(path) in declared():
            _put(state, path, _adapter(tuple(path)).validate_json(values[offset : offset + size]))
        offset += size
    for path, dtype, shape in header["columns"]:
        # A copy: a view would keep the whole checkpoint in memory.
        column = np.frombuffer(values, dtype, math.prod(shape), offset).reshape(shape).copy()
        _put(state, path, column)
        offset += column.nbytes
    return state


def _put(state: dict[str, Any], path: list[str], value: Any) -> None:
    """Put a value at its path."""
    for name in path[:-1]:
        state = state.setdefault(name, {})
    state[path[-1]] = value


@cache
def _adapter(path: Path) -> TypeAdapter[Any]:
    """The adapter of a part, made once: building an adapter takes longer than a thousand uses."""
    return TypeAdapter(declared()[path].type, config=ConfigDict(ser_json_inf_nan="constants"))
