"""The colours of plots and timelines: told apart by most eyes, on white."""

from __future__ import annotations

#: One a run, in order; runs beyond the last begin again, dashed.
LINES = ("#2f6fed", "#e8710a", "#0b9b77", "#c2255c", "#7048e8", "#b08900", "#0c8599", "#8d5b4c")

#: One a job, app or queue on a timeline.
BLOCKS = (
    "#4c86f0", "#f0923b", "#2fb38f", "#d9588a", "#9474ee", "#d1ad2a", "#3aa6b9", "#a9806f",
    "#7fb2f7", "#86b049", "#e07a5f", "#6c7bb5",
)  # fmt: skip

IDLE = "#eef1f5"
OTHERS = "#a7b0bd"
GOOD = "#0b9b77"
BAD = "#e8710a"
INK = "#1d2433"
MUTED = "#5f6b7e"
GRID = "#e4e8ee"


def line_colour(run: int) -> str:
    """The colour of the run at a position."""
    return LINES[run % len(LINES)]


def is_dashed(run: int) -> bool:
    """Whether the run shares its colour with an earlier one and is drawn dashed."""
    return run >= len(LINES)
