"""What the commands print: a table for people, JSON or CSV for programs."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from horae.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horae.policies.type_awareness import IgnoredSpeeds


#: Control characters other than tab and line feed, and those that `json` does not escape.
_CONTROL, _BEYOND_ASCII = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]"), re.compile("[\x7f-\x9f]")
#: Characters of a line in a pipe.
_PIPE_WIDTH = 200


class Output(StrEnum):
    """The forms in which every command can answer."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@contextmanager
def _printing() -> Iterator[None]:
    """Print to stdout and be done with it: a disk that is full is told now; a closed pipe is for `main` to meet."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"Cannot write to stdout: {error.strerror or error}; make room or send it elsewhere.") from None


def print_json(value: object) -> None:
    """Print one JSON document; numbers that JSON cannot hold become null."""
    with _printing():
        text = json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False)
        typer.echo(_BEYOND_ASCII.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_text(text: str) -> None:
    """Print a text as it is, such as a file's content."""
    with _printing():
        typer.echo(text, nl=False)


def print_csv(records: Iterable[Mapping[str, object]]) -> None:
    """Print one line a record; what is nested becomes columns such as `rho.max`.

    Control characters in texts are shown as escapes: what users name their jobs must not control a terminal.
    """
    rows = [{name: _harmless(value) for name, value in _flat(record)} for record in records]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    with _printing():
        writer.writeheader()
        writer.writerows(rows)


def print_rich(*parts: RenderableType) -> None:
    """Print tables and text for people; a pipe gets plain text that is never cut short."""
    if all(isinstance(part, str) and _fits(part) for part in parts):
        # Short sentences need no layout, and rich takes a while to load.
        with _printing():
            for part in parts:
                typer.echo(part)
        return
    from rich.console import Console

    # Names of jobs, queues and files stand in what is printed: brackets and colons in them mean nothing.
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=_PIPE_WIDTH)
    with _printing():
        for part in parts:
            console.print(part)


def _fits(text: str) -> bool:
    """Whether a text is one line of plain letters that no terminal would break."""
    return text.isascii() and text.isprintable() and is_wide(len(text) + 1) and len(text) < _PIPE_WIDTH


def is_wide(columns: int) -> bool:
    """Whether a line of so many characters fits on the terminal; in a pipe it does."""
    return not sys.stdout.isatty() or shutil.get_terminal_size().columns >= columns


def filled(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> RenderableType:
    """A table without the columns in which nothing stands."""
    kept = [k for k in range(len(columns)) if any(row[k] != "" for row in rows)]
    return table([columns[k] for k in kept], [[row[k] for k in kept] for row in rows])


def note(sentence: str) -> None:
    """Tell the user something beside the answer, on stderr."""
    typer.echo(sentence, err=True)


def note_unfinished(policy: str, waiting: Sequence[Mapping[str, str]]) -> None:
    """Say how many jobs never ended in the runs of a policy, and why one did not; silence would look like success."""
    jobs = [item for run in waiting for item in run.items()]
    if jobs:
        job, why = jobs[0]
        note(f"{policy}: {len(jobs):,} {'job' if len(jobs) == 1 else 'jobs'} did not finish, such as {job}: {why}")


def note_ignored_speeds(found: Sequence[tuple[str, IgnoredSpeeds | None]]) -> None:
    """Say which policies ignore that jobs are not equally fast on all GPU types, in one sentence for all."""
    from horae.policies.type_awareness import ignored_speeds_in_words

    if sentence := ignored_speeds_in_words(found):
        note(sentence)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> RenderableType:
    """A plain table; columns in which every cell begins with a digit stand on the right."""
    from rich import box
    from rich.table import Table

    cells = [[_cell(value) for value in row] for row in rows]
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        numeric = all(row[number][:1].isdigit() for row in cells)
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        made.add_row(*row)
    return made


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def without_controls(text: str, keep: str = "") -> str:
    """A text with control characters as escapes; tabs, line feeds and those in `keep` stay."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else f"\\x{ord(found[0]):02x}", text)


def _harmless(value: object) -> object:
    return without_controls(value) if isinstance(value, str) else value


def _plain(value: object) -> object:
    """The same value with numbers that are not finite replaced by None, all the way down."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _flat(record: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", " ".join(map(str, value)) if isinstance(value, list) else value
