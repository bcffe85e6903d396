"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from horae.policies import POLICIES
from horae.workload.traces import FORMATS

if TYPE_CHECKING:
    from tests.contracts.postgres import Server

# Property tests try the same cases each time, so that a change is judged by itself; `make soak` tries new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False, print_blob=True)
settings.load_profile("new" if os.environ.get("HORAE_NEW_CASES") else "same")


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test adds to the registries of policies and trace formats is gone after it."""
    before = dict(POLICIES), dict(FORMATS)
    yield
    for registry, entries in zip((POLICIES, FORMATS), before, strict=True):
        if registry.keys() != entries.keys():
            registry.clear()
            registry.update(entries)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of our own."""
    from tests.contracts.postgres import Server, program

    if not program("initdb") or not program("postgres"):
        pytest.skip("needs PostgreSQL: neither on the path nor under /usr/lib/postgresql are initdb and postgres")
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real traces, which is not part of the project."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("HORAE_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"needs the shared traces: {folder} does not exist; set HORAE_DATA to their folder")
    return folder
