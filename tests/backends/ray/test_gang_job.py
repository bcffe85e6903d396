"""From pieces to a job of Ray's Jobs API."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from horae.backends.driver import Piece, PieceId, PiecesRefused
from horae.backends.ray.dashboard_answers import living_nodes, read_nodes
from horae.backends.ray.gang_job import RaySettings, cpus_for, job_request, pieces_in
from tests.backends.ray.fake_dashboard import node_entry

NODES = living_nodes(read_nodes([node_entry("v1"), node_entry("v2", number=3)]))
SETTINGS = RaySettings("s1", Path("/mnt/it's shared"))


def piece(node: str = "v1", gpus: int = 1) -> Piece:
    return Piece(PieceId("a-1", 2, node), "v100", gpus, ("python3", "-I", "runner.py", "$HOME"))


def test_a_gang_is_one_job_whose_bundles_name_their_nodes() -> None:
    request = job_request(SETTINGS, [piece("v2", 3), piece("v1", 1)], NODES, Path("/mnt/gang.py"))
    assert request["submission_id"] == "horae-s1-a-1-2"
    assert pieces_in(("a-1", 2), request["metadata"]) == [PieceId("a-1", 2, "v2"), PieceId("a-1", 2, "v1")]
    exec_, python, program, action, text = shlex.split(request["entrypoint"])
    assert (exec_, python, program, action) == ("exec", "python3", "/mnt/gang.py", "drive")
    gang = json.loads(text)
    assert gang["command"] == ["python3", "-I", "runner.py", "$HOME"]
    assert gang["pieces"] == [
        {
            "node": "v2",
            "folder": "/mnt/it's shared/jobs/a-1/2/v2",
            "resources": {"GPU": 3, "CPU": 6, "node:10.0.0.3": 0.001},
        },
        {
            "node": "v1",
            "folder": "/mnt/it's shared/jobs/a-1/2/v1",
            "resources": {"GPU": 1, "CPU": 2, "node:10.0.0.2": 0.001},
        },
    ]


def test_a_node_that_is_gone_is_refused() -> None:
    with pytest.raises(PiecesRefused, match="no living node v3"):
        job_request(SETTINGS, [piece("v3")], NODES, Path("/mnt/gang.py"))


def test_cpus_and_memory_are_those_asked_for_or_the_share_of_the_node() -> None:
    assert cpus_for(piece(gpus=2), NODES["v1"]) == 4
    assert cpus_for(replace(piece(gpus=2), cpus_per_gpu=3), NODES["v1"]) == 6
    asked = replace(piece(gpus=2), memory_mb_per_gpu=100)
    request = job_request(SETTINGS, [asked], NODES, Path("/gang.py"))
    (made,) = json.loads(shlex.split(request["entrypoint"])[-1])["pieces"]
    assert made["resources"]["memory"] == 200 * 2**20


@pytest.mark.parametrize("metadata", [{}, {"horae_nodes": "no json"}])
def test_a_job_whose_pieces_cannot_be_read_has_none(metadata: dict[str, str]) -> None:
    assert pieces_in(("a", 1), metadata) == []
