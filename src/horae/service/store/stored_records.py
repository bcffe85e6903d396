"""Records of the store other than events and decisions: tokens, acts of the audit trail, tasks.

Stored: change by addition.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from horae.backends.task import Task
from horae.core.codec import UnreadableRecord

#: Version of tasks as text.
TASK_VERSION = 1

StoredRole = Literal["admin", "member", "user", "viewer", "job"]


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token as stored: its SHA-256 in hex, never the token itself.

    Times are in seconds since the store's epoch; the expiry is by the day's clock. `job` is set only for a token that
    belongs to a job. `scope` is what the token is narrowed to, as text; empty for everything that the role may do.
    """

    id: str
    digest: str
    user: str
    role: StoredRole
    created_s: float
    expires_s: float | None = None
    revoked: bool = False
    job: str = ""
    scope: str = ""

    def __post_init__(self) -> None:
        assert re.fullmatch("[0-9a-f]{64}", self.digest), "a token is stored by its SHA-256 only"

    def usable(self, now_s: float) -> bool:
        """Whether the token is neither revoked nor expired."""
        return not self.revoked and (self.expires_s is None or now_s < self.expires_s)


@dataclass(frozen=True, slots=True)
class Act:
    """A line of the audit trail: who did what to what. It never holds secrets."""

    at_s: float
    actor: str
    action: str
    target: str
    detail: str = ""


def encode_task(task: Task) -> str:
    """A task as JSON text."""
    return json.dumps({"v": TASK_VERSION, **_tasks().dump_python(task, mode="json")}, separators=(",", ":"))


def decode_task(text: str) -> Task:
    """The task of a JSON text."""
    fields: dict[str, Any] = json.loads(text)
    if fields.pop("v") != TASK_VERSION:
        raise UnreadableRecord(
            f"This release of Horae cannot read the task of job {fields.get('job')!r}: use the release that wrote it."
        )
    return _tasks().validate_python(fields)


@cache
def _tasks() -> TypeAdapter[Task]:
    return TypeAdapter(Task)
