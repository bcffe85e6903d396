"""Times a workload beside its reference and judges the ratio of the two by the recorded ratio.

The ratio is the CPU time of the reference over that of the workload: it falls when Horae gets slower. Both are timed
in turns, so that a busy machine slows both, and the fastest repetitions count, since noise only ever adds time. A
ratio that looks low is measured again, at last in fresh processes, and fails only if it is low each time: where memory
happens to lie, and what else runs, changes the ratio of a process by up to a tenth.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from benchmarks.gate.workloads import Act, TimedPair

#: A ratio that falls by more than this fails.
MAY_FALL = 0.15
#: A ratio that is higher by more than this should be recorded.
WORTH_RAISING = 0.15
#: Repetitions after which the ratio is judged.
LOOKS = (8, 16)
#: Fresh processes that measure a low ratio again, with as many repetitions as the last look.
FRESH_LOOKS = 2
#: The part of the recorded ratio that passes at the first look: few repetitions must show a clear margin.
CLEAR = 0.93
#: Of each side, the mean of this number of fastest repetitions counts: a single one may be luck.
_FASTEST = 3


class Verdict(Enum):
    """What a ratio means beside the recorded one."""

    KEPT = "kept"
    RAISE = "raise"
    SLOWER = "slower"
    UNRECORDED = "unrecorded"


@dataclass(frozen=True)
class Judged:
    """A workload's ratio, its recorded ratio, and the verdict."""

    name: str
    ratio: float
    recorded: float | None
    #: How often the ratio was looked at.
    looks: int

    @property
    def verdict(self) -> Verdict:
        """Whether the ratio kept to the recorded one."""
        if self.recorded is None:
            return Verdict.UNRECORDED
        if self.ratio < self.recorded * (1.0 - MAY_FALL):
            return Verdict.SLOWER
        return Verdict.RAISE if self.ratio > self.recorded * (1.0 + WORTH_RAISING) else Verdict.KEPT

    @property
    def sentence(self) -> str:
        """The verdict in words, with the next step."""
        sentence = f"Workload {self.name!r}: reference over Horae is {self.ratio:.3f}"
        if self.recorded is None:
            return f"{sentence} and no ratio is recorded. Record it: python -m benchmarks.gate --record"
        change = self.ratio / self.recorded - 1.0
        sentence += f", recorded {self.recorded:.3f} ({change:+.0%}, look {self.looks})"
        if self.verdict is Verdict.SLOWER:
            return f"{sentence}. It may fall by {MAY_FALL:.0%}: make the code as fast as it was."
        if self.verdict is Verdict.RAISE:
            return f"{sentence}. Raise the recorded ratio: python -m benchmarks.gate --record"
        return f"{sentence}."


@dataclass
class Samples:
    """CPU seconds of the repetitions of a workload and of its reference."""

    workload_s: list[float] = field(default_factory=list)
    reference_s: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Reference over workload, by the fastest repetitions of each."""
        return sum(sorted(self.reference_s)[:_FASTEST]) / sum(sorted(self.workload_s)[:_FASTEST])


def judge(name: str, recorded: float | None, looks: Iterable[float]) -> Judged:
    """Look at the ratio until it passes or all looks are spent; the highest look but the first counts then."""
    ratios: list[float] = []
    for ratio in looks:
        enough = 1.0 - MAY_FALL if ratios else CLEAR
        ratios.append(ratio)
        if recorded is None or ratio >= recorded * enough:
            return Judged(name, ratio, recorded, len(ratios))
    return Judged(name, max(ratios[1:]), recorded, len(ratios))


class Stopwatch:
    """Times a pair in turns: workload, reference, workload, reference.

    The reference is run as often in each turn as takes about the time of the workload. A short piece of work finds a
    quiet moment on a busy machine more often than a long one, and the ratio would fall with the load.
    """

    def __init__(self, pair: TimedPair) -> None:
        self._pair, self._samples = pair, Samples()
        # The first run of each loads compiled code and fills caches.
        pair.workload()
        pair.reference()
        self._times = max(1, round(_cpu_s(pair.workload) / _cpu_s(pair.reference)))

    def extend(self, repetitions: int) -> Samples:
        """Measure up to this number of repetitions."""
        with _no_collection():
            while len(self._samples.workload_s) < repetitions:
                self._samples.workload_s.append(_cpu_s(self._pair.workload))
                self._samples.reference_s.append(_cpu_s(self._pair.reference, self._times))
        return self._samples


def _cpu_s(act: Act, times: int = 1) -> float:
    """CPU seconds of one call, on average."""
    gc.collect()
    began_s = time.process_time()
    for _ in range(times):
        act()
    return (time.process_time() - began_s) / times


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from running at moments of its own choice."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
