"""`benchmarks/results.json`: what was last measured, part by part, with commit, date and machine."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, cpu_name, git
from benchmarks.part import Part

PATH = Path(__file__).with_name("results.json")

#: What changes here changes the figures.
MEASURED_PACKAGES = tuple(f"src/horae/{name}" for name in ("core", "placement", "policies", "solve", "simulate"))
#: Commits of these packages after which a result is too old.
MOST_COMMITS = 50

Result = dict[str, Any]


def load(path: Path = PATH) -> dict[str, Result]:
    """Results by part; none where nothing was measured."""
    results: dict[str, Result] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return results


def save(name: str, part: Part, commit: str, loads: tuple[float, float], path: Path = PATH) -> None:
    """Put the result of a part in the place of its last one; the others stay."""
    machine = {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()}
    about = {"commit": commit, "date": datetime.now(UTC).date().isoformat(), **machine}
    result = {**about, "load_before": loads[0], "load_after": loads[1], **asdict(part)}
    path.write_text(json.dumps({**load(path), name: result}, indent=1) + "\n", encoding="utf-8")


def clean_commit() -> str | None:
    """The commit that is checked out; None where the sources differ from it, or there is none."""
    if git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results.json") != "":
        return None
    return git("rev-parse", "HEAD")


def commits_since(commit: str) -> int | None:
    """Commits of the measured packages since then; None where git does not know the commit."""
    if not (ROOT / ".git").exists():
        return None
    count = git("rev-list", "--count", f"{commit}..HEAD", "--", *MEASURED_PACKAGES)
    return None if count is None else int(count)
