"""What the store keeps beside events and decisions: tokens, the audit trail, and tasks as text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any, Literal

from pydantic import TypeAdapter

from horae.backends.task import Task
from horae.core.codec import UnreadableRecord

#: Version of tasks as text. They change by addition.
TASK_VERSION = 1

Role = Literal["admin", "user", "viewer", "job"]


def token_digest(secret: str) -> str:
    """What is kept of a token: enough to know it again, of no use to a thief."""
    return sha256(secret.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token as the store knows it, by its SHA-256 in hex; the token itself is never kept.

    Times are in seconds since the store's epoch. A job's own token names the job.
    """

    id: str
    digest: str
    user: str
    role: Role
    created_s: float
    expires_s: float | None = None
    revoked: bool = False
    job: str = ""

    def __post_init__(self) -> None:
        assert re.fullmatch("[0-9a-f]{64}", self.digest), "a token is kept by its SHA-256, never as it is"

    def usable(self, now_s: float) -> bool:
        """Whether it opens anything: neither revoked nor expired."""
        return not self.revoked and (self.expires_s is None or now_s < self.expires_s)


@dataclass(frozen=True, slots=True)
class Act:
    """Who did what to whom: a line of the audit trail. It never holds secrets."""

    at_s: float
    actor: str
    action: str
    target: str
    detail: str = ""


def encode_task(task: Task) -> str:
    """A task as text."""
    return json.dumps({"v": TASK_VERSION, **_tasks().dump_python(task, mode="json")}, separators=(",", ":"))


def decode_task(text: str) -> Task:
    """The task that a text stands for."""
    fields: dict[str, Any] = json.loads(text)
    if fields.pop("v") != TASK_VERSION:
        raise UnreadableRecord(
            f"This release of Horae cannot read what job {fields.get('job')!r} runs: use the release that wrote it."
        )
    return _tasks().validate_python(fields)


@cache
def _tasks() -> TypeAdapter[Task]:
    return TypeAdapter(Task)
