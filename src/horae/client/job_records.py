"""What a service says of one job."""

from __future__ import annotations

import re
from typing import Any

from horae.client.service_client import NotThere, ServiceClient, Strange, part

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


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
