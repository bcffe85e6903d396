"""How the hot loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from horae import prepare_compilation

prepare_compilation()

from numba import njit  # noqa: E402, numba reads its settings when it is imported

_F = TypeVar("_F", bound=Callable[..., Any])

#: Names of the types that compiled functions take and give.
INT, BOOL, FLOAT = "int64", "boolean", "float64"
INTS, FLOATS, TABLE, COUNTS = "int64[::1]", "float64[::1]", "float64[:, ::1]", "int64[:, ::1]"


def compiled(result: str, *arguments: str) -> Callable[[_F], _F]:
    """Compile a function for exactly these types, once, and keep the machine code on disk.

    Without the signature numba would compile again for every constant it meets.
    """
    return _compile(result, arguments, no_cfunc_wrapper=True)


def inner(result: str, *arguments: str) -> Callable[[_F], _F]:
    """The same for a function that only compiled ones call: a door to Python would take time to make."""
    return _compile(result, arguments, no_cfunc_wrapper=True, no_cpython_wrapper=True)


def compiled_when_called(function: _F) -> _F:
    """The same for a function whose types are too long to write down: they are those of its first call."""
    return cast(_F, njit(cache=True)(function))


def inner_when_called(function: _F) -> _F:
    """The same for a function that only such compiled ones call."""
    decorate = cast(Callable[..., Callable[[_F], _F]], njit)
    return decorate(cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=True)(function)


def lean_when_called(function: _F) -> _F:
    """Like `lean`, for a function that Python calls."""
    decorate = cast(Callable[..., Callable[[_F], _F]], njit)
    return decorate(cache=True, no_cfunc_wrapper=True, _nrt=False)(function)


def lean(function: _F) -> _F:
    """For a function that makes no arrays, and that only such compiled ones call, whose machine code includes it.

    It needs not count which arrays are in use, and is not kept on disk by itself: so it is compiled sooner.
    """
    decorate = cast(Callable[..., Callable[[_F], _F]], njit)
    return decorate(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)(function)


def inlined(function: _F) -> _F:
    """For a line or two that become part of every compiled function that calls them: a call would cost more."""
    decorate = cast(Callable[..., Callable[[_F], _F]], njit)
    return decorate(inline="always")(function)


def _compile(result: str, arguments: tuple[str, ...], **options: bool) -> Callable[[_F], _F]:
    decorate = cast(Callable[..., Callable[[_F], _F]], njit)
    return decorate(f"{result}({', '.join(arguments)})", cache=True, **options)
