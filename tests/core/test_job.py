"""What a job may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from horae.core.job import BadJob
from tests.builders import job


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("name", "", "no id"),
        ("gpus", 0, "at least 1"),
        ("gpus", -2, "at least 1"),
        ("work", 0, "above 0"),
        ("work", float("nan"), "above 0"),
        ("work", float("inf"), "above 0"),
        ("submit_s", -1, "from 0 up"),
        ("submit_s", float("nan"), "from 0 up"),
        ("gpus_min", 2, "min <= gpus <= max"),
        ("weight", 0, "weight 0"),
        ("weight", float("inf"), "weight inf"),
        ("unit", "hours", "use seconds or steps"),
        ("slowdown", (1.0, 1.0), "four numbers"),
        ("slowdown", (0.5, 1.0, 1.0, 1.0), "four numbers of at least 1"),
        ("slowdown", (1.0, 2.0, 1.5, 2.0), "must not fall"),
        ("throughput", {"v100": float("nan")}, "finite steps/s"),
        ("checkpoint_s", -1.0, "checkpoint_s is -1.0"),
        ("restore_s", float("inf"), "restore_s is inf"),
        ("start_s", -2.0, "start_s is -2.0"),
        ("min_runtime_s", -3.0, "min_runtime_s is -3.0"),
        ("queue", "a//b", "is not a path"),
    ],
)
def test_a_job_that_no_cluster_could_run_is_refused_with_its_name_and_the_reason(
    field: str, value: Any, complaint: str
) -> None:
    with pytest.raises(BadJob, match=complaint):
        job(**{field: value})


def test_a_job_is_rigid_unless_told_otherwise() -> None:
    rigid, elastic = job(gpus=3), job(gpus=3, gpus_max=5)
    assert (rigid.gpus_min, rigid.gpus_max, rigid.elastic) == (3, 3, False)
    assert (elastic.gpus_min, elastic.gpus_max, elastic.elastic) == (3, 5, True)


def test_a_job_without_an_app_is_one_of_its_own() -> None:
    assert (job("a").app_id, job("a", app="sweep").app_id) == ("a", "sweep")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"gpus": 6, "nodes": 4}, "6 GPUs cannot be divided equally among 4 nodes; ask for 4 or 8 GPUs"),
        ({"gpus": 2, "nodes": 4}, "ask for 4 GPUs, or for another number of nodes"),
        ({"gpus": 4, "nodes": 2, "gpus_min": 2}, "leave out nodes, or gpus_min and gpus_max"),
        ({"gpus": 4, "nodes": -1}, "ask for at least 1, or leave nodes out"),
    ],
)
def test_nodes_that_cannot_be_alike_are_told(fields: dict[str, int], sentence: str) -> None:
    with pytest.raises(BadJob, match=sentence):
        job("a", **fields)


def test_gpus_on_each_node_follow_from_the_number_of_nodes() -> None:
    assert (job("a", gpus=8, nodes=2).gpus_per_node, job("a", gpus=8).gpus_per_node) == (4, 0)
