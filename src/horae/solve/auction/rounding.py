"""From a fraction of a bundle to whole gangs, by a chance that no bid can turn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

#: Fractions of gangs that are less than this away from a whole number are that number.
_WHOLE = 1e-9

Seed = int | Sequence[int]


def words_of(seed: Seed, *names: str) -> list[int]:
    """Entropy from a seed and names: the same in every process, whatever anybody bids."""
    numbers = [seed] if isinstance(seed, int) else list(seed)
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return [*numbers, *np.frombuffer(digest, np.uint32).tolist()]


def draw(seed: Seed, app: str) -> float:
    """An app's number from 0 to 1 in this auction."""
    state = np.random.SeedSequence(words_of(seed, "gang", app)).generate_state(1, np.uint64)
    return float(state[0]) / 2.0**64


def gangs_kept(fraction: float, gangs: int, drawn: float) -> int:
    """The whole part of fraction * gangs, and one more if the number drawn is below the rest."""
    exact = fraction * gangs
    whole = int(exact + _WHOLE)
    return whole + (drawn < exact - whole)


def keep(bundle: Mapping[int, int], gang: int, gangs: int) -> dict[int, int]:
    """Some gangs of a bundle (GPUs by machine): on as few machines as can be, and of those the lowest.

    Gangs that fit on one machine come first; only if there are not enough of them are others
    made of what machines have beside.
    """
    whole = {m: bundle[m] // gang for m in sorted(bundle)}
    if sum(whole.values()) >= gangs:
        return {m: count * gang for m, count in _fewest(whole, gangs).items()}
    missing = (gangs - sum(whole.values())) * gang
    beside = {m: bundle[m] - whole[m] * gang for m in whole}
    rest = _fewest(beside, missing)
    return {m: n for m in whole if (n := whole[m] * gang + rest.get(m, 0))}


def _fewest(counts: Mapping[int, int], want: int) -> dict[int, int]:
    """So many from as few machines as can be; of equally few, from those lowest by name."""
    taken: dict[int, int] = {}
    later = sorted(counts)
    most = _machines_for(counts, later, want)
    while want > 0:
        machine = later.pop(0)
        # Whoever is low by name is taken if the others that may still come are enough then.
        rest = sorted((counts[m] for m in later), reverse=True)[: most - len(taken) - 1]
        if counts[machine] and counts[machine] + sum(rest) >= want:
            taken[machine] = min(counts[machine], want)
            want -= taken[machine]
    return taken


def _machines_for(counts: Mapping[int, int], machines: Sequence[int], want: int) -> int:
    """How few machines have so many."""
    for number, count in enumerate(sorted((counts[m] for m in machines), reverse=True)):
        if want <= 0:
            return number
        want -= count
    return len(machines)
