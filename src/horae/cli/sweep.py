"""`horae sweep`: how policies fare as one thing changes, such as load, cluster size or a setting of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli import STARTED_S, options
from horae.cli.compare import read_policies
from horae.cli.output import (
    Output,
    note,
    note_ignored_speeds,
    note_unfinished,
    print_csv,
    print_json,
    print_rich,
    table,
)
from horae.cli.output_files import check_outputs, written_whole
from horae.cli.progress import progress_bar
from horae.cli.setup import inputs, workload_options
from horae.core.errors import UserError
from horae.experiments.sweep_defaults import MEASURE_FROM, MEASURE_TO, MORE_JOBS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horae.experiments.parallel import Outcome
    from horae.experiments.sweep import Point, SweepPlan, SweepWindow
    from horae.experiments.sweep_axis import SweepAxis
    from horae.report.pages.curves import Axis, Panel
    from horae.simulator.scenario import PolicyChoice


@dataclass(frozen=True)
class Experiment:
    """A paper's own experiment: what a sweep takes when nobody says otherwise."""

    cluster: str
    placement: str
    policies: str


#: Unlike GPUs, told apart and not (Gavel, OSDI '20, section 7.1).
GAVEL = Experiment("v100:36x1,p100:36x1,k80:36x1", "anywhere", "max-min,max-min:aware=false")
#: 256 GPUs in machines of 4, 2 and 1 over racks (Themis, NSDI '20, section 8.1).
THEMIS = Experiment("48x4/12,24x2/12,16x1/16", "best-effort", "themis,las")
#: By preset; Gavel's for the others.
EXPERIMENTS = {"themis": THEMIS}

#: Endings of the files that a plot can be written to.
PLOTS = (".png", ".svg")

_EXAMPLE = "--vary f=0,0.5,0.8"


def command(
    vary: Annotated[
        str,
        typer.Option(
            "--vary",
            metavar="WHAT=V,V,...",
            help="What changes, and its values: rate (arrivals an hour), load (GPU-time that arrives over GPU-time "
            "there is), gpus (the cluster in whole nodes of the same mix), or a setting of the policies such as round, "
            "f or lease; a policy without it is run once and drawn as a flat line.",
        ),
    ],
    rate: workload_options.RateOption = None,
    load: workload_options.LoadOption = None,
    generate: Annotated[
        str, typer.Option("--generate", metavar="PRESET", help=f"Make up the jobs: {workload_options.PRESET_HELP}.")
    ] = "gavel-single",
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME[:KEY=VALUE,...]", help="A policy, with settings; repeatable."),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            metavar="NAME,...",
            help=f"Several at once, settings behind each.  [default: {GAVEL.policies}; for themis {THEMIS.policies}]",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="SPEC",
            help=f"{options.CLUSTER_HELP}  [default: {GAVEL.cluster}; for themis {THEMIS.cluster}]",
        ),
    ] = None,
    throughputs: options.ThroughputsOption = None,
    measure_from: Annotated[
        int | None,
        typer.Option(
            "--measure-from",
            metavar="JOB",
            min=0,
            help="Measure from this job on, counted by submission.  "
            f"[default: {MEASURE_FROM} where --measure-to is {MEASURE_TO} by default, else 0]",
        ),
    ] = None,
    measure_to: Annotated[
        int | None,
        typer.Option(
            "--measure-to",
            metavar="JOB",
            min=1,
            help="Measure up to, not including, this job, in a steady state: jobs keep coming until all measured ones "
            f"have ended.  [default: {MEASURE_TO}; with --jobs or apps, all are run to the end]",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            help=f"How many come in all.  [default: {MORE_JOBS} times --measure-to; of apps, as many as the preset "
            "has]",
        ),
    ] = None,
    workload: workload_options.WorkloadOption = None,
    seeds: Annotated[
        int,
        typer.Option("--seeds", metavar="N", min=1, help="Generate this many workloads; shows 95 % intervals."),
    ] = 1,
    seed: options.SeedOption = 0,
    queues: options.QueuesOption = None,
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement",
            metavar="NAME",
            help="How gangs are put on nodes; `horae policies` lists the ways.  "
            f"[default: {GAVEL.placement}; for themis {THEMIS.placement}]",
        ),
    ] = None,
    restart_cost: options.RestartCostOption = 30.0,
    workers: options.WorkersOption = None,
    on: options.OnOption = None,
    measure: Annotated[
        str,
        typer.Option("--measure", metavar="PATH", help="What --plot draws: a metric, such as rho.max or gpu_hours."),
    ] = "avg_jct_s",
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw one measure, as .png or .svg.")
    ] = None,
    html: options.HtmlOption = None,
    output: options.OutputOption = Output.TABLE,
) -> None:
    """Run policies with many values of one thing, and show how they fare as curves.

    What changes may be how often jobs come, how large the cluster is, or any setting of the policies. Either all
    jobs are run to the end, or those in the middle of a long stream are measured, so that they see the cluster as
    it is on any day.
    """
    from horae.experiments.executors import executor_on
    from horae.experiments.parallel import Batch
    from horae.experiments.prices import with_prices
    from horae.experiments.sweep import SweepPlan, check_measure, choose_window
    from horae.simulator.scenario import Scenario
    from horae.workload.clusters import cluster_file, parse_cluster
    from horae.workload.generated_jobs import GeneratedJobs

    # Whatever can be wrong is found before anything takes time.
    usual = EXPERIMENTS.get(generate, GAVEL)
    cluster, placement = cluster or usual.cluster, placement or usual.placement
    execute = executor_on(on, workers)
    _check_plot(plot)
    check_measure(measure)
    check_outputs([plot, html], inputs=[throughputs, queues, cluster_file(cluster)])
    chosen = read_policies(policy or (), policies if policy or policies is not None else usual.policies)
    variation = read_variation(vary, chosen)
    speeds, tree = inputs.read_throughputs(throughputs), inputs.read_queues(queues, cluster)
    machines = parse_cluster(cluster)
    steps = variation.steps(machines, rate, load)
    work = workload_options.read_workload(generate, jobs, load, rate, None, workload or (), speeds)
    window = choose_window(work, jobs, measure_from, measure_to)
    priced = tuple(with_prices(one, machines) for one in chosen)
    base = Scenario(
        GeneratedJobs(work), machines, priced[0].policy, {}, placement, restart_cost, speeds, queues=tree, seed=seed
    )
    plan = SweepPlan(variation, tuple(steps), priced, work, window, base, tuple(range(seed, seed + seeds)))
    _tell_flat(plan)
    scenarios = plan.scenarios()
    with progress_bar(f"{len(scenarios)} runs", output) as advance:
        outcomes = execute(Batch(scenarios, window.measured), advance)
    points, axis = plan.points(outcomes), plan.axis()
    panels = plan.panels(points, measure)
    _write_files(axis, panels, plan.about(generate), plot, html)
    _print_points(points, axis, panels, variation, seeds, output)
    _tell_trouble(points, axis, window)
    _tell_alike(points, axis)


