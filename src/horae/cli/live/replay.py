"""`horae replay`: a service's own history, run again under other policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from horae.cli.live.rendering import UrlOption, answer
from horae.cli.options import HtmlOption, OutputOption, SeedOption
from horae.cli.output import Output, note, note_unfinished
from horae.cli.output_files import check_outputs, written_whole
from horae.cli.progress import progress_bar
from horae.client.journal import JournalReader, NothingYet, read_past
from horae.client.service_client import service
from horae.core.errors import UserError

if TYPE_CHECKING:
    from horae.core.cluster import Cluster
    from horae.core.history import History


class UnknownSpeed(UserError):
    """Machines on which no job was ever seen."""


#: Name of the column of what really happened.
AS_IT_WAS = "as it was"


def command(
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Who would have run; repeatable.",
            show_default=False,
        ),
    ],
    set: Annotated[  # noqa: A002, the option is called so
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the policy, if only one is named; repeatable."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="SPEC", help="Other machines than the service's, such as v100:2x4."),
    ] = None,
    placement: Annotated[
        str | None, typer.Option("--placement", metavar="NAME", help="How gangs are put on nodes; as in the service.")
    ] = None,
    seed: SeedOption = 0,
    html: HtmlOption = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a service's jobs again, in virtual time, under another policy, and compare with what happened.

    Jobs come when they came, at the speeds they had, with the time that starting, saving and coming back took them.
    Jobs that were cancelled, failed or were given up by their app are taken to have wanted what they did: apps'
    schedulers decide nothing again. Those that have not ended are run to their end. Whichever did not finish counts
    as finished in no column. Holds and drained nodes are not replayed.
    """
    from horae.cli.setup.inputs import read_pairs
    from horae.policies import make_policy
    from horae.report.metrics.measure import measure
    from horae.report.tables import render_table

    check_outputs([html], inputs=[])
    settings = read_pairs("--set quantum=600", set or ())
    if settings and len(policy) > 1:
        raise typer.BadParameter("--set is for one policy: name only one, or leave --set out.")
    for name in policy:
        # A long journal is not read for a name that was mistyped.
        make_policy(name, settings)
    with service(url) as at:
        past = read_past(at)
    _note_other_settings(past, policy, settings)
    runs = [past.history, *(_replay(past, name, settings, cluster, placement, seed, output) for name in policy)]
    reports = [measure(run) for run in runs]
    labels = [f"{AS_IT_WAS} ({past.history.policy})", *policy]
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


def _replay(
    past: JournalReader,
    policy: str,
    settings: dict[str, str],
    cluster: str | None,
    placement: str | None,
    seed: int,
    output: Output,
) -> History:
    from horae.service.history.replay import counted_alike
    from horae.service.history.simulation_costs import replayable
    from horae.simulator.run import simulate

    machines = _machines(past, cluster)
    jobs = replayable(past.history)
    if not jobs:
        raise NothingYet("No job of the journal has done anything yet: there is nothing to replay.")
    with progress_bar(f"{policy}, {len(jobs):,} jobs", output) as advance:
        history = simulate(
            jobs,
            machines,
            policy=policy,
            settings=settings,
            placement=placement or past.beginning.placement,
            restart_cost_s=0.0,
            queues=past.queues,
            seed=seed,
            progress=advance,
        )
    note_unfinished(policy, [history.waiting])
    return counted_alike(past.history, history)


def _machines(past: JournalReader, asked: str | None) -> Cluster:
    """The service's machines, or others of the same GPU types: only of these it is known how fast jobs are there."""
    from horae.workload.clusters import parse_cluster

    if asked is None:
        return past.history.cluster
    machines, known = parse_cluster(asked), past.history.cluster.gpu_types
    strange = [kind for kind in machines.gpu_types if kind not in known]
    if strange:
        raise UnknownSpeed(
            f"No job ever ran on {', '.join(strange)} here, so nobody knows how fast they are on {', '.join(strange)}: "
            f"name machines with {', '.join(sorted(known))}."
        )
    return machines
