"""Whole auctions, from bids to leftovers: time, memory, and how far from the best they may be."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, note
from benchmarks.bidding import draw_auction
from benchmarks.memory import in_new_process, peak_mb
from benchmarks.part import Part, Row
from benchmarks.scaling import draw_scaling, grown, sizes_of
from horae.solve.auction.auction import hold_auction
from horae.solve.auction.outcome import AuctionOutcome

#: Apps and GPUs for which limits are set: seconds, and how far the geometric mean of V may be from the best.
_LIMITS = {(50, 256): (0.050, 0.02), (1_000, 8_192): (5.0, 0.02)}
_TRIES = 3
_SEED = 0


@dataclass(frozen=True)
class Measured:
    """One auction, and what it cost."""

    apps: int
    gpus: int
    #: How bids say where: machines by name, or any of a rack.
    named: bool
    bundles: int
    cpu_s: float
    peak_mb: float
    outcome: AuctionOutcome

    def row(self) -> Row:
        """A line of the table."""
        outcome, misses = self.outcome, self.misses()
        limits = _LIMITS.get((self.apps, self.gpus))
        return {
            "apps": self.apps,
            "gpus": self.gpus,
            "bids for": "machines" if self.named else "racks",
            "bundles": self.bundles,
            "winners": sum(award.bundle is not None for award in outcome.awards.values()),
            "ms": round(1e3 * self.cpu_s, 1),
            "mb": round(self.peak_mb, 1),
            "gap": f"{outcome.gap:.3%}",
            "paid": f"{outcome.paid / max(outcome.won, 1):.0%}",
            "limit": f"{1e3 * limits[0]:g} ms, {limits[1]:.0%}" if limits else "-",
            "holds": "NO" if misses else "yes" if limits else "-",
        }

    def misses(self) -> list[str]:
        """Limits that were missed."""
        if (self.apps, self.gpus) not in _LIMITS:
            return []
        limit_s, limit = _LIMITS[self.apps, self.gpus]
        what = f"An auction of {self.gpus:,} GPUs among {self.apps:,} apps"
        slow = [f"{what} took {self.cpu_s:.3f} s; at most {limit_s:g} are allowed."] if self.cpu_s > limit_s else []
        far = [f"{what} has a gap of {self.outcome.gap:.2%}; at most {limit:.0%} is allowed."]
        return slow + (far if self.outcome.gap > limit else [])


def measure_auctions(bench: Bench) -> Part:
    """CPU seconds, the fastest of some tries; all apps bid for all GPUs; each auction in a process of its own."""
    measured = []
    for apps, gpus in bench.sizes.auctions:
        for named in (False, True):
            note(f"auction, {apps:,} apps, {gpus:,} GPUs, {'machines' if named else 'racks'}")
            measured.append(in_new_process(_measure, apps, gpus, named))
    notes = [
        f"Whole auctions with payments, gangs and leftovers. CPU time, the fastest of {_TRIES} tries, code compiled.",
        "All GPUs are free and all apps bid, for several times as many as there are; with f = 0.8 a fifth would.",
        "bids for racks: 'any machines of this rack'; for machines: certain ones by name.",
        "mb: resident memory that it adds at its highest, beside the bids; some 5 of it are libraries read again.",
        "gap: the geometric mean of all V = 1/rho before payments is at most this far below the best possible.",
        "paid: the part of the GPUs won that winners give back, which then goes to leftovers.",
    ]
    misses = [miss for one in measured for miss in one.misses()]
    return Part("Auctions of free GPUs", [one.row() for one in measured], notes, misses)


def draw_auctions(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the rows of the part."""
    labels = {"racks": "bids for any machines of a rack", "machines": "bids for machines by name"}
    chosen = {bids_for: [row for row in rows if row["bids for"] == bids_for] for bids_for in labels}
    lines = [grown(label, chosen[bids_for], "ms", "mb") for bids_for, label in labels.items()]
    draw_scaling(path, "Whole auctions: every app bids for every GPU", sizes_of(chosen["racks"]), lines)


def _measure(apps: int, gpus: int, named: bool) -> Measured:
    # Large enough to need every piece of compiled code, so that loading it is no part of what is measured.
    hold_auction(*draw_auction(50, 256, _SEED, named=True))
    offer, bids = draw_auction(apps, gpus, _SEED, named)
    added_mb = peak_mb(lambda: hold_auction(offer, bids))
    times_s = []
    for _ in range(_TRIES):
        began_s = time.process_time()
        outcome = hold_auction(offer, bids)
        times_s.append(time.process_time() - began_s)
    bundles = sum(len(bid.bundles) for bid in bids)
    return Measured(apps, gpus, named, bundles, min(times_s), added_mb, outcome)
