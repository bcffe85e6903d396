"""Checks whether a service may order the jobs of a partition's users, and says in sentences what is missing."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping

from horae.backends.driver import OutOfSight
from horae.backends.protocol import RUN_AGAIN
from horae.backends.slurm.command_output import read_config, read_partition
from horae.backends.slurm.commands import SlurmCommands
from horae.backends.slurm.site_checks import SiteReport

_OPERATORS = ("operator", "administrator")


def check_adoption(commands: SlurmCommands, partition: str) -> SiteReport:
    """Ask Slurm for its settings, and check them."""
    commands.check_controller()
    text = commands.read("scontrol", "show", "partition", partition, nothing=f"Partition {partition} not found")
    config = read_config(commands.read("scontrol", "show", "config"))
    user = pwd.getpwuid(os.getuid()).pw_name
    return adoption_report(partition, config, read_partition(text), user, is_operator(commands, config, user))


def adoption_report(
    name: str, config: Mapping[str, str], partition: Mapping[str, str], user: str, operator: bool
) -> SiteReport:
    """What keeps a service of `user` from ordering the jobs of a partition, and what is worth knowing."""
    if not partition:
        return SiteReport((f"Slurm has no partition {name!r}. `sinfo -s` lists them.",))
    return SiteReport(tuple(_errors(name, config, partition, user, operator)), tuple(_warnings(name, config)))


def _errors(
    name: str, config: Mapping[str, str], partition: Mapping[str, str], user: str, operator: bool
) -> Iterator[str]:
    if not operator:
        yield (
            f"{user} may not change jobs of others in Slurm: run the service as root or as {slurm_user(config)}, or "
            f"make {user} an operator with `sacctmgr modify user {user} set adminlevel=operator`."
        )
    if "gpu" not in config.get("GresTypes", "gpu").split(","):
        yield "Slurm does not manage GPUs here: GresTypes in slurm.conf must name gpu."
    if partition.get("OverSubscribe", "").startswith("EXCLUSIVE"):
        yield f"Partition {name} gives whole nodes only (OverSubscribe=EXCLUSIVE): Horae places jobs by GPUs."


def _warnings(name: str, config: Mapping[str, str]) -> Iterator[str]:
    if "lua" not in config.get("JobSubmitPlugins", "").split(","):
        yield (
            f"Slurm may start a job of partition {name} before Horae has seen it (JobSubmitPlugins does not name lua): "
            f"`horae slurm install --partition {name}` says what to do."
        )
    if not _covers(config.get("RequeueExitHold", ""), RUN_AGAIN):
        yield (
            f"Jobs that exit with {RUN_AGAIN} while Horae is away for long may be lost: put "
            f"RequeueExitHold={RUN_AGAIN} into slurm.conf."
        )
    if _covers(config.get("RequeueExit", ""), RUN_AGAIN):
        yield f"Slurm itself runs jobs again that exit with {RUN_AGAIN} (RequeueExit): use RequeueExitHold instead."


def _covers(codes: str, code: int) -> bool:
    """Whether a list such as `75,100-110` has a code."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", codes)
    return any(int(first) <= code <= int(last or first) for first, last in ranges)


def slurm_user(config: Mapping[str, str]) -> str:
    """The user of Slurm's controller: `slurm` in `slurm(64030)`."""
    return config.get("SlurmUser", "root").partition("(")[0]


def sees_jobs_of_others(commands: SlurmCommands) -> bool:
    """Whether Slurm shows jobs of others to the service's user."""
    config = read_config(commands.read("scontrol", "show", "config"))
    hides = "jobs" in config.get("PrivateData", "").split(",")
    return not hides or is_operator(commands, config, pwd.getpwuid(os.getuid()).pw_name)


def is_operator(commands: SlurmCommands, config: Mapping[str, str], user: str) -> bool:
    """Whether a user may change jobs of others: by being root or SlurmUser, or by Slurm's accounts."""
    if os.getuid() == 0 or user == slurm_user(config):
        return True
    try:
        answer = commands.read("sacctmgr", "-n", "-P", "show", "user", user, "format=adminlevel")
    except OutOfSight:  # no accounts here, or no sacctmgr
        return False
    return answer.strip().lower() in _OPERATORS
