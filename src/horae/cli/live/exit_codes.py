"""Exit codes of `horae logs`, `horae wait` and `horae submit --wait`. Public: the codes stay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from horae.client.service_client import NotThere, ServiceClient, Strange, part

SUCCEEDED, FAILED, NOT_FINISHED, NOT_FOUND, CANCELLED = 0, 100, 101, 102, 103

#: States of ended jobs, and the exit code of each.
ENDED = {"finished": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED}

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
#: Exit codes from worst to best, to choose one code for several jobs.
_WORST = (NOT_FOUND, FAILED, CANCELLED, NOT_FINISHED)


def exit_code(state: str) -> int:
    """The exit code for a job in this state."""
    return ENDED.get(state, NOT_FINISHED)


def worst(codes: Iterable[int]) -> int:
    """One exit code for several jobs."""
    present = set(codes)
    return next((code for code in _WORST if code in present), SUCCEEDED)


def job_path(job: str) -> str:
    """API path of a job. A text that cannot be an id is reported as not found."""
    if not _ID.fullmatch(job):
        raise NotThere(404, f"There is no job {job!r}; `horae queue --all` lists yours.")
    return f"/v1/jobs/{part(job)}"


def job_state(client: ServiceClient, job: str) -> str:
    """The state of a job."""
    state = client.get(f"{job_path(job)}/why").get("state")
    if not isinstance(state, str):
        raise Strange(
            f"The service's answer about {job} has no state: check that service and command have one version."
        )
    return state


def find_job(client: ServiceClient, job: str) -> dict[str, Any]:
    """All details of a job."""
    record = client.get(job_path(job))
    if "id" not in record or "state" not in record:
        raise Strange(
            f"The service's answer about {job} has no state: check that service and command have one version."
        )
    return record
