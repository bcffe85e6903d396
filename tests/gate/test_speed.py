"""Horae is as fast as it was: no ratio of the gate has fallen by more than 15 % under the recorded one.

This is the only timed assertion among the tests. `make test` runs it alone, after the parallel tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gate.workloads import WORKLOADS

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Any]:
    """Verdicts by workload, measured in a process that has done nothing else."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.skip("timed alone, not beside other workers: `pytest -p no:xdist tests/gate`")
    command = [sys.executable, "-m", "benchmarks.gate", "-o", "json"]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode in (0, 1), f"{command} ended with exit code {done.returncode}"
    return {judged["name"]: judged for judged in json.loads(done.stdout)}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_workload_is_as_fast_as_recorded(verdicts: dict[str, Any], name: str) -> None:
    judged = verdicts[name]
    if judged["verdict"] == "raise":
        warnings.warn(judged["sentence"], stacklevel=1)
    assert judged["verdict"] in ("kept", "raise"), judged["sentence"]
