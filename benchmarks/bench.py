"""What the parts share: the workload, and simulations that are run once and looked at often."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks import process
from benchmarks.process import Cost
from benchmarks.workload import CLUSTER, Sizes, Workload, find_workload, write_prefix

_TINY = 10


@dataclass
class Bench:
    """One run of the benchmarks, in a folder of its own that also holds the compiled code."""

    folder: Path
    sizes: Sizes
    _costs: dict[tuple[object, ...], Cost] = field(default_factory=dict)

    @cached_property
    def workload(self) -> Workload:
        """The jobs to run."""
        return find_workload(self.sizes, self.folder)

    @cached_property
    def start(self) -> tuple[Cost, Cost]:
        """A tiny simulation that must compile everything, and the same again."""
        tiny = write_prefix(self.workload.jobs, _TINY, self.folder)
        note("tiny trace, cold and warm")
        cold = process.simulate(tiny, CLUSTER, "srtf", "anywhere", self._cache)
        return cold, process.simulate(tiny, CLUSTER, "srtf", "anywhere", self._cache)

    @property
    def compile_s(self) -> float:
        """CPU seconds that compilation costs a process that finds no compiled code."""
        cold, warm = self.start
        return cold.cpu_s - warm.cpu_s

    def simulate(
        self, policy: str, jobs: int | None = None, cluster: str = CLUSTER, placement: str = "anywhere"
    ) -> Cost:
        """What a simulation of the first jobs (by default all) costs with all code compiled before."""
        count = jobs or len(self.workload.jobs)
        key = (policy, count, cluster, placement)
        if key not in self._costs:
            self._costs[key] = self._simulate(*key)
        return self._costs[key]

    def _simulate(self, policy: str, count: int, cluster: str, placement: str) -> Cost:
        whole = count == len(self.workload.jobs)
        path = self.workload.path if whole else write_prefix(self.workload.jobs, count, self.folder)
        assert self.compile_s > 0, f"the cold start found compiled code: {self.start}"
        compiled = self._compiled()
        note(f"{policy}, {count:,} jobs, {placement}, {cluster}")
        cost = process.simulate(path, cluster, policy, placement, self._cache)
        assert self._compiled() == compiled, f"{policy} compiled what the first run had not"
        return cost

    @property
    def _cache(self) -> Path:
        return self.folder / "numba"

    def _compiled(self) -> dict[Path, int]:
        """The pieces of compiled code that are kept, and when each was written."""
        return {path: path.stat().st_mtime_ns for path in self._cache.rglob("*.nbc")}


def note(sentence: str) -> None:
    """Tell whoever waits what is measured now."""
    print(f"... {sentence}", file=sys.stderr, flush=True)
