"""Lazily imported commands, so that each loads only what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from horae.cli.quick_values import read_quickly
from horae.cli.usage_errors import PlainUsage


@dataclass(frozen=True)
class LazyCommand:
    """Where a command is, or a group of them, as `module:name`; what a list says of it; its class, if it has one."""

    place: str
    help: str
    kind: str = ""


class LazyGroup(TyperGroup):
    """A group of commands that are imported when they are called; a subclass names them, in the order of its list."""

    late: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        #: Names alone, for the list and for hints at what may be meant, until a command is made.
        self.commands = dict.fromkeys(self.late)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, made when it is first asked for."""
        if cmd_name in self.late and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _make(cmd_name, self.late[cmd_name])
        return self.commands.get(cmd_name)

    def get_params(self, ctx: Any) -> list[Any]:
        """Options of the group."""
        return read_quickly(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list without importing what it names."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.help) for name, one in self.late.items()])


def _make(name: str, late: LazyCommand) -> Any:
    found = _find(late.place)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    alone.command(name, cls=_find(late.kind) if late.kind else PlainUsage, short_help=late.help)(found)
    return typer.main.get_command(alone)


def _find(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
