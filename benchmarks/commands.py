"""Commands as somebody types them, with the start of Python, and the import of the package."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.bench import Bench, note
from benchmarks.part import Part, Row
from benchmarks.process import Cost, run
from benchmarks.serving import served

#: CPU seconds that each may take; the import is counted beyond the start of Python.
LIMITS_S = {"python -c pass": None, "import horae": 0.05, "horae --help": 0.15, "horae queue": 0.2}
_TRIES = 9


def measure_commands(bench: Bench) -> Part:
    """The fastest of some runs of each; `horae queue` asks a service without jobs on loopback."""
    horae = str(Path(sys.executable).with_name("horae"))
    with served(bench.folder / "commands") as service:
        about = {"HORAE_URL": service.url, "HORAE_TOKEN": service.token}
        python = _fastest([sys.executable, "-c", "pass"], about)
        import_cost = _fastest([sys.executable, "-c", "import horae"], about)
        costs = {
            "python -c pass": python,
            "import horae": Cost(import_cost.cpu_s - python.cpu_s, import_cost.wall_s - python.wall_s, {}),
            "horae --help": _fastest([horae, "--help"], about),
            "horae queue": _fastest([horae, "queue"], about),
        }
    rows = [_row(what, cost) for what, cost in costs.items()]
    missed = [
        f"{row['command']} took {row['cpu_ms']} CPU ms; at most {row['limit_ms']} are allowed."
        for row in rows
        if row["holds"] == "NO"
    ]
    notes = [
        f"The fastest of {_TRIES} runs. Limits are judged by CPU time.",
        "`import horae` is what it adds to the start of Python, which the other rows include.",
    ]
    return Part("Commands", rows, notes, missed)


def _row(what: str, cost: Cost) -> Row:
    limit_s = LIMITS_S[what]
    row: Row = {"command": what, "cpu_ms": round(1e3 * cost.cpu_s), "wall_ms": round(1e3 * cost.wall_s)}
    if limit_s is None:
        return {**row, "limit_ms": "-", "holds": "-"}
    return {**row, "limit_ms": round(1e3 * limit_s), "holds": "yes" if cost.cpu_s <= limit_s else "NO"}


def _fastest(command: list[str], environment: Mapping[str, str]) -> Cost:
    note(" ".join([Path(command[0]).name, *command[1:]]))
    tries = [run(command, environment) for _ in range(_TRIES)]
    return Cost(min(cost.cpu_s for cost in tries), min(cost.wall_s for cost in tries), {})
