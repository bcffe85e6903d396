"""Events and decisions as plain records, for journals. Stored: change by addition; records carry a version.

A record is a dict that JSON can hold: `{"v": 1, "kind": "JobStarted", "at_s": 3.0, ...}`.
A field that an older record lacks takes its default; a field that a newer record adds is ignored.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from horae.core.commands import Decided
from horae.core.errors import UserError
from horae.core.events import PRECEDENCE, Event

VERSION = 1

#: Record classes by record kind, which is the class name.
_CLASSES: dict[str, type[Event | Decided]] = {cls.__name__: cls for cls in (*PRECEDENCE, Decided)}


class UnreadableRecord(UserError):
    """A record that is damaged, or of a record kind or version that this release does not know."""


def encode(record: Event | Decided) -> dict[str, Any]:
    """An event or decision as a plain record."""
    record_class = type(record)
    if isinstance(record, Decided):
        [fields] = _decisions().dump_python((record,), mode="json")
    else:
        fields = _adapter(record_class).dump_python(record, mode="json")
    return {"v": VERSION, "kind": record_class.__name__, **fields}


def decode(record: dict[str, Any]) -> Event | Decided:
    """The event or decision of a plain record."""
    record_kind, version = record.get("kind"), record.get("v")
    if version != VERSION or record_kind not in _CLASSES:
        raise UnreadableRecord(
            f"This release of Horae cannot read journal records of kind {record_kind!r}, version {version!r}: "
            "use the release that wrote them."
        )
    fields = {name: value for name, value in record.items() if name not in ("v", "kind")}
    try:
        return _decode(_CLASSES[record_kind], fields)
    except (KeyError, TypeError, ValueError) as why:
        raise UnreadableRecord(
            f"A journal record of kind {record_kind!r} holds what this release of Horae cannot read: "
            "use the release that wrote it, or a copy of the journal from before."
        ) from why


#: Fields that every stored decision has had since version 1; a decision without them is damaged.
_ALWAYS_STORED = frozenset(
    "stops withdrawn placed launches leased lease_until_s reason_rows reason_codes memory wake_s".split()
)


def _decode(record_class: type[Event | Decided], fields: dict[str, Any]) -> Event | Decided:
    if record_class is Decided and (missing := _ALWAYS_STORED - fields.keys()):
        raise KeyError(f"a decision without {sorted(missing)}")
    record: Event | Decided = _adapter(record_class).validate_python(fields)
    return record


@cache
def _decisions() -> TypeAdapter[tuple[Decided]]:
    """The adapter that writes decisions. Infinite numbers of a policy's memory are stored as `Infinity`."""
    return TypeAdapter(tuple[Decided], config=ConfigDict(ser_json_inf_nan="constants"))


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(record_class: Any) -> TypeAdapter[Any]:
    """The adapter of a record class, made once: building an adapter takes longer than a thousand uses."""
    adapter = _adapters.get(record_class)
    if adapter is None:
        adapter = _adapters[record_class] = TypeAdapter(record_class)
    return adapter
