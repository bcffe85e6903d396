"""`horae solve`: one allocation problem in, shares of time out."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.inputs import read_pairs
from horae.cli.options import OutputOption
from horae.cli.output import Output, print_csv, print_json, print_rich, table
from horae.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from horae.solve.problem import Problem, Solution


def command(
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="What is to be best; the names stand above.")],
    problem: Annotated[Path, typer.Option("--problem", metavar="FILE.json", help="GPU types, jobs and throughputs.")],
    set: Annotated[  # noqa: A002, the option is called so
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="aware=false takes all GPU types for one, space-sharing=false leaves pairs out; repeatable.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Solve one allocation problem exactly: which share of its time each job spends on which GPU type.

    Policies: max-min, water-filling, hierarchical, finish-time, makespan, total-throughput, cost, cost-deadline,
    strategy-proof, allox, isolated.
    """
    from horae.solve.programs import PROGRAMS
    from horae.workload.problems import load_problem

    if policy not in PROGRAMS:
        raise UserError(
            f"No allocation policy is called {policy!r}.{did_you_mean(policy, PROGRAMS)} "
            f"There are: {', '.join(PROGRAMS)}."
        )
    switches = _switches(read_pairs("--set aware=false", set or ()))
    asked = load_problem(problem)
    if not switches["space-sharing"]:
        asked = replace(asked, sharing=None)
    started = time.perf_counter()
    solution = PROGRAMS[policy].solve(asked if switches["aware"] else asked.agnostic())
    record = _record(policy, asked, solution, time.perf_counter() - started)
    match output:
        case Output.JSON:
            print_json(record)
        case Output.CSV:
            print_csv(_rows(record))
        case Output.TABLE:
            rows = _rows(record)
            print_rich(table(list(rows[0]), [list(row.values()) for row in rows]))
            print_rich(f"{PROGRAMS[policy].objective}: {solution.objective:.6g} {PROGRAMS[policy].unit}")


def _switches(settings: dict[str, str]) -> dict[str, bool]:
    """What is on and what is off."""
    switches, words = {"aware": True, "space-sharing": True}, {"true": True, "false": False}
    for key, value in settings.items():
        if key not in switches or value not in words:
            known = " and ".join(f"{name}=true or false" for name in switches)
            raise UserError(f"--set {key}={value} is not known here; there is {known}.")
        switches[key] = words[value]
    return switches


def _record(policy: str, problem: Problem, solution: Solution, solve_s: float) -> dict[str, Any]:
    """The answer as JSON shows it; throughputs are the true ones, whatever the policy knew."""
    throughput = solution.throughput(problem)
    names = [*problem.ids, *(f"{problem.ids[a]}+{problem.ids[b]}" for a, b in solution.pairs.tolist())]
    rows = [*solution.share.tolist(), *solution.pair_share.tolist()]
    shares = [dict(zip(problem.gpu_types, row, strict=True)) for row in rows]
    return {
        "policy": policy,
        "objective": solution.objective,
        "allocation": dict(zip(names, shares, strict=True)),
        "throughput": dict(zip(problem.ids, throughput.tolist(), strict=True)),
        "solve_s": solve_s,
        "certificate": solution.certificate,
    }


def _rows(record: dict[str, Any]) -> list[dict[str, object]]:
    return [
        {"job": name, **share, "throughput": record["throughput"].get(name, "")}
        for name, share in record["allocation"].items()
    ]
