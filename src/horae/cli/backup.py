"""`horae backup` and `horae restore`: a copy of a service's journal, and how to put it back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from horae.cli.options import OutputOption
from horae.cli.output import Output, print_csv, print_json, print_rich
from horae.client.address import default_state

StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="State folder of the service (default: ~/.local/state/horae)."),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="HORAE_DATABASE",
        show_envvar=True,
        help="PostgreSQL database of the journal, if it is not in the state folder.",
    ),
]


def backup(
    target: Annotated[
        Path, typer.Argument(metavar="FOLDER|FILE.tar", help="New folder, or new tar file (.tar, .tar.gz).")
    ],
    state: StateOption = None,
    database: DatabaseOption = None,
    logs: Annotated[bool, typer.Option("--logs", help="Also copy what jobs printed.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy the journal of a service, also while it runs, and verify the copy.

    The backup holds jobs, settings, the audit trail, tokens as digests, and the key that signs tokens of running jobs:
    keep it where only the operator can read it. Checkpoints and working folders of jobs are not in it.
    """
    from horae.service.backup import make_backup

    made = make_backup(state or default_state(), database, target, logs)
    record = {**asdict(made), "path": str(made.path)}
    if output is Output.JSON:
        print_json(record)
    elif output is Output.CSV:
        print_csv([record])
    else:
        print_rich(f"{made.path}: {made.jobs} jobs, {made.seq} records, {made.bytes / 1e6:.1f} MB, verified.")


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="Folder or tar file that `horae backup` made.")],
    state: StateOption = None,
    database: DatabaseOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a backup back, with the service stopped. What was there is kept aside.

    Jobs and attempts that the backup does not know keep their numbers for themselves: later ones get higher numbers.
    What still runs of them goes on, and `horae doctor` lists it.
    """
    from horae.cli.running_service import check_stopped
    from horae.service.backup import restore_backup

    folder = state or default_state()
    check_stopped(folder)
    done = restore_backup(source, folder, database)
    record = {**asdict(done), "aside": str(done.aside) if done.aside else None, "state": str(folder)}
    if output is Output.JSON:
        print_json(record)
    elif output is Output.CSV:
        print_csv([record])
    else:
        aside = f" The journal that was there is now {done.aside}." if done.aside else ""
        print_rich(
            f"Restored {done.seq} records to {folder}. New jobs get numbers above {done.job_number}.{aside}",
            "Next: horae serve, with the options of before.",
        )
