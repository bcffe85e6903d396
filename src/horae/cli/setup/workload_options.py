"""Generated workloads as the command line describes them: a preset, and what to change in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.setup.inputs import read_number, read_pairs, read_trace
from horae.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from horae.core.throughputs import Throughputs
    from horae.workload.generator import Workload

PRESET_HELP = "plain, themis, tiresias, gavel or gavel-single (Gavel's need --throughputs)"

JobsOption = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, help="How many jobs; the preset knows a number.")
]
LoadOption = Annotated[
    float | None,
    typer.Option("--load", metavar="SHARE", help="GPU-time that arrives over GPU-time there is, 0.8 by default."),
]
RateOption = Annotated[
    float | None,
    typer.Option("--rate", metavar="N", help="Arrivals an hour instead of a load; inf puts all at the start."),
]
WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--workload", metavar="KEY=VALUE", help="Another setting of the generator, such as teams=4; repeatable."
    ),
]
HoursOption = Annotated[
    Path | None, typer.Option("--hours-from", metavar="TRACE", help="Follow the rhythm of the day that a trace has.")
]

#: Settings with an option of their own.
_OPTIONS = {"jobs": "--jobs", "load": "--load", "arrivals_per_hour": "--rate", "hourly": "--hours-from"}
#: Settings that are chosen by name.
_NAMED = ("durations", "sizes", "mix", "app_scheduler")


def read_workload(
    preset_name: str,
    jobs: int | None,
    load: float | None,
    rate: float | None,
    hours_from: Path | None,
    words: Sequence[str],
    throughputs: Throughputs | None,
) -> Workload:
    """Build the workload that the options describe; what they leave out is the preset's."""
    from horae.workload.generator import preset

    if load is not None and rate is not None:
        raise UserError("Give either --load or --rate; each sets how often jobs arrive.")
    changes = {key: _value(key, text) for key, text in read_pairs("--workload teams=4", words).items()}
    if jobs is not None:
        changes["jobs"] = jobs
    if load is not None:
        changes["load"] = load
    if rate is not None:
        changes["arrivals_per_hour"] = rate
    if hours_from is not None:
        changes["hourly"] = _hourly(hours_from, throughputs)
    return preset(preset_name, **changes)


def _value(key: str, text: str) -> Any:
    """A setting of the generator, read as the kind of thing its default is."""
    from horae.workload.generator import Workload

    known = [field.name for field in fields(Workload) if field.name not in _OPTIONS]
    if key in _OPTIONS:
        raise UserError(f"The setting {key!r} has an option of its own; use {_OPTIONS[key]}.")
    if key not in known:
        raise UserError(f"A workload has no setting {key!r}.{did_you_mean(key, known)} Known are {', '.join(known)}.")
    if key in _NAMED:
        return text
    default = getattr(Workload(), key)
    if isinstance(default, tuple):
        return tuple(read_number(f"--workload {key}", part) for part in text.split(","))
    number = read_number(f"--workload {key}", text)
    if isinstance(default, int) and not number.is_integer():
        raise UserError(f"--workload {key}={text} is not a whole number.")
    return int(number) if isinstance(default, int) else number


def _hourly(trace: Path, throughputs: Throughputs | None) -> tuple[float, ...]:
    from horae.workload.arrivals import hourly_shape

    return hourly_shape(read_trace(trace, None, skip_bad=False, throughputs=throughputs).jobs)
