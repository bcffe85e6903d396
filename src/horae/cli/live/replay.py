"""`horae replay`: the past jobs of a service, simulated under other policies."""

from __future__ import annotations

from typing import Annotated

import typer

from horae.cli.live.rendering import UrlOption, answer
from horae.cli.options import HtmlOption, OutputOption, SeedOption
from horae.cli.output import Output, note, note_ignored_speeds, note_unfinished
from horae.cli.output_files import check_outputs, written_whole
from horae.cli.progress import progress_bar
from horae.client.journal import JournalReader, read_past
from horae.client.service_client import service


def command(
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            metavar="NAME",
            help="A policy to simulate; repeatable. `horae policies` lists them.",
            show_default=False,
        ),
    ],
    set: Annotated[  # noqa: A002, the option is called so
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the policy, if only one is named; repeatable."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="SPEC", help="Another cluster, such as v100:2x4 (default: the service's)."),
    ] = None,
    placement: Annotated[
        str | None, typer.Option("--placement", metavar="NAME", help="Placement rule (default: the service's).")
    ] = None,
    seed: SeedOption = 0,
    html: HtmlOption = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate the past jobs of a service under other policies, and compare with what happened.

    Jobs keep their submission times, measured speeds, and measured times to start, save and restore. The work of a
    cancelled, failed or given-up job is what it did; app schedulers do not run again. Jobs that have not ended run to
    their end. A job that did not finish in the service counts as finished in no column. Nodes join, drain and leave
    when they did so, and stay as they are after the last record, so that jobs may be left over; with --cluster they are
    always there. Holds and failures of jobs are not replayed.
    """
    from horae.cli.setup.inputs import read_pairs
    from horae.experiments.replay import labels_of, replay_scenario, replayed
    from horae.plugins.policies import load_policy
    from horae.report.metrics.measure import measure
    from horae.report.tables import render_table
    from horae.simulator.scenario import PolicyChoice

    check_outputs([html], inputs=[])
    settings = read_pairs("--set quantum=600", set or ())
    if settings and len(policy) > 1:
        raise typer.BadParameter("--set is for one policy: name only one, or leave --set out.")
    chosen = [PolicyChoice(load_policy(name), settings) for name in policy]
    for one in chosen:
        # A long journal is not read for a name that was mistyped.
        one.make()
    with service(url) as client:
        past = read_past(client)
    _note_other_settings(past, policy, settings)
    runs, ignored = [past.history], []
    for one in chosen:
        scenario = replay_scenario(past, one, cluster, placement, seed)
        with progress_bar(f"{one.name}, {len(scenario.jobs):,} jobs", output) as advance:
            history, waiting = replayed(past, scenario, advance)
        note_unfinished(one.name, [waiting])
        runs.append(history)
        ignored.append((one.name, scenario.ignored_speeds))
    note_ignored_speeds(ignored)
    reports = [measure(run) for run in runs]
    labels = labels_of(past, chosen)
    if html is not None:
        from horae.report.pages.page import write_page

        with written_whole(html) as path:
            write_page(path, list(zip(runs, reports, strict=True)), labels)
        note(f"page: {html}")
    records = [{"run": label, **report.as_dict()} for label, report in zip(labels, reports, strict=True)]
    answer(output, {"runs": records}, records, lambda: [render_table(reports, labels)])


def _note_other_settings(past: JournalReader, policies: list[str], settings: dict[str, str]) -> None:
    """Say so where the service's own policy is run again with other settings than the service gave it."""
    was = past.history
    if was.policy in policies and not settings and was.settings:
        same = " ".join(f"--set {key}={value}" for key, value in was.settings.items())
        note(f"{was.policy} is run again as it is by default; as the service had it last: {same}")
