"""Whether a service of a state folder runs on this machine: some commands must not touch what it works on."""

from __future__ import annotations

import json
from pathlib import Path

from horae.client.address import is_alive
from horae.core.errors import UserError


class ServiceRuns(UserError):
    """The service must be stopped first."""


def check_stopped(state: Path) -> None:
    """Refuse while the service runs: it would undo what a command does."""
    try:
        pid = int(json.loads((state / "address.json").read_text(encoding="utf-8"))["pid"])
    except PermissionError:
        raise ServiceRuns(
            f"Whether the service of {state} still runs cannot be seen: run this as the user of the service."
        ) from None
    except (OSError, ValueError, KeyError):
        return
    if not is_alive(pid):
        return
    raise ServiceRuns(f"The service of {state} still runs (process {pid}): stop it first.")
