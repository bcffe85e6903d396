"""A process that appends to a store until it is killed, and says what was acknowledged."""

from __future__ import annotations

import sys

from horae.backends.task import Task
from horae.core.events import JobCancelled, JobSubmitted
from horae.core.job import JobSpec
from horae.service.store.store import Store
from horae.service.store.stored_records import Act


def main() -> None:
    url, prefix = sys.argv[1:]
    store = Store(url, own=True)
    for number in range(1_000_000):
        name = f"{prefix}-{number}"
        records = [JobSubmitted(1.0, JobSpec(name, 1.0, 1, 5.0)), JobCancelled(2.0, name)]
        task, act = Task(name, "u", prefix, ("true",), 5.0), Act(1.0, "u", "submit", name)
        seq = store.append(records, [task], [act])
        sys.stdout.write(f"{seq} {name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
