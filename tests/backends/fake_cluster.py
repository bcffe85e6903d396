"""A cluster manager in memory that runs real runners, and can be blind, slow, forgetful and too eager."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence

from horae.backends.driver import (
    NODE_VARIABLE,
    ClusterDriver,
    EndCause,
    Look,
    OutOfSight,
    Piece,
    PieceEnded,
    PieceId,
    PieceRunning,
    PiecesRefused,
    PieceState,
    PieceWaiting,
    SeenNode,
)
from horae.core.cluster import Node


class FakeCluster(ClusterDriver):
    """A driver whose nodes are all this machine. It outlives the reconcilers that use it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = {node.name: SeenNode(node.name, "127.0.0.1", node.gpu_type, node.gpus, 8, 8000) for node in nodes}
        self.foreign: dict[str, tuple[str, ...]] = {}
        self.runners: dict[PieceId, list[subprocess.Popen[bytes]]] = {}
        #: Nodes whose pieces the cluster manager believes to have ended, though they run.
        self.cut_off: set[str] = set()
        #: Nodes whose pieces it believes to run, whatever became of them; nodes on which runners end before they begin.
        self.stuck: set[str] = set()
        self.ends_at_once: set[str] = set()
        #: Why submitted pieces are not started; empty if they are.
        self.not_started = ""
        #: What was printed for pieces whose runners never began.
        self.printed = ""
        #: Whether ended pieces were cancelled by somebody.
        self.cancelled = False
        #: How pieces whose runners have ended are shown.
        self.ended = PieceEnded(None, EndCause.EXITED)
        #: How often the driver was called.
        self.calls = 0
        self.submitted: list[PieceId] = []
        #: The last pieces that were to be submitted.
        self.asked: Sequence[Piece] = ()
        self.blind, self.refuses = False, ""
        #: How many of the next submissions are lost, are done twice, or are done though the answer is lost.
        self.lose = self.double = self.lose_answer = 0
        #: Cleared: every call hangs.
        self.answers = threading.Event()
        self.answers.set()

    def _ask(self) -> None:
        self.calls += 1
        self.answers.wait()
        if self.blind:
            raise OutOfSight("The fake cluster is blind.")

    def look(self) -> Look:
        self._ask()
        return Look(dict(self.nodes), {piece: self._state(piece) for piece in self.runners}, dict(self.foreign))

    def _state(self, piece: PieceId) -> PieceState:
        if piece.node in self.cut_off:
            return PieceEnded(None, EndCause.STOPPED, "node failed")
        if piece.node in self.stuck:
            return PieceRunning()
        if not self.runners[piece] and not self.cancelled:
            return PieceWaiting(self.not_started)
        if any(runner.poll() is None for runner in self.runners[piece]):
            return PieceRunning()
        return PieceEnded(None, EndCause.CANCELLED) if self.cancelled else self.ended

    def submit(self, pieces: Sequence[Piece]) -> None:
        self._ask()
        self.asked = pieces
        if self.refuses:
            raise PiecesRefused(self.refuses)
        if self.lose:
            self.lose -= 1
            return
        times = 1 + (self.double > 0)
        self.double -= self.double > 0
        for piece in pieces:
            if piece.id not in self.runners:
                self.submitted.append(piece.id)
                self.runners[piece.id] = [self._begin(piece) for _ in range(0 if self.not_started else times)]
        if self.lose_answer:
            self.lose_answer -= 1
            raise OutOfSight("The answer was lost.")

    def last_line(self, piece: Piece) -> str:
        return self.printed

    def _begin(self, piece: Piece) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], NODE_VARIABLE: piece.id.node, "CUDA_VISIBLE_DEVICES": "5"}
        command = ("true",) if piece.id.node in self.ends_at_once else piece.command
        return subprocess.Popen(command, env=env, start_new_session=True)

    def kill(self, piece: PieceId) -> None:
        self._ask()
        for runner in self.runners.get(piece, ()):
            runner.kill()
        self.cancelled |= not self.runners.get(piece)

    def forget(self, piece: PieceId) -> None:
        self._ask()
        if piece in self.runners and isinstance(self._state(piece), PieceEnded):
            del self.runners[piece]
