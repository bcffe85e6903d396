"""Lengths of time as users write them."""

from __future__ import annotations

import math

from horae.core.durations import seconds_of
from horae.core.errors import UserError


def read_span(option: str, text: str) -> float:
    """Seconds of a length of time such as 90, 30m, 4h or 1h30m."""
    try:
        value = seconds_of(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}.") from None
    if not math.isfinite(value):
        raise UserError(f"{option}: {text!r} is too long.")
    return value
