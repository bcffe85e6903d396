"""Horae: a scheduler for shared GPU clusters that train models.

What stands in `__all__` is public; docs/from-python.md shows how it is used. Nothing is loaded before it is asked for.
"""

from __future__ import annotations

import os

__version__ = "0.1.0"

#: As in `typing`, which takes longer to load than everything here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from horae import testing, train
    from horae.api.comparisons import Comparison, Replay, Sweep, compare, replay, sweep
    from horae.api.runs import AuditedRun, Run, audit, simulate
    from horae.api.scenarios import cluster, generate, read_trace, scenario
    from horae.backends import BACKENDS
    from horae.client.client import Client, Job
    from horae.core.cluster import Cluster
    from horae.core.errors import UserError
    from horae.core.job import JobSpec
    from horae.core.memory import Memory, MemorySpec
    from horae.core.policy import Policy
    from horae.core.queues import Queue
    from horae.core.reasons import Reason
    from horae.core.snapshot import Snapshot
    from horae.core.throughputs import Throughputs
    from horae.core.wishes import Wishes
    from horae.experiments.scenario_file import read_scenario, write_scenario
    from horae.policies import POLICIES, policy
    from horae.policies.settings import setting
    from horae.policies.type_awareness import PolicyWarning
    from horae.simulator.faults import Faults
    from horae.simulator.scenario import Scenario
    from horae.workload.traces import FORMATS, Trace

__all__ = [
    "BACKENDS",
    "FORMATS",
    "POLICIES",
    "AuditedRun",
    "Client",
    "Cluster",
    "Comparison",
    "Faults",
    "Job",
    "JobSpec",
    "Memory",
    "MemorySpec",
    "Policy",
    "PolicyWarning",
    "Queue",
    "Reason",
    "Replay",
    "Run",
    "Scenario",
    "Snapshot",
    "Sweep",
    "Throughputs",
    "Trace",
    "UserError",
    "Wishes",
    "audit",
    "cluster",
    "compare",
    "generate",
    "policy",
    "read_scenario",
    "read_trace",
    "replay",
    "scenario",
    "setting",
    "simulate",
    "sweep",
    "testing",
    "train",
    "write_scenario",
]

#: Where each public name is; a package is its own name.
_PLACES = {
    "horae.api.comparisons": "Comparison Replay Sweep compare replay sweep",
    "horae.api.runs": "AuditedRun Run audit simulate",
    "horae.api.scenarios": "cluster generate read_trace scenario",
    "horae.backends": "BACKENDS",
    "horae.client.client": "Client Job",
    "horae.core.cluster": "Cluster",
    "horae.core.errors": "UserError",
    "horae.core.job": "JobSpec",
    "horae.core.memory": "Memory MemorySpec",
    "horae.core.policy": "Policy",
    "horae.core.queues": "Queue",
    "horae.core.reasons": "Reason",
    "horae.core.snapshot": "Snapshot",
    "horae.core.throughputs": "Throughputs",
    "horae.core.wishes": "Wishes",
    "horae.experiments.scenario_file": "read_scenario write_scenario",
    "horae.policies": "POLICIES policy",
    "horae.policies.settings": "setting",
    "horae.policies.type_awareness": "PolicyWarning",
    "horae.simulator.faults": "Faults",
    "horae.simulator.scenario": "Scenario",
    "horae.workload.traces": "FORMATS Trace",
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """A public name, loaded when it is first asked for."""
    from importlib import import_module

    if name in _MODULE_OF:
        found: object = getattr(import_module(_MODULE_OF[name]), name)
    elif name in __all__:
        found = import_module(f"horae.{name}")
    else:
        raise AttributeError(f"module 'horae' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


#: Modules with compiled functions, and those that they import: compiled code has the values of their constants in it.
_COMPILED_IN = {
    "core": "arrays cluster declared errors gpu_moves jit limits queues quotas reasons states straight_lines",
    "placement": "choose gpu_numbers gpu_room heap holders kernel_args marks quotas reservation turns waiting_reasons "
    "walk",
    "policies.tiresias": "queue_columns",
    "solve.allocation": "cheapest_mix demands equal_jobs floors hierarchy lexicographic packing price_search problem "
    "time_division time_lp units",
    "solve.auction": "bids branch_and_bound local_search machine_choice moves prices winner_program",
    "solve": "matching slots",
}
COMPILED = tuple(f"{package}.{module}" for package, modules in _COMPILED_IN.items() for module in modules.split())


def prepare_compilation() -> None:
    """Tell numba where to keep machine code and how hard to try; to be called before it is imported.

    Only those that compile call this: a training script that imports `horae.train` is left as it is.
    """
    _keep_compiled_code_apart()
    _compile_quickly()


def _keep_compiled_code_apart() -> None:
    """Keep compiled code in a folder named after the sources it was made from.

    numba keeps machine code on disk and looks only at the file of the function itself, not
    at those it calls, to see whether it is still true. After an upgrade in place some of it
    would be old.
    """
    # Imported here, so that a training script does not pay for them.
    import hashlib
    from pathlib import Path

    here = Path(__file__).parent
    digest = hashlib.sha1(usedforsecurity=False)
    for module in COMPILED:
        digest.update((here / f"{module.replace('.', '/')}.py").read_bytes())
    version = digest.hexdigest()[:16]
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "horae"
    # Worker processes inherit the setting, and must not nest it.
    if base.name != version:
        os.environ["NUMBA_CACHE_DIR"] = str(base / version)


def _compile_quickly() -> None:
    """Ask for less optimisation: the loops here are no faster with more, and take a quarter longer to compile."""
    for name, value in {"NUMBA_OPT": "1", "NUMBA_LOOP_VECTORIZE": "0", "NUMBA_SLP_VECTORIZE": "0"}.items():
        os.environ.setdefault(name, value)
