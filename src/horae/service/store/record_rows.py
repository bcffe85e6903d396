"""Records as rows of the journal. Stored: change by addition."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horae.core.codec import decode, encode
from horae.core.commands import Decided
from horae.core.events import (
    AgentChanged,
    BidReceived,
    Event,
    JobsRetired,
    JobSubmitted,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeObserved,
    NumbersRaised,
    SettingsChanged,
)
from horae.service.store.chain import JournalDamaged
from horae.service.store.policy_memory import decode_memory, encode_memory

Record = Event | Decided

#: One encoder for all calls: `json.dumps` with separators would make a new encoder each time.
JSON = json.JSONEncoder(separators=(",", ":"))
#: Field of a decision's body with the digest of the memory that is stored apart.
_MEMORY_DIGEST = "memory_sha256"


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A record as it is stored: its body, and the policy memory apart."""

    at_s: float
    record_kind: str
    body: str
    memory: bytes | None = None


def row_of(record: Record) -> RecordRow:
    """A record as it is stored."""
    if isinstance(record, Decided) and record.memory:
        memory = encode_memory(record.memory)
        fields = encode(replace(record, memory=()))
        fields[_MEMORY_DIGEST] = hashlib.sha256(memory).hexdigest()
    else:
        memory, fields = None, encode(record)
    return RecordRow(record.at_s, fields["kind"], JSON.encode(fields), memory)


def record_of(seq: int, body: str) -> Record:
    """The record of a body, without policy memory that is stored apart."""
    return decode(_fields(seq, body))


def whole_record_of(seq: int, body: str, memory: bytes | None, covered: bool) -> Record:
    """The record of a body with its policy memory, which may be gone if a checkpoint has `covered` it."""
    fields = _fields(seq, body)
    record = decode(fields)
    digest = fields.get(_MEMORY_DIGEST)
    if digest is None or not isinstance(record, Decided) or (memory is None and covered):
        return record
    if memory is None or hashlib.sha256(memory).hexdigest() != digest:
        raise JournalDamaged(f"The journal is damaged: the policy memory of record {seq} is not what was written.")
    try:
        return replace(record, memory=decode_memory(memory))
    except (ValueError, KeyError, TypeError) as why:
        raise JournalDamaged(f"The journal is damaged: the policy memory of record {seq} cannot be read.") from why


def _fields(seq: int, body: str) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (TypeError, ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise JournalDamaged(f"The journal is damaged: record {seq} cannot be read.")
    return fields


def names_of(record: Record) -> Iterable[str]:
    """Names under which a record is found: its jobs, and its apps that bid for themselves. Each once."""
    match record:
        case JobSubmitted():
            return (record.spec.id,)
        case Decided():
            stopped = (name for stop in record.stops for name in (stop.job, stop.by) if name)
            started = (*(placed.job for placed in record.placed), *(launch.job for launch in record.launches))
            # Every decision repeats the offers that are still open.
            asked = (ask.app for ask in record.asks if ask.asked_s == record.at_s)
            apps = map(app_name, (*asked, *record.unanswered))
            given_up = (trial.job for trial in record.given_up)
            return dict.fromkeys((*given_up, *stopped, *record.withdrawn, *started, *apps))
        case NodeJoined() | NodeLost() | NodeDraining() | NodeObserved() | SettingsChanged() | JobsRetired():
            return ()
        case NumbersRaised():
            return ()
        case AgentChanged():
            return (app_name(record.app),)
        case BidReceived():
            return (app_name(record.answer.app),)
        case _:
            return (record.job,)


def app_name(app: str) -> str:
    """Name of an app in `journal_jobs`. No job id has a colon."""
    return f"app:{app}"


def job_number(job: str) -> int:
    """The number at the end of a job id; 0 if there is none."""
    number = job.rpartition("-")[2]
    return int(number) if number.isdecimal() and number.isascii() and len(number) < 19 else 0


#: Kinds of records that give attempt numbers, or say which were used.
NUMBERING = (Decided.__name__, NumbersRaised.__name__)


def numbers_in(rows: Iterable[tuple[int, str]]) -> tuple[int, int]:
    """The highest job and attempt numbers in stored records of the kinds `NUMBERING`; nothing else of them is read."""
    jobs, attempts = 0, 0
    for seq, body in rows:
        fields = _fields(seq, body)
        given = [launch["attempt"] for launch in fields.get("launches", ())]
        attempts = max(attempts, fields.get("attempt", 0), *given)
        jobs = max(jobs, fields.get("job_number", 0))
    return jobs, attempts


def highest_numbers(records: Sequence[Record]) -> tuple[int, int]:
    """The highest job number that these records give, and the highest attempt number that they launch."""
    jobs = [job_number(record.spec.id) for record in records if isinstance(record, JobSubmitted)]
    attempts = [launch.attempt for record in records if isinstance(record, Decided) for launch in record.launches]
    raised = [record for record in records if isinstance(record, NumbersRaised)]
    jobs += [record.job_number for record in raised]
    attempts += [record.attempt for record in raised]
    return max(jobs, default=0), max(attempts, default=0)
