"""`horae report`: usage by user and queue, and fairness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.live.rendering import UrlOption, answer, visible
from horae.cli.options import HtmlOption, OutputOption, PerfettoOption
from horae.cli.output import Output, note, table
from horae.cli.output_files import check_outputs, write_viewer_file, written_whole
from horae.cli.usage_errors import PlainUsage
from horae.client.journal import JournalReader, read_past
from horae.client.service_client import records_of, service
from horae.core.durations import seconds_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horae.report.metrics.measure import Report

app = typer.Typer(
    help="Reports on what a service has run: usage, fairness.", rich_markup_mode=None, no_args_is_help=True
)

SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only jobs submitted within this time, such as 7d.")
]


def read_since(text: str | None) -> float | None:
    """The duration of --since, such as 7d, in seconds."""
    if text is None:
        return None
    try:
        return seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(f"--since: {error}.") from None


@app.command("usage", cls=PlainUsage)
def usage(since: SinceOption = None, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the usage of each user and queue: jobs, GPU-hours, and GPU-hours of the fastest type."""
    within_s = read_since(since)
    with service(url) as client:
        journal = read_past(client)
        jobs = records_of(client.get("/v1/jobs", {"all": True, "limit": 0, "fields": "id,user"}), "jobs")
    records = _usage(journal, journal.first_since(within_s), {str(job["id"]): str(job["user"]) for job in jobs})
    answer(output, {"usage": records}, records, lambda: [_usage_table(records)])


def _usage(journal: JournalReader, first: int, users: Mapping[str, str]) -> list[dict[str, Any]]:
    """Usage by queue and user, largest first."""
    from horae.service.history.journal_history import worked_by_type

    history, worked_s = journal.history, worked_by_type(journal.history)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in range(first, len(history.jobs)):
        spec, rates = history.jobs[row], history.rates[row]
        speed = rates / rates.max() if rates.max() > 0 else rates
        key = (spec.queue, users.get(spec.id, ""))
        record = found.setdefault(
            key, {"queue": key[0], "user": key[1], "jobs": 0, "finished": 0, "gpu_hours": 0.0, "fastest_gpu_hours": 0.0}
        )
        record["jobs"] += 1
        record["finished"] += int(history.finished[row])
        record["gpu_hours"] += float(worked_s[row].sum()) * spec.gpus / 3600
        record["fastest_gpu_hours"] += float((worked_s[row] * speed).sum()) * spec.gpus / 3600
    total = sum(record["gpu_hours"] for record in found.values())
    for record in found.values():
        record["share"] = record["gpu_hours"] / total if total else 0.0
    return sorted(found.values(), key=lambda record: (-record["gpu_hours"], record["queue"], record["user"]))


def _usage_table(records: Sequence[Mapping[str, Any]]) -> RenderableType:
    heads = ("queue", "user", "jobs", "finished", "GPU-hours", "of the fastest type", "share")
    rows = [
        (
            visible(record["queue"]),
            visible(record["user"]),
            record["jobs"],
            record["finished"],
            f"{record['gpu_hours']:,.3f}",
            f"{record['fastest_gpu_hours']:,.3f}",
            f"{record['share']:.0%}",
        )
        for record in records
    ]
    return table(heads, rows)


@app.command("fairness", cls=PlainUsage)
def fairness(
    since: SinceOption = None,
    html: HtmlOption = None,
    perfetto: PerfettoOption = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show completion times, and the slowdown versus the fair share (rho), by queue."""
    from horae.report.metrics.measure import measure

    check_outputs([html, perfetto], inputs=[])
    within_s = read_since(since)
    with service(url) as client:
        journal = read_past(client)
    report = measure(journal.history, journal.first_since(within_s))
    write_files(journal, report, html, perfetto)
    records = [{"queue": name, **figures} for name, figures in report.as_dict()["by_queue"].items()]
    answer(output, report.as_dict(), records, lambda: fairness_tables(report))


def write_files(journal: JournalReader, report: Report, html: Path | None, perfetto: Path | None) -> None:
    """Write the HTML page and the Perfetto file, if asked for."""
    if html is not None:
        from horae.report.pages.page import write_page

        with written_whole(html) as path:
            write_page(path, [(journal.history, report)])
        note(f"page: {html}")
    write_viewer_file(perfetto, journal.history)


def fairness_tables(report: Report) -> list[RenderableType]:
    """A table of all jobs, and a table of the slowdown by queue."""
    from horae.report.tables import render_table

    heads = ("queue", "jobs", "finished", "JCT", "waited", "slowdown (rho), mean", "worst", "above 1")
    rows = [
        (
            visible(name),
            figures.jobs,
            figures.finished,
            _seconds(figures.avg_jct_s),
            _seconds(figures.avg_queueing_delay_s),
            _ratio(figures.rho.avg),
            _ratio(figures.rho.max),
            "-" if figures.rho.over_1 != figures.rho.over_1 else f"{figures.rho.over_1:.0%}",
        )
        for name, figures in sorted(report.by_queue.items())
    ]
    return [render_table([report]), table(heads, rows, "Slowdown versus the fair share, by queue; at most 1 is fair")]


def _seconds(value: float) -> str:
    return "-" if value != value else f"{value:,.1f} s"


def _ratio(value: float) -> str:
    return "-" if value != value else f"{value:.2f}"
