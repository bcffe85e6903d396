"""Durations as users write them: 90, 30m, 4h, 1h30m."""

from __future__ import annotations

import re

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: Longest text of a duration, in characters.
_LONGEST = 100
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def seconds_of(text: str) -> float:
    """A duration such as 90, 30m, 4h or 1h30m, in seconds; a ValueError says how to write it."""
    if len(text) > _LONGEST:
        raise ValueError(f"{text[:20]!r}... is not a duration; write it like 90, 30m, 4h or 1h30m")
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write it like 90, 30m, 4h or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
