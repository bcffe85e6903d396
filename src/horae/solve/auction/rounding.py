"""Randomised rounding of a fractional bundle to whole gangs.

The draw depends on the seed and the app's name only, so bids cannot influence it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

#: Fractions of gangs closer than this to a whole number count as that number.
_WHOLE = 1e-9

#: One or several whole numbers.
Seed = int | Sequence[int]


def entropy_of(seed: Seed, *names: str) -> list[int]:
    """Entropy for a random generator, from a seed and names: the same in every process, independent of bids."""
    numbers = [seed] if isinstance(seed, int) else list(seed)
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return [*numbers, *np.frombuffer(digest, np.uint32).tolist()]


def draw(seed: Seed, app: str) -> float:
    """The random number from 0 to 1 of an app in this auction."""
    state = np.random.SeedSequence(entropy_of(seed, "gang", app)).generate_state(1, np.uint64)
    return float(state[0]) / 2.0**64


def gangs_kept(fraction: float, gangs: int, drawn: float) -> int:
    """Fraction * gangs rounded down, plus one if the number drawn is below the fractional part."""
    exact = fraction * gangs
    whole = int(exact + _WHOLE)
    return whole + (drawn < exact - whole)


def keep(bundle: Mapping[int, int], gang: int, gangs: int) -> dict[int, int]:
    """The given number of gangs of a bundle (GPU count by machine): on the fewest machines, of those the first.

    Gangs on one machine come first. If they are not enough, others are made of the GPUs that are left on machines.
    """
    whole = {m: bundle[m] // gang for m in sorted(bundle)}
    if sum(whole.values()) >= gangs:
        return {m: count * gang for m, count in _fewest(whole, gangs).items()}
    missing = (gangs - sum(whole.values())) * gang
    spare = {m: bundle[m] - whole[m] * gang for m in whole}
    spread = _fewest(spare, missing)
    return {m: n for m in whole if (n := whole[m] * gang + spread.get(m, 0))}


def _fewest(counts: Mapping[int, int], want: int) -> dict[int, int]:
    """`want` GPUs from the fewest machines; of equally few, from those first by position."""
    taken: dict[int, int] = {}
    later = sorted(counts)
    most = _machines_for(counts, later, want)
    while want > 0:
        machine = later.pop(0)
        # The machine is taken if the largest of the later machines are enough for the GPUs that are missing then.
        largest = sorted((counts[m] for m in later), reverse=True)[: most - len(taken) - 1]
        if counts[machine] and counts[machine] + sum(largest) >= want:
            taken[machine] = min(counts[machine], want)
            want -= taken[machine]
    return taken


def _machines_for(counts: Mapping[int, int], machines: Sequence[int], want: int) -> int:
    """The least number of machines that have `want` GPUs together."""
    for number, count in enumerate(sorted((counts[m] for m in machines), reverse=True)):
        if want <= 0:
            return number
        want -= count
    return len(machines)
