"""Many seeded worlds on all cores: `python -m tests.world.soak 10000`.

Says at which points services died, and how often; fails if a seed fails, or if no service died at some point.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import Counter

from tests.world.faults import POINTS
from tests.world.world import run_seed


def soak(seed: int) -> tuple[int, str, Counter[str], Counter[str]]:
    """One seed: what is broken, if anything is; points at which services died; faults."""
    deaths: Counter[str] = Counter()
    try:
        world = run_seed(seed, deaths)
    except Exception as why:
        return seed, f"{type(why).__name__}: {why}"[:500], deaths, Counter()
    return seed, "", deaths, world.faults


def main(seeds: int, first: int = 0) -> int:
    deaths, faults, failed, begun_s = Counter[str](), Counter[str](), 0, time.monotonic()
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for seed, broken, died, went_wrong in pool.imap(soak, range(first, first + seeds), chunksize=20):
            deaths.update(died)
            faults.update(went_wrong)
            if broken:
                failed += 1
                print(f"seed {seed}: {broken}\n    python -m tests.world.world {seed} --trace", flush=True)  # noqa: T201
    never = [point for point in POINTS if not deaths[point]]
    took_s = time.monotonic() - begun_s
    lines = [f"{deaths[point]:8} {point}" for point in POINTS]
    lines += [
        f"{seeds} seeds in {took_s:.0f} s ({seeds / took_s:.1f} a second), {failed} failed",
        f"faults: {dict(faults)}",
    ]
    lines += [f"no service died at {', '.join(never)}"] if never else []
    print("\n".join(lines))  # noqa: T201
    return int(bool(failed or never))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
