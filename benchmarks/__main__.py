"""`python -m benchmarks`: run the parts, print tables or JSON; exit code 1 if a limit is missed or a part fails."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import results
from benchmarks.agreement import measure_agreement
from benchmarks.arbiter import measure_arbiter
from benchmarks.auction import measure_auctions
from benchmarks.bench import Bench, note
from benchmarks.commands import measure_commands
from benchmarks.decision import measure_decisions, measure_snapshots
from benchmarks.gavel import measure_max_min, measure_rates
from benchmarks.machine import cpu_name, load_average
from benchmarks.part import Part
from benchmarks.recovery import measure_recovery
from benchmarks.reference import measure_ratios
from benchmarks.scale import measure_scale
from benchmarks.service import measure_service
from benchmarks.simulation import measure_lengths, measure_limits, measure_start, measure_variants
from benchmarks.solver import measure_solver
from benchmarks.workload import PHILLY, QUICK, Sizes, find_data
from horae.cli.output import print_json, print_rich, table

PARTS: dict[str, Callable[[Bench], Part]] = {
    "start": measure_start,
    "commands": measure_commands,
    "limits": measure_limits,
    "scale": measure_scale,
    "lengths": measure_lengths,
    "variants": measure_variants,
    "naive": measure_ratios,
    "decisions": measure_decisions,
    "snapshots": measure_snapshots,
    "solver": measure_solver,
    "max-min": measure_max_min,
    "rates": measure_rates,
    "auctions": measure_auctions,
    "arbiter": measure_arbiter,
    "service": measure_service,
    "recovery": measure_recovery,
    "agreement": measure_agreement,
}
_SPEEDS = "gavel/simulation_throughputs.json"
#: Files that a part cannot do without.
_NEEDS = {"max-min": (_SPEEDS, "gavel/max_min_fairness.trace"), "rates": (_SPEEDS,)}
#: Files in whose place something is generated; the page shows the real ones only.
_NEEDS_TO_WRITE = {
    **dict.fromkeys(("start", "limits", "lengths", "variants", "naive", "snapshots"), (PHILLY,)),
    "solver": (_SPEEDS,),
}
#: Parts that take minutes whatever the sizes.
_LONG = ("rates", "agreement")


def main() -> int:
    """Run what was asked for."""
    asked = _parse()
    commit = results.clean_commit() if asked.write else None
    if asked.write and commit is None:
        print("Nothing measured: commit the changes in src and benchmarks first, so that the results name a commit.")
        return 1
    names = asked.only or [name for name in PARTS if not (asked.quick and name in _LONG)]
    parts, missed = _measure(names, QUICK if asked.quick else Sizes(), commit)
    missed += [miss for part in parts.values() for miss in part.missed]
    if asked.output == "json":
        print_json({"cpu": cpu_name(), "parts": {name: vars(part) for name, part in parts.items()}, "missed": missed})
    else:
        _print_tables(list(parts.values()), missed)
    return 1 if missed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description="Measure Horae's speed and memory.")
    parser.add_argument("--only", action="append", choices=PARTS, help="run this part; may be repeated")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="form of the answer")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="short traces, a few minutes; judges no limit on them")
    how.add_argument("--write", action="store_true", help="keep each part's result in benchmarks/results.json")
    return parser.parse_args()


def _measure(names: list[str], sizes: Sizes, commit: str | None) -> tuple[dict[str, Part], list[str]]:
    """Measure parts one after the other, and keep each as soon as it is there; what failed is told at the end."""
    parts: dict[str, Part] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="horae-bench-") as folder:
        bench = Bench(Path(folder), sizes)
        for name in names:
            if absent := _absent(name, commit is not None):
                note(f"{name} is left out: {absent} does not exist; set HORAE_DATA to the folder of the data")
                continue
            before = load_average()
            try:
                parts[name] = PARTS[name](bench)
            except Exception as error:
                # The other parts take many minutes and are worth having.
                traceback.print_exc()
                failed.append(f"part {name} could not be measured: {error}")
                continue
            if commit is not None:
                results.save(name, parts[name], commit, (before, load_average()))
    return parts, failed


def _absent(name: str, written: bool) -> Path | None:
    """The first file that a part needs and that is not at hand."""
    needed = _NEEDS.get(name, ()) + (_NEEDS_TO_WRITE.get(name, ()) if written else ())
    return next((path for path in map(find_data, needed) if not path.is_file()), None)


def _print_tables(parts: list[Part], missed: list[str]) -> None:
    for part in parts:
        cells = [[row[column] for column in part.rows[0]] for row in part.rows]
        print_rich("", table(list(part.rows[0]), cells, part.title), *part.notes)
    print_rich("", *(f"MISSED: {miss}" for miss in missed) if missed else ("No limit that was judged was missed.",))


if __name__ == "__main__":
    sys.exit(main())
