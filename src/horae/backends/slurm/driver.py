"""`SlurmDriver`: shows Slurm's nodes and the pieces of this service, submits pieces and ends them.

Nothing is remembered between calls. Pieces are found by the name of their Slurm job, and only among jobs of the
service's own user: names of other users' jobs may hold anything.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from horae.backends.attempt_names import attempt_name, read_attempt_name
from horae.backends.driver import (
    ClusterDriver,
    Look,
    OutOfSight,
    Piece,
    PieceEnded,
    PieceId,
    PiecesRefused,
    PieceState,
    PieceWaiting,
    SeenNode,
)
from horae.backends.slurm.batch_job import (
    SlurmSettings,
    attempt_folder,
    batch_script,
    cpus_for,
    groups_of,
    output_file,
    sbatch_options,
)
from horae.backends.slurm.batch_output import last_line
from horae.backends.slurm.command_output import (
    JOB_FORMAT,
    NODE_FORMAT,
    SlurmHost,
    SlurmJob,
    gpu_type_of,
    read_config,
    read_hosts,
    read_jobs,
    read_partition,
    read_racks,
)
from horae.backends.slurm.commands import SlurmCommands
from horae.backends.slurm.partition_flag import PartitionFlag
from horae.backends.slurm.site_checks import SiteReport, check_site
from horae.core.errors import UserError


class BadSlurmSettings(UserError):
    """A service id or folder that cannot be used with Slurm."""


class SlurmDriver(ClusterDriver):
    """A `ClusterDriver` for one partition of a Slurm cluster."""

    honours = frozenset({"cpus_per_gpu", "memory_per_gpu"})

    def __init__(self, settings: SlurmSettings, commands: SlurmCommands, flag: PartitionFlag | None = None) -> None:
        if not re.fullmatch(r"[a-z0-9]{1,16}", settings.service):
            raise BadSlurmSettings(f"{settings.service!r} cannot be the id of a service: use 1 to 16 of a-z and 0-9.")
        if not settings.shared.is_absolute() or "\\" in str(settings.shared):
            raise BadSlurmSettings(
                f"{settings.shared} cannot be the shared folder: give a full path without a backslash."
            )
        self._settings, self._commands, self._flag = settings, commands, flag

    def check_site(self) -> SiteReport:
        """What in the site's settings stands in the way, in sentences."""
        self._commands.check_controller()
        partition = self._commands.read(
            "scontrol",
            "show",
            "partition",
            self._settings.partition,
            nothing=f"Partition {self._settings.partition} not found",
        )
        user = pwd.getpwuid(os.getuid())
        groups = [group.gr_name for group in map(_group, os.getgrouplist(user.pw_name, user.pw_gid)) if group]
        config = self._commands.read("scontrol", "show", "config")
        return check_site(
            self._settings.partition, read_config(config), read_partition(partition), user.pw_name, groups
        )

    def look(self) -> Look:
        """The nodes, and the pieces of this service, as they are now."""
        self._commands.check_controller()
        if self._flag and (taken := self._flag.check()):
            raise OutOfSight(taken)
        hosts = self._hosts()
        racks = racks_of(self._commands)
        own = self._own_jobs()
        foreign = self._foreign_jobs(hosts, {job.id for job in own})
        return Look(
            nodes={node.name: node for host in hosts.values() for node in seen_nodes(host, racks.get(host.name, ""))},
            pieces=pieces_of(self._settings.service, own, hosts),
            foreign=foreign_by_node(foreign, hosts),
        )

    def submit(self, pieces: Sequence[Piece]) -> None:
        """Submit the pieces that Slurm does not know, one Slurm job for each GPU count.

        If a job is refused, the other jobs of the attempt are cancelled.
        """
        attempts = {(piece.id.job, piece.id.attempt) for piece in pieces}
        assert len(attempts) <= 1, f"pieces of several attempts: {attempts}"
        self._commands.check_controller()
        hosts = self._hosts()
        there = pieces_of(self._settings.service, self._own_jobs(), hosts)
        time = self._time_limit()
        for group in groups_of(piece for piece in pieces if piece.id not in there):
            self._submit_group(group, hosts, time)

    def _submit_group(self, group: Sequence[Piece], hosts: Mapping[str, SlurmHost], time: str) -> None:
        job, attempt = group[0].id.job, group[0].id.attempt
        try:
            options = sbatch_options(self._settings, group, hosts, time)
            attempt_folder(self._settings.shared, job, attempt).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._commands.submit(options, batch_script(group, cpus_for(group, hosts)))
        except PiecesRefused:
            self._commands.cancel(attempt_name(self._settings.service, job, attempt))
            raise
        except OSError as why:
            raise OutOfSight(f"The shared folder cannot be written: {why.strerror}.") from None

    def kill(self, piece: PieceId) -> None:
        """Cancel all Slurm jobs of the piece's attempt."""
        self._commands.check_controller()
        self._commands.cancel(attempt_name(self._settings.service, piece.job, piece.attempt))

    def forget(self, piece: PieceId) -> None:
        """Do nothing: Slurm forgets ended jobs by itself, MinJobAge after their end."""

    def last_line(self, piece: Piece) -> str:
        """The last line that the batch job of a piece printed."""
        return last_line(output_file(self._settings.shared, piece))

    def _hosts(self) -> dict[str, SlurmHost]:
        return hosts_of(self._commands, self._settings.partition)

    def _own_jobs(self) -> list[SlurmJob]:
        """Slurm jobs of this service, ended ones included, in any partition."""
        jobs = read_jobs(self._commands.read("squeue", "-h", "-a", "--me", "--states=all", "-o", JOB_FORMAT))
        return [job for job in jobs if read_attempt_name(self._settings.service, job.name)]

    def _foreign_jobs(self, hosts: Mapping[str, SlurmHost], own: Collection[str]) -> list[SlurmJob]:
        """Jobs on these hosts that are not of this service."""
        return [job for job in jobs_on(self._commands, hosts) if job.id not in own]

    def _time_limit(self) -> str:
        """The longest time the partition allows: its default may be an hour."""
        text = self._commands.read("scontrol", "show", "partition", self._settings.partition)
        return read_partition(text).get("MaxTime", "UNLIMITED")


