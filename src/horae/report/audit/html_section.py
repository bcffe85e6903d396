"""The verdicts of an audit as a section of a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from horae.report.audit.verdict import Verdict
from horae.report.pages.html import render

#: Entries of a list that are shown.
_SHOWN = 5


class VerdictCard(NamedTuple):
    """One verdict as the template shows it."""

    holds: bool | None
    claim: str
    summary: str
    counter_example: str
    numbers: list[tuple[str, str]]


def render_verdicts(verdicts: Sequence[Verdict]) -> Markup:
    """A card for each property: whether it held, the counter-example if it did not, and all numbers behind a fold."""
    judged = [verdict.holds for verdict in verdicts if verdict.holds is not None]
    cards = [VerdictCard(v.holds, v.claim, v.summary, v.counter_example, list(_numbers(v.numbers))) for v in verdicts]
    return render("verdicts.html", held=sum(judged), judged=len(judged), cards=cards)


def _numbers(numbers: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and values. A nested record's name goes before the names in it; None is left out."""
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}: ")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for k, entry in enumerate(value[:_SHOWN]):
                yield f"{prefix}{name} {k + 1}", _text(entry)
        elif value is not None:
            yield f"{prefix}{name}", _text(value)


def _text(value: object) -> str:
    match value:
        case Mapping():
            return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case _:
            return str(value)
