"""Who listens on this machine."""

from __future__ import annotations

from pathlib import Path


def listening() -> dict[int, set[str]]:
    """Addresses, in hexadecimal, that somebody on this machine listens on, by port."""
    found: dict[int, set[str]] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if state == "0A":
                address, port = local.split(":")
                found.setdefault(int(port, 16), set()).add(address)
    return found
