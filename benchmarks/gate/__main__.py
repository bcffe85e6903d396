"""`python -m benchmarks.gate`: time the workloads beside their references; exit code 1 if one got slower."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.gate import proof, recorded
from benchmarks.gate.measurement import AGAIN, CLEAR, FIRST, LATER_LOOKS, Judged, Verdict, judge, measure_alone
from benchmarks.gate.workloads import WORKLOADS
from benchmarks.machine import ROOT, cpu_name

#: The command of this module, for fresh processes.
_COMMAND = (sys.executable, "-m", "benchmarks.gate")


def main(arguments: Sequence[str] | None = None, command: Sequence[str] = _COMMAND) -> int:
    """Check, record or prove; fresh processes are started with the command."""
    asked = _parse(arguments)
    names = asked.only or list(WORKLOADS)
    if asked.record:
        return _record(names, asked.runs)
    if asked.prove:
        return proof.prove(names)
    if asked.samples:
        print(json.dumps({name: measure_alone(name, AGAIN) for name in names}))
        return 0
    return check(names, asked.output, command, asked.first)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.gate", description="Fail when Horae got slower.")
    parser.add_argument("--only", action="append", choices=WORKLOADS, help="time this workload; may be repeated")
    parser.add_argument("--record", action="store_true", help="write the median ratios of some runs to ratios.json")
    parser.add_argument("--runs", type=int, default=5, help="processes whose median ratio --record writes")
    parser.add_argument("--prove", action="store_true", help="run the gate with a slower engine, and unchanged")
    parser.add_argument("--first", action="store_true", help="end at the first workload that got slower")
    parser.add_argument("--samples", action="store_true", help="print ratios as JSON and judge nothing")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form of the verdicts")
    return parser.parse_args(arguments)


def check(names: Sequence[str], output: str, command: Sequence[str], first: bool) -> int:
    """Judge the workloads by their recorded ratios, all of them or up to the first that got slower."""
    record = recorded.load()
    verdicts = []
    for name in names:
        ratio = record.ratios.get(name)
        verdicts.append(judge(name, ratio, _looks(name, ratio, command)))
        if output == "text":
            print(verdicts[-1].sentence, flush=True)
        if first and verdicts[-1].verdict is Verdict.SLOWER:
            break
    if output == "json":
        print(json.dumps([_as_dict(judged) for judged in verdicts]))
    failed = [judged for judged in verdicts if judged.verdict in (Verdict.SLOWER, Verdict.UNRECORDED)]
    if failed and record.cpu != cpu_name():
        print(f"The ratios were recorded on another machine ({record.cpu}).", file=sys.stderr)
    return 1 if failed else 0


def _looks(name: str, ratio: float | None, command: Sequence[str]) -> Iterator[float]:
    """The ratio in a fork, and then in fresh processes, as long as the caller asks."""
    yield measure_alone(name, FIRST, math.inf if ratio is None else CLEAR * ratio)
    for _ in range(LATER_LOOKS):
        yield _fresh_ratios([name], command)[name]


def _as_dict(judged: Judged) -> dict[str, object]:
    return {**vars(judged), "verdict": judged.verdict.value, "sentence": judged.sentence}


def _record(names: Sequence[str], count: int) -> int:
    """Measure in fresh processes, since each has a memory layout of its own, and keep the medians."""
    runs = []
    for number in range(1, count + 1):
        print(f"... run {number} of {count}", file=sys.stderr, flush=True)
        runs.append(_fresh_ratios(names, _COMMAND))
    before = recorded.load().ratios
    ratios = {name: median(run[name] for run in runs) for name in names}
    recorded.save(ratios)
    for name, ratio in ratios.items():
        spread = max(run[name] for run in runs) / min(run[name] for run in runs) - 1.0
        old = f"{before[name]:.3f}" if name in before else "nothing"
        print(f"{name}: {old} -> {ratio:.3f} (runs differ by {spread:.0%})")
    return 0


def _fresh_ratios(names: Sequence[str], command: Sequence[str]) -> dict[str, float]:
    """Ratios by workload, measured in a process that has done nothing else."""
    only = [word for name in names for word in ("--only", name)]
    done = subprocess.run([*command, "--samples", *only], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    ratios: dict[str, float] = json.loads(done.stdout)
    return ratios


if __name__ == "__main__":
    sys.exit(main())
