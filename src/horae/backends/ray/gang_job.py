"""Turns the pieces of an attempt into one job of Ray's Jobs API: name, metadata, command. Pure functions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horae.backends.attempt_names import attempt_name
from horae.backends.driver import Piece, PieceId, PiecesRefused
from horae.backends.ray.dashboard_answers import RayNode

#: Key of the metadata with the names of the pieces' nodes, as JSON.
NODES_KEY = "horae_nodes"


@dataclass(frozen=True, slots=True)
class RaySettings:
    """Where the jobs of this service go."""

    #: Short id of the service, unique in the cluster: [a-z0-9]{1,16}.
    service: str
    #: Folder that the service, Ray's head and all nodes share, at the same path.
    shared: Path
    #: Seconds that a gang waits for its GPUs.
    patience_s: float = 60.0


def piece_folder(shared: Path, piece: PieceId) -> Path:
    """The folder of a piece, as the reconciler lays it out."""
    return shared / "jobs" / piece.job / str(piece.attempt) / piece.node


def pieces_in(name: tuple[str, int], metadata: Mapping[str, str]) -> list[PieceId]:
    """The pieces of a Ray job of this service."""
    try:
        nodes = json.loads(metadata.get(NODES_KEY, "[]"))
    except ValueError:
        return []
    return [PieceId(*name, str(node)) for node in nodes]


def job_request(
    settings: RaySettings, pieces: Sequence[Piece], nodes: Mapping[str, RayNode], program: Path
) -> dict[str, Any]:
    """What the Jobs API is asked for. It holds no secrets: everybody who reaches the dashboard can read it."""
    first = pieces[0].id
    for piece in pieces:
        if piece.id.node not in nodes:
            raise PiecesRefused(f"Ray has no living node {piece.id.node}.")
    gang = {
        "patience_s": settings.patience_s,
        "command": list(pieces[0].command),
        "pieces": [_piece(settings, piece, nodes[piece.id.node]) for piece in pieces],
    }
    words = ["exec", "python3", str(program), "drive", json.dumps(gang)]
    return {
        "submission_id": attempt_name(settings.service, first.job, first.attempt),
        "entrypoint": shlex.join(words),
        "metadata": {NODES_KEY: json.dumps([piece.id.node for piece in pieces])},
    }


def _piece(settings: RaySettings, piece: Piece, node: RayNode) -> dict[str, Any]:
    resources: dict[str, float] = {"GPU": piece.gpus, "CPU": cpus_for(piece, node), f"node:{node.address}": 0.001}
    if piece.memory_mb_per_gpu is not None:
        resources["memory"] = piece.memory_mb_per_gpu * piece.gpus * 2**20
    return {"node": piece.id.node, "folder": str(piece_folder(settings.shared, piece.id)), "resources": resources}


def cpus_for(piece: Piece, node: RayNode) -> int:
    """CPUs of a piece: by request, or by its share of the node's GPUs."""
    if piece.cpus_per_gpu is not None:
        return piece.cpus_per_gpu * piece.gpus
    return node.cpus * piece.gpus // max(node.gpus, 1)
