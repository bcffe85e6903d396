"""The flag of a service on its partition: a held Slurm job by which other services see that the partition is taken.

The flag is in Slurm itself, so that services find it that share nothing else but their account. Flags of other accounts
are not believed: anybody may name a job like one. It stays when the service ends: its jobs may still run. Of two flags
the older one counts. A service whose flag was taken away, while another one's stands, does nothing any more.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from horae.backends.driver import PiecesRefused
from horae.backends.slurm.commands import ChangeRefused, SlurmCommands
from horae.backends.slurm.queue_listing import FAR
from horae.core.errors import UserError

_LOG = logging.getLogger(__name__)

FLAG_PREFIX = "horae-service-"
#: `squeue -o`: the name may hold any character, so it comes last.
_FORMAT = "%i|%u|%j"


class PartitionTaken(UserError):
    """Another service has the partition."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as Slurm lists it."""

    number: int
    user: str
    service: str
    host: str


def read_flags(text: str) -> list[Flag]:
    """Flags in the output of `squeue`, the oldest first."""
    rows = (line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2)
    flags = [
        Flag(int(number), user, *name.removeprefix(FLAG_PREFIX).partition("@")[::2])
        for number, user, name in rows
        if name.startswith(FLAG_PREFIX) and number.isdigit()
    ]
    return sorted(flags, key=lambda flag: flag.number)


def flags_of(commands: SlurmCommands, partition: str) -> list[Flag]:
    """The flags on a partition that this account has set, the oldest first. Names of others' jobs may hold anything."""
    return read_flags(commands.read("squeue", "-h", "-a", "--me", "-p", partition, "--states=PENDING", "-o", _FORMAT))


def lower_flags(commands: SlurmCommands, partition: str) -> None:
    """Take all flags of a partition away: no service manages it any more."""
    for flag in flags_of(commands, partition):
        with suppress(ChangeRefused):  # cancelled by somebody meanwhile
            commands.change("scancel", "--quiet", str(flag.number))


class PartitionFlag:
    """The flag of one service on one partition."""

    def __init__(self, commands: SlurmCommands, partition: str, service: str, account: str = "", qos: str = "") -> None:
        self._commands, self._partition, self._service = commands, partition, service
        self._account, self._qos = account, qos
        self._numbers: set[int] = set()
        self._is_refused = False

    def raise_flag(self) -> None:
        """Set the flag; raises `PartitionTaken` if an older flag of another service stands."""
        if sentence := self.check():
            raise PartitionTaken(sentence)

    def check(self) -> str:
        """Keep the flag up; returns a sentence if the partition is another service's, else an empty text."""
        flags = self._flags()
        if not self._own(flags) and not flags:
            self._submit()
            flags = self._flags()
        own = self._own(flags)
        others = [flag for flag in flags if flag not in own and (not own or flag.number < own[0].number)]
        for flag in own[1:] if not others else own:
            with suppress(ChangeRefused):
                self._commands.change("scancel", "--quiet", str(flag.number))
        return self._sentence(others[0]) if others else ""

    def _submit(self) -> None:
        """Submit the flag. A site that takes no such job has to do without."""
        try:
            self._commands.submit(self._options(), "#!/bin/sh\nexit 0\n")
        except PiecesRefused as why:
            if not self._is_refused:
                _LOG.warning(
                    "Other services will not see that partition %s is taken: Slurm refused the flag, a held job (%s).",
                    self._partition,
                    why,
                )
            self._is_refused = True

    def is_flag(self, job: str) -> bool:
        """Whether a Slurm job is a flag that was seen."""
        return job.isdigit() and int(job) in self._numbers

    def _flags(self) -> list[Flag]:
        flags = flags_of(self._commands, self._partition)
        self._numbers = {flag.number for flag in flags}
        return flags

    def _own(self, flags: Sequence[Flag]) -> list[Flag]:
        return [flag for flag in flags if flag.service == self._service]

    def _options(self) -> list[str]:
        name = f"{FLAG_PREFIX}{self._service}@{socket.gethostname()}"
        comment = "Horae manages this partition. This job never runs, and is to stay."
        accounting = [f"--{name}={value}" for name, value in (("account", self._account), ("qos", self._qos)) if value]
        return [
            *accounting,
            "--parsable",
            "--quiet",
            "--hold",
            "--no-requeue",
            f"--partition={self._partition}",
            f"--job-name={name}",
            f"--begin={FAR}",
            f"--comment={comment}",
            "--ntasks=1",
            "--time=1",
            "--chdir=/",
            "--output=/dev/null",
        ]

    def _sentence(self, flag: Flag) -> str:
        return (
            f"Partition {self._partition} belongs to another Horae service ({flag.service}, on {flag.host or '?'}; its "
            f"flag is Slurm job {flag.number} of {flag.user}): two services would disturb each other's jobs. Use "
            f"another partition, or, if that service is gone for good, `scancel {flag.number}` and start this one."
        )
