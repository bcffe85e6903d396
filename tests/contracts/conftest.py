"""The databases that a store may be in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.postgres import Server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind, empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/journal.db"
    server: Server = request.getfixturevalue("postgres")
    return server.new_database()
