"""The databases that a store may be in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.postgres import Server, program


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of our own."""
    if not program("initdb") or not program("postgres"):
        pytest.skip("needs PostgreSQL: neither on the path nor under /usr/lib/postgresql are initdb and postgres")
    server = Server()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind, empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/journal.db"
    server: Server = request.getfixturevalue("postgres")
    return server.new_database()
