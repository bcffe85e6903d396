"""Whether a service of a state folder runs on this machine: some commands must not touch what it works on."""

from __future__ import annotations

import json
from pathlib import Path

from horae.client.address import ADDRESS_FILES, is_alive
from horae.core.errors import UserError


class ServiceRuns(UserError):
    """The service must be stopped first."""


def check_stopped(state: Path) -> None:
    """Refuse while the service or its standby runs: it would undo what a command does."""
    for name, what in ((ADDRESS_FILES[0], "service"), (ADDRESS_FILES[1], "standby")):
        try:
            pid = int(json.loads((state / name).read_text(encoding="utf-8"))["pid"])
        except PermissionError:
            raise ServiceRuns(
                f"Whether the service of {state} still runs cannot be seen: run this as the user of the service."
            ) from None
        except (OSError, ValueError, KeyError):
            continue
        if is_alive(pid):
            raise ServiceRuns(f"The {what} of {state} still runs (process {pid}): stop it first.")