def hosts_of(commands: SlurmCommands, partition: str) -> dict[str, SlurmHost]:
    """Hosts of a partition. A partition without hosts is not believed: it may be renamed or not yet read."""
    hosts = read_hosts(commands.read("sinfo", "-h", "-N", "-p", partition, "-o", NODE_FORMAT))
    if not hosts:
        raise OutOfSight(f"Slurm shows no nodes in partition {partition}.")
    return hosts


def racks_of(commands: SlurmCommands) -> dict[str, str]:
    """The rack of each host, as far as Slurm knows."""
    return read_racks(commands.read("scontrol", "show", "topology", nothing="No topology information"))


def jobs_on(commands: SlurmCommands, hosts: Iterable[str]) -> list[SlurmJob]:
    """Jobs of all users that have these hosts, in any partition, without their names: those may hold whole lines."""
    nameless = JOB_FORMAT.removesuffix("%j")
    return read_jobs(commands.read("squeue", "-h", "-a", "-r", f"--nodelist={','.join(hosts)}", "-o", nameless))


def seen_nodes(host: SlurmHost, rack: str) -> Iterator[SeenNode]:
    """The nodes of a host: one, or one for each GPU type, or none on a host without GPUs."""
    total = sum(host.gpus.values())
    for gpu_type, gpus in host.gpus.items():
        yield SeenNode(
            name=node_name(host, gpu_type),
            address=host.address,
            gpu_type=gpu_type or gpu_type_of(host.features),
            gpus=gpus,
            cpus=host.cpus * gpus // total,
            # Slurm shows 1 MB where nobody has told it how much there is.
            memory_mb=host.memory_mb * gpus // total if host.memory_mb > 1 else 0,
            rack=rack,
            is_open=host.is_open,
            is_lost=host.is_lost,
            why=host.why,
        )


def node_name(host: SlurmHost, gpu_type: str) -> str:
    """The name of the node with the GPUs of a GRES type on a host."""
    return host.name if len(host.gpus) < 2 else f"{host.name}/{gpu_type or gpu_type_of(host.features)}"


def pieces_of(service: str, jobs: Sequence[SlurmJob], hosts: Mapping[str, SlurmHost]) -> dict[PieceId, PieceState]:
    """The pieces of this service. If two Slurm jobs hold the same piece, the livelier one counts."""
    pieces: dict[PieceId, PieceState] = {}
    for job in jobs:
        if name := read_attempt_name(service, job.name):
            for host in job.hosts:
                piece = PieceId(*name, node_name(hosts[host], job.gpu_type) if host in hosts else host)
                pieces[piece] = max(pieces.get(piece, job.state), job.state, key=_liveliness)
    return pieces


def _liveliness(state: PieceState) -> int:
    match state:
        case PieceEnded():
            return 0
        case PieceWaiting():
            return 1
        case _:
            return 2


def foreign_by_node(jobs: Sequence[SlurmJob], hosts: Mapping[str, SlurmHost]) -> dict[str, tuple[str, ...]]:
    """Foreign jobs in words, by node. Which GPUs of a host they hold is not asked."""
    found: dict[str, list[str]] = {}
    for job in jobs:
        for host in job.hosts:
            for node in seen_nodes(hosts[host], "") if host in hosts else ():
                found.setdefault(node.name, []).append(f"Slurm job {job.id} of {job.user}")
    return {node: tuple(texts) for node, texts in found.items()}


def _group(number: int) -> grp.struct_group | None:
    try:
        return grp.getgrgid(number)
    except KeyError:
        return None
