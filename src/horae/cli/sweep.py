"""`horae sweep`: how policies fare as jobs come faster, or as rounds get longer (Gavel's continuous experiment)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli import STARTED_S, generation, inputs, options
from horae.cli.compare import read_policies
from horae.cli.files import check_outputs, written_whole
from horae.cli.output import Output, note, note_unfinished, print_csv, print_json, print_rich, table
from horae.cli.progress import progress_bar
from horae.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horae.cli.runs import Outcome, Run
    from horae.core.cluster import Cluster
    from horae.core.throughputs import Throughputs
    from horae.report.curves import Axis, Curve, Panel
    from horae.workload.generator import Workload

#: The simulated cluster of Gavel (OSDI '20, section 7.1).
CLUSTER = "v100:36x1,p100:36x1,k80:36x1"
#: Its steady state: the jobs that are measured.
MEASURE_FROM, MEASURE_TO = 4000, 5000
#: What is compared when nobody says otherwise: unlike GPUs told apart, and not.
DEFAULT_POLICIES = "max-min,max-min:aware=false"

#: Endings of the files that a plot can be written to.
PLOTS = (".png", ".svg")

#: Jobs keep coming while measured ones are there, and the slowest of these may take months: so many for each.
_MORE_JOBS = 4


@dataclass(frozen=True)
class Step:
    """One value of what is swept: the rate at which jobs come, and what it sets in every policy."""

    value: float
    rate: float
    settings: dict[str, str]


@dataclass(frozen=True)
class Point:
    """One policy at one step, run once for each seed."""

    label: str
    step: Step
    outcomes: Sequence[Outcome]


def command(
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="N,...", help="Sweep the input rate: jobs an hour, such as 4,5.6.")
    ] = None,
    rounds: Annotated[
        str | None, typer.Option("--rounds", metavar="SECONDS,...", help="Sweep the round length, at one --rate.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="Jobs an hour, for --rounds.", show_default=False)
    ] = None,
    generate: Annotated[
        str, typer.Option("--generate", metavar="PRESET", help=f"Make up the jobs: {generation.PRESET_HELP}.")
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
            help=f"Several at once, settings behind each.  [default: {DEFAULT_POLICIES}]",
        ),
    ] = None,
    cluster: options.ClusterOption = CLUSTER,
    throughputs: options.ThroughputsOption = None,
    measure_from: options.MeasureFromOption = MEASURE_FROM,
    measure_to: Annotated[
        int, typer.Option("--measure-to", metavar="JOB", min=1, help="Measure up to, not including, this job.")
    ] = MEASURE_TO,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", metavar="N", min=1, help=f"How many may come in all.  [default: {_MORE_JOBS} times --measure-to]"
        ),
    ] = None,
    workload: generation.WorkloadOption = None,
    seeds: Annotated[
        int,
        typer.Option("--seeds", metavar="N", min=1, help="Generate this many workloads; shows 95 % intervals."),
    ] = 1,
    seed: options.SeedOption = 0,
    queues: options.QueuesOption = None,
    placement: options.PlacementOption = "anywhere",
    restart_cost: options.RestartCostOption = 30.0,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="Processes at once.  [default: one a core]")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the average JCT, as .png or .svg.")
    ] = None,
    html: options.HtmlOption = None,
    output: options.OutputOption = Output.TABLE,
) -> None:
    """Run policies at many input rates, or with many round lengths, and measure the steady state of each.

    Jobs keep coming until the measured ones have ended, so that these see the
    cluster as it is on any day.
    """
    from horae.cli.runs import World, run_all
    from horae.workload.clusters import cluster_file, parse_cluster

    # Whatever can be wrong is found before anything takes time.
    _check_plot(plot)
    check_outputs([plot, html], inputs=[throughputs, queues, cluster_file(cluster)])
    count = _check_window(measure_from, measure_to, jobs)
    chosen = read_policies(policy or (), policies if policy or policies is not None else DEFAULT_POLICIES)
    steps = read_steps(rates, rounds, rate)
    _check_policies(chosen, steps)
    machines, speeds = parse_cluster(cluster), inputs.read_throughputs(throughputs)
    chosen = [(name, inputs.with_prices(name, settings, machines)) for name, settings in chosen]
    sources = [
        generation.GeneratedSource(_workload(generate, count, step, workload or (), speeds), machines, speeds)
        for step in steps
    ]
    tree = inputs.read_queues(queues, cluster)
    world = World(
        sources[0], machines, placement, restart_cost, speeds, tree, None, measure_from, measure_to, until=measure_to
    )
    runs = _plan(steps, sources, chosen, range(seed, seed + seeds))
    with progress_bar(f"{len(runs)} runs", output) as advance:
        outcomes = run_all(world, runs, workers or os.cpu_count() or 1, advance)
    points = _points(steps, chosen, outcomes, seeds)
    axis = _axis(steps, swept_rounds=rounds is not None)
    panels = _panels(points)
    about = _about(generate, measure_from, measure_to, machines, seeds)
    _write_files(axis, panels, about, plot, html)
    _print_points(points, axis, panels, seeds, output)
    _tell_trouble(points, axis, count)


# -------------------------------------------------------------- what is asked


def read_steps(rates: str | None, rounds: str | None, rate: float | None) -> list[Step]:
    """The values of what is swept, from the lowest up."""
    if (rates is None) == (rounds is None):
        raise UserError("Name what to sweep: either --rates 4.0,5.2,5.6 or --rounds 60,360,1440 --rate 5.6.")
    if rates is not None:
        if rate is not None:
            raise UserError("--rate does nothing with --rates; leave it out, or sweep --rounds at that rate.")
        return [Step(value, value, {}) for value in _values("--rates 4.0,5.2", rates)]
    if rate is None or not 0 < rate < float("inf"):
        raise UserError("Round lengths are compared at one input rate: give a number above 0, such as --rate 5.6.")
    return [Step(value, rate, {"round": f"{value:.12g}"}) for value in _values("--rounds 60,360", rounds or "")]


def _values(example: str, text: str) -> list[float]:
    """Numbers above 0, each once, from the lowest up; `example` begins with the option."""
    option = example.split()[0]
    values = sorted(inputs.read_number(option, part) for part in text.split(",") if part.strip())
    if not values or values[0] <= 0:
        raise UserError(f"{option} {text!r} is no list of numbers above 0; write it like {example}.")
    if len(set(values)) < len(values):
        raise UserError(f"{option} {text!r} names a number twice; once is enough.")
    return values


def _check_window(measure_from: int, measure_to: int, jobs: int | None) -> int:
    """How many jobs to make up; a window that they do not fill is refused."""
    if measure_from >= measure_to:
        raise UserError(
            f"The window of jobs {measure_from} to {measure_to} is empty; lower --measure-from or raise --measure-to."
        )
    if jobs is not None and jobs < measure_to:
        raise UserError(f"Only {jobs} jobs come and {measure_to} are needed; raise --jobs or lower --measure-to.")
    return jobs or _MORE_JOBS * measure_to


def _check_plot(plot: Path | None) -> None:
    if plot is not None and plot.suffix not in PLOTS:
        raise UserError(f"Cannot draw {plot}: end the name of a plot in {' or '.join(PLOTS)}.")


def _check_policies(chosen: Sequence[tuple[str, dict[str, str]]], steps: Sequence[Step]) -> None:
    """Every policy can be set as every step will set it."""
    from horae.policies import POLICIES, make_policy

    for name, settings in chosen:
        known = {parameter.name for parameter in POLICIES[name].parameters}
        for step in steps:
            if not step.settings.keys() <= known:
                raise UserError(f"Policy {name!r} has no rounds for --rounds to set; leave it out, or sweep --rates.")
            for key in step.settings.keys() & settings.keys():
                raise UserError(f"--rounds sets {key!r} in every policy; leave it out of {name}:{key}={settings[key]}.")
            make_policy(name, {**settings, **step.settings})


def _workload(preset: str, jobs: int, step: Step, words: Sequence[str], speeds: Throughputs | None) -> Workload:
    return generation.read_workload(preset, jobs, None, step.rate, None, words, speeds)


def _plan(
    steps: Sequence[Step],
    sources: Sequence[generation.GeneratedSource],
    chosen: Sequence[tuple[str, dict[str, str]]],
    seeds: Sequence[int],
) -> list[Run]:
    """Every policy at every step on every seed."""
    from horae.cli.runs import Run

    return [
        Run(name, seed, {**settings, **step.settings}, source=source)
        for step, source in zip(steps, sources, strict=True)
        for name, settings in chosen
        for seed in seeds
    ]


# ------------------------------------------------------------- what came of it


def _points(
    steps: Sequence[Step], chosen: Sequence[tuple[str, dict[str, str]]], outcomes: Sequence[Outcome], seeds: int
) -> list[Point]:
    """Outcomes by step and policy, in the order in which they were planned."""
    which = [(_label(name, settings), step) for step in steps for name, settings in chosen]
    return [Point(label, step, outcomes[k * seeds : (k + 1) * seeds]) for k, (label, step) in enumerate(which)]


def _label(name: str, settings: dict[str, str]) -> str:
    told = ", ".join(f"{key}={value}" for key, value in settings.items())
    return f"{name} ({told})" if told else name


def _axis(steps: Sequence[Step], swept_rounds: bool) -> Axis:
    from horae.report.curves import Axis

    values = tuple(step.value for step in steps)
    if swept_rounds:
        return Axis("round_s", "round length (minutes)", values, unit=60.0, logarithmic=True)
    return Axis("rate_per_hour", "input rate (jobs/hour)", values)


def _panels(points: Sequence[Point]) -> list[Panel]:
    """Every measure that is shown, as curves."""
    from horae.report.curves import SHOWN, Panel

    return [Panel.of(path, _curves(points, path)) for path in SHOWN]


def _curves(points: Sequence[Point], path: str) -> list[Curve]:
    """One measure as a curve for each policy."""
    import numpy as np

    from horae.cli.intervals import half_width_95
    from horae.report.curves import Curve
    from horae.report.tables import Measure

    measure = Measure(path, "")
    curves = []
    for label in dict.fromkeys(point.label for point in points):
        samples = [[measure.of(o.report) for o in point.outcomes] for point in points if point.label == label]
        means, halves = [fmean(values) for values in samples], [half_width_95(values) for values in samples]
        curves.append(Curve(label, np.array(means), np.array(halves)))
    return curves


def _about(preset: str, measure_from: int, measure_to: int, machines: Cluster, seeds: int) -> str:
    """What the curves are about, in one line."""
    gpus = ", ".join(f"{n} {name}" for name, n in zip(machines.gpu_types, machines.gpus_by_type, strict=True))
    several = f", {seeds} seeds with 95 % intervals" if seeds > 1 else ""
    return f"{preset}, jobs {measure_from:,} to {measure_to - 1:,}, {gpus}{several}"


def _write_files(axis: Axis, panels: Sequence[Panel], about: str, plot: Path | None, html: Path | None) -> None:
    from horae.report.curves import write_page, write_plot

    if plot is not None:
        with written_whole(plot) as path:
            write_plot(path, axis, panels[0], about)
        note(f"plot: {plot}")
    if html is not None:
        with written_whole(html) as path:
            write_page(path, axis, panels, about)
        note(f"page: {html}")


def _print_points(points: Sequence[Point], axis: Axis, panels: Sequence[Panel], seeds: int, output: Output) -> None:
    """Print one record a point, or the table of all."""
    match output:
        case Output.JSON:
            from horae.report.cost import process_cost

            records = [_record(point, axis) for point in points]
            print_json({"seeds": seeds, "points": records, **process_cost(STARTED_S)})
        case Output.CSV:
            print_csv(_record(point, axis) for point in points)
        case Output.TABLE:
            print_rich(_table(points, axis, panels))


def _record(point: Point, axis: Axis) -> dict[str, Any]:
    """One point: where it lies, its report, or the mean over seeds with the intervals, and what a run has cost."""
    from horae.cli.intervals import interval_record, mean_record

    records = [{**outcome.report.as_dict(), "cpu_s": outcome.cpu_s} for outcome in point.outcomes]
    where = {axis.key: point.step.value, "label": point.label}
    if len(records) == 1:
        return {**where, **records[0]}
    settings = records[0]["settings"]
    return {**where, **mean_record(records), "settings": settings, "ci95": interval_record(records)}


def _table(points: Sequence[Point], axis: Axis, panels: Sequence[Panel]) -> RenderableType:
    """One line a point; policies at the same value stand together. Only the plot's measure shows its interval."""
    plotted, *others = panels
    rows = []
    for k, point in enumerate(points):
        at, curve = divmod(k, len(plotted.curves))
        value = axis.text(point.step.value) if curve == 0 else ""
        beside = [panel.text(float(panel.curves[curve].mean[at])) for panel in others]
        cpu_s = fmean(outcome.cpu_s for outcome in point.outcomes)
        rows.append([value, point.label, plotted.point(curve, at), *beside, f"{cpu_s:,.1f}"])
    return table([axis.label, "policy", *(panel.y_label for panel in panels), "CPU s a run"], rows)


def _tell_trouble(points: Sequence[Point], axis: Axis, jobs: int) -> None:
    """What makes a point less than a steady state: jobs that never ended, or none that came any more."""
    for point in points:
        where = f"{point.label} at {axis.text(point.step.value)}"
        note_unfinished(where, [_unfinished(outcome) for outcome in point.outcomes])
    drained = [point for point in points if any(_is_drained(outcome, jobs) for outcome in point.outcomes)]
    if drained:
        first = f"{drained[0].label} at {axis.text(drained[0].step.value)}"
        note(
            f"At {len(drained)} of {len(points)} points, such as {first}, all {jobs:,} jobs had come before the last "
            "measured one ended, on a cluster that emptied; raise --jobs."
        )


def _is_drained(outcome: Outcome, jobs: int) -> bool:
    """Whether measured jobs were there after the last arrival of all."""
    submit_s = outcome.report.outcomes.submit_s
    return len(submit_s) == jobs and outcome.report.window.end_s > float(submit_s[-1])


def _unfinished(outcome: Outcome) -> Mapping[str, str]:
    """Jobs that wait for ever, and why. Where all measured ones have finished, the others were cut off on purpose."""
    return outcome.waiting if outcome.report.finished < outcome.report.jobs else {}
