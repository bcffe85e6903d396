"""The driver protocol: what Horae asks of a cluster manager such as Slurm, Ray or Kubernetes. Public.

A driver looks and acts; it remembers nothing and decides nothing. What calls it compares each look with what is
wanted and does what is missing, so every method may be called again after a lost answer. A piece is the part of an
attempt that runs on one node. Each piece runs the same command and finds its node's name in `HORAE_NODE`. It is asked
to save and end by a file on the folder that all nodes share, not by a driver.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

#: Variable with the name of the node that a piece runs on: nodes have names, ranks follow from them.
NODE_VARIABLE = "HORAE_NODE"


class OutOfSight(Exception):
    """The cluster manager could not be asked, or its answer was lost. Nothing may be concluded from that.

    After a `submit` that raises this, a later look tells whether the pieces are there.
    """


class PiecesRefused(Exception):
    """The cluster manager will not take these pieces, in its own words. None of them runs."""


@dataclass(frozen=True, slots=True, order=True)
class PieceId:
    """The part of an attempt that runs on one node."""

    job: str
    attempt: int
    node: str


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece to submit. All pieces of an attempt have the same `command`."""

    id: PieceId
    gpu_type: str
    gpus: int
    #: The program and its arguments, started without a shell.
    command: tuple[str, ...] = field(repr=False)
    #: None means the node's CPUs, or its memory, by the piece's share of its GPUs.
    cpus_per_gpu: int | None = None
    memory_mb_per_gpu: int | None = None
    #: Container image to run the command in; empty means none.
    image: str = ""


class EndCause(enum.Enum):
    """What ended a piece, as far as the cluster manager knows."""

    #: The command has ended. With `code` None only the runner knows how.
    EXITED = "exited"
    #: The command could not be started, or broke a limit of its own.
    FAILED = "failed"
    #: The cluster manager or a node ended the piece: no fault of the job.
    STOPPED = "stopped"
    #: Somebody cancelled the piece: Horae, a person, or the cluster manager itself, which does not tell them apart.
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class PieceWaiting:
    """Accepted, not started, says the cluster manager; `why` is in its words.

    A restarted cluster manager may say this of a piece that runs or has ended, and start it again.
    """

    why: str = ""


@dataclass(frozen=True, slots=True)
class PieceRunning:
    """Started, or about to end: it may have processes, and holds its GPUs."""


@dataclass(frozen=True, slots=True)
class PieceEnded:
    """Ended, says the cluster manager. If a node was cut off, processes may live on there."""

    code: int | None
    cause: EndCause
    why: str = ""


PieceState = PieceWaiting | PieceRunning | PieceEnded


def host_of(node: str) -> str:
    """The machine of a node: one with several GPU types has a node `HOST/TYPE` for each."""
    return node.partition("/")[0]


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node, or the GPUs of one type on a machine that has several types."""

    name: str
    #: Where the other pieces of a gang reach it; names need not resolve.
    address: str
    gpu_type: str
    gpus: int
    #: CPUs and memory for these GPUs.
    cpus: int
    memory_mb: int
    #: Empty if unknown.
    rack: str = ""
    #: Whether the cluster manager starts pieces there now.
    is_open: bool = True
    #: Whether the cluster manager has given the node up. Silence alone is not loss.
    is_lost: bool = False
    #: Why the node is closed or lost, in the words of the cluster manager.
    why: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What a cluster manager shows at one moment."""

    nodes: Mapping[str, SeenNode]
    #: Every piece of this service that the cluster manager still knows. Ended pieces are forgotten after a while.
    pieces: Mapping[PieceId, PieceState]
    #: Work of others on these nodes, each described in a few words, by node.
    foreign: Mapping[str, tuple[str, ...]]


class ClusterDriver(Protocol):
    """All that a cluster manager has to do. Methods may wait, and may raise `OutOfSight`; one thread calls them."""

    #: Which settings of a piece the driver passes on, as in `Backend.honours`.
    honours: frozenset[str] = frozenset()
    #: Seconds that the cluster manager may take to start pieces that it has accepted, unless the operator says more.
    launch_limit_s: float = 300.0

    def look(self) -> Look:
        """The nodes, and the pieces of this service, as they are now."""

    def submit(self, pieces: Sequence[Piece]) -> None:
        """Let the pieces of one attempt run on their nodes; raises `PiecesRefused` if that is not possible.

        Pieces that the cluster manager knows are left alone, even if ended. It may have forgotten a piece that runs or
        has run, and start it again: the runner sees to it that an attempt runs once.
        """

    def kill(self, piece: PieceId) -> None:
        """End a piece without its grace period, started or not. This may end other pieces of its attempt, too."""

    def forget(self, piece: PieceId) -> None:
        """Drop what the cluster manager keeps of an ended piece. A second call changes nothing."""

    def last_line(self, piece: Piece) -> str:
        """The last line that was printed for a piece whose runner never began; empty if the driver knows none."""
        return ""
