"""Times relative to now, such as `3m 20s ago`."""

from __future__ import annotations

from datetime import UTC, datetime

from horae.report.formatting import NOTHING

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def short(seconds: float) -> str:
    """A duration in its two largest units, such as 3m 20s."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for unit, length in _UNITS:
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if part[0] != "0") or "0s"


def seconds_since(moment: object, now: datetime | None = None) -> float | None:
    """Seconds since an ISO timestamp of the service, at least 0; None if it is no timestamp."""
    gone_s = _since(moment, now or datetime.now(UTC))
    return None if gone_s is None else max(0.0, gone_s)


def _since(moment: object, now: datetime) -> float | None:
    if not isinstance(moment, str):
        return None
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return (now - then).total_seconds()


def until(moment: object, now: datetime | None = None) -> str:
    """A future time such as `in 3m`; a past time as `3m ago`."""
    gone_s = _since(moment, now or datetime.now(UTC))
    if gone_s is None:
        return NOTHING
    return f"in {short(-gone_s)}" if gone_s < 0 else f"{short(gone_s)} ago"


def ago(moment: object, now: datetime | None = None) -> str:
    """A past time such as `3m ago`."""
    seconds = seconds_since(moment, now)
    return NOTHING if seconds is None else f"{short(seconds)} ago"
