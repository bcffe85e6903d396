"""Jobs on GPUs of unlike speed, and Gavel's physical trace, for the tests of several policies."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from horae.core.job import JobSpec
from horae.report.metrics.measure import Report, measure
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.workload.clusters import parse_cluster
from horae.workload.speed_files import load_throughputs
from horae.workload.traces import load_trace
from tests.builders import Cell, job


def typed(name: str, fast: float, slow: float, work: float = 1000, **more: object) -> JobSpec:
    """A job of so much work a second on either type; its work is in seconds at speed 1."""
    return job(name, work=work, throughput={"fast": fast, "slow": slow}, **more)


def types_of(cell: Cell) -> dict[str, str]:
    """GPU type of every job that has GPUs."""
    machines = cell.engine.gpus.cluster
    return {
        spec.id: machines.gpu_types[machines.gpu_type[cell.gpus(spec.id)[0]]]
        for spec in cell.engine.jobs.specs
        if cell.gpus(spec.id)
    }


@cache
def gavel(shared_data: Path, policy: str, restart_cost_s: float = 0.0, **settings: str) -> Report:
    """Gavel's physical trace on 8 V100, 16 P100 and 24 K80, as its own simulator had it."""
    speeds = load_throughputs(shared_data / "gavel" / "simulation_throughputs.json")
    jobs = load_trace(shared_data / "gavel" / "max_min_fairness.trace", throughputs=speeds).jobs
    machines = parse_cluster("v100:8x1,p100:16x1,k80:24x1")
    settings = {name.replace("_", "-"): value for name, value in settings.items()}
    history = simulate(
        Scenario(
            jobs,
            machines,
            policy=policy,
            settings=settings,
            placement="anywhere",
            restart_cost_s=restart_cost_s,
            throughputs=speeds,
        )
    )
    return measure(history)
