"""Lengths of time, and sizes, as users write them."""

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


def read_size(option: str, text: str, least: int) -> int:
    """Bytes of a size such as 100MB or 2GiB."""
    from horae.service.job_file import size_bytes

    try:
        value = int(size_bytes(text))
    except ValueError:
        raise UserError(f"{option}: {text!r} is not a size; write it like 100MB or 2GiB.") from None
    if value < least:
        raise UserError(f"{option}: {text!r} is too small; the least is {least // 1000}KB.")
    return value
