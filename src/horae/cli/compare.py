"""`horae compare`: many policies on one workload, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horae.cli import STARTED_S, options
from horae.cli.output import Output, note, note_ignored_speeds, note_unfinished, print_csv, print_json, print_rich
from horae.cli.output_files import check_outputs, written_whole
from horae.cli.progress import progress_bar
from horae.cli.setup import inputs, workload_options
from horae.cli.setup.job_source import JobOptions
from horae.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horae.experiments.parallel import Outcome
    from horae.simulator.scenario import PolicyChoice

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
    workers: options.WorkersOption = None,
    on: options.OnOption = None,
    html: options.HtmlOption = None,
    output: options.OutputOption = Output.TABLE,
) -> None:
    """Run several policies on the same jobs, in parallel processes, and show them side by side."""
    from horae.experiments.comparison import compare
    from horae.experiments.executors import executor_on
    from horae.experiments.parallel import MeasuredJobs
    from horae.experiments.prices import with_prices
    from horae.simulator.scenario import Scenario
    from horae.workload.clusters import cluster_file, parse_cluster

    # Whatever can be wrong is found before anything takes time.
    check_outputs([html], inputs=[trace, throughputs, queues, hours_from, cluster_file(cluster)])
    execute = executor_on(on, workers)
    machines = parse_cluster(cluster)
    chosen = [with_prices(one, machines) for one in read_policies(policy or (), policies)]
    speeds = inputs.read_throughputs(throughputs)
    trouble = inputs.read_faults(faults or ())
    tree = inputs.read_queues(queues, cluster)
    asked = JobOptions(trace, format, skip_bad, generate, jobs, load, rate, hours_from, workload)
    source, speeds = asked.read(machines, speeds, {"--seeds": seeds if seeds > 1 else None})
    first = chosen[0]
    base = Scenario(
        source, machines, first.policy, first.settings, placement, restart_cost, speeds, None, tree, seed, trouble
    )
    with progress_bar(f"{len(chosen) * seeds} runs", output) as advance:
        by_policy = compare(
            base,
            chosen,
            range(seed, seed + seeds),
            MeasuredJobs(measure_from, measure_to),
            execute=execute,
            keep_histories=html is not None,
            advance=advance,
        )
    if html is not None:
        _write_page(html, by_policy)
    _print_outcomes(by_policy, seeds, output)
    _tell_trouble(by_policy)


def read_policies(words: Sequence[str], listed: str | None) -> list[PolicyChoice]:
    """The policies to compare with their settings, each checked; the default ones if none is named."""
    from horae.plugins.policies import load_policy
    from horae.simulator.scenario import PolicyChoice

    named = [one for text in (*words, listed or "") for one in split_policies(text)]
    if listed is not None and not split_policies(listed):
        raise UserError(f"--policies {listed!r} names no policy; write them like --policies fifo,las.")
    chosen: list[PolicyChoice] = []
    for name, settings in named or [(name, []) for name in DEFAULT_POLICIES]:
        one = PolicyChoice(load_policy(name), inputs.read_pairs("--policy las:quantum=600", settings))
        one.make()
        if one in chosen:
            same = f"{name}:{','.join(settings)}" if settings else name
            raise UserError(f"Policy {same!r} is named twice; once is enough.")
        chosen.append(one)
    return chosen


def split_policies(text: str) -> list[tuple[str, list[str]]]:
    """Policies and their settings from `las:quantum=300,reserve=60,cost:prices=v100:3,k80:1,./mine.py:Mine:a=1,fifo`.

    Commas stand between policies, settings and the parts of a value alike. What has an equals
    sign is a setting of the policy before it; `k80:1`, where `k80` is no policy, and the second
    number of `tiresias:thresholds=3250,7200` go on with the value of the setting before them;
    everything else is a policy. The place of a class, such as `./mine.py:Mine`, is one name.
    """
    from horae.policies import POLICIES

    found: list[tuple[str, list[str]]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, first = _split_name(part)
        settings = found[-1][1] if found else []
        new = name in POLICIES or ":" in name
        if settings and not new and "=" in name:
            settings.append(part)
        elif settings and not new and "=" not in part and (colon or _is_number(part)):
            settings[-1] += f",{part}"
        else:
            found.append((name, [first] if first else []))
    return found


def _split_name(part: str) -> tuple[str, str, str]:
    """A policy's name or place, the colon behind it, and what follows."""
    from horae.plugins.places import place_of
    from horae.policies import POLICIES

    name, colon, rest = (piece.strip() for piece in part.partition(":"))
    in_it, colon_behind, behind = (piece.strip() for piece in rest.partition(":"))
    if name not in POLICIES and place_of(f"{name}:{in_it}"):
        return f"{name}:{in_it}", colon_behind, behind
    return name, colon, rest


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _write_page(html: Path, by_policy: Sequence[Sequence[Outcome]]) -> None:
    from horae.report.pages.page import write_page

    shown = [(one.history, one.report) for same in by_policy for one in same if one.history is not None]
    with written_whole(html) as path:
        write_page(path, shown)
    note(f"page: {html}")


def _print_outcomes(by_policy: Sequence[Sequence[Outcome]], seeds: int, output: Output) -> None:
    """Print one record a policy, or the table of all."""
    from horae.experiments.comparison import records

    match output:
        case Output.JSON:
            from horae.report.process_cost import process_cost

            print_json({"seeds": seeds, "policies": records(by_policy), **process_cost(STARTED_S)})
        case Output.CSV:
            print_csv(records(by_policy))
        case Output.TABLE:
            print_rich(_table(by_policy, seeds))


def _tell_trouble(by_policy: Sequence[Sequence[Outcome]]) -> None:
    """Jobs that never ended, and speeds by GPU type that policies ignore."""
    from horae.report.tables import run_labels

    labels = run_labels([same[0].report for same in by_policy])
    for label, same in zip(labels, by_policy, strict=True):
        note_unfinished(label, [outcome.waiting for outcome in same])
    note_ignored_speeds([(label, same[0].ignored_speeds) for label, same in zip(labels, by_policy, strict=True)])


def _table(by_policy: Sequence[Sequence[Outcome]], seeds: int) -> RenderableType:
    if seeds > 1:
        from horae.report.confidence import render_intervals

        return render_intervals([[outcome.report for outcome in same] for same in by_policy])
    from horae.report.tables import render_table

    return render_table([same[0].report for same in by_policy])
