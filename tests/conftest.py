"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real traces, which is not part of the project."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("HORAE_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"needs the shared traces: {folder} does not exist; set HORAE_DATA to their folder")
    return folder
