"""Times a workload beside its reference and judges the ratio of the two by the recorded ratio.

The ratio is the CPU time of the reference over that of the workload: it falls when Horae gets slower. Both are timed
in turns, so that a busy machine slows both, and the fastest repetitions count, since noise only ever adds time. A
ratio that looks low is measured again in fresh processes, and fails only if it is low each time: where memory happens
to lie, and what else runs, changes the ratio of a process by up to a tenth. Each workload has a process of its own:
what ran before in a process changes the ratio even more.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import Enum

from benchmarks.gate.workloads import WORKLOADS, Act, TimedPair

#: A ratio that falls by more than this fails.
MAY_FALL = 0.15
#: A ratio that is higher by more than this should be recorded.
WORTH_RAISING = 0.15
#: Repetitions of the first look at a ratio, at least and at most, and of the later ones.
FEWEST, FIRST, AGAIN = 4, 8, 16
#: Fresh processes that measure a low ratio again.
LATER_LOOKS = 3
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


def judge(name: str, recorded: float | None, looks: Iterable[float]) -> Judged:
    """Look at the ratio until it passes or all looks are spent; the highest look but the first counts then."""
    ratios: list[float] = []
    for ratio in looks:
        enough = 1.0 - MAY_FALL if ratios else CLEAR
        ratios.append(ratio)
        if recorded is None or ratio >= recorded * enough:
            return Judged(name, ratio, recorded, len(ratios))
    return Judged(name, max(ratios[1:]), recorded, len(ratios))


def measure_alone(name: str, repetitions: int, enough: float = math.inf) -> float:
    """The ratio of a workload in a fork, which has the imports of this process and nothing else."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(measure, WORKLOADS[name], repetitions, enough).result()


def measure(make: Callable[[], TimedPair], repetitions: int, enough: float = math.inf) -> float:
    """Reference over workload in CPU time, by the fastest repetitions of each.

    After a few repetitions a ratio of `enough` ends the measurement.

    The reference is run as often in each turn as takes about the time of the workload. A short piece of work finds a
    quiet moment on a busy machine more often than a long one, and the ratio would fall with the load.
    """
    pair = make()
    # The first run of each loads compiled code and fills caches.
    pair.workload()
    pair.reference()
    # What is there by now stays: collecting garbage before each repetition need not look at it.
    gc.collect()
    gc.freeze()
    times = max(1, round(_cpu_s(pair.workload) / _cpu_s(pair.reference)))
    workload_s, reference_s = [], []
    for _ in range(repetitions):
        workload_s.append(_cpu_s(pair.workload))
        reference_s.append(_cpu_s(pair.reference, times))
        if len(workload_s) >= FEWEST and fastest_s(reference_s) >= enough * fastest_s(workload_s):
            break
    gc.unfreeze()
    return fastest_s(reference_s) / fastest_s(workload_s)


def fastest_s(times_s: Sequence[float]) -> float:
    """Mean of the few fastest."""
    return sum(sorted(times_s)[:_FASTEST]) / _FASTEST


def _cpu_s(act: Act, times: int = 1) -> float:
    """CPU seconds of one call, on average, without pauses to collect garbage."""
    gc.collect()
    gc.disable()
    began_s = time.process_time()
    for _ in range(times):
        act()
    took_s = time.process_time() - began_s
    gc.enable()
    return took_s / times