# -------------------------------------------------------------- what is asked


def read_variation(text: str, chosen: Sequence[PolicyChoice]) -> SweepAxis:
    """Read `WHAT=V,V,...`; what the chosen policies cannot be set to is found here, not hours later."""
    from horae.experiments.sweep_axis import SweepAxis, check_policies

    what, equals, values = (part.strip() for part in text.partition("="))
    what = what.replace("_", "-")
    if not (what and equals):
        raise UserError(f"--vary {text!r} is not of the form WHAT=VALUE,VALUE,...; write it like {_EXAMPLE}.")
    variation = SweepAxis(what, _values(what, values))
    if variation.is_setting:
        check_policies(variation, chosen)
    return variation


def _values(what: str, text: str) -> tuple[float, ...]:
    """Numbers, each once, from the lowest up."""
    from horae.experiments.sweep_axis import check_values

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"--vary {what}={text} names no value; write them like {_EXAMPLE}.")
    return check_values(what, [_value(what, part) for part in parts], text)


def _value(what: str, text: str) -> float:
    try:
        return inputs.read_number(f"--vary {what}", text)
    except UserError as why:
        raise UserError(
            f"{why} A sweep draws numbers; to compare anything else, name a policy for each, such as "
            f"--policy NAME:{what}={text}."
        ) from None


def _check_plot(plot: Path | None) -> None:
    if plot is not None and plot.suffix not in PLOTS:
        raise UserError(f"Cannot draw {plot}: end the name of a plot in {' or '.join(PLOTS)}.")


def _tell_flat(plan: SweepPlan) -> None:
    variation = plan.variation
    for name in dict.fromkeys(one.name for one in plan.chosen if not variation.concerns(one)):
        note(f"{name} has no setting {variation.what!r}: it is run once and drawn as a flat line.")


# ------------------------------------------------------------- what came of it


def _write_files(axis: Axis, panels: Sequence[Panel], about: str, plot: Path | None, html: Path | None) -> None:
    from horae.report.pages.curves import write_page, write_plot

    if plot is not None:
        with written_whole(plot) as path:
            write_plot(path, axis, panels[0], about)
        note(f"plot: {plot}")
    if html is not None:
        with written_whole(html) as path:
            write_page(path, axis, panels, about)
        note(f"page: {html}")


