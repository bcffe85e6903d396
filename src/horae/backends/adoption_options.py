"""Options that users' own jobs name for Horae beside what the cluster manager knows, and where a job file has them."""

from __future__ import annotations

from typing import Any

from horae.core.durations import seconds_of
from horae.core.errors import UserError

#: Estimate (s) for a job that does not say how long it takes.
DEFAULT_S = 3600.0
#: Where each option is in a job file.
OPTIONS = {
    "queue": ("queue",),
    "app": ("app",),
    "class": ("class",),
    "steps": ("estimate", "steps"),
    "duration": ("estimate", "duration"),
    "grace": ("checkpoint", "grace"),
    "min_runtime": ("min_runtime",),
    "deadline": ("deadline",),
    "preemptible": ("preemptible",),
}
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")


class BadRequest(UserError):
    """A job of a user that Horae cannot order, in a sentence for its user."""


def read_value(name: str, value: str, where: str) -> Any:
    """The value of an option; `where` the user wrote it is for the error, such as "the comment"."""
    if name == "preemptible":
        if value.lower() not in (*_YES, *_NO):
            raise BadRequest(f"preemptible={value} in {where} is not understood: write yes or no.")
        return value.lower() in _YES
    if name == "steps":
        try:
            return float(value)
        except ValueError:
            raise BadRequest(f"steps={value} in {where} is no number.") from None
    return value


def put_option(document: dict[str, Any], name: str, value: Any) -> None:
    """Put an option into a job file."""
    *sections, key = OPTIONS[name]
    for section in sections:
        document = document.setdefault(section, {})
    document[key] = value


def duration_of(document: dict[str, Any], where: str) -> float:
    """Estimated seconds of the whole job."""
    duration = document["estimate"]["duration"]
    try:
        return float(seconds_of(duration) if isinstance(duration, str) else duration) or DEFAULT_S
    except ValueError:
        raise BadRequest(f"duration={duration} in {where} is no time: write 90m or 2h, for example.") from None
