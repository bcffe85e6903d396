"""`python -m benchmarks`: run the parts, print tables or JSON; exit code 1 if a limit is missed."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.agreement import measure_agreement
from benchmarks.arbiter import measure_arbiter
from benchmarks.auction import measure_auctions
from benchmarks.bench import Bench
from benchmarks.decision import measure_decisions, measure_snapshots
from benchmarks.part import Part, Row
from benchmarks.recovery import measure_recovery
from benchmarks.reference import measure_ratios
from benchmarks.service import measure_service
from benchmarks.simulation import measure_lengths, measure_limits, measure_start, measure_variants
from benchmarks.solver import measure_solver
from benchmarks.workload import QUICK, Sizes
from horae.cli.output import print_json, print_rich, table

PARTS: dict[str, Callable[[Bench], Part]] = {
    "start": measure_start,
    "limits": measure_limits,
    "lengths": measure_lengths,
    "variants": measure_variants,
    "naive": measure_ratios,
    "decisions": measure_decisions,
    "snapshots": measure_snapshots,
    "solver": measure_solver,
    "auctions": measure_auctions,
    "arbiter": measure_arbiter,
    "agreement": measure_agreement,
    "service": measure_service,
    "recovery": measure_recovery,
}


def main() -> int:
    """Run what was asked for."""
    asked = _parse()
    before = _machine()
    with tempfile.TemporaryDirectory(prefix="horae-bench-") as folder:
        bench = Bench(Path(folder), QUICK if asked.quick else Sizes())
        parts = {name: PARTS[name](bench) for name in asked.only or PARTS}
        about = {**before, "load_after": _load(), "trace": bench.workload.about}
    missed = [miss for part in parts.values() for miss in part.missed]
    if asked.output == "json":
        print_json({"machine": about, "parts": {name: vars(part) for name, part in parts.items()}, "missed": missed})
    else:
        _print_tables(about, list(parts.values()), missed)
    return 1 if missed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description="Measure Horae's speed and memory.")
    parser.add_argument("--only", action="append", choices=PARTS, help="run this part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a minute's worth; judges no limit of the whole trace")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="form of the answer")
    return parser.parse_args()


def _machine() -> Row:
    """Where this runs, and how busy it was before."""
    return {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version(), "load_before": _load()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _load() -> float:
    """Processes that wanted a core in the last minute, on average."""
    return round(os.getloadavg()[0], 2)


def _print_tables(about: Row, parts: list[Part], missed: list[str]) -> None:
    print_rich(", ".join(f"{key}: {value}" for key, value in about.items()))
    for part in parts:
        cells = [[row[column] for column in part.rows[0]] for row in part.rows]
        print_rich("", table(list(part.rows[0]), cells, part.title), *part.notes)
    print_rich("", *(f"MISSED: {miss}" for miss in missed) if missed else ("No limit that was judged was missed.",))


if __name__ == "__main__":
    sys.exit(main())
