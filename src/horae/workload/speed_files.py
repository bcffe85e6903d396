"""Measured speeds from a file: Gavel's table of steps/s, alone and in pairs."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from horae.core.cluster import Span
from horae.core.errors import UserError
from horae.core.throughputs import Setting, Throughputs

#: Marks the speeds of a GPU type for gangs that span nodes.
SPREAD = "_unconsolidated"

#: Key of a job's speed without a neighbour.
ALONE = "null"


class BadThroughputs(UserError):
    """A file of throughputs that cannot be used."""


def load_throughputs(path: str | Path) -> Throughputs:
    """Read `{GPU type: {"('job class', gpus)": {"null": alone, "('other class', gpus)": [own, other's]}}}`.

    Speeds of a type hold inside a node, those of `TYPE_unconsolidated` across
    the nodes of a rack. A speed of 0 says that the job, or the pair, does not fit.
    """
    path = Path(path)
    table = Throughputs()
    for gpu_type, classes in _entries(_load_json(path), str(path)):
        name, spread = gpu_type.removesuffix(SPREAD), gpu_type.endswith(SPREAD)
        for own, speeds in _entries(classes, f"{path}, {gpu_type}"):
            _put_class(table, name, spread, own, speeds, f"{path}, {gpu_type}")
    if not len(table):
        raise BadThroughputs(f"{path} holds no throughputs; give at least one.")
    return table


def _put_class(table: Throughputs, gpu_type: str, spread: bool, own: str, speeds: Any, where: str) -> None:
    """Record all speeds of one job class and size on one GPU type."""
    job_class, gpus = _class_and_size(own, where)
    if spread and gpus == 1:
        return  # One GPU cannot be spread: the entry repeats that of the type itself.
    span = Span.RACK if spread else Span.GPU if gpus == 1 else Span.NODE
    where = f"{where}, {own}"
    for neighbour, speed in _entries(speeds, where):
        if neighbour == ALONE:
            table.put(Setting(job_class, gpu_type, gpus, span), _steps_per_s(speed, where))
            continue
        other, other_gpus = _class_and_size(neighbour, where)
        if other_gpus != gpus:
            raise BadThroughputs(
                f"{where} shares GPUs with {neighbour}; only jobs of equal size can, so drop the pair."
            )
        if not isinstance(speed, list) or len(speed) != 2:
            raise BadThroughputs(
                f"{where} beside {neighbour} is {speed!r}; give a list of two speeds, own and other's."
            )
        own_speed, other_speed = (_steps_per_s(value, where) for value in speed)
        table.put(Setting(job_class, gpu_type, gpus, span, other), own_speed)
        mirrored = Setting(other, gpu_type, gpus, span, job_class)
        if table.get(mirrored) is None:
            table.put(mirrored, other_speed)


@cache
def _parsed(text: str) -> tuple[str, int] | None:
    """The class and size in a text such as `('LM (batch size 5)', 2)`; cached, for few texts come very often."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    match value:
        case (str(job_class), int(gpus)) if gpus >= 1 and not isinstance(gpus, bool):
            return job_class, gpus
    return None


def _class_and_size(text: str, where: str) -> tuple[str, int]:
    parsed = _parsed(text)
    if parsed is None:
        raise BadThroughputs(f"{where}: {text!r} does not read like \"('LM (batch size 5)', 2)\"; fix it.")
    return parsed


def _steps_per_s(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise BadThroughputs(f"{where}: {value!r} is no speed; give finite steps/s from 0 up.")
    return float(value)


def _entries(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise BadThroughputs(f"{where} must be a map, not {type(value).__name__}; see the reference on throughputs.")
    return iter(value.items())


def _load_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadThroughputs(f"There is no file of throughputs {path}; check the path.") from None
    except IsADirectoryError:
        raise BadThroughputs(f"{path} is a folder; name a file of throughputs in it.") from None
    except (OSError, ValueError, RecursionError) as why:
        raise BadThroughputs(f"{path} cannot be read as JSON ({why}); fix it.") from None
