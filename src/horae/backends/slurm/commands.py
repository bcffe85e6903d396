"""Runs Slurm's commands, each with a time limit, from a clean environment.

With a dead controller most commands wait 9 to 18 seconds. `scontrol ping` answers in a tenth of a second, so it is
asked first.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping

from horae.backends.driver import OutOfSight, PiecesRefused
from horae.backends.slurm.command_output import controller_is_up
from horae.core.errors import UserError

PROGRAMS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue")
#: Variables that Slurm's commands get from the service. `SBATCH_*` and `SLURM_*` would change what is submitted,
#: and `--export=ALL` gives all variables of `sbatch` to the job.
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "SLURM_CONF")
#: Failures of `sbatch` after which the job may be there, or could be accepted later.
_PASSING = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Insane message length",
    "Message receive failure",
    "Resource temporarily unavailable",
    "Slurm backup controller in standby mode",
    "Slurm temporarily unable to accept job",
    "uthentication",
    "Munge",
)
#: What `scancel` says of a job that it finds and that ends by itself.
_ENDING = "already completing or completed"


class NoSlurm(UserError):
    """Slurm's commands are not installed."""


class ChangeRefused(Exception):
    """Slurm will not make a change, in its own words."""


class SlurmCommands:
    """Slurm's commands."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        ping_s: float = 2.0,
        read_s: float = 10.0,
        write_s: float = 20.0,
    ) -> None:
        self._environment = {name: environment[name] for name in PASSED_ON if name in environment}
        # Messages are compared with English texts.
        self._environment["LC_ALL"] = "C.UTF-8"
        # Times identify jobs, and must not depend on a zone. Jobs get the environment of `sbatch`, which keeps its own.
        self._reading = {**self._environment, "TZ": "UTC"}
        self._user = pwd.getpwuid(os.getuid()).pw_name
        self._ping_s, self._read_s, self._write_s = ping_s, read_s, write_s
        missing = [name for name in PROGRAMS if not shutil.which(name, path=self._environment.get("PATH"))]
        if missing:
            raise NoSlurm(f"Slurm's command {missing[0]} was not found. Install Slurm's client, or set PATH.")

    def check_controller(self) -> None:
        """Raise `OutOfSight` if no controller answers."""
        ping = self._run(["scontrol", "ping"], self._ping_s)
        if not controller_is_up(ping.stdout):
            lines = [line for line in ping.stdout.splitlines() if line.startswith("Slurmctld")]
            raise OutOfSight(f"The Slurm controller does not answer: {', '.join(lines) or _last_line(ping.stderr)}.")

    def read(self, *command: str, nothing: str = "") -> str:
        """The output of a command that changes nothing; empty if it says `nothing`."""
        ran = self._run(command, self._read_s)
        if nothing and nothing in ran.stdout + ran.stderr:
            return ""
        if ran.returncode:
            raise OutOfSight(f"{command[0]} failed: {_last_line(ran.stderr or ran.stdout)}")
        return ran.stdout

    def submit(self, options: list[str], script: str) -> None:
        """Submit a batch script."""
        ran = self._run(["sbatch", *options], self._write_s, script)
        if not ran.returncode:
            return
        why = _last_line(ran.stderr)
        raise OutOfSight(f"sbatch failed: {why}") if is_passing(ran.stderr) else PiecesRefused(why)

    def cancel(self, name: str) -> None:
        """End all jobs of this user with a name. Without such a job nothing happens.

        Jobs are told by name, never by id: a controller that was killed gives ids out again. Slurm sends TERM, and
        KILL after the site's KillWait; `--signal=KILL` means the same to it.
        """
        ran = self._run(["scancel", "--quiet", f"--user={self._user}", f"--name={name}"], self._write_s)
        if ran.returncode and _ENDING not in ran.stderr:
            raise OutOfSight(f"scancel failed: {_last_line(ran.stderr)}")

    def change(self, *command: str) -> None:
        """Run a command that changes a job; raises `ChangeRefused` if Slurm will not do it."""
        ran = self._run(command, self._write_s)
        if ran.returncode:
            why = _last_line(ran.stderr or ran.stdout)
            raise OutOfSight(f"{command[0]} failed: {why}") if is_passing(ran.stderr) else ChangeRefused(why)

    def _run(
        self, command: list[str] | tuple[str, ...], limit_s: float, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                env=self._environment if command[0] == "sbatch" else self._reading,
                cwd="/",
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            raise OutOfSight(f"{command[0]} gave no answer within {limit_s:g} s.") from None
        except OSError as why:
            raise OutOfSight(f"{command[0]} cannot be run: {why}") from None


def is_passing(message: str) -> bool:
    """Whether a message of Slurm is about a controller that could not be reached, not about the request."""
    return any(text in message for text in _PASSING)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "no message"
