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
#: Starts with compiled code, of which the fastest counts: other figures are less that one.
_WARM = 3


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
        """A tiny simulation that must compile everything, and the fastest of some that find it compiled."""
        note("tiny trace, cold and warm")
        cold, *warm = (process.simulate(self._tiny, CLUSTER, "srtf", "anywhere", self.cache) for _ in range(1 + _WARM))
        return cold, min(warm, key=lambda cost: cost.cpu_s)

    @property
    def compile_s(self) -> float:
        """CPU seconds that compilation costs a process that finds no compiled code."""
        cold, warm = self.start
        return cold.cpu_s - warm.cpu_s

    @property
    def cache(self) -> Path:
        """The folder of compiled code."""
        return self.folder / "numba"

    def simulate(
        self, policy: str, jobs: int | None = None, cluster: str = CLUSTER, placement: str = "anywhere"
    ) -> Cost:
        """What a simulation of the first jobs (by default all) costs with all code compiled before."""
        count = jobs or len(self.workload.jobs)
        key = (policy, count, cluster, placement)
        if key not in self._costs:
            whole = count == len(self.workload.jobs)
            path = self.workload.path if whole else write_prefix(self.workload.jobs, count, self.folder)
            self._costs[key] = self.simulate_trace(policy, path, cluster, placement)
        return self._costs[key]

    def simulate_trace(
        self, policy: str, path: Path, cluster: str, placement: str, restart_cost_s: float = 0.0
    ) -> Cost:
        """What a simulation of a trace file costs with all code compiled before."""
        assert self.compile_s > 0, f"the cold start found compiled code: {self.start}"
        # A policy may need compiled code that the first run did not.
        process.simulate(self._tiny, cluster, policy, placement, self.cache, restart_cost_s)
        compiled = self._compiled()
        note(f"{policy}, {path.stem}, {placement}, {cluster}")
        cost = process.simulate(path, cluster, policy, placement, self.cache, restart_cost_s)
        assert self._compiled() == compiled, f"{policy} compiled what the tiny run had not"
        return cost

    @cached_property
    def _tiny(self) -> Path:
        return write_prefix(self.workload.jobs, _TINY, self.folder)

    def _compiled(self) -> dict[Path, int]:
        """The pieces of compiled code that are kept, and when each was written."""
        return {path: path.stat().st_mtime_ns for path in self.cache.rglob("*.nbc")}


def note(sentence: str) -> None:
    """Print what is measured now."""
    print(f"... {sentence}", file=sys.stderr, flush=True)
