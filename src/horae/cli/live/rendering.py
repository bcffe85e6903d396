"""How the commands answer: what the service said for programs, tables of it for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.output import Output, note, print_csv, print_json, print_rich

if TYPE_CHECKING:
    from rich.console import RenderableType

UrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The service; by default HORAE_URL, or the one on this machine."),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.", show_default=False)]
JobsArgument = Annotated[list[str] | None, typer.Argument(metavar="JOB", help="Ids of the jobs.", show_default=False)]

_INTERRUPTED = 130
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def answer(
    output: Output,
    whole: object,
    records: Iterable[Mapping[str, object]],
    for_people: Callable[[], Sequence[RenderableType]],
) -> None:
    """Print an answer: the whole as JSON, its records as CSV, or what people want to see of it."""
    match output:
        case Output.JSON:
            print_json(whole)
        case Output.CSV:
            print_csv(records)
        case Output.TABLE:
            print_rich(*for_people())


@contextmanager
def interruptible(after: str) -> Iterator[None]:
    """Let Ctrl-C end a command in one line that says how things are after it."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"interrupted; {after}")
        raise SystemExit(_INTERRUPTED) from None


def pass_down(ctx: typer.Context, url: str | None, output: Output) -> None:
    """Options of a group that stand before the name of one of its commands are that command's."""
    names = getattr(ctx.command, "commands", {})
    ctx.default_map = {name: {"url": url, "output": output.value} for name in names}


def visible(text: object) -> str:
    """A text of somebody else's, which may hold anything: it cannot command the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(text))


def command_line(words: Sequence[Any]) -> str:
    """Words as one would type them."""
    import shlex

    return visible(shlex.join(str(word) for word in words))


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 job, 2 jobs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def next_steps(*steps: tuple[str, str]) -> list[str]:
    """Commands that may be useful now, each with what it is good for."""
    width = max(len(line) for line, _ in steps)
    return ["", "Next:", *(f"  {line:<{width}}  {what}" for line, what in steps)]
