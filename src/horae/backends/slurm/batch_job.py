"""Turns pieces into Slurm jobs: options of `sbatch` and the batch script. Pure functions.

Pieces of an attempt with the same number of GPUs make up one Slurm job. A gang of 4 + 4 + 2 GPUs is two jobs:
`--gpus=10` would fill the first nodes instead, and Slurm starts heterogeneous jobs only in its slow backfill cycle.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from horae.backends.attempt_names import attempt_name
from horae.backends.driver import NODE_VARIABLE, Piece, PiecesRefused, host_of
from horae.backends.slurm.command_output import SlurmHost

#: The batch script. It ends with 0 whatever happened: sites requeue jobs by exit code (RequeueExit), which overrules
#: --no-requeue. The runner records how the piece ended.
_SCRIPT = """\
#!/bin/sh
{srun}/bin/sh -c {start} horae {command}
exit 0
"""
#: Starts the command on each node. -c is repeated because srun does not take it over from sbatch since Slurm 22.05;
#: no piece is ended because another one has ended: that is for the runners to decide.
_SRUN = (
    "srun --ntasks-per-node=1 --nodes={nodes} --cpus-per-task={cpus} --export=ALL --kill-on-bad-exit=0 --wait=0 "
    "--input=none --quiet "
)


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Where jobs of this service go, and what `sbatch` is told of them."""

    #: Short id of the service, unique in the cluster: [a-z0-9]{1,16}.
    service: str
    partition: str
    #: Folder that the service and all nodes share, at the same path.
    shared: Path
    account: str = ""
    qos: str = ""


def attempt_folder(shared: Path, job: str, attempt: int) -> Path:
    """The folder of an attempt."""
    return shared / "jobs" / job / str(attempt)


def output_file(shared: Path, piece: Piece) -> Path:
    """What the batch script of a piece's group prints; pieces have logs of their own."""
    return attempt_folder(shared, piece.id.job, piece.id.attempt) / f"slurm-{piece.gpus}.txt"


def groups_of(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """Pieces of an attempt that make up one Slurm job: those with the same request."""
    groups: dict[tuple[object, ...], list[Piece]] = {}
    for piece in pieces:
        request = (piece.gpu_type, piece.gpus, piece.cpus_per_gpu, piece.memory_mb_per_gpu, piece.command)
        groups.setdefault(request, []).append(piece)
    return list(groups.values())


def sbatch_options(
    settings: SlurmSettings, group: Sequence[Piece], hosts: Mapping[str, SlurmHost], time: str
) -> list[str]:
    """Options for a group of pieces. `time` is the longest time that the partition allows."""
    first = group[0]
    names = [host_of(piece.id.node) for piece in group]
    for name in names:
        if name not in hosts:
            raise PiecesRefused(f"Partition {settings.partition} has no node {name}.")
    folder = str(attempt_folder(settings.shared, first.id.job, first.id.attempt))
    memory_mb = memory_mb_for(group, hosts)
    options = {
        "job-name": attempt_name(settings.service, first.id.job, first.id.attempt),
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "nodes": str(len(names)),
        "nodelist": ",".join(names),
        "ntasks-per-node": "1",
        "cpus-per-task": str(cpus_for(group, hosts)),
        "mem": f"{memory_mb}M" if memory_mb else "",
        "gres": _gres(first, hosts[names[0]]),
        "time": time,
        "export": "ALL",
        "chdir": folder,
        # `%` begins a pattern there.
        "output": str(output_file(settings.shared, first)).replace("%", "%%"),
        "open-mode": "append",
    }
    return ["--parsable", "--quiet", "--no-requeue", *(f"--{name}={value}" for name, value in options.items() if value)]


def batch_script(group: Sequence[Piece], cpus: int) -> str:
    """The batch script of a group. Every value in it is quoted."""
    first = group[0]
    suffix = first.id.node[len(host_of(first.id.node)) :]
    start = (
        f'{NODE_VARIABLE}="$SLURMD_NODENAME"{shlex.quote(suffix) if suffix else ""}; export {NODE_VARIABLE}; exec "$@"'
    )
    return _SCRIPT.format(
        srun=_SRUN.format(nodes=len(group), cpus=cpus) if len(group) > 1 else "",
        start=shlex.quote(start),
        command=shlex.join(first.command),
    )


def cpus_for(group: Sequence[Piece], hosts: Mapping[str, SlurmHost]) -> int:
    """CPUs on each node of a group: by request, or by the share of GPUs on the node that has least."""
    piece = group[0]
    if piece.cpus_per_gpu is not None:
        return max(piece.cpus_per_gpu * piece.gpus, 1)
    return max(min(_share(hosts[host_of(each.id.node)].cpus, each, hosts) for each in group), 1)


def memory_mb_for(group: Sequence[Piece], hosts: Mapping[str, SlurmHost]) -> int:
    """Memory on each node of a group, like `cpus_for`; 0 if Slurm does not know the nodes' memory."""
    piece = group[0]
    if piece.memory_mb_per_gpu is not None:
        return piece.memory_mb_per_gpu * piece.gpus
    return min(_share(hosts[host_of(each.id.node)].memory_mb, each, hosts) for each in group)


def _share(amount: int, piece: Piece, hosts: Mapping[str, SlurmHost]) -> int:
    return amount * piece.gpus // max(sum(hosts[host_of(piece.id.node)].gpus.values()), 1)


def _gres(piece: Piece, host: SlurmHost) -> str:
    """The request for GPUs. Slurm knows the type only if the host declares it."""
    return f"gpu:{piece.gpu_type}:{piece.gpus}" if piece.gpu_type in host.gpus else f"gpu:{piece.gpus}"
