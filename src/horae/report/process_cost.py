"""CPU time, wall time and memory of this process so far."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

_IMPORTED = time.perf_counter()


def process_cost(wall_started: float | None = None) -> dict[str, float]:
    """CPU and wall seconds and the peak of memory, of this process and of the children it has waited for.

    CPU time counts from the start of the process, imports and compilation
    included, as /usr/bin/time sees it; so does wall time, unless `wall_started`
    is given, a reading of `time.perf_counter()`. Memory is that of the largest
    process, not of all together.
    """
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    per_mb = 2**20 if sys.platform == "darwin" else 2**10
    wall_s = _process_age_s() if wall_started is None else time.perf_counter() - wall_started
    return {
        "cpu_s": round(sum(usage.ru_utime + usage.ru_stime for usage in usages), 3),
        "wall_s": round(wall_s, 3),
        "peak_rss_mb": round(max(_own_peak(usages[0]), usages[1].ru_maxrss) / per_mb, 1),
    }


def _own_peak(usage: resource.struct_rusage) -> int:
    """Peak memory of this process. Linux counts that of the parent into `ru_maxrss`, so /proc is read instead."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    except (OSError, StopIteration, ValueError):
        return usage.ru_maxrss


def _process_age_s() -> float:
    """Seconds since the process began; without /proc, since this module was imported."""
    try:
        # The name in the second field may hold spaces, so count from the bracket that closes it.
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
    except (OSError, AttributeError, IndexError, ValueError):
        return time.perf_counter() - _IMPORTED
