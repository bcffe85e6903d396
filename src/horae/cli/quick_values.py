"""Option values that need no conversion, taken as they are.

Typer converts every value, defaults included, by pydantic, whose import takes longer than most commands. A default
has its type already, and a text needs none. Everything else is left to Typer.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, get_args, get_origin

#: Where an option keeps its converter. Without it, as in another release of Typer, options are as slow as they were.
_CONVERTER = "_runtime_param"


def read_quickly(params: list[Any]) -> list[Any]:
    """Have options and arguments take values as they are, where they need no conversion."""
    for param in params:
        annotation = getattr(getattr(param, "type_descriptor", None), "annotation", None)
        if annotation is not None and getattr(param, _CONVERTER, param) is None:
            setattr(param, _CONVERTER, _QuickConverter(param, annotation))
    return params


class _QuickConverter:
    """Stands in for Typer's converter, and makes that one only for a value that needs it."""

    def __init__(self, param: Any, annotation: Any) -> None:
        self._param, self._annotation = param, annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command takes it."""
        is_list = param.multiple or param.nargs == -1
        if value is None:
            return () if is_list else None
        quick = _as_it_is(value, self._annotation)
        if quick is not None:
            return quick
        setattr(self._param, _CONVERTER, None)
        return self._param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _as_it_is(value: Any, annotation: Any) -> Any:
    """A value that is of its type already; None for one that must be converted."""
    if get_origin(annotation) is list:
        texts = get_args(annotation) == (str,) and isinstance(value, list | tuple)
        return list(value) if texts and all(isinstance(one, str) for one in value) else None
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, Enum):
        return next((member for member in annotation if value is member or value == member.value), None)
    return value if type(value) is annotation else None
