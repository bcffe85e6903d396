"""`horae simulate`: one policy on one workload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horae.cli import STARTED_S, options
from horae.cli.output import Output, note, note_ignored_speeds, note_unfinished, print_csv, print_json, print_rich
from horae.cli.output_files import check_outputs, write_viewer_file, written_whole
from horae.cli.progress import progress_bar
from horae.cli.setup import workload_options
from horae.cli.setup.job_source import JobOptions

if TYPE_CHECKING:
    from horae.core.history import History
    from horae.report.metrics.measure import Report


def command(
    cluster: options.ClusterOption,
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="Who runs; `horae policies` lists them.")],
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Jobs to run; `horae trace info` shows them.")
    ] = None,
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
    set: Annotated[  # noqa: A002
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the policy; repeatable.")
    ] = None,
    placement: options.PlacementOption = "best-effort",
    restart_cost: options.RestartCostOption = 30.0,
    throughputs: options.ThroughputsOption = None,
    profile_share: options.ProfileShareOption = 1.0,
    profile_noise: options.ProfileNoiseOption = 0.0,
    queues: options.QueuesOption = None,
    faults: options.FaultsOption = None,
    seed: options.SeedOption = 0,
    skip_bad: options.SkipBadOption = False,
    measure_from: options.MeasureFromOption = 0,
    measure_to: options.MeasureToOption = None,
    jobs_out: Annotated[
        Path | None, typer.Option("--jobs-out", metavar="FILE.csv", help="Write one row a job: start, end, JCT, rho.")
    ] = None,
    html: options.HtmlOption = None,
    perfetto: options.PerfettoOption = None,
    output: options.OutputOption = Output.TABLE,
) -> None:
    """Run a trace, or a workload made up, on a cluster under one policy, in virtual time, and report how it went."""
    from horae.cli.setup.scenario_options import read_scenario
    from horae.report.metrics.measure import measure
    from horae.simulator.run import simulate
    from horae.workload.clusters import cluster_file

    check_outputs([jobs_out, html, perfetto], inputs=[trace, throughputs, queues, hours_from, cluster_file(cluster)])
    scenario = read_scenario(
        policy,
        set or (),
        JobOptions(trace, format, skip_bad, generate, jobs, load, rate, hours_from, workload),
        cluster=cluster,
        placement=placement,
        restart_cost=restart_cost,
        throughputs=throughputs,
        profile_share=profile_share,
        profile_noise=profile_noise,
        queues=queues,
        faults=faults or (),
        seed=seed,
    )
    with progress_bar(f"{policy}, {len(scenario.jobs):,} jobs", output) as advance:
        history = simulate(scenario, advance)
    report = measure(history, measure_from, measure_to)
    _write_files(history, report, jobs_out, html)
    write_viewer_file(perfetto, history)
    _print_report(report, output)
    note_unfinished(policy, [history.waiting])
    note_ignored_speeds([(policy, scenario.ignored_speeds)])
    if getattr(scenario.built_policy, "space_sharing", False) and not report.shared_gpu_share:
        note(f"{policy}: no two jobs shared GPUs; none gain by it, or their speeds together are not known.")


def _write_files(history: History, report: Report, jobs_out: Path | None, html: Path | None) -> None:
    if jobs_out is not None:
        from horae.report.tables import write_jobs_csv

        with written_whole(jobs_out) as path:
            write_jobs_csv(path, history, report)
        note(f"jobs: {jobs_out}")
    if html is not None:
        from horae.report.pages.page import write_page

        with written_whole(html) as path:
            write_page(path, [(history, report)])
        note(f"page: {html}")


def _print_report(report: Report, output: Output) -> None:
    """Print the report, with what the whole process has cost so far."""
    from horae.report.process_cost import process_cost

    cost = process_cost(STARTED_S)
    record = {**report.as_dict(), **cost}
    if output is Output.JSON:
        print_json(record)
    elif output is Output.CSV:
        print_csv([record])
    else:
        from horae.report.metrics.deadlines import names
        from horae.report.tables import render_table

        print_rich(render_table([report], costs=[cost]))
        if report.deadlines.relaxed:
            print_rich(f"Deadlines relaxed: {names(report.deadlines.relaxed_jobs)}")
