"""Counts in words: 1 GPU, 8 GPUs."""

from __future__ import annotations

from string import Formatter
from typing import Any


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count and what is counted: 1 app, 2,000 apps. `plural` is for nouns that take more than an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def counted_or_no(count: int, noun: str, singular: str, plural: str) -> str:
    """A count, what is counted, and a verb: no job has, 1 job has, 2 jobs have."""
    return f"{counted(count, noun) if count else f'no {noun}'} {singular if count <= 1 else plural}"


class CountingFormatter(Formatter):
    """`str.format`, but for fields such as `{gpus:GPU}`, which are counted: 1 GPU, 8 GPUs."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """A count if the specification is a noun."""
        return (
            counted(value, format_spec)
            if format_spec.isalpha() and len(format_spec) > 1
            else format(value, format_spec)
        )
