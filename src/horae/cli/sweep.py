"""`horae sweep`: how policies fare as one thing changes, such as load, cluster size or a setting of theirs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli import STARTED_S, options
from horae.cli.compare import read_policies
from horae.cli.output import Output, note, note_unfinished, print_csv, print_json, print_rich, table
from horae.cli.output_files import check_outputs, written_whole
from horae.cli.progress import progress_bar
from horae.cli.setup import inputs, workload_options
from horae.cli.setup.sweep_axis import GPUS, LOAD, RATE, Chosen, Step, SweepAxis, read_variation
from horae.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horae.cli.setup.parallel import Outcome, Run
    from horae.core.throughputs import Throughputs
    from horae.report.pages.curves import Axis, Curve, Panel
    from horae.workload.generator import Workload


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

#: Gavel's steady state: the jobs that are measured.
MEASURE_FROM, MEASURE_TO = 4000, 5000

#: Endings of the files that a plot can be written to.
PLOTS = (".png", ".svg")

#: Jobs keep coming while measured ones are there, and the slowest of these may take months: so many for each.
_MORE_JOBS = 4


@dataclass(frozen=True)
class SweepWindow:
    """How many jobs are made up, and which are measured; without an end, all are run to the end."""

    jobs: int
    measure_from: int
    measure_to: int | None

    def __str__(self) -> str:
        if self.measure_to is not None:
            return f"jobs {self.measure_from:,} to {self.measure_to - 1:,}"
        return f"jobs {self.measure_from:,} to {self.jobs - 1:,}" if self.measure_from else f"{self.jobs:,} jobs"


@dataclass(frozen=True)
class Point:
    """One policy at one step, or, where the steps mean nothing to it, at any; run once for each seed."""

    label: str
    step: Step | None
    outcomes: Sequence[Outcome]

    def where(self, axis: Axis) -> str:
        """The value at which it lies."""
        return "any" if self.step is None else axis.text(self.step.value)


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
            help=f"How many come in all.  [default: {_MORE_JOBS} times --measure-to; of apps, as many as the preset "
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
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="Processes at once.  [default: one a core]")
    ] = None,
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
    from horae.cli.setup.parallel import World, run_all
    from horae.workload.clusters import cluster_file, parse_cluster

    # Whatever can be wrong is found before anything takes time.
    usual = EXPERIMENTS.get(generate, GAVEL)
    cluster, placement = cluster or usual.cluster, placement or usual.placement
    _check_plot(plot)
    _check_measure(measure)
    check_outputs([plot, html], inputs=[throughputs, queues, cluster_file(cluster)])
    chosen = read_policies(policy or (), policies if policy or policies is not None else usual.policies)
    variation = read_variation(vary, chosen)
    speeds, tree = inputs.read_throughputs(throughputs), inputs.read_queues(queues, cluster)
    steps = variation.steps(parse_cluster(cluster), rate, load)
    work = workload_options.read_workload(generate, jobs, load, rate, None, workload or (), speeds)
    window = read_window(work, jobs, measure_from, measure_to)
    sources = [_source(work, window, step, speeds) for step in steps]
    machines = parse_cluster(cluster)
    chosen = [(name, inputs.with_prices(name, settings, machines)) for name, settings in chosen]
    runs = _plan(variation, steps, sources, chosen, range(seed, seed + seeds))
    world = World(
        sources[0],
        steps[0].cluster,
        placement,
        restart_cost,
        speeds,
        tree,
        None,
        window.measure_from,
        window.measure_to,
        until=window.measure_to,
    )
    _tell_flat(variation, chosen)
    with progress_bar(f"{len(runs)} runs", output) as advance:
        outcomes = run_all(world, runs, workers or os.cpu_count() or 1, advance)
    points = _points(variation, steps, chosen, outcomes, seeds)
    axis = variation.axis("apps" if work.trials_max > 1 else "jobs")
    panels = _panels(points, chosen, steps, measure)
    about = _about(generate, window, variation, sources[0], seeds)
    _write_files(axis, panels, about, plot, html)
    _print_points(points, axis, panels, variation, seeds, output)
    _tell_trouble(points, axis, window)
    _tell_alike(points, axis)


# -------------------------------------------------------------- what is asked


def read_window(
    work: Workload, jobs: int | None, measure_from: int | None = None, measure_to: int | None = None
) -> SweepWindow:
    """Which jobs to make up and to measure; a window that they do not fill is refused.

    A number of jobs alone, or a preset of apps, asks for all of them; otherwise the steady state is measured.
    """
    finite = measure_to is None and (jobs is not None or work.trials_max > 1)
    first = measure_from if measure_from is not None else 0 if finite or measure_to is not None else MEASURE_FROM
    end = None if finite else measure_to or MEASURE_TO
    last = work.jobs if end is None else end
    if first >= last:
        raise UserError(
            f"The window of jobs {first} to {last} is empty; lower --measure-from or raise --measure-to or --jobs."
        )
    if end is not None and jobs is not None and jobs < end:
        raise UserError(f"Only {jobs} jobs come and {end} are needed; raise --jobs or lower --measure-to.")
    return SweepWindow(work.jobs if jobs or end is None else _MORE_JOBS * end, first, end)


def _check_plot(plot: Path | None) -> None:
    if plot is not None and plot.suffix not in PLOTS:
        raise UserError(f"Cannot draw {plot}: end the name of a plot in {' or '.join(PLOTS)}.")


def _check_measure(path: str) -> None:
    from horae.report.tables import MEASURES

    known = [measure.path for measure in MEASURES]
    if path not in known:
        raise UserError(f"No measure is called {path!r}.{did_you_mean(path, known)} Known are {', '.join(known)}.")


def _source(
    work: Workload, window: SweepWindow, step: Step, speeds: Throughputs | None
) -> workload_options.GeneratedSource:
    """The jobs of a step."""
    changes: dict[str, Any] = {"jobs": window.jobs}
    if step.rate is not None or step.load is not None:
        changes |= {"arrivals_per_hour": step.rate, "load": step.load}
    return workload_options.GeneratedSource(replace(work, **changes), step.cluster, speeds)


def _cells(variation: SweepAxis, steps: Sequence[Step], chosen: Sequence[Chosen]) -> list[tuple[Step | None, Chosen]]:
    """Every policy at every step; those to which steps mean nothing once, at none, behind all others."""
    varied = [one for one in chosen if variation.concerns(one[0])]
    flat = [one for one in chosen if not variation.concerns(one[0])]
    return [*((step, one) for step in steps for one in varied), *((None, one) for one in flat)]


def _plan(
    variation: SweepAxis,
    steps: Sequence[Step],
    sources: Sequence[workload_options.GeneratedSource],
    chosen: Sequence[Chosen],
    seeds: Sequence[int],
) -> list[Run]:
    """Every cell on every seed."""
    from horae.cli.setup.parallel import Run

    source_of = dict(zip([step.value for step in steps], sources, strict=True))
    runs = []
    for step, (name, settings) in _cells(variation, steps, chosen):
        source = sources[0] if step is None else source_of[step.value]
        told = settings if step is None else {**settings, **step.settings}
        runs += [Run(name, seed, told, source=source, cluster=source.cluster) for seed in seeds]
    return runs


def _tell_flat(variation: SweepAxis, chosen: Sequence[Chosen]) -> None:
    for name in dict.fromkeys(name for name, _ in chosen if not variation.concerns(name)):
        note(f"{name} has no setting {variation.what!r}: it is run once and drawn as a flat line.")


# ------------------------------------------------------------- what came of it


def _points(
    variation: SweepAxis,
    steps: Sequence[Step],
    chosen: Sequence[Chosen],
    outcomes: Sequence[Outcome],
    seeds: int,
) -> list[Point]:
    """Outcomes by step and policy, in the order in which they were planned."""
    return [
        Point(_label(*one), step, outcomes[k * seeds : (k + 1) * seeds])
        for k, (step, one) in enumerate(_cells(variation, steps, chosen))
    ]


def _label(name: str, settings: dict[str, str]) -> str:
    told = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{name} ({told})" if told else name


def _panels(points: Sequence[Point], chosen: Sequence[Chosen], steps: Sequence[Step], plotted: str) -> list[Panel]:
    """Every measure that is shown, as curves; the one that is plotted first."""
    from horae.report.pages.curves import COLUMNS, SHOWN, Panel
    from horae.report.tables import MEASURES, shown

    telling = {measure.path for measure in shown([o.report for point in points for o in point.outcomes], MEASURES)}
    paths = [plotted, *(path for path in dict.fromkeys([*SHOWN, *COLUMNS]) if path != plotted and path in telling)]
    labels = [_label(*one) for one in chosen]
    return [Panel.of(path, [_curve(points, label, len(steps), path) for label in labels]) for path in paths]


def _curve(points: Sequence[Point], label: str, steps: int, path: str) -> Curve:
    """One measure of one policy."""
    import numpy as np

    from horae.cli.setup.confidence import half_width_95
    from horae.report.pages.curves import Curve
    from horae.report.tables import ReportFigure

    own = [point for point in points if point.label == label]
    samples = [[ReportFigure(path, "").of(outcome.report) for outcome in point.outcomes] for point in own]
    means, halves = np.array([fmean(s) for s in samples]), np.array([half_width_95(s) for s in samples])
    if own[0].step is None:
        return Curve(label, np.repeat(means, steps), np.repeat(halves, steps), flat=True)
    return Curve(label, means, halves)


def _about(
    preset: str, window: SweepWindow, variation: SweepAxis, source: workload_options.GeneratedSource, seeds: int
) -> str:
    """What the curves are about, in one line; what they vary stands on the axis."""
    cluster, work = source.cluster, source.workload
    told = [preset, str(window)]
    if variation.what != GPUS:
        told += [f"{n} {name}" for name, n in zip(cluster.gpu_types, cluster.gpus_by_type, strict=True)]
    if variation.what not in (RATE, LOAD):
        told += [f"load {work.load:g}" if work.load is not None else f"{work.arrivals_per_hour:g} arrivals an hour"]
    if seeds > 1:
        told += [f"{seeds} seeds with 95 % intervals"]
    return ", ".join(told)


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
    from horae.cli.setup.confidence import interval_record, mean_record

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
    """What makes a point less than it seems: jobs that never ended, or, in a steady state, none that came any more."""
    for point in points:
        note_unfinished(f"{point.label} at {point.where(axis)}", [_unfinished(outcome) for outcome in point.outcomes])
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
