"""Exit codes of `horae logs`, `horae wait` and `horae submit --wait`. Public: the codes stay."""

from __future__ import annotations

from collections.abc import Iterable

SUCCEEDED, FAILED, NOT_FINISHED, NOT_FOUND, CANCELLED, TIMEOUT = 0, 100, 101, 102, 103, 104

#: States of ended jobs, and the exit code of each.
ENDED = {"finished": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED, "timeout": TIMEOUT}

#: Exit codes from worst to best, to choose one code for several jobs.
_WORST = (NOT_FOUND, FAILED, TIMEOUT, CANCELLED, NOT_FINISHED)


def exit_code(state: str) -> int:
    """The exit code for a job in this state."""
    return ENDED.get(state, NOT_FINISHED)


def worst(codes: Iterable[int]) -> int:
    """One exit code for several jobs."""
    present = set(codes)
    return next((code for code in _WORST if code in present), SUCCEEDED)
