"""Events and decisions as plain records, for journals. Formats carry a version and change by addition.

A record is a dict that JSON can hold: `{"v": 1, "kind": "JobStarted", "at_s": 3.0, ...}`.
A field that an older record lacks takes its default; one that a newer record adds is ignored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import TypeAdapter

from horae.core.bidding import Ask
from horae.core.commands import Decided, Evidence, GivenUp, Launch, Placed, Stop
from horae.core.compared_by import ComparedBy
from horae.core.errors import UserError
from horae.core.events import PRECEDENCE, Event

VERSION = 1

_DECIDED = Decided.__name__
_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in PRECEDENCE}
_READABLE = frozenset((_DECIDED, *_KINDS))


class UnreadableRecord(UserError):
    """A record that is damaged, or of a kind or version that this release does not know."""


def encode(record: Event | Decided) -> dict[str, Any]:
    """An event or decision as a plain record."""
    if isinstance(record, Decided):
        return {"v": VERSION, "kind": _DECIDED, **_encode_decided(record)}
    kind = type(record)
    return {"v": VERSION, "kind": kind.__name__, **_adapter(kind).dump_python(record, mode="json")}


def decode(record: dict[str, Any]) -> Event | Decided:
    """The event or decision that a plain record stands for."""
    kind, version = record.get("kind"), record.get("v")
    if version != VERSION or kind not in _READABLE:
        raise UnreadableRecord(
            f"This release of Horae cannot read journal records of kind {kind!r}, version {version!r}: "
            "use the release that wrote them."
        )
    fields = {name: value for name, value in record.items() if name not in ("v", "kind")}
    try:
        return _decode_decided(fields) if kind == _DECIDED else _decode_event(_KINDS[kind], fields)
    except (KeyError, TypeError, ValueError) as why:
        raise UnreadableRecord(
            f"A journal record of kind {kind!r} holds what this release of Horae cannot read: "
            "use the release that wrote it, or a copy of the journal from before."
        ) from why


def _decode_event(kind: type[Event], fields: dict[str, Any]) -> Event:
    event: Event = _adapter(kind).validate_python(fields)
    return event


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once for each kind: building one takes longer than using it a thousand times."""
    known = _adapters.get(kind)
    if known is None:
        known = _adapters[kind] = TypeAdapter(kind)
    return known


def _encode_decided(record: Decided) -> dict[str, Any]:
    evidence = record.evidence
    return {
        "at_s": record.at_s,
        "planned": record.planned,
        "given_up": _dump(tuple[GivenUp, ...], record.given_up),
        "turns": [list(turn) for turn in record.turns],
        "stops": _dump(tuple[Stop, ...], record.stops),
        "withdrawn": list(record.withdrawn),
        "placed": _dump(tuple[Placed, ...], record.placed),
        "launches": _dump(tuple[Launch, ...], record.launches),
        "leased": list(record.leased),
        "lease_until_s": record.lease_until_s,
        "reason_rows": record.reason_rows.tolist(),
        "reason_codes": record.reason_codes.tolist(),
        "evidence": evidence and _encode_evidence(evidence),
        "memory": [
            [name, rows if rows is None else rows.tolist(), np.asarray(v).tolist()] for name, rows, v in record.memory
        ],
        "wake_s": record.wake_s if record.wake_s < np.inf else None,
        "heed_starts": record.heed_starts,
        "asks": _dump(tuple[Ask, ...], record.asks),
        "unanswered": list(record.unanswered),
    }


def _decode_decided(fields: dict[str, Any]) -> Decided:
    evidence = fields.get("evidence")
    return Decided(
        at_s=fields["at_s"],
        planned=fields["planned"],
        given_up=_load(tuple[GivenUp, ...], fields.get("given_up")),
        turns=tuple((row, turn) for row, turn in fields.get("turns", ())),
        stops=_load(tuple[Stop, ...], fields["stops"]),
        withdrawn=tuple(fields["withdrawn"]),
        placed=_load(tuple[Placed, ...], fields["placed"]),
        launches=_load(tuple[Launch, ...], fields["launches"]),
        leased=tuple(fields["leased"]),
        lease_until_s=fields["lease_until_s"],
        reason_rows=np.array(fields["reason_rows"], np.int64),
        reason_codes=np.array(fields["reason_codes"], np.uint8),
        evidence=evidence and _decode_evidence(evidence),
        memory=tuple(_memory_write(*write) for write in fields["memory"]),
        wake_s=np.inf if fields["wake_s"] is None else fields["wake_s"],
        heed_starts=fields.get("heed_starts", False),
        asks=_load(tuple[Ask, ...], fields.get("asks")),
        unanswered=tuple(fields.get("unanswered", ())),
    )


def _encode_evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "at_s": evidence.at_s,
        "node_free": evidence.node_free.tolist(),
        "head": evidence.head,
        "jobs_by_type": list(evidence.jobs_by_type),
        "gpus_by_type": list(evidence.gpus_by_type),
        "measure": str(evidence.measure),
        "measured_by_type": list(evidence.measured_by_type),
        "queue_used": list(evidence.queue_used),
        "again_s": _finite(evidence.again_s),
        "unprotected_s": _finite(evidence.unprotected_s),
    }


def _decode_evidence(fields: dict[str, Any]) -> Evidence:
    again_s, unprotected_s = fields.get("again_s"), fields.get("unprotected_s")
    return Evidence(
        at_s=fields["at_s"],
        node_free=np.array(fields["node_free"], np.int64),
        head=fields["head"],
        jobs_by_type=tuple(fields.get("jobs_by_type", ())),
        gpus_by_type=tuple(fields.get("gpus_by_type", ())),
        measure=ComparedBy(fields.get("measure", "")),
        measured_by_type=tuple(fields.get("measured_by_type", ())),
        queue_used=tuple(fields.get("queue_used", ())),
        again_s=np.inf if again_s is None else again_s,
        unprotected_s=np.inf if unprotected_s is None else unprotected_s,
    )


def _finite(value: float) -> float | None:
    """A number that JSON can hold."""
    return float(value) if value < np.inf else None


def _memory_write(name: str, rows: list[int] | None, values: Any) -> tuple[str, Any, Any]:
    if rows is None:
        return name, None, float(values)
    return name, np.array(rows, np.int64), np.array(values, np.float64)


def _dump(kind: Any, values: Any) -> Any:
    return _adapter(kind).dump_python(values, mode="json") if values else []


def _load(kind: Any, values: Any) -> Any:
    return _adapter(kind).validate_python(values) if values else ()
