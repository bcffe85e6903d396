"""Options that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from horae.cli.output import Output

CLUSTER_HELP = (
    "15x4, v100:2x4,p100:4x4/2 (type:nodes x GPUs/nodes a rack), a YAML file, a Tiresias cluster CSV, or "
    "slurm:PARTITION, ray:URL or kubernetes:CONTEXT."
)


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def _share(value: float) -> float:
    if not 0 < value <= 1:
        raise typer.BadParameter(f"{value:g} is no share; give a number above 0, up to 1.")
    return value


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Form of the answer on stdout.")]
FormatOption = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="Format of the trace; found out by default.")
]
ClusterOption = Annotated[str, typer.Option("--cluster", metavar="SPEC", help=CLUSTER_HELP)]
PlacementOption = Annotated[
    str,
    typer.Option("--placement", metavar="NAME", help="How gangs are put on nodes; `horae policies` lists the ways."),
]
RestartCostOption = Annotated[
    float,
    typer.Option(
        "--restart-cost",
        metavar="SECONDS",
        min=0.0,
        callback=_finite,
        help="Time a preempted job needs to come back, unless the trace says otherwise.",
    ),
]
ThroughputsOption = Annotated[
    Path | None,
    typer.Option("--throughputs", metavar="FILE", help="Measured steps/s by job class and GPU type (JSON)."),
]
ProfileShareOption = Annotated[
    float,
    typer.Option(
        "--profile-share",
        metavar="SHARE",
        callback=_share,
        help="Share of --throughputs that the policy knows; it estimates the rest, and the jobs run at true speed.",
    ),
]
ProfileNoiseOption = Annotated[
    float,
    typer.Option(
        "--profile-noise",
        metavar="ERROR",
        min=0.0,
        callback=_finite,
        help="Relative error of the speeds that the policy knows; 0.1 is 10 %.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of everything random.")]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read, and say so.")]
MeasureFromOption = Annotated[
    int, typer.Option("--measure-from", metavar="JOB", min=0, help="Measure from this job on, counted by submission.")
]
MeasureToOption = Annotated[
    int | None, typer.Option("--measure-to", metavar="JOB", min=1, help="Measure up to, not including, this job.")
]
QueuesOption = Annotated[
    Path | None,
    typer.Option(
        "--queues",
        metavar="FILE",
        help="Quotas of the queues (YAML); by default those in the cluster's own file.",
    ),
]
FaultsOption = Annotated[
    list[str] | None,
    typer.Option("--faults", metavar="KEY=VALUE", help="Trouble in the simulated world; repeatable, none by default."),
]
PerfettoOption = Annotated[
    Path | None,
    typer.Option(
        "--perfetto", metavar="FILE.json", help="Write who held which GPU when, for a trace viewer: ui.perfetto.dev."
    ),
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots, all in one file.")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Runs at once.  [default: one for each core]")
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ray:URL",
        help="Spread the runs over a Ray cluster whose nodes have the same Horae: ray:http://head:8265.",
    ),
]
