"""Names of attempts in a cluster manager. By them, and by nothing else, the jobs of a service are found again."""

from __future__ import annotations

import re


def attempt_name(service: str, job: str, attempt: int) -> str:
    """The name of an attempt's jobs. *Stored format*: jobs of an older release may be running."""
    name = f"horae-{service}-{job}-{attempt}"
    assert read_attempt_name(service, name) == (job, attempt), (service, job, attempt)
    return name


def read_attempt_name(service: str, name: str) -> tuple[str, int] | None:
    """Job and attempt from such a name; None for jobs of others."""
    prefix = f"horae-{service}-"
    match = re.fullmatch(r"([a-z0-9][a-z0-9._-]*)-([1-9]\d*)", name.removeprefix(prefix))
    return (match[1], int(match[2])) if match and name.startswith(prefix) else None
