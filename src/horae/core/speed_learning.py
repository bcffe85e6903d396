"""Speed learning: speeds of running jobs, measured between two progress reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from horae.core.declared import Rows, Stored
from horae.core.job import MAX_SECONDS
from horae.core.job_table import JobTable
from horae.core.throughputs import Origin, Setting, Throughput

#: Default of the shortest time, in seconds, over which a speed is measured.
LEAST_MEASURED_S = 30.0
#: Relative difference up to which two speeds count as equal.
_SAME_SPEED = 1e-3


class SpeedLearner:
    """Learnt speeds, and the last trusted progress point of each running job. `wanted`: whether to learn at all."""

    STORED: ClassVar[dict[str, Stored]] = {
        "learnt": Stored(tuple[tuple[Setting, float], ...]),
        "measured_from": Stored(dict[int, tuple[float, float]], Rows.KEYS),
    }

    def __init__(self, jobs: JobTable, wanted: bool, least_measured_s: float) -> None:
        self._jobs, self.wanted, self._least_measured_s = jobs, wanted, least_measured_s
        self.learnt: dict[Setting, float] = {}
        #: Last trusted progress point by row: its time, and the work done by then.
        self.measured_from: dict[int, tuple[float, float]] = {}

    def measure_from(self, row: int, at_s: float, work_done: float) -> None:
        """Make this the job's last trusted progress point."""
        self.measured_from[row] = (at_s, work_done)

    def lose_track(self, row: int) -> None:
        """Forget the job's progress point: the job is over, or its work done is only estimated."""
        self.measured_from.pop(row, None)

    def speed_since(self, row: int, at_s: float, reported: float, work_done: float, began_with: float) -> float | None:
        """Speed since the last trusted progress point; None if that is under `least_measured_s` ago.

        `reported`: work done as the attempt reports it; `work_done`: the same, clamped to [0, work];
        `began_with`: work in the checkpoint that this attempt started from.
        """
        if reported <= began_with:
            # The attempt has only loaded its checkpoint so far.
            self.measure_from(row, at_s, work_done)
            return None
        since_s, done = self.measured_from.get(row, (at_s, reported))
        elapsed_s = at_s - since_s
        if 0 < elapsed_s < self._least_measured_s:
            return None
        self.measure_from(row, at_s, work_done)
        return (reported - done) / elapsed_s if elapsed_s > 0 else None

    def learn(self, row: int, setting: Setting, steps_per_s: float) -> None:
        """Put a measured speed into the throughput table.

        It replaces an estimate, is averaged with an earlier measurement, and never changes a speed that was given.
        """
        jobs, throughputs = self._jobs, self._jobs.speeds.throughputs
        previous = throughputs.get(setting)
        if previous is None and jobs.specs[row].throughput:
            # The throughput in the job's own spec counts as an estimate.
            previous = Throughput(float(jobs.rate[row]), Origin.ESTIMATED)
        if previous is None or previous.origin is Origin.GIVEN:
            return
        if previous.origin is Origin.MEASURED:
            steps_per_s = (steps_per_s + previous.steps_per_s) / 2
        # At a lower speed the job would practically never end: it has reported, but done no work.
        moved = steps_per_s * MAX_SECONDS >= jobs.work[row]
        if moved and abs(steps_per_s - previous.steps_per_s) > _SAME_SPEED * previous.steps_per_s:
            first = not throughputs.knows(setting.job_class)
            throughputs.put(setting, steps_per_s, Origin.MEASURED)
            self.learnt[setting] = steps_per_s
            jobs.look_up_again(setting, first)

    def contents(self) -> dict[str, Any]:
        """Everything here, as plain values."""
        return {"learnt": tuple(self.learnt.items()), "measured_from": dict(self.measured_from)}

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Take over what `contents` gave. Must be called before jobs are restored."""
        self.learnt, self.measured_from = dict(contents["learnt"]), dict(contents["measured_from"])
        for setting, steps_per_s in self.learnt.items():
            self._jobs.speeds.throughputs.put(setting, steps_per_s, Origin.MEASURED)
        self._jobs.speeds.forget()
