"""What running jobs teach of speeds: a report tells how far a job has come, and so how fast it was since the last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from horae.core.declared import Rows, Stored
from horae.core.job import MAX_SECONDS
from horae.core.job_table import JobTable
from horae.core.throughputs import Origin, Setting, Throughput

#: A speed is measured over at least so long, unless told otherwise; only a difference as large as this counts as one.
LEAST_MEASURED_S, _SAME_SPEED = 30.0, 1e-3


class SpeedLearner:
    """Speeds that were learnt, and since when each running job is measured. Where `wanted` is false nobody learns."""

    STORED: ClassVar[dict[str, Stored]] = {
        "learnt": Stored(tuple[tuple[Setting, float], ...]),
        "measured_from": Stored(dict[int, tuple[float, float]], Rows.KEYS),
    }

    def __init__(self, jobs: JobTable, wanted: bool, least_measured_s: float) -> None:
        self._jobs, self.wanted, self._least_measured_s = jobs, wanted, least_measured_s
        self.learnt: dict[Setting, float] = {}
        #: A moment, and the work that was done by then, by row.
        self.measured_from: dict[int, tuple[float, float]] = {}

    def measure_from(self, row: int, at_s: float, work_done: float) -> None:
        """At this moment it is known where a job stands."""
        self.measured_from[row] = (at_s, work_done)

    def lose_track(self, row: int) -> None:
        """A job is over, or where it stands is only believed: its next report is where measuring begins anew."""
        self.measured_from.pop(row, None)

    def speed_since(self, row: int, at_s: float, told: float, stands: float, began: float) -> float | None:
        """How fast a job was since it was last known where it stood, if that is long enough ago.

        It told how much it has done; what makes sense of that is where it stands, and it began with less or as much.
        """
        if told <= began:
            # It stands where it began: it has only loaded so far.
            self.measure_from(row, at_s, stands)
            return None
        since_s, done = self.measured_from.get(row, (at_s, told))
        elapsed_s = at_s - since_s
        if 0 < elapsed_s < self._least_measured_s:
            return None
        self.measure_from(row, at_s, stands)
        return (told - done) / elapsed_s if elapsed_s > 0 else None

    def learn(self, row: int, setting: Setting, steps_per_s: float) -> None:
        """A speed that was only estimated is replaced; one that was measured before moves half way."""
        jobs, throughputs = self._jobs, self._jobs.speeds.throughputs
        known = throughputs.get(setting)
        if known is None and jobs.specs[row].throughput:
            # What a job says of itself is an estimate, too.
            known = Throughput(float(jobs.rate[row]), Origin.ESTIMATED)
        if known is None or known.origin is Origin.GIVEN:
            return
        if known.origin is Origin.MEASURED:
            steps_per_s = (steps_per_s + known.steps_per_s) / 2
        # One that would never end has not moved: it has only reported something.
        moved = steps_per_s * MAX_SECONDS >= jobs.work[row]
        if moved and abs(steps_per_s - known.steps_per_s) > _SAME_SPEED * known.steps_per_s:
            first = not throughputs.knows(setting.job_class)
            throughputs.put(setting, steps_per_s, Origin.MEASURED)
            self.learnt[setting] = steps_per_s
            jobs.look_up_again(setting, first)

    def contents(self) -> dict[str, Any]:
        """Everything here, as plain values."""
        return {"learnt": tuple(self.learnt.items()), "measured_from": dict(self.measured_from)}

    def restore(self, contents: Mapping[str, Any]) -> None:
        """Take over what `contents` gave; before there are jobs."""
        self.learnt, self.measured_from = dict(contents["learnt"]), dict(contents["measured_from"])
        for setting, steps_per_s in self.learnt.items():
            self._jobs.speeds.throughputs.put(setting, steps_per_s, Origin.MEASURED)
        self._jobs.speeds.forget()
