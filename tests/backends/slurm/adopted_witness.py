"""A Slurm job that bears witness: it holds a lock for its life, counts steps in a chain of hashes, and saves at 75.

    python adopted_witness.py MARKS STEPS STEP_S

Whoever finds the lock of its job taken leaves a note. Lines say who began and ended, as which user, in which run.
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


def chain(before: str, step: int) -> str:
    """What a step makes of what the steps before it made."""
    return hashlib.sha256(f"{before} {step}".encode()).hexdigest()[:16]


def main() -> int:
    """Count from where the last run stopped."""
    marks, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    job, restart = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    noticed: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: noticed.append(number))
    saved = marks / f"saved-{job}"
    state: dict[str, Any] = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "made": ""}

    def write(what: str) -> None:
        line = {"what": what, "job": job, "restart": restart, "uid": os.getuid(), **state}
        line["gpus"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        line["node"] = os.environ.get("SLURMD_NODENAME", "")
        handle = os.open(marks / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(handle, (json.dumps(line) + "\n").encode())
        os.close(handle)

    def save() -> None:
        draft = marks / f".saved-{job}-{os.getpid()}"
        draft.write_text(json.dumps(state))
        draft.replace(saved)

    lock = os.open(marks / f"lock-{job}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        write("twice")
        return 99
    write("begin")
    while state["step"] < steps:
        if noticed:
            save()
            write("saved")
            return RUN_AGAIN
        time.sleep(step_s)
        state = {"step": state["step"] + 1, "made": chain(state["made"], state["step"])}
    save()
    write("end")
    return 0


if __name__ == "__main__":
    os.umask(0)
    sys.exit(main())
