"""Policies from outside, by name: loaded from a file, a module or an installed package, and registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from horae.core.errors import UserError
from horae.plugins.installed import POLICIES_GROUP, add_installed
from horae.plugins.places import CannotLoad, ObjectPlace, place_of
from horae.policies import CONTENT_HASH, POLICIES, UnknownPolicy, add_policy
from horae.policies.outside import BadPolicy


class ChangedPolicy(UserError):
    """A policy file that is not the one that the service was started with."""


def load_policy(name: str) -> str:
    """Make sure that a policy is registered, and return its name. A place is loaded as it is now."""
    place = place_of(name)
    if place is not None:
        add_policy(name, _class_at(place))
    elif name not in POLICIES:
        _look_at_packages(name)
    if name not in POLICIES:
        raise UnknownPolicy(name)
    return name


def load_all_policies() -> None:
    """Register the policies of all installed packages."""
    _look_at_packages(None)


def stored_policy(name: str) -> tuple[str, dict[str, str]]:
    """A policy as a service stores it: a place that does not depend on the working folder, and the content's hash."""
    place = place_of(name)
    if place is None:
        return load_policy(name), {}
    return load_policy(str(place.absolute())), {CONTENT_HASH: place.sha256()}


def load_stored_policy(name: str, settings: Mapping[str, str]) -> None:
    """Load the policy that a service stored, if its file is the same as then."""
    place = place_of(name)
    if place is None:
        load_policy(name)
        return
    if place.sha256() != settings.get(CONTENT_HASH):
        raise ChangedPolicy(
            f"{place.where} has changed since this service was started with it: put the old content back, "
            f"or take the new one with --policy {name}."
        )
    load_policy(name)


def _class_at(place: ObjectPlace) -> type[Any]:
    chosen = place.load()
    if not isinstance(chosen, type):
        raise CannotLoad(f"{place} is no class: name the class of a policy.")
    if not callable(getattr(chosen, "plan", None)):
        raise BadPolicy(f"The class {place} is no policy: it has no method plan(self, now, memory).")
    return chosen


def _look_at_packages(name: str | None) -> None:
    def check(name: str, chosen: Any) -> type[Any]:
        if not isinstance(chosen, type) or not callable(getattr(chosen, "plan", None)):
            raise BadPolicy(f"{name!r} of an installed package is no policy class: it needs plan(self, now, memory).")
        return chosen

    add_installed(POLICIES_GROUP, POLICIES, check, name)
