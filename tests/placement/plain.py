"""Compiled functions as plain Python, to be called one by one: compiled, most of them have no door to Python."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

_PLAIN: dict[Any, Any] = {}


def plain(compiled: Any) -> Callable[..., Any]:
    """The function behind a compiled one, and behind all that it calls."""
    function = getattr(compiled, "py_func", compiled)
    if function not in _PLAIN:
        names = dict(function.__globals__)
        _PLAIN[function] = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        names.update({name: plain(value) for name, value in names.items() if hasattr(value, "py_func")})
    return _PLAIN[function]
