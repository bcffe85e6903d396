"""`horae solve`: one allocation problem in, shares of time out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.options import OutputOption
from horae.cli.output import Output, note, print_csv, print_json, print_rich, table
from horae.cli.setup.inputs import read_pairs
from horae.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from horae.solve.allocation.problem import AllocationProblem, Solution


#: What of a policy's settings tells what is solved; the others tell how it is run.
_SWITCHES = ("aware", "space-sharing")


def command(
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="What is to be best; the names stand above.")],
    problem: Annotated[Path, typer.Option("--problem", metavar="FILE.json", help="GPU types, jobs and throughputs.")],
    set: Annotated[  # noqa: A002, the option is called so
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="aware=false takes all GPU types for one; space-sharing=false leaves out the problem's pairs, which "
            "are used otherwise; repeatable.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Solve one allocation problem exactly: which share of its time each job spends on which GPU type.

    Policies: max-min, water-filling, hierarchical, finish-time, makespan, total-throughput, cost, cost-deadline,
    strategy-proof, allox, isolated.
    """
    from horae.solve.allocation.programs import PROGRAMS
    from horae.workload.problem_files import load_problem

    if policy not in PROGRAMS:
        raise UserError(_no_program(policy, list(PROGRAMS)))
    aware, sharing = _switches(policy, read_pairs("--set aware=false", set or ()))
    asked = _with_pairs(load_problem(problem), policy, aware, sharing)
    started = time.perf_counter()
    solution = PROGRAMS[policy].solve(asked if aware else asked.agnostic())
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


def _no_program(policy: str, programs: Sequence[str]) -> str:
    from horae.policies import POLICIES

    there_are = f"There are: {', '.join(programs)}."
    if policy in POLICIES:
        return (
            f"Policy {policy!r} puts jobs in order and has nothing to solve; run it with `horae simulate`. {there_are}"
        )
    return f"No allocation policy is called {policy!r}.{did_you_mean(policy, programs)} {there_are}"


def _switches(policy: str, settings: dict[str, str]) -> tuple[bool, bool | None]:
    """Whether GPU types are told apart and whether GPUs are shared, None if nobody said; read as `simulate` does."""
    from horae.policies import make_policy

    known = _known_switches(policy)
    said = {key.replace("_", "-"): value for key, value in settings.items()}
    for key, value in said.items():
        if key not in known:
            there_is = f"there is {' and '.join(known)}" if known else f"{policy} has nothing to set here"
            raise UserError(f"--set {key}={value} changes nothing that `horae solve` does; {there_is}.")
    made = make_policy(policy, said)
    return getattr(made, "aware", True), getattr(made, "space_sharing", None) if "space-sharing" in said else None


def _known_switches(policy: str) -> list[str]:
    from horae.policies import describe

    return [parameter.name for parameter in describe(policy).parameters if parameter.name in _SWITCHES]


def _with_pairs(problem: AllocationProblem, policy: str, aware: bool, sharing: bool | None) -> AllocationProblem:
    """The problem with its pairs, unless nobody wants or can use them; pairs that are left out unasked are told of."""
    if problem.sharing is None:
        if sharing:
            raise UserError(
                "space-sharing=true needs `pairs` in the problem, which has none; add some, or leave it out."
            )
        return problem
    if "space-sharing" not in _known_switches(policy):
        note(f"{policy} never lets two jobs share GPUs: the pairs of the problem are left out.")
    elif not aware and sharing is None:
        note("aware=false tells no speeds apart, not those of pairs either: the pairs of the problem are left out.")
    elif sharing is not False:
        return problem
    return replace(problem, sharing=None)


def _record(policy: str, problem: AllocationProblem, solution: Solution, solve_s: float) -> dict[str, Any]:
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
