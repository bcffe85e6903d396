"""A job that bears witness: it writes down when it begins, holds a lock for its life, and counts its steps.

    python witness.py MARKS plain|train STEPS STEP_S

Whoever finds a lock taken leaves a note in `twice/`: two processes of one job, or two jobs on one GPU. The steps
make a chain of hashes, so that one step too many, too few or out of turn gives another result.
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

#: Exit code of a process that found its lock taken.
FOUND_ANOTHER = 99


def chain(before: str, step: int) -> str:
    """What a step makes of what the steps before it made."""
    return hashlib.sha256(f"{before} {step}".encode()).hexdigest()[:16]


class Witness:
    """One process of one attempt."""

    def __init__(self, marks: Path, steps: int, step_s: float) -> None:
        self.marks, self.steps, self.step_s = marks, steps, step_s
        self.job, self.attempt = os.environ["HORAE_JOB_ID"], int(os.environ["HORAE_ATTEMPT"])
        self.rank = int(os.environ["RANK"])
        self.saved = Path(os.environ["HORAE_CHECKPOINT_DIR"])
        self.done, self.made = 0, ""
        #: Open for as long as we live: the kernel frees a lock with its process, however that ends.
        self.locks = [self.take(name) for name in (f"{self.job}.{self.rank}", *self.gpus())]
        self.write("begin")

    def gpus(self) -> list[str]:
        """The GPUs that are this process's own. Nodes of a made-up cluster share a machine: the node is named, too."""
        numbers = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        mine = numbers if os.environ["LOCAL_WORLD_SIZE"] == "1" else [numbers[int(os.environ["LOCAL_RANK"])]]
        node = os.environ.get("HORAE_NODE", os.environ["HORAE_GPU_TYPE"])
        return [f"gpu-{node}-{number}" for number in mine]

    def take(self, name: str) -> int:
        handle = os.open(self.marks / "locks" / name, os.O_RDWR | os.O_CREAT, 0o600)
        me = f"{self.job} attempt {self.attempt} rank {self.rank} pid {os.getpid()}"
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode()
            (self.marks / "twice" / f"{name}-{os.getpid()}").write_text(f"{me} found {holder} with {name}\n")
            sys.exit(FOUND_ANOTHER)
        os.ftruncate(handle, 0)
        os.pwrite(handle, me.encode(), 0)
        return handle

    def write(self, what: str) -> None:
        """Add a line to what all have written; short lines appended at once never mix."""
        line = {"what": what, "job": self.job, "attempt": self.attempt, "rank": self.rank, "done": self.done}
        line["at"] = time.time()
        handle = os.open(self.marks / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(handle, (json.dumps(line) + "\n").encode())
        os.close(handle)

    def step(self) -> None:
        self.made = chain(self.made, self.done)
        self.done += 1
        time.sleep(self.step_s)

    def save(self, path: Path) -> None:
        """Write the state, in the form in which Horae reads it, too."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}-{os.getpid()}")
        draft.write_text(json.dumps({"step": self.done, "total": self.steps, "loss": None, "made": self.made}))
        draft.replace(path)

    def load(self, path: Path) -> None:
        if path.exists():
            said = json.loads(path.read_text())
            self.done, self.made = said["step"], said["made"]

    def end(self) -> None:
        self.write("end")
        self.save(self.marks / "results" / f"{self.job}.{self.rank}")

    def run_plain(self) -> None:
        """Count with nothing but a signal handler and a file."""
        told: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: told.append(number))
        file = self.saved / ("saved.json" if self.rank == 0 else f"rank-{self.rank}.json")
        self.load(file)
        self.write("resume")
        while self.done < self.steps:
            self.step()
            self.save(file)
            if told and self.done < self.steps:
                sys.exit(75)
        self.end()

    def run_train(self) -> None:
        """Count as a training script does."""
        from horae import train

        run = train.Run(self.steps, save=self.save, load=self.load, every_s=0.2)
        resumed = False
        for number in run:
            assert number == self.done, f"step {number} after {self.done} steps"
            if not resumed:
                self.write("resume")
            resumed = True
            self.step()
        self.end()


if __name__ == "__main__":
    witness = Witness(Path(sys.argv[1]), int(sys.argv[3]), float(sys.argv[4]))
    witness.run_train() if sys.argv[2] == "train" else witness.run_plain()
