"""A pod that bears witness: it holds locks for its life, counts steps in a chain of hashes, and saves at SIGTERM.

    python pod_witness.py MARKS JOB ITEMS STEPS STEP_S

The job has as many items of work as pods at first. Pods of one attempt divide the items that are left among them by
their rank; a pod for which none is left is idle. A pod that finds the lock of its item or of its GPU taken leaves
a line "twice".
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

RUN_AGAIN = 75
#: How long it takes to save.
SAVING_S = 0.5


def chain(before: str, step: int) -> str:
    """What a step makes of what the steps before it made."""
    return hashlib.sha256(f"{before} {step}".encode()).hexdigest()[:16]


def made_by(steps: int) -> str:
    """What so many steps make."""
    made = ""
    for step in range(steps):
        made = chain(made, step)
    return made


class PodWitness:
    """One pod of one attempt."""

    def __init__(self, marks: Path, job: str, items: int, steps: int, step_s: float) -> None:
        self.marks, self.job, self.steps, self.step_s = marks, job, steps, step_s
        self.attempt, self.rank = int(os.environ["ATTEMPT"]), int(os.environ["POD_RANK"])
        self.item = self.choose(items)
        self.saved = marks / f"saved-{job}-{self.item}"
        self.state: dict[str, Any] = (
            json.loads(self.saved.read_text()) if self.saved.exists() else {"step": 0, "made": ""}
        )

    def choose(self, items: int) -> int | None:
        """The item of this rank among those that were left when the first pod of the attempt began; None if all are.

        A Job forgets the success of a pod that was deleted meanwhile, and makes one more: it finds nothing to do.
        """
        plan = self.marks / f"plan-{self.job}-{self.attempt}"
        left = [item for item in range(items) if not (self.marks / f"done-{self.job}-{item}").exists()]
        draft = self.marks / f".plan-{os.getpid()}"
        draft.write_text(json.dumps(left))
        try:
            os.link(draft, plan)
        except FileExistsError:
            left = json.loads(plan.read_text())
        draft.unlink()
        return int(left[self.rank]) if self.rank < len(left) else None

    def write(self, what: str) -> None:
        line = {"what": what, "job": self.job, "attempt": self.attempt, "rank": self.rank, "item": self.item}
        line |= {"pod": os.environ["POD_NAME"], "pid": os.getpid(), **self.state}
        handle = os.open(self.marks / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(handle, (json.dumps(line) + "\n").encode())
        os.close(handle)

    def lock(self, name: str) -> bool:
        """Take a lock for life; False if somebody has it."""
        handle = os.open(self.marks / f"lock-{name}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def save(self) -> None:
        draft = self.marks / f".saved-{self.job}-{self.item}-{os.getpid()}"
        draft.write_text(json.dumps(self.state))
        draft.replace(self.saved)

    def run(self, noticed: list[int]) -> int:
        """Count from where the last attempt stopped."""
        if self.item is None:
            self.write("idle")
            return 0
        node = Path(os.environ["KUBELET"]).name
        gpus = [f"gpu-{node}-{number}" for number in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
        if not all(self.lock(name) for name in (f"{self.job}-{self.item}", *gpus)):
            self.write("twice")
            return 99
        self.write("begin")
        while self.state["step"] < self.steps:
            if noticed:
                time.sleep(SAVING_S)
                self.save()
                self.write("saved")
                return RUN_AGAIN
            time.sleep(self.step_s)
            step = self.state["step"]
            self.state = {"step": step + 1, "made": chain(self.state["made"], step)}
        self.save()
        (self.marks / f"done-{self.job}-{self.item}").touch()
        self.write("end")
        return 0


def main() -> int:
    """Bear witness."""
    noticed: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: noticed.append(number))
    marks, job, items, steps, step_s = sys.argv[1:]
    return PodWitness(Path(marks), job, int(items), int(steps), float(step_s)).run(noticed)


if __name__ == "__main__":
    sys.exit(main())
