"""How wrong usage and the usage line are told: in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from horae.cli.quick_values import read_quickly
from horae.core.errors import in_plain_words

if TYPE_CHECKING:
    import typer


_NO_BRACES = str.maketrans("", "", "{}")


class PlainUsage(TyperCommand):
    """A command whose usage line names a required argument FILE, not {FILE}; it reads plain values without pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options and arguments."""
        return read_quickly(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line behind the command's name."""
        return [piece.translate(_NO_BRACES) for piece in super().collect_usage_pieces(ctx)]


def usage_sentence(error: typer.TyperException) -> str:
    """What is wrong with a command line, on one line, and where to look for what is right."""
    context: typer.Context | None = getattr(error, "ctx", None)
    said = " ".join(in_plain_words(error.format_message()).split()).rstrip(".")
    end = "" if said.endswith("?") else ";"
    return f"{said}{end} see `{context.command_path if context else 'horae'} --help`."


def is_help(error: typer.TyperException) -> bool:
    """Whether nothing is wrong: a group of commands was named alone, and its help is the answer."""
    return error.message.startswith("Usage:")
