"""Shows that the gate works: a slower engine fails every time, unchanged code never.

The engine is slowed from outside: each of its calls spins for a part of the CPU time that it took.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.machine import ROOT
from horae.core.engine import Engine

#: The engine takes longer by this part.
SLOWER_BY = 1 / 3
SLOWED_RUNS, UNCHANGED_RUNS = 10, 20
_PROGRAM = "import sys; from benchmarks.gate import proof; sys.exit(proof.run_slowed(sys.argv[1:]))"
_SLOWED = (sys.executable, "-c", _PROGRAM)


def prove(names: Sequence[str]) -> int:
    """Run the gate in fresh processes, slowed and unchanged; exit code 1 unless it fails in all of the first alone.

    A slowed run has failed when its first workload has.
    """
    only = [word for name in names for word in ("--only", name)]
    slowed = [_fails([*_SLOWED, "--first", *only]) for _ in range(SLOWED_RUNS)]
    unchanged = [_fails([sys.executable, "-m", "benchmarks.gate", *only]) for _ in range(UNCHANGED_RUNS)]
    print(f"A slower engine failed in {sum(slowed)} of {len(slowed)} runs.")
    print(f"Unchanged code failed in {sum(unchanged)} of {len(unchanged)} runs.")
    return 0 if all(slowed) and not any(unchanged) else 1


def _fails(command: Sequence[str]) -> bool:
    """Run the gate, print the sentences of workloads that got slower, and say whether there were any."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    failures = [line for line in done.stdout.splitlines() if "make the code as fast" in line]
    print(*(failures or ["all ratios kept"]), sep="\n", flush=True)
    assert done.returncode == bool(failures), f"{command} ended with exit code {done.returncode}"
    return bool(failures)


def run_slowed(arguments: Sequence[str]) -> int:
    """The gate with a slower engine, for one process of its own."""
    from benchmarks.gate.__main__ import main

    slow_engine(SLOWER_BY)
    return main(arguments, _SLOWED)


def slow_engine(part: float) -> None:
    """Make `Engine.apply` and `Engine.decide` take longer by a part of their CPU time, from now on."""
    for name in ("apply", "decide"):
        setattr(Engine, name, _slowed(getattr(Engine, name), part))


def _slowed(call: Callable[..., Any], part: float) -> Callable[..., Any]:
    @functools.wraps(call)
    def slowed(*args: Any, **kwargs: Any) -> Any:
        began_s = time.process_time()
        result = call(*args, **kwargs)
        ended_s = time.process_time()
        until_s = ended_s + part * (ended_s - began_s)
        while time.process_time() < until_s:
            pass
        return result

    return slowed
