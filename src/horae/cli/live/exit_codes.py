"""How a job ended, as an exit code: for `logs`, `wait` and `submit --wait`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from horae.client.service_client import NotThere, ServiceClient, Strange, part

SUCCEEDED, FAILED, NOT_FINISHED, NOT_FOUND, CANCELLED = 0, 100, 101, 102, 103

#: States that a job never leaves, and the exit code of each.
ENDED = {"finished": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED}

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
#: What tells most, first: of several jobs, a lost one is worse news than one that goes on.
_WORST = (NOT_FOUND, FAILED, CANCELLED, NOT_FINISHED)


def exit_code(state: str) -> int:
    """The exit code for a job in this state."""
    return ENDED.get(state, NOT_FINISHED)


def worst(codes: Iterable[int]) -> int:
    """One exit code for several jobs."""
    had = set(codes)
    return next((code for code in _WORST if code in had), SUCCEEDED)


def job_path(job: str) -> str:
    """Where the API has a job; a text that is no id cannot be one."""
    if not _ID.fullmatch(job):
        raise NotThere(404, f"There is no job {job!r}; `horae queue --all` lists yours.")
    return f"/v1/jobs/{part(job)}"


def job_state(at: ServiceClient, job: str) -> str:
    """How a job stands."""
    state = at.get(f"{job_path(job)}/why").get("state")
    if not isinstance(state, str):
        raise Strange(f"The service's answer about {job} lacks its state: see whether it has this command's version.")
    return state


def find_job(at: ServiceClient, job: str) -> dict[str, Any]:
    """Everything the service says of a job."""
    record = at.get(job_path(job))
    if "id" not in record or "state" not in record:
        raise Strange(f"The service's answer about {job} lacks its state: see whether it has this command's version.")
    return record
