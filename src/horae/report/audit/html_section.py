"""The verdicts of an audit as a section of a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from horae.report.audit.verdict import Verdict

_BADGES = {
    True: '<span class="badge good">holds</span>',
    False: '<span class="badge bad">does not hold</span>',
    None: '<span class="badge">not judged</span>',
}
#: So many entries of a list are shown.
_SHOWN = 5


def render_verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A card for each property: whether it held, what shows that it did not, and all numbers behind a fold."""
    judged = [verdict.holds for verdict in verdicts if verdict.holds is not None]
    yield f"<h2>Audit: {sum(judged)} of {len(judged)} properties held</h2>"
    note = "Judged by true speeds, whatever the policy believed. A property that held in this run need not always hold."
    yield f'<p class="note">{note}</p><section class="pair">'
    yield from map(_card, verdicts)
    yield "</section>"


def _card(verdict: Verdict) -> str:
    badge = _BADGES[verdict.holds]
    example = f'<p class="example">{escape(verdict.counter_example)}</p>' if verdict.counter_example else ""
    entries = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _numbers(verdict.numbers))
    return (
        f'<div class="card"><div class="what">{badge} {escape(verdict.claim)}</div>'
        f'<div class="why">{escape(verdict.summary)}</div>{example}'
        f"<details><summary>Numbers</summary><dl>{entries}</dl></details></div>"
    )


def _numbers(numbers: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Names and values, those of a record within under its name; what is empty is left out."""
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}: ")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for k, entry in enumerate(value[:_SHOWN]):
                yield f"{before}{name} {k + 1}", _text(entry)
        elif value is not None:
            yield f"{before}{name}", _text(value)


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
