"""Allocation problems: how fast they are solved, and whether plain linear programs come to the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks import plain
from benchmarks.bench import Bench, note
from benchmarks.part import Part, Row
from benchmarks.speeds import Speeds, draw_differing, draw_problem, draw_queued, find_speeds
from horae.solve.allocation.hierarchy import hierarchical
from horae.solve.allocation.problem import AllocationProblem, Solution
from horae.solve.allocation.programs import finish_time, makespan, max_min

Floats = NDArray[np.float64]

#: Jobs of the problems that limits are set for, and the sizes that limits stand beside in `Sizes`.
JOBS = 2_048
_MANY, _DIFFERING = 1_000_000, 50_000
ENTITIES = 64

#: Objectives may differ by so much, relative to the plain one.
AGREE = 1e-6
_TRIES = 3

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Entry:
    """One problem: how Horae solves it, what a plain program makes of it (where it can), and the limits."""

    name: str
    problem: AllocationProblem
    solve: Callable[[AllocationProblem], Solution]
    #: Objective, or throughputs where those are what is to agree.
    plain: Callable[[AllocationProblem], float | Floats] | None = None
    limit_s: float | None = None
    least_ratio: float | None = None


def measure_solver(bench: Bench) -> Part:
    """CPU seconds in this process, the fastest of some tries; objectives against plain programs."""
    speeds = find_speeds()
    rows: list[Row] = []
    missed: list[str] = []
    for entry in _entries(speeds, bench.sizes.solved, bench.sizes.differing):
        note(f"solver, {entry.name}, {len(entry.problem):,} jobs")
        row, misses = _measure(entry, speeds.published)
        rows.append(row)
        missed += misses
    notes = [
        f"Speeds: {speeds.about}. CPU time, the fastest of {_TRIES} tries, problems as new each time.",
        "A plain program has a row for each job, is built from arrays, and is solved by the same HiGHS.",
        f"differ: of the objectives, or of the job's throughput that differs most; relative, at most {AGREE:g}.",
        "Horae's max-min, finish-time and makespan go on to the last job, which the plain programs do not.",
    ]
    if not speeds.published:
        notes.append("The limits are for the published table, so none is judged; whether objectives agree is.")
    return Part("Allocation problems against plain linear programs", rows, notes, missed)


def _entries(speeds: Speeds, many: int, differing: int) -> Iterator[Entry]:
    """Problems with limits, each with the largest size at which the plain program is bearable."""
    single = speeds.only(speeds.gpus == 1)
    yield Entry("max-min", draw_problem(speeds, JOBS), max_min, plain.max_min, least_ratio=20.0)
    yield Entry("max-min", draw_problem(speeds, many), max_min, limit_s=2.0 if many == _MANY else None)
    yield Entry("max-min, all differ", draw_differing(speeds, JOBS), max_min, plain.max_min, limit_s=1.0)
    yield Entry("space sharing", draw_problem(speeds, JOBS, sharing=True), max_min, limit_s=0.1)
    yield Entry("space sharing, single", draw_problem(single, JOBS, sharing=True), max_min, limit_s=0.1)
    yield Entry("space sharing, single", draw_problem(single, 48, sharing=True), max_min, plain.max_min)
    yield Entry("lexicographic", draw_queued(speeds, JOBS, ENTITIES), max_min, plain.max_min, limit_s=1.0)
    yield Entry("lexicographic", draw_differing(speeds, 96), max_min, plain.lexicographic)
    yield Entry("hierarchical", draw_queued(speeds, JOBS, ENTITIES), hierarchical, limit_s=1.0)
    yield Entry("hierarchical", draw_queued(speeds, 96, 8), hierarchical, plain.hierarchical)
    yield Entry("finish-time, all differ", draw_differing(speeds, JOBS), finish_time, plain.finish_time, limit_s=0.5)
    yield Entry("makespan, all differ", draw_differing(speeds, JOBS), makespan, plain.makespan, limit_s=0.5)
    limit_s = 15.0 if differing == _DIFFERING else None
    yield Entry("finish-time, all differ", draw_differing(speeds, differing), finish_time, limit_s=limit_s)
    yield Entry("makespan, all differ", draw_differing(speeds, differing), makespan, limit_s=limit_s)


def _measure(entry: Entry, judged: bool) -> tuple[Row, list[str]]:
    """One line of the table, and the limits that were missed."""
    solution, ours_s = _fastest(entry.solve, entry.problem)
    row: Row = {"problem": entry.name, "jobs": len(entry.problem), "classes": solution.certificate.get("classes", "-")}
    row |= {"horae_ms": round(1e3 * ours_s, 2), "plain_ms": "-", "ratio": "-", "differ": "-"}
    misses = _too_slow(entry, ours_s) if judged else []
    if entry.plain is not None:
        # One try is enough where nothing depends on it: some take seconds.
        answer, plain_s = _fastest(entry.plain, entry.problem, _TRIES if entry.least_ratio else 1)
        differ = difference(entry.problem, solution, answer)
        row |= {"plain_ms": round(1e3 * plain_s), "ratio": round(plain_s / ours_s, 1), "differ": f"{differ:.0e}"}
        misses += _too_far(entry, differ)
        misses += _too_little_faster(entry, plain_s / ours_s) if judged else []
    has_limit = judged and (entry.limit_s is not None or entry.least_ratio is not None)
    row |= {"limit": _limit(entry), "holds": "NO" if misses else "yes" if has_limit or entry.plain else "-"}
    return row, misses


def _fastest(
    solve: Callable[[AllocationProblem], _Answer], problem: AllocationProblem, tries: int = _TRIES
) -> tuple[_Answer, float]:
    """The answer and the time of the fastest try, each from a problem of which nothing is known yet."""
    if tries > 1:
        solve(problem.only(np.arange(len(problem)) < 8))
    times_s = []
    for _ in range(tries):
        fresh = replace(problem)
        began_s = time.process_time()
        answer = solve(fresh)
        times_s.append(time.process_time() - began_s)
    return answer, min(times_s)


def difference(problem: AllocationProblem, solution: Solution, answer: float | Floats) -> float:
    """How far a solution is from the plain answer: relative to that, or throughputs to the jobs' fastest."""
    if isinstance(answer, float):
        return abs(solution.objective - answer) / abs(answer)
    return float(np.max(np.abs(solution.throughput(problem) - answer) / problem.speed.max(axis=1)))


def _limit(entry: Entry) -> str:
    if entry.least_ratio is not None:
        return f"{entry.least_ratio:g} times faster"
    return f"{entry.limit_s:g} s" if entry.limit_s is not None else "-"


def _too_slow(entry: Entry, ours_s: float) -> list[str]:
    if entry.limit_s is None or ours_s <= entry.limit_s:
        return []
    return [f"{_named(entry)} took {ours_s:.2f} s; at most {entry.limit_s:g} are allowed."]


def _too_little_faster(entry: Entry, ratio: float) -> list[str]:
    if entry.least_ratio is None or ratio >= entry.least_ratio:
        return []
    return [f"{_named(entry)} is {ratio:.1f} times faster than the plain program; {entry.least_ratio:g} are demanded."]


def _too_far(entry: Entry, differ: float) -> list[str]:
    return [f"{_named(entry)} differs from the plain program by {differ:.1e}."] if not differ <= AGREE else []


def _named(entry: Entry) -> str:
    return f"{entry.name}, {len(entry.problem):,} jobs:"
