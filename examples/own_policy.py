"""A policy of one's own: the job that has waited longest for its size goes first, and runs at least for a while.

Run it as a script, or name it on any command line: horae compare ... --policies fifo,./own_policy.py:Patient
"""

from dataclasses import dataclass

import numpy as np

import horae


@dataclass(frozen=True)
class Patient(horae.Policy):
    """Run the jobs whose wait is longest for the GPUs they ask for; ties by arrival."""

    turn: float = horae.setting(1800.0, "seconds that a job keeps its GPUs at least", least=1)

    def plan(self, now: horae.Snapshot, memory: horae.Memory) -> horae.Wishes:
        """Order the jobs: the lowest key goes first. Jobs that run keep their turn."""
        waited_s = now.now_s - now.waiting_since_s
        in_turn = now.launched & (now.now_s - now.launched_s < self.turn)
        key = np.where(in_turn, -np.inf, -waited_s / now.gpus)
        return horae.Wishes(now.rows, key, wake_s=now.now_s + self.turn)


if __name__ == "__main__":
    day = horae.generate("plain", jobs=100, load=1.1)
    result = horae.compare(day, cluster="8x4", policies=["fifo", "las", Patient(), Patient(turn=600.0)], seeds=range(3))
    print(result.means.select("policy", "avg_jct_s", "p95_jct_s", "rho.max", "preemptions"))
