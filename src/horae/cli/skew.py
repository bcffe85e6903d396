"""`horae skew`: the limit of `--placement tiresias`, from speeds that jobs showed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from horae.cli.options import OutputOption
from horae.cli.output import Output, print_csv, print_json, print_rich, table
from horae.core.errors import UserError

_COLUMNS = ("kind", "skew", "together", "spread", "suffers")


def command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="CSV with job_class, spread (yes or no) and steps_per_s of runs; or a table of throughputs (JSON).",
            show_default=False,
        ),
    ],
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="SHARE", help="Loss of speed that does not count as suffering.")
    ] = 0.1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Fit the skew above which jobs are put on the fewest nodes, from speeds observed together and spread.

    The columns skew, gpus and gpu_type may be added; without skew, the catalogue must know the job class. Only kinds of
    job that were seen both ways count.
    """
    if not 0 <= tolerance < 1:
        raise UserError(f"--tolerance {tolerance:g} is no share of a speed; give one from 0 up to, not including, 1.")
    from horae.workload.skew import compare_speeds, fit_limit
    from horae.workload.speed_observations import load_observations

    observations = load_observations(file)
    limit, kinds = fit_limit(observations, tolerance), compare_speeds(observations, tolerance)
    records = [one._asdict() for one in kinds]
    match output:
        case Output.JSON:
            print_json({"limit": limit, "kinds": records})
        case Output.CSV:
            print_csv(records)
        case Output.TABLE:
            rows = [(*one[:-1], "yes" if one.suffers else "no") for one in kinds]
            told = _told(limit, [one.skew for one in kinds])
            print_rich(table(_COLUMNS, rows), f"Limit {told}: use --placement tiresias:{told}.")
            _explain_default({one.suffers for one in kinds})


def _told(limit: float, skews: Sequence[float]) -> str:
    """The limit in as few digits, from 3 up, as leave every skew on its side of it."""
    texts = (f"{limit:.{digits}g}" for digits in range(3, 18))
    return next(text for text in texts if all((skew > float(text)) == (skew > limit) for skew in skews))


def _explain_default(found: set[bool]) -> None:
    """Say why the default stayed, where it did for want of differences."""
    if len(found) < 2:
        why = "no kind of job was seen both ways" if not found else "all suffer" if True in found else "nobody suffers"
        print_rich(f"It is the default, for {why}: there is nothing to tell apart.")
