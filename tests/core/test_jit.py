"""How hot loops are compiled: for the types they declare, and kept on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import numpy as np
from horae.core.jit import FLOAT, FLOATS, INTS, compiled

@compiled(FLOAT, INTS, FLOATS)
def picked(rows, values):
    total = 0.0
    for row in rows:
        total += values[row]
    return total

print(picked(np.array([2, 0, 2]), np.array([1.0, 10.0, 100.0])))
print(len(picked.nopython_signatures), sum(picked.stats.cache_hits.values()))
try:
    picked(np.array([0.5]), np.array([1.0]))
except TypeError:
    print("refused")
"""


def test_a_compiled_function_takes_its_declared_types_only_and_is_read_from_disk_the_second_time(
    tmp_path: Path, monkeypatch
) -> None:
    file = tmp_path / "hot.py"
    file.write_text(SCRIPT)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))

    def run() -> list[str]:
        return subprocess.run([sys.executable, file], check=True, capture_output=True, text=True).stdout.split("\n")[:3]

    assert run() == ["201.0", "1 0", "refused"]
    assert run() == ["201.0", "1 1", "refused"]
