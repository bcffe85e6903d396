"""Commands whose modules are imported when they are called: each costs its own start, and not that of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from horae.cli.usage_errors import PlainUsage


@dataclass(frozen=True)
class LazyCommand:
    """Where a command is, or a group of them, as `module:name`; what a list says of it; its class, if it has one."""

    place: str
    help: str
    kind: str = ""


class LazyGroup(TyperGroup):
    """A group of late commands; a subclass names them, in the order of its list."""

    late: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(self.late)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, in order."""
        return list(self.late)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list without importing what it names."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.help) for name, one in self.late.items()])


class _Commands(MutableMapping[str, Any]):
    """Commands by name, made when they are looked at."""

    def __init__(self, late: Mapping[str, LazyCommand]) -> None:
        self._late, self._made = dict(late), dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make(name, self._late[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._late[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._late)

    def __len__(self) -> int:
        return len(self._late)


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
