"""Apps and offers for tests of Themis."""

from __future__ import annotations

import numpy as np

from horae.core.cluster import Machines
from horae.core.job import JobSpec
from horae.policies.themis.bidding_agent import AppView
from horae.solve.auction.bids import Offer

LEASE_S = 100.0
SHORT = {"lease": f"{LEASE_S:g}"}


def view(jobs: int = 1, gpus: int = 2, **more: object) -> AppView:
    """An app of equal jobs with 1,000 GPU-seconds each on the first of two types, twice that on the second."""
    about = {
        "name": "a",
        "elapsed_s": 0.0,
        "alone_s": 1000.0,
        "lease_s": LEASE_S,
        "gpus": np.full(jobs, gpus),
        "serial_s": np.tile([1000.0, 2000.0], (jobs, 1)),
        "slowdown": np.array([[1.0, 1.0, 1.5, 2.0]] * 2),
        "speed": np.zeros(jobs),
    }
    about |= more
    slowdown = about.pop("slowdown")
    return AppView(find_slowdown=lambda: slowdown, **about)  # type: ignore[arg-type, return-value]


def offer(*free: int) -> tuple[Offer, Machines]:
    """Machines of one type in racks of two."""
    numbers = np.arange(len(free))
    names = tuple(f"m{number}" for number in numbers)
    machines = Machines(names, np.zeros_like(numbers), numbers // 2, np.repeat(numbers, free))
    return Offer(names, np.array(free), np.zeros_like(numbers)), machines


def random_job(rng: np.random.Generator, number: int) -> JobSpec:
    """A job of one of four apps, or of its own, in one of two queues."""
    return JobSpec(
        id=f"j{number}",
        submit_s=float(rng.integers(0, 1500)),
        gpus=int(rng.choice([1, 2, 4])),
        work=float(rng.integers(10, 2000)),
        app=f"app-{int(rng.integers(0, 4))}" if rng.random() < 0.7 else "",
        slowdown=(1.0, 1.1, 1.5, 2.0) if rng.random() < 0.5 else (1.0, 1.0, 1.0, 1.0),
        queue=str(rng.choice(["org/a", "org/b"])),
    )
