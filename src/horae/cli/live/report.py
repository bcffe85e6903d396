"""`horae report`: who used how much, and how everybody fared against their fair share."""

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
    """A length of time such as 7d, in seconds."""
    from horae.service.job_file import seconds

    if text is None:
        return None
    try:
        return float(seconds(text))
    except ValueError as error:
        raise typer.BadParameter(f"--since: {error}.") from None


@app.command("usage", cls=PlainUsage)
def usage(since: SinceOption = None, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """How much each user and queue has used: jobs, GPU-hours, and GPU-hours of the fastest type."""
    within_s = read_since(since)
    with service(url) as at:
        past = read_past(at)
        jobs = records_of(at.get("/v1/jobs", {"all": True, "limit": 0, "fields": "id,user"}), "jobs")
    records = _usage(past, past.first_since(within_s), {str(job["id"]): str(job["user"]) for job in jobs})
    answer(output, {"usage": records}, records, lambda: [_usage_table(records)])


def _usage(past: JournalReader, first: int, users: Mapping[str, str]) -> list[dict[str, Any]]:
    """Usage by queue and user, the largest first."""
    from horae.service.history.journal_history import worked_by_type

    history, worked_s = past.history, worked_by_type(past.history)
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
    """How everybody fared: completion times, and the slowdown versus the fair share (rho), by queue."""
    from horae.report.metrics.measure import measure

    check_outputs([html, perfetto], inputs=[])
    within_s = read_since(since)
    with service(url) as at:
        past = read_past(at)
    report = measure(past.history, past.first_since(within_s))
    write_files(past, report, html, perfetto)
    records = [{"queue": name, **part} for name, part in report.as_dict()["by_queue"].items()]
    answer(output, report.as_dict(), records, lambda: fairness_tables(report))


def write_files(past: JournalReader, report: Report, html: Path | None, perfetto: Path | None) -> None:
    """Write the page and the viewer's file, where these were asked for."""
    if html is not None:
        from horae.report.pages.page import write_page

        with written_whole(html) as path:
            write_page(path, [(past.history, report)])
        note(f"page: {html}")
    write_viewer_file(perfetto, past.history)


def fairness_tables(report: Report) -> list[RenderableType]:
    """The whole in one table, and each queue's slowdown in another."""
    from horae.report.tables import render_table

    heads = ("queue", "jobs", "finished", "JCT", "waited", "slowdown (rho), mean", "worst", "above 1")
    rows = [
        (
            visible(name),
            part.jobs,
            part.finished,
            _seconds(part.avg_jct_s),
            _seconds(part.avg_queueing_delay_s),
            _ratio(part.rho.avg),
            _ratio(part.rho.max),
            "-" if part.rho.over_1 != part.rho.over_1 else f"{part.rho.over_1:.0%}",
        )
        for name, part in sorted(report.by_queue.items())
    ]
    return [render_table([report]), table(heads, rows, "Slowdown versus the fair share, by queue; at most 1 is fair")]


def _seconds(value: float) -> str:
    return "-" if value != value else f"{value:,.1f} s"


def _ratio(value: float) -> str:
    return "-" if value != value else f"{value:.2f}"
