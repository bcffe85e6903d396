"""`horae compare`: many policies on one workload, side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli import STARTED_S, options
from horae.cli.output import Output, note, note_unfinished, print_csv, print_json, print_rich
from horae.cli.output_files import check_outputs, written_whole
from horae.cli.progress import progress_bar
from horae.cli.setup import inputs, workload_options
from horae.cli.setup.job_source import JobOptions
from horae.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horae.cli.setup.parallel import Outcome, Run

#: What is compared when nobody says otherwise.
DEFAULT_POLICIES = ("fifo", "fifo-backfill", "smallest-first", "srtf", "srsf", "las", "time-slice", "isolated")


def command(
    cluster: options.ClusterOption,
    trace: Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="Jobs to run.")] = None,
    format: options.FormatOption = None,  # noqa: A002, the option is called so
    generate: Annotated[
        str | None,
        typer.Option("--generate", metavar="PRESET", help=f"Make up the jobs: {workload_options.PRESET_HELP}."),
    ] = None,
    jobs: workload_options.JobsOption = None,
    load: workload_options.LoadOption = None,
    rate: workload_options.RateOption = None,
    hours_from: workload_options.HoursOption = None,
    workload: workload_options.WorkloadOption = None,
    seeds: Annotated[
        int,
        typer.Option("--seeds", metavar="N", min=1, help="Generate this many workloads; shows 95 % intervals."),
    ] = 1,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME[:KEY=VALUE,...]", help="A policy, with settings; repeatable."),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            metavar="NAME,...",
            help=f"Several at once, settings behind each.  [default: {','.join(DEFAULT_POLICIES)}]",
        ),
    ] = None,
    placement: options.PlacementOption = "best-effort",
    restart_cost: options.RestartCostOption = 30.0,
    throughputs: options.ThroughputsOption = None,
    queues: options.QueuesOption = None,
    faults: options.FaultsOption = None,
    seed: options.SeedOption = 0,
    skip_bad: options.SkipBadOption = False,
    measure_from: options.MeasureFromOption = 0,
    measure_to: options.MeasureToOption = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="Processes at once.  [default: one a core]")
    ] = None,
    html: options.HtmlOption = None,
    output: options.OutputOption = Output.TABLE,
) -> None:
    """Run several policies on the same jobs, in parallel processes, and show them side by side."""
    from horae.cli.setup.parallel import World, run_all
    from horae.workload.clusters import cluster_file, parse_cluster

    # Whatever can be wrong is found before anything takes time.
    check_outputs([html], inputs=[trace, throughputs, queues, hours_from, cluster_file(cluster)])
    machines = parse_cluster(cluster)
    chosen = [(name, inputs.with_prices(name, its, machines)) for name, its in read_policies(policy or (), policies)]
    speeds = inputs.read_throughputs(throughputs)
    trouble = inputs.read_faults(faults or ())
    tree = inputs.read_queues(queues, cluster)
    asked = JobOptions(trace, format, skip_bad, generate, jobs, load, rate, hours_from, workload)
    source, speeds = asked.source(machines, speeds, {"--seeds": seeds if seeds > 1 else None})
    world = World(source, machines, placement, restart_cost, speeds, tree, trouble, measure_from, measure_to)
    runs = _plan(chosen, range(seed, seed + seeds), keep_history=html is not None)
    with progress_bar(f"{len(runs)} runs", output) as advance:
        outcomes = run_all(world, runs, workers or os.cpu_count() or 1, advance)
    if html is not None:
        _write_page(html, outcomes)
    by_policy = [outcomes[first : first + seeds] for first in range(0, len(outcomes), seeds)]
    _print_outcomes(by_policy, seeds, output)
    _tell_unfinished(by_policy)


def read_policies(words: Sequence[str], listed: str | None) -> list[tuple[str, dict[str, str]]]:
    """The policies to compare with their settings, each checked; the default ones if none is named."""
    from horae.policies import make_policy

    named = [one for text in (*words, listed or "") for one in split_policies(text)]
    if listed is not None and not split_policies(listed):
        raise UserError(f"--policies {listed!r} names no policy; write them like --policies fifo,las.")
    chosen = []
    for name, settings in named or [(name, []) for name in DEFAULT_POLICIES]:
        pairs = inputs.read_pairs("--policy las:quantum=600", settings)
        make_policy(name, pairs)
        if (name, pairs) in chosen:
            same = f"{name}:{','.join(settings)}" if settings else name
            raise UserError(f"Policy {same!r} is named twice; once is enough.")
        chosen.append((name, pairs))
    return chosen


def split_policies(text: str) -> list[tuple[str, list[str]]]:
    """Policies and their settings from `las:quantum=300,reserve=60,cost:prices=v100:3,k80:1,fifo`.

    Commas stand between policies, settings and the parts of a value alike. What has an equals
    sign is a setting of the policy before it; `k80:1`, where `k80` is no policy, and the second
    number of `tiresias:thresholds=3250,7200` go on with the value of the setting before them;
    everything else is a policy.
    """
    from horae.policies import POLICIES

    found: list[tuple[str, list[str]]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, first = (piece.strip() for piece in part.partition(":"))
        settings = found[-1][1] if found else []
        if settings and name not in POLICIES and "=" in name:
            settings.append(part)
        elif settings and name not in POLICIES and "=" not in part and (colon or _is_number(part)):
            settings[-1] += f",{part}"
        else:
            found.append((name, [first] if first else []))
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plan(chosen: Sequence[tuple[str, dict[str, str]]], seeds: Sequence[int], keep_history: bool) -> list[Run]:
    """Every policy on every seed; the page shows the first seed."""
    from horae.cli.setup.parallel import Run

    return [Run(name, seed, settings, keep_history and seed == seeds[0]) for name, settings in chosen for seed in seeds]


def _write_page(html: Path, outcomes: Sequence[Outcome]) -> None:
    from horae.report.pages.page import write_page

    with written_whole(html) as path:
        write_page(path, [(outcome.history, outcome.report) for outcome in outcomes if outcome.history is not None])
    note(f"page: {html}")


def _print_outcomes(by_policy: Sequence[Sequence[Outcome]], seeds: int, output: Output) -> None:
    """Print one record a policy, or the table of all."""
    match output:
        case Output.JSON:
            from horae.report.process_cost import process_cost

            print_json({"seeds": seeds, "policies": [_record(same) for same in by_policy], **process_cost(STARTED_S)})
        case Output.CSV:
            print_csv(_record(same) for same in by_policy)
        case Output.TABLE:
            print_rich(_table(by_policy, seeds))


def _tell_unfinished(by_policy: Sequence[Sequence[Outcome]]) -> None:
    from horae.report.tables import run_labels

    labels = run_labels([same[0].report for same in by_policy])
    for label, same in zip(labels, by_policy, strict=True):
        note_unfinished(label, [outcome.waiting for outcome in same])


def _record(same: Sequence[Outcome]) -> dict[str, Any]:
    """One policy as JSON and CSV show it: its report, or the mean over seeds with the intervals."""
    from horae.cli.setup.confidence import interval_record, mean_record

    records = [outcome.report.as_dict() for outcome in same]
    if len(records) == 1:
        return records[0]
    return {**mean_record(records), "ci95": interval_record(records)}


def _table(by_policy: Sequence[Sequence[Outcome]], seeds: int) -> RenderableType:
    if seeds > 1:
        from horae.cli.setup.confidence import render_intervals

        return render_intervals([[outcome.report for outcome in same] for same in by_policy])
    from horae.report.tables import render_table

    return render_table([same[0].report for same in by_policy])