def _print_points(
    points: Sequence[Point],
    axis: Axis,
    panels: Sequence[Panel],
    variation: SweepAxis,
    seeds: int,
    output: Output,
) -> None:
    """Print one record a point, or the table of all."""
    match output:
        case Output.JSON:
            from horae.report.process_cost import process_cost

            records = [_record(point, variation) for point in points]
            print_json({"seeds": seeds, "points": records, **process_cost(STARTED_S)})
        case Output.CSV:
            print_csv(_record(point, variation) for point in points)
        case Output.TABLE:
            print_rich(_table(points, axis, panels))


def _record(point: Point, variation: SweepAxis) -> dict[str, Any]:
    """One point: where it lies, its report, or the mean over seeds with the intervals, and what a run has cost."""
    from horae.report.confidence import interval_record, mean_record

    records = [{**outcome.report.as_dict(), "cpu_s": outcome.cpu_s} for outcome in point.outcomes]
    value = None if point.step is None else point.step.value
    where = {"vary": variation.what, "value": value, "label": point.label}
    if len(records) == 1:
        return {**where, **records[0]}
    settings = records[0]["settings"]
    return {**where, **mean_record(records), "settings": settings, "ci95": interval_record(records)}


def _table(points: Sequence[Point], axis: Axis, panels: Sequence[Panel]) -> RenderableType:
    """One line a point; policies at the same value stand together. Only the plot's measure shows its interval."""
    from horae.report.pages.curves import COLUMNS

    plotted, *others = panels
    beside = [panel for panel in others if panel.path in COLUMNS]
    labels = [curve.label for curve in plotted.curves]
    rows = []
    for k, point in enumerate(points):
        curve = labels.index(point.label)
        at = 0 if point.step is None else axis.values.index(point.step.value)
        first = k == 0 or points[k - 1].step != point.step
        cells = [panel.text(float(panel.curves[curve].mean[at])) for panel in beside]
        cpu_s = fmean(outcome.cpu_s for outcome in point.outcomes)
        value = point.where(axis) if first else ""
        rows.append([value, point.label, plotted.point(curve, at), *cells, f"{cpu_s:,.1f}"])
    heads = [panel.y_label for panel in (plotted, *beside)]
    return table([axis.label, "policy", *heads, "CPU s a run"], rows)


def _tell_trouble(points: Sequence[Point], axis: Axis, window: SweepWindow) -> None:
    """What makes a point less than it seems.

    Jobs that never ended, speeds by GPU type that a policy ignores, or, in a steady state, jobs that come no more.
    """
    for point in points:
        note_unfinished(f"{point.label} at {point.where(axis)}", [_unfinished(outcome) for outcome in point.outcomes])
    note_ignored_speeds([(point.label, outcome.ignored_speeds) for point in points for outcome in point.outcomes])
    drained = [point for point in points if any(_is_drained(outcome, window) for outcome in point.outcomes)]
    if drained:
        first = f"{drained[0].label} at {drained[0].where(axis)}"
        note(
            f"At {len(drained)} of {len(points)} points, such as {first}, all {window.jobs:,} jobs had come before the "
            "last measured one ended, on a cluster that emptied; raise --jobs."
        )


def _tell_alike(points: Sequence[Point], axis: Axis) -> None:
    """Values that made no difference, which a flat curve does not tell from a small one."""
    alike: dict[str, list[Point]] = {}
    for point in points:
        came_to = [{**outcome.report.as_dict(), "settings": None} for outcome in point.outcomes]
        alike.setdefault(f"{point.label} {came_to}", []).append(point)
    for same in alike.values():
        if len(same) > 1:
            values = ", ".join(point.where(axis) for point in same)
            note(f"{same[0].label} came to the very same runs at {axis.label} {values}: there it makes no difference.")


def _is_drained(outcome: Outcome, window: SweepWindow) -> bool:
    """Whether measured jobs were there after the last arrival of all, in what was to be a steady state."""
    submit_s = outcome.report.outcomes.submit_s
    steady = window.measure_to is not None
    return steady and len(submit_s) == window.jobs and outcome.report.window.end_s > float(submit_s[-1])


def _unfinished(outcome: Outcome) -> Mapping[str, str]:
    """Jobs that wait for ever, and why. Where all measured ones have finished, the others were cut off on purpose."""
    return outcome.waiting if outcome.report.finished < outcome.report.jobs else {}
