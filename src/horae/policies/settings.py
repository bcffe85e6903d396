"""A policy's settings are the fields of its dataclass; here they are read from text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from horae.core.errors import UserError, did_you_mean

#: Types that a setting can have.
_PLAIN = (bool, int, float, str)


class BadSetting(UserError):
    """A setting a policy does not have, or a value it cannot take."""


def setting(default: Any, summary: str, least: float = -math.inf, off: bool = False, column: str = "") -> Any:
    """A field of a policy that users may set; numbers below `least` are refused.

    With `off`, or where that is the default, a number may be `off`: it is infinite then. With `column`, users may
    name a CSV file, and the policy gets the numbers of that column as a text with commas.
    """
    metadata = {"summary": summary, "least": least, "off": off or default == math.inf, "column": column}
    return dataclasses.field(default=default, metadata=metadata)


#: Big gangs behind small jobs: every ordering policy has this one.
RESERVE = (
    "seconds a job waits before GPUs are reserved for it, so that only jobs that do not delay it pass; off for never"
)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One setting of a policy, for people."""

    name: str
    default: str
    summary: str


def parameters_of(policy: type) -> tuple[Parameter, ...]:
    """The settings of a policy class: the fields of its dataclass that have a plain default."""
    return tuple(
        Parameter(_spoken(field.name), _text(field.default), field.metadata.get("summary", ""))
        for field in _fields(policy)
    )


def file_columns(policy: type) -> dict[str, tuple[str, str]]:
    """Settings that may name a file: the column that is read, and the default."""
    return {
        _spoken(field.name): (field.metadata["column"], str(field.default))
        for field in _fields(policy)
        if field.metadata.get("column")
    }


def build(name: str, policy: type, settings: Mapping[str, str]) -> Any:
    """Make a policy from `key=value` settings, refusing what it does not know."""
    fields = {_spoken(field.name): field for field in _fields(policy)}
    values: dict[str, Any] = {}
    for key, text in settings.items():
        field = fields.get(key.replace("_", "-"))
        if field is None:
            raise BadSetting(_unknown(name, key, list(fields)))
        values[field.name] = _read(name, key, text, field)
    return policy(**values)


def settings_of(policy: object) -> dict[str, str]:
    """The settings of a policy that are not at their defaults, as text."""
    return {
        _spoken(field.name): text_of(value)
        for field in _fields(type(policy))
        if (value := getattr(policy, field.name)) != field.default
    }


def text_of(value: object) -> str:
    """The value of a setting as it is written on the command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return ",".join(text_of(part) for part in value)
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, float | np.floating) and math.isinf(value):
        return "off"
    return f"{value:.17g}" if isinstance(value, np.floating) else str(value)


def _fields(policy: type) -> list[dataclasses.Field[Any]]:
    """The fields that users may set. A class that is no dataclass has none."""
    if not dataclasses.is_dataclass(policy):
        return []
    return [field for field in dataclasses.fields(policy) if field.init and type(field.default) in _PLAIN]


def _unknown(policy: str, key: str, names: list[str]) -> str:
    if not names:
        return f"Policy {policy!r} has no settings, so {key!r} cannot be set; leave it out."
    return f"Policy {policy!r} has no setting {key!r}.{did_you_mean(key, names)} It has: {', '.join(names)}."


def _read(policy: str, key: str, text: str, field: dataclasses.Field[Any]) -> Any:
    """One value, by the type of the field's default."""
    default: Any = field.default
    wanted = type(default)
    try:
        if wanted is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if wanted is float and text.lower() == "off" and _can_be_off(field):
            return math.inf
        value = wanted(text)
    except (ValueError, KeyError):
        raise BadSetting(f"{key}={text} is not a value for policy {policy!r}: {_about(field)}.") from None
    if wanted is float and not math.isfinite(value) and value != default:
        raise BadSetting(f"{key}={text} is not a finite number for policy {policy!r}: {_range(field)}.")
    if wanted in (int, float) and value < _least(field):
        raise BadSetting(f"{key}={text} is too small for policy {policy!r}: {_range(field)}.")
    return value


def _range(field: dataclasses.Field[Any]) -> str:
    """What a number may be."""
    return f"use at least {_least(field):g}{', or off' if _can_be_off(field) else ''}"


def _least(field: dataclasses.Field[Any]) -> float:
    return float(field.metadata.get("least", -math.inf))


def _can_be_off(field: dataclasses.Field[Any]) -> bool:
    return bool(field.metadata.get("off", field.default == math.inf))


def _about(field: dataclasses.Field[Any]) -> str:
    """What a setting is; its type, where the author says nothing."""
    return str(field.metadata.get("summary") or f"{field.name} is of type {type(field.default).__name__}")


def _spoken(name: str) -> str:
    return name.replace("_", "-")


def _text(default: Any) -> str:
    if default == math.inf:
        return "off"
    return f"{default:g}" if isinstance(default, float) else str(default).lower()
