"""Whether a service of a state folder runs on this machine: some commands must not touch what it works on."""

from __future__ import annotations

import json
import os
from pathlib import Path

from horae.core.errors import UserError


class ServiceRuns(UserError):
    """The service must be stopped first."""


def check_stopped(state: Path) -> None:
    """Refuse while the service runs: it would undo what a command does."""
    try:
        pid = int(json.loads((state / "address.json").read_text(encoding="utf-8"))["pid"])
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError):
        return
    raise ServiceRuns(f"The service of {state} still runs (process {pid}): stop it first.")
