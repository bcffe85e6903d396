"""How a job ended, as an exit code: for `logs`, `wait` and `submit --wait`."""

from __future__ import annotations

from collections.abc import Iterable

SUCCEEDED, FAILED, NOT_FINISHED, NOT_FOUND, CANCELLED = 0, 100, 101, 102, 103

#: States that a job never leaves, and the exit code of each.
ENDED = {"finished": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED}

#: What tells most, first: of several jobs, a lost one is worse news than one that goes on.
_WORST = (NOT_FOUND, FAILED, CANCELLED, NOT_FINISHED)


def exit_code(state: str) -> int:
    """The exit code for a job in this state."""
    return ENDED.get(state, NOT_FINISHED)


def worst(codes: Iterable[int]) -> int:
    """One exit code for several jobs."""
    had = set(codes)
    return next((code for code in _WORST if code in had), SUCCEEDED)
