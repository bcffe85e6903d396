"""Bars of text characters for shares."""

from __future__ import annotations

import sys


def bar(share: float, width: int = 12, mark: float | None = None) -> str:
    """A bar for a share from 0 to 1, with an optional mark, such as an entitlement."""
    full, empty, stroke = ("█", "·", "┃") if _draws(sys.stdout.encoding) else ("#", ".", "|")
    filled = round(min(max(share, 0.0), 1.0) * width)
    letters = [full] * filled + [empty] * (width - filled)
    if mark is not None:
        letters.insert(round(min(max(mark, 0.0), 1.0) * width), stroke)
    return "".join(letters)


def _draws(encoding: str | None) -> bool:
    """Whether an encoding has the drawing characters."""
    try:
        "█·┃".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
