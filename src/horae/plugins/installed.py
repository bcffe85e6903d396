"""What installed packages offer, by entry points: policies, trace formats, backends.

Packages are looked at only when a name is unknown, or when everything is listed: it takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from horae.core.errors import UserError
from horae.plugins.places import CannotLoad

Registered = TypeVar("Registered")

POLICIES_GROUP, FORMATS_GROUP, BACKENDS_GROUP = "horae.policies", "horae.formats", "horae.backends"


def add_installed(
    group: str,
    registry: MutableMapping[str, Registered],
    check: Callable[[str, Any], Registered],
    name: str | None = None,
) -> None:
    """Add to a registry what packages offer in a group: one name, or all names. A name that is taken stays.

    A package whose object cannot be loaded is an error where its name is asked for, and left out of a list.
    """
    for point in entry_points(group=group):
        if point.name in registry or name not in (None, point.name):
            continue
        try:
            registry[point.name] = check(point.name, _load(point))
        except UserError:
            if name is not None:
                raise


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        package = point.dist.name if point.dist else "a package"
        message = " ".join(str(error).split())
        raise CannotLoad(
            f"{point.name!r} of {package} cannot be loaded ({type(error).__name__}: {message}): "
            "install the package again, or name another."
        ) from error
