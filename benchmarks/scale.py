"""Large clusters on which hardly any job waits: the cost must lie in what changes, not in the size of the cluster."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.part import Part, Row
from benchmarks.process import Cost
from benchmarks.workload import write_generated

#: CPU seconds that each policy may take on the smaller cluster; on the larger twice that.
LIMITS_S = {"fifo-backfill": 25.0, "tiresias": 40.0}
JOBS, NODES = 100_000, (1_250, 12_500)


def measure_scale(bench: Bench) -> Part:
    """The same generated jobs on two clusters of unlike size."""
    jobs, nodes = bench.sizes.scale
    trace = write_generated(jobs, f"{nodes[0]}x8", bench.folder)
    judged = (jobs, nodes) == (JOBS, NODES)
    rows: list[Row] = []
    missed: list[str] = []
    for policy, limit_s in LIMITS_S.items():
        for times, count in enumerate(nodes, 1):
            cluster = f"{count}x8"
            cost = bench.simulate_trace(policy, trace, cluster, "best-effort", restart_cost_s=30.0)
            rows.append(_row(policy, cluster, jobs, cost, bench.start[1].cpu_s, times * limit_s if judged else None))
            if rows[-1]["holds"] == "NO":
                missed.append(
                    f"{policy} on {cluster}: {cost.cpu_s:.1f} CPU s; at most {times * limit_s:g} are allowed."
                )
    notes = [
        (
            f"`horae trace generate plain --cluster {nodes[0]}x8 --jobs {jobs} --load 0.9`; placement and restart "
            "cost are the defaults. The larger cluster runs the same jobs."
        ),
        "Microseconds a job leave out the start of the process. The compile cache was warm.",
    ]
    return Part("Large clusters", rows, notes, missed)


def _row(policy: str, cluster: str, jobs: int, cost: Cost, start_s: float, limit_s: float | None) -> Row:
    row: Row = {"policy": policy, "cluster": cluster, "jobs": jobs, "cpu_s": round(cost.cpu_s, 1)}
    row |= {"us_a_job": round((cost.cpu_s - start_s) / jobs * 1e6), "peak_rss_mb": round(cost.peak_rss_mb)}
    if limit_s is None:
        return {**row, "limit_cpu_s": "-", "holds": "-"}
    return {**row, "limit_cpu_s": limit_s, "holds": "yes" if cost.cpu_s <= limit_s else "NO"}
