"""How the hot loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

_F = TypeVar("_F", bound=Callable[..., Any])

#: Names of the types that compiled functions take and give.
INT, BOOL, FLOAT = "int64", "boolean", "float64"
INTS, FLOATS, BOOLS, BYTES, TABLE = "int64[::1]", "float64[::1]", "boolean[::1]", "uint8[::1]", "float64[:, ::1]"


def compiled(result: str, *arguments: str) -> Callable[[_F], _F]:
    """Compile a function for exactly these types, once, and keep the machine code on disk.

    Without the signature numba would compile again for every constant it meets.
    """
    return cast(Callable[[_F], _F], njit(f"{result}({', '.join(arguments)})", cache=True))
