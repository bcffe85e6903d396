"""Compares two recordings and says where they first differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tests.conformance.recorder import FREE, Line

#: How far numbers behind a sentence may be from those recorded, relative to them.
TOLERANCE = 1e-9
#: Fields that events got after runs were recorded, and what they mean there: stored formats grow by addition.
ADDED: dict[str, Line] = {
    "NodeDraining": {"by": ""},
    "NodeJoined": {"node": {"cpus": 0, "memory_mb": 0}},
    "JobSubmitted": {
        "spec": {
            "notice_s": None,
            "nodes": 0,
            "cpus_per_gpu": 0,
            "memory_mb_per_gpu": 0,
            "user": "",
            "exempt": False,
        }
    },
    "SettingsChanged": {"limits": {}, "unknown_queues": None, "queues": [{"members": [], "admins": []}]},
}
#: Characters of a value that a message shows.
_SHOWN = 300


def first_difference(name: str, recorded: list[Line], replayed: list[Line]) -> str:
    """A message on the first line that differs; empty if none does."""
    for number, (old, new) in enumerate(zip(recorded, replayed, strict=False), start=1):
        found = next(differences(_compared(old), _compared(new)), None)
        if found:
            return f"{name}, line {number}{_when(old)}: {found}"
    if len(recorded) != len(replayed):
        return f"{name}: {len(recorded)} lines are recorded and the run gives {len(replayed)}"
    return ""


def differences(old: Any, new: Any, path: str = "", tolerance: float = 0.0) -> Iterator[str]:
    """Where two values differ: the path to each place, and what stands there."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in old or key not in new:
                yield f"{path}.{key}: recorded {_cut(old.get(key, 'nothing'))}, now {_cut(new.get(key, 'nothing'))}"
            else:
                yield from differences(
                    old[key], new[key], f"{path}.{key}", TOLERANCE if key == "numbers" else tolerance
                )
    elif isinstance(old, list) and isinstance(new, list):
        for position, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(one, other, f"{path}[{position}]", tolerance)
        if len(old) != len(new):
            shorter = min(len(old), len(new))
            yield f"{path}[{shorter}:]: recorded {_cut(old[shorter:])}, now {_cut(new[shorter:])}"
    elif not _same(old, new, tolerance):
        yield f"{path}: recorded {_cut(old)}, now {_cut(new)}"


def _same(old: Any, new: Any, tolerance: float) -> bool:
    numbers = isinstance(old, int | float) and isinstance(new, int | float)
    if numbers and math.isnan(old) and math.isnan(new):
        return True
    if numbers and tolerance:
        return math.isclose(old, new, rel_tol=tolerance)
    return bool(old == new)


def _compared(line: Line) -> Line:
    """A line without what is free to change, and with the fields that were added since it was recorded."""
    if "event" in line:
        return {**line, "event": _filled(line["event"], ADDED.get(line["event"]["kind"], {}))}
    if "decided" not in line:
        return line
    return {**line, "decided": {key: value for key, value in line["decided"].items() if key not in FREE}}


def _filled(record: Line, added: Line) -> Line:
    """A record with the fields that it lacks, and the records in it likewise; a list says it of each record in one."""
    inner: Line = {key: _filled(record.get(key, {}), value) for key, value in added.items() if isinstance(value, dict)}
    lists = {key: value for key, value in added.items() if isinstance(value, list)}
    inner |= {key: [_filled(each, value[0]) for each in record.get(key, ())] for key, value in lists.items()}
    return {**added, **record, **inner}


def _when(line: Line) -> str:
    """What a line is about, for a message."""
    record = line.get("event") or line.get("decided")
    if record:
        return f" ({record['kind']} at {record['at_s']:g} s)"
    return f" (why after decision {line['moment']})" if "moment" in line else ""


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
