"""A driver of any size without processes: its pieces write the files of runners, and end when their time is up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from horae.backends.driver import (
    ClusterDriver,
    EndCause,
    Look,
    Piece,
    PieceEnded,
    PieceId,
    PieceRunning,
    PieceState,
    SeenNode,
)
from horae.backends.local import runner


class ScriptedCluster(ClusterDriver):
    """Nodes with eight GPUs each. `look` takes as long as it takes to go through all pieces."""

    def __init__(self, nodes: Iterable[str], lasts_s: float) -> None:
        self.nodes = {name: _node(name) for name in nodes}
        self.lasts_s = lasts_s
        self.pieces: dict[PieceId, PieceState] = {}
        self._ends_s: dict[PieceId, tuple[float, Path]] = {}
        #: Seconds between two looks, which is what a round of the reconciler takes and waits.
        self.rounds_s: list[float] = []
        #: How long each look took, and how many pieces it showed.
        self.looks: list[tuple[float, int]] = []
        self._looked_s = time.monotonic()

    def resize(self, nodes: Iterable[str]) -> None:
        """Let nodes come and go; only idle ones may go."""
        self.nodes = {name: _node(name) for name in nodes}

    @property
    def busy(self) -> set[str]:
        """Nodes with pieces."""
        return {piece.node for piece, state in self.pieces.items() if isinstance(state, PieceRunning)}

    def look(self) -> Look:
        now_s = time.monotonic()
        self.rounds_s.append(now_s - self._looked_s)
        self._looked_s = now_s
        for piece, (end_s, folder) in list(self._ends_s.items()):
            if now_s >= end_s or (folder / runner.STOP).exists():
                self._end(piece, folder, stopped=now_s < end_s)
        look = Look(dict(self.nodes), dict(self.pieces), {})
        self.looks.append((time.monotonic() - now_s, len(look.pieces)))
        return look

    def _end(self, piece: PieceId, folder: Path, stopped: bool) -> None:
        word = {"code": 75 if stopped else 0, "signal": 0, "stopped": stopped, "up_s": self.lasts_s}
        (folder / runner.EXIT).write_text(json.dumps(word))
        self.pieces[piece] = PieceEnded(0, EndCause.EXITED)
        del self._ends_s[piece]

    def submit(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            folder = Path(piece.command[-2]) / piece.id.node
            (folder / runner.CLAIM).write_text('{"by": "node"}')
            (folder / runner.RUNNER).write_text('{"up_at": 1.0}')
            self.pieces[piece.id] = PieceRunning()
            self._ends_s[piece.id] = (time.monotonic() + self.lasts_s, folder)

    def kill(self, piece: PieceId) -> None:
        if piece in self._ends_s:
            self._end(piece, self._ends_s[piece][1], stopped=True)

    def forget(self, piece: PieceId) -> None:
        self.pieces.pop(piece, None)


def _node(name: str) -> SeenNode:
    return SeenNode(name, "10.0.0.1", "a100", 8, 64, 512_000)
