"""A whole engine as bytes: where recovery starts. Only later records need folding. Stored: change by addition.

Compressed, it is a line of JSON and then what that line announces, end to end: the plain parts of the
engine's state as JSON, and the columns as they lie in memory. The line carries a version; parts and
columns come by addition, as `state.py` declares them. Nothing in it can run code.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping
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


class UnreadableCheckpoint(UserError):
    """A checkpoint that is damaged, or of a version that this release does not know."""


def save(engine: Engine) -> bytes:
    """Everything an engine knows."""
    parts: list[tuple[Path, bytes]] = []
    columns: list[tuple[Path, NDArray[Any]]] = []
    for path, value in _leaves(engine.contents()):
        if isinstance(value, np.ndarray):
            columns.append((path, value))
        else:
            parts.append((path, _adapter(path).dump_json(value)))
    header = {
        "format": _FORMAT,
        "v": VERSION,
        "parts": [(path, len(text)) for path, text in parts],
        "columns": [(path, column.dtype.str, column.shape) for path, column in columns],
    }
    body = [json.dumps(header).encode(), b"\n", *(text for _, text in parts), *(one.tobytes() for _, one in columns)]
    return zlib.compress(b"".join(body), level=1)


def load(engine: Engine, body: bytes) -> None:
    """Give a fresh engine the state of the saved one."""
    try:
        line, _, rest = zlib.decompress(body).partition(b"\n")
        header = json.loads(line)
        if header["format"] != _FORMAT:
            raise ValueError(header["format"])
        state = _read(header, rest) if header["v"] == VERSION else None
    except (zlib.error, ValueError, KeyError, TypeError) as why:
        raise UnreadableCheckpoint("This checkpoint is damaged: recover from an older one, or the journal.") from why
    if state is None:
        raise UnreadableCheckpoint(
            f"This checkpoint is of version {header['v']} and this release of Horae reads version {VERSION}: "
            "use the release that wrote it."
        )
    engine.restore(state)


def _leaves(state: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Parts and columns of the state, each with its path; what is None is left out."""
    for name, value in state.items():
        path = (*above, name)
        if isinstance(value, dict) and path not in declared():
            yield from _leaves(value, path)
        elif value is not None:
            yield path, value


def _read(header: Mapping[str, Any], rest: bytes) -> dict[str, Any]:
    """The state that a header announces and the bytes after it hold."""
    state: dict[str, Any] = {}
    at = 0
    for names, size in header["parts"]:
        # A part that a later release added says nothing to this one.
        if tuple(names) in declared():
            _put(state, names, _adapter(tuple(names)).validate_json(rest[at : at + size]))
        at += size
    for names, kind, shape in header["columns"]:
        count = math.prod(shape)
        # A copy: a view would keep all the rest in memory for as long as somebody has it.
        column = np.frombuffer(rest, kind, count, at).reshape(shape).copy()
        _put(state, names, column)
        at += column.nbytes
    return state


def _put(state: dict[str, Any], path: list[str], value: Any) -> None:
    """Put a part where its path says."""
    for name in path[:-1]:
        state = state.setdefault(name, {})
    state[path[-1]] = value


@cache
def _adapter(path: Path) -> TypeAdapter[Any]:
    """Made once: building one takes longer than using it a thousand times."""
    return TypeAdapter(declared()[path].type, config=ConfigDict(ser_json_inf_nan="constants"))
