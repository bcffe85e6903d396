"""`horae audit`: one policy on one workload, judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli import STARTED_S, options
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
from horae.cli.output_files import check_outputs, write_viewer_file, written_whole
from horae.cli.progress import progress_bar
from horae.cli.setup import workload_options
from horae.cli.setup.job_source import JobOptions

if TYPE_CHECKING:
    from horae.core.history import History
    from horae.report.audit.verdict import Verdict


_HOLDS = {True: "yes", False: "NO", None: "-"}


def command(
    cluster: options.ClusterOption,
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="Who runs; `horae policies` lists them.")],
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
    samples: Annotated[
        int,
        typer.Option(
            "--samples", metavar="N", min=1, help="Decisions to look at closely: exchanges, and what lies would bring."
        ),
    ] = 20,
    html: options.HtmlOption = None,
    perfetto: options.PerfettoOption = None,
    output: options.OutputOption = Output.TABLE,
) -> None:
    """Run a workload under one policy and judge it: sharing incentive, Pareto efficiency, envy, strategy-proofness.

    Every verdict has its numbers, and a counter-example where the property does not hold. The run is the same as
    that of `horae simulate`; docs/reference/audit.md defines each property.
    """
    from horae.cli.setup.scenario_options import read_scenario
    from horae.experiments.audit import audit
    from horae.workload.clusters import cluster_file

    check_outputs([html, perfetto], inputs=[trace, throughputs, queues, hours_from, cluster_file(cluster)])
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
        audited = audit(scenario, samples, advance)
    write_viewer_file(perfetto, audited.history)
    if html is not None:
        _write_page(html, audited.history, audited.verdicts)
    _print_verdicts(policy, audited.history, audited.verdicts, output)
    note_unfinished(policy, [audited.history.waiting])
    note_ignored_speeds([(policy, scenario.ignored_speeds)])


def _write_page(html: Path, history: History, verdicts: Sequence[Verdict]) -> None:
    """The page of `horae simulate`, with the verdicts."""
    from horae.report.metrics.measure import measure
    from horae.report.pages.page import write_page

    with written_whole(html) as path:
        write_page(path, [(history, measure(history))], verdicts=verdicts)
    note(f"page: {html}")


def _print_verdicts(policy: str, history: History, verdicts: Sequence[Verdict], output: Output) -> None:
    from horae.report.audit.user_shares import user_shares

    settings, shares = history.settings, user_shares(history)
    match output:
        case Output.JSON:
            from horae.report.process_cost import process_cost

            by_user = {"users": [asdict(share) for share in shares]} if shares else {}
            record = {"policy": policy, "settings": settings, **_record(verdicts), **by_user}
            print_json({**record, **process_cost(STARTED_S)})
        case Output.CSV:
            print_csv(
                {"property": v.name, "holds": v.holds, "summary": v.summary, "counter_example": v.counter_example}
                for v in verdicts
            )
        case Output.TABLE:
            rows = [(v.claim, _HOLDS[v.holds], v.summary) for v in verdicts]
            print_rich(table(["property", "holds", "in numbers"], rows, title=f"Audit of {policy}"))
            print_rich(*(f"- {v.counter_example}" for v in verdicts if v.counter_example))
            if shares:
                columns = ["user", "jobs", "apps", "queues", "GPU hours", "of all"]
                users = [(s.user, s.jobs, s.apps, s.queues, f"{s.gpu_hours:,.1f}", f"{s.share:.1%}") for s in shares]
                print_rich(table(columns, users, title="GPU time by user"))


def _record(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    from horae.report.audit.verdict import all_held

    return {"holds": all_held(verdicts), "verdicts": [v.as_dict() for v in verdicts]}
