"""Output of the live commands: JSON and CSV for programs, tables for people; shared options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.output import Output, note, print_csv, print_json, print_rich, without_controls

if TYPE_CHECKING:
    from rich.console import RenderableType

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Address of the service (default: HORAE_URL, or this machine's service)."
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.", show_default=False)]
JobsArgument = Annotated[list[str] | None, typer.Argument(metavar="JOB", help="Ids of the jobs.", show_default=False)]

_INTERRUPTED = 130


def answer(
    output: Output,
    whole: object,
    records: Iterable[Mapping[str, object]],
    for_people: Callable[[], Sequence[RenderableType]],
) -> None:
    """Print an answer: `whole` as JSON, `records` as CSV, or the tables of `for_people`."""
    match output:
        case Output.JSON:
            print_json(whole)
        case Output.CSV:
            print_csv(records)
        case Output.TABLE:
            print_rich(*for_people())


@contextmanager
def interruptible(after: str) -> Iterator[None]:
    """Let Ctrl-C end a command with one line that says what goes on."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"interrupted; {after}")
        raise SystemExit(_INTERRUPTED) from None


def pass_down(ctx: typer.Context, url: str | None, output: StrEnum) -> None:
    """Pass options given before the name of a sub-command to that sub-command."""
    names = getattr(ctx.command, "commands", {})
    ctx.default_map = {name: {"url": url, "output": output.value} for name in names}


def visible(text: object) -> str:
    """A text from outside with control characters escaped, so that it cannot control the terminal."""
    return without_controls(str(text))


def command_line(words: Sequence[Any]) -> str:
    """Words of a command, quoted for a shell."""
    import shlex

    return visible(shlex.join(str(word) for word in words))


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 job, 2 jobs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def next_steps(*steps: tuple[str, str]) -> list[str]:
    """Lines that suggest commands, each with its purpose."""
    width = max(len(line) for line, _ in steps)
    return ["", "Next:", *(f"  {line:<{width}}  {what}" for line, what in steps)]
