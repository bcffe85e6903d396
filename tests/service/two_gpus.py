"""A service of this process with two virtual GPUs, and its admin's client, on a state folder that may be used again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from horae.service.server import ServeOptions, Server


@contextmanager
def served(state: Path, **more: Any) -> Iterator[tuple[Server, httpx.Client]]:
    server = Server(ServeOptions(state, port=0, gpus="v100:2", **more))
    token = server.token_file.read_text().strip()
    try:
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=20) as client:
            yield server, client
        assert server.daemon.crashed is None
    finally:
        server.close()
