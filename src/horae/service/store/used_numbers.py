"""Numbers of jobs and attempts that were used, as folders on disk tell: `<folder>/jobs/<job>/<attempt>/`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from horae.service.store.record_rows import job_number

#: Numbers that are left out where nobody can tell which were used: as many as no service gives between two backups.
GAP = 10_000


def used_numbers(folders: Iterable[Path]) -> tuple[int, int]:
    """The highest job number and the highest attempt number of all folders of jobs."""
    jobs, attempts = [0], [0]
    for folder in folders:
        for job in _names(folder / "jobs"):
            jobs.append(job_number(job))
            attempts += [int(name) for name in _names(folder / "jobs" / job) if _is_number(name)]
        for marker in _names(folder / "attempts"):
            job, _, attempt = marker.rpartition("@")
            jobs.append(job_number(job))
            attempts += [int(attempt)] if _is_number(attempt) else []
    return max(jobs), max(attempts)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return [path.name for path in folder.iterdir()]
    return []
