"""`horae slurm`: lets Horae order the jobs of a Slurm partition, and gives them back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horae.cli.running_service import check_stopped
from horae.cli.usage_errors import PlainUsage
from horae.client.address import default_state
from horae.core.errors import UserError

if TYPE_CHECKING:
    from horae.backends.slurm.commands import SlurmCommands

app = typer.Typer(
    help="Let Horae order the jobs of a Slurm partition; give them back.", no_args_is_help=True, rich_markup_mode=None
)

PartitionOption = Annotated[str, typer.Option("--partition", metavar="NAME", help="The partition.")]
FolderOption = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="Folder of slurm.conf on the controller (default: as Slurm says)."),
]


@app.command("install", cls=PlainUsage)
def install(partition: PartitionOption, folder: FolderOption = None) -> None:
    """Write the job_submit.lua by which jobs of a partition wait for Horae. Run it on the controller, as root.

    Only jobs of this partition that ask for GPUs are touched: they are held, and may be run again. Those of srun and
    salloc are refused. A job_submit.lua that is there already is kept, with Horae's part added. The lines that
    slurm.conf needs are printed.
    """
    from horae.backends.slurm.adoption_checks import check_adoption
    from horae.backends.slurm.submit_plugin import install as write_plugin
    from horae.backends.slurm.submit_plugin import settings_lines

    commands, config = _slurm()
    report = check_adoption(commands, partition)
    if report.errors:
        raise UserError(report.errors[0])
    path = write_plugin(folder or _folder(config), partition)
    typer.echo(f"{path} holds new jobs of partition {partition} that ask for GPUs, until Horae lets them run.")
    typer.echo(
        "srun and salloc outside of a job get no GPUs there any more: users submit with sbatch. Jobs that name several "
        f"partitions (-p {partition},others) go to {partition} alone."
    )
    if lines := settings_lines(config):
        typer.echo("Put this into slurm.conf, then restart slurmctld:")
        typer.echo("\n".join(f"  {line}" for line in lines))
        typer.echo("RequeueExitHold is for all partitions: jobs elsewhere that exit with 75 would be held, too.")
    typer.echo(f"Then: horae serve --backend slurm --adopt {partition}")


@app.command("uninstall", cls=PlainUsage)
def uninstall(
    partition: PartitionOption,
    folder: FolderOption = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="State folder of the service that adopted it.")
    ] = None,
) -> None:
    """Take Horae's part out of job_submit.lua, and give waiting jobs back to Slurm. Running jobs run on.

    Stop the service first. Holds of users stay. Start times and nodes are as their users asked for; without the state
    folder of the service, jobs keep the nodes that Horae chose.
    """
    from horae.backends.slurm.adopted_job import AdoptionRecords
    from horae.backends.slurm.give_back import give_back
    from horae.backends.slurm.partition_flag import lower_flags
    from horae.backends.slurm.submit_plugin import uninstall as remove_plugin

    home = state or default_state()
    check_stopped(home)
    commands, config = _slurm()
    was_there = remove_plugin(folder or _folder(config), partition)
    note = "no longer holds jobs" if was_there else "did not hold jobs"
    typer.echo(f"job_submit.lua {note} of partition {partition}.")
    records = AdoptionRecords(home).jobs if (home / "adopted").is_dir() else {}
    found = give_back(commands, partition, records, config.get("JobRequeue", "1") != "0")
    lower_flags(commands, partition)
    typer.echo(f"{len(found.given)} waiting jobs are Slurm's again.")
    if found.unrecorded:
        typer.echo(
            f"{len(found.unrecorded)} of them have no record in {home}, and keep the nodes that Horae may have chosen. "
            "Run this again with --state DIR of their service, and they get the nodes that their users asked for."
        )
    if found.refused:
        typer.echo(f"Slurm refused to change {', '.join(found.refused)}: look at them with scontrol show job.")
    typer.echo(
        "JobSubmitPlugins=lua, RequeueExitHold=75 and an empty job_submit.lua can go, if nothing else needs them. Jobs "
        "that still run and exit with 75 stay held in Slurm: `scontrol release` runs them again."
    )


def _slurm() -> tuple[SlurmCommands, dict[str, str]]:
    """Slurm's commands and settings; a controller that is away is told in a sentence."""
    from horae.backends.driver import OutOfSight
    from horae.backends.slurm.command_output import read_config
    from horae.backends.slurm.commands import SlurmCommands

    commands = SlurmCommands()
    try:
        commands.check_controller()
        return commands, read_config(commands.read("scontrol", "show", "config"))
    except OutOfSight as why:
        raise UserError(f"{why} Start it, and try again.") from None


def _folder(config: dict[str, str]) -> Path:
    """The folder of slurm.conf, as the controller says."""
    return Path(config.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent
