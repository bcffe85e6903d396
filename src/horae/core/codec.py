"""Events and decisions as plain records, for journals. Stored: change by addition; records carry a version.

A record is a dict that JSON can hold: `{"v": 1, "kind": "JobStarted", "at_s": 3.0, ...}`.
A field that an older record lacks takes its default; one that a newer record adds is ignored.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from horae.core.commands import Decided
from horae.core.errors import UserError
from horae.core.events import PRECEDENCE, Event

VERSION = 1

#: Record kinds by their stored names.
_KINDS: dict[str, type[Event | Decided]] = {kind.__name__: kind for kind in (*PRECEDENCE, Decided)}


class UnreadableRecord(UserError):
    """A record that is damaged, or of a kind or version that this release does not know."""


def encode(record: Event | Decided) -> dict[str, Any]:
    """An event or decision as a plain record."""
    kind = type(record)
    if isinstance(record, Decided):
        [fields] = _decisions().dump_python((record,), mode="json")
    else:
        fields = _adapter(kind).dump_python(record, mode="json")
    return {"v": VERSION, "kind": kind.__name__, **fields}


def decode(record: dict[str, Any]) -> Event | Decided:
    """The event or decision that a plain record stands for."""
    kind, version = record.get("kind"), record.get("v")
    if version != VERSION or kind not in _KINDS:
        raise UnreadableRecord(
            f"This release of Horae cannot read journal records of kind {kind!r}, version {version!r}: "
            "use the release that wrote them."
        )
    fields = {name: value for name, value in record.items() if name not in ("v", "kind")}
    try:
        return _decode(_KINDS[kind], fields)
    except (KeyError, TypeError, ValueError) as why:
        raise UnreadableRecord(
            f"A journal record of kind {kind!r} holds what this release of Horae cannot read: "
            "use the release that wrote it, or a copy of the journal from before."
        ) from why


#: Fields that every stored decision has had since version 1; one without them is damaged.
_ALWAYS_STORED = frozenset(
    "stops withdrawn placed launches leased lease_until_s reason_rows reason_codes memory wake_s".split()
)


def _decode(kind: type[Event | Decided], fields: dict[str, Any]) -> Event | Decided:
    if kind is Decided and (missing := _ALWAYS_STORED - fields.keys()):
        raise KeyError(f"a decision without {sorted(missing)}")
    record: Event | Decided = _adapter(kind).validate_python(fields)
    return record


@cache
def _decisions() -> TypeAdapter[tuple[Decided]]:
    """Writes decisions. Infinite numbers that a policy remembers are stored as such."""
    return TypeAdapter(tuple[Decided], config=ConfigDict(ser_json_inf_nan="constants"))


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once for each kind: building one takes longer than using it a thousand times."""
    known = _adapters.get(kind)
    if known is None:
        known = _adapters[kind] = TypeAdapter(kind)
    return known
