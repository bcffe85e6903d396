"""`horae trace`: bring traces in, make them up, look into them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli import options
from horae.cli.output import Output, print_csv, print_json, print_rich, table
from horae.cli.output_files import CannotWrite, check_outputs, written_whole
from horae.cli.setup import workload_options
from horae.cli.setup.inputs import read_throughputs, read_trace
from horae.cli.usage_errors import PlainUsage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horae.core.job import JobSpec

#: The kinds of file a trace is written to.
TRACE_SUFFIXES = (".parquet", ".csv")
#: Rows of a distribution that fit on a screen.
ROWS_SHOWN = 12

app = typer.Typer(help="Import, generate and inspect traces.", no_args_is_help=True, rich_markup_mode=None)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The trace.", show_default=False)]
OutOption = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="Trace to write, in Horae's own format: .parquet or .csv.")
]


@app.command("import", cls=PlainUsage)
def import_trace(
    file: FileArgument,
    out: OutOption,
    format: options.FormatOption = None,  # noqa: A002, the option is called so
    throughputs: options.ThroughputsOption = None,
    skip_bad: options.SkipBadOption = False,
    output: options.OutputOption = Output.TABLE,
) -> None:
    """Translate a trace of any known format into Horae's own."""
    _check_out(out, inputs=[file, throughputs])
    trace = read_trace(file, format, skip_bad, read_throughputs(throughputs))
    _save(out, trace.jobs)
    record = {"out": str(out), "jobs": len(trace.jobs), "format": trace.format, "skipped": len(trace.skipped)}
    _print_record(record, output, [f"Wrote {len(trace.jobs):,} jobs of format {trace.format} to {out}."])


@app.command("generate", cls=PlainUsage)
def generate_trace(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help=f"{workload_options.PRESET_HELP}.", show_default=False)
    ],
    cluster: options.ClusterOption,
    out: OutOption,
    jobs: workload_options.JobsOption = None,
    load: workload_options.LoadOption = None,
    rate: workload_options.RateOption = None,
    hours_from: workload_options.HoursOption = None,
    workload: workload_options.WorkloadOption = None,
    throughputs: options.ThroughputsOption = None,
    seed: options.SeedOption = 0,
    output: options.OutputOption = Output.TABLE,
) -> None:
    """Make up a trace that loads a cluster as wished; the same seed gives the same jobs."""
    from horae.workload.clusters import cluster_file, parse_cluster
    from horae.workload.generator import generate

    _check_out(out, inputs=[throughputs, hours_from, cluster_file(cluster)])
    speeds = read_throughputs(throughputs)
    settings = workload_options.read_workload(preset, jobs, load, rate, hours_from, workload or (), speeds)
    made = generate(settings, parse_cluster(cluster), speeds, seed)
    _save(out, made)
    record = {"out": str(out), "jobs": len(made), "preset": preset, "seed": seed}
    _print_record(record, output, [f"Wrote {len(made):,} jobs to {out}."])


@app.command("info", cls=PlainUsage)
def show_trace(
    file: FileArgument,
    format: options.FormatOption = None,  # noqa: A002, the option is called so
    throughputs: options.ThroughputsOption = None,
    skip_bad: options.SkipBadOption = False,
    output: options.OutputOption = Output.TABLE,
) -> None:
    """Show what is in a trace: how many jobs, how large, how long, over what time."""
    from horae.workload.trace_summary import describe

    facts = describe(read_trace(file, format, skip_bad, read_throughputs(throughputs)))
    _print_record(facts, output, _fact_tables(facts))


def _check_out(out: Path, inputs: Sequence[Path | None]) -> None:
    """Refuse a file that cannot become a trace before anybody works on what stands in it."""
    if out.suffix not in TRACE_SUFFIXES:
        raise CannotWrite(f"A trace is written as {' or '.join(TRACE_SUFFIXES)}, not as {out.name!r}; rename the file.")
    check_outputs([out], inputs)


def _save(out: Path, jobs: Sequence[JobSpec]) -> None:
    from horae.workload.traces import save_trace

    with written_whole(out) as path:
        save_trace(path, jobs)


def _print_record(record: dict[str, Any], output: Output, for_people: Sequence[RenderableType]) -> None:
    match output:
        case Output.JSON:
            print_json(record)
        case Output.CSV:
            print_csv([record])
        case Output.TABLE:
            print_rich(*for_people)


def _fact_tables(facts: dict[str, Any]) -> list[RenderableType]:
    """Single facts in one table, each distribution in one of its own, cut to what fits on a screen."""
    single = [(_words(key), _shown(key, value)) for key, value in facts.items() if not isinstance(value, dict)]
    tables: list[RenderableType] = [table(("trace", ""), single)]
    for key, counts in facts.items():
        # A distribution with one value says nothing.
        if isinstance(counts, dict) and len(counts) > 1:
            rows = [(name, _shown(key, value)) for name, value in list(counts.items())[:ROWS_SHOWN]]
            tables.append(table((_words(key), "" if key.endswith("_s") else "jobs"), rows))
            if len(counts) > ROWS_SHOWN:
                tables.append(f"  ... and {len(counts) - ROWS_SHOWN} more; -o json shows all")
    return tables


def _words(key: str) -> str:
    return key.removesuffix("_s").replace("_", " ")


def _shown(key: str, value: object) -> str:
    """A fact as people read it; keys that end in _s are seconds."""
    from horae.report.formatting import NOTHING, duration, number

    if value is None:
        return NOTHING
    if not isinstance(value, int | float):
        return str(value)
    return duration(value) if key.endswith("_s") else number(value)
