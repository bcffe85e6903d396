"""Runs commands as a user would, and says what each process has cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CommandFailed(Exception):
    """A run that gave no result."""


#: A process inherits the peak of the one that forked it, and this one is large: a small shell stands between.
_SMALL_PARENT = ("/bin/sh", "-c", '"$@"; exit $?', "sh")


@dataclass(frozen=True)
class Cost:
    """A finished process: what the system says it took, children included, and the JSON it printed, if it did."""

    cpu_s: float
    wall_s: float
    report: dict[str, Any]

    @property
    def peak_rss_mb(self) -> float:
        """Peak of memory, as the process saw it."""
        return float(self.report["peak_rss_mb"])


def simulate(
    trace: Path, cluster: str, policy: str, placement: str, numba_cache: Path, restart_cost_s: float = 0.0
) -> Cost:
    """Run one simulation in a process of its own."""
    arguments = ["simulate", "--trace", trace, "--cluster", cluster, "--policy", policy]
    return horae([*arguments, "--placement", placement, "--restart-cost", f"{restart_cost_s:g}"], numba_cache)


def horae(arguments: Sequence[object], numba_cache: Path) -> Cost:
    """Run a command that prints JSON, with compiled code in a folder of the caller's."""
    command = [sys.executable, "-m", "horae", *map(str, arguments), "-o", "json"]
    return run(command, {"NUMBA_CACHE_DIR": str(numba_cache)}, reads_json=True)


def run(command: Sequence[str], environment: Mapping[str, str], reads_json: bool = False) -> Cost:
    """Run a command to its end; what it prints is read as JSON, or thrown away."""
    with tempfile.TemporaryFile("w+") as answer:
        began_s = time.perf_counter()
        process = subprocess.Popen([*_SMALL_PARENT, *command], stdout=answer, env={**os.environ, **environment})
        # Not `process.wait()`: only wait4 tells what this one child has used.
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise CommandFailed(f"{' '.join(command)} ended with exit code {process.returncode}")
        answer.seek(0)
        report = json.load(answer) if reads_json else {}
    return Cost(usage.ru_utime + usage.ru_stime, wall_s, report)
