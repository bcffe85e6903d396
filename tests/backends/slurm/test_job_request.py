"""From a Slurm job to a job file of Horae. Tests backends/adoption_options.py, too."""

import pytest

from horae.backends.adoption_options import BadRequest
from horae.backends.slurm.job_request import read_options, read_request
from horae.service.job_file import read_job

DETAILS = {"JobName": "My Train", "NumNodes": "1", "TimeLimit": "02:00:00", "TresPerNode": "gres:gpu:4", "Requeue": "1"}


def test_gres_nodes_and_time_limit_become_a_job_file() -> None:
    request = read_request("17", DETAILS)
    job = read_job(request.document)
    assert job.name == "my-train.17"
    assert job.resources.wanted() == (4, ())
    assert job.estimate.duration == 7200
    assert job.queue == "default"
    assert job.preemptible
    assert (request.nodes, request.gpus_per_node, request.duration_s) == (1, 4, 7200)


@pytest.mark.parametrize(
    ("given", "gpus", "types", "by_node"),
    [
        ({"TresPerNode": "gres:gpu:v100:2"}, 2, ("v100",), 2),
        ({"TresPerNode": "gres/gpu:v100:4", "NumNodes": "2"}, 8, ("v100",), 4),
        ({"TresPerNode": "", "TresPerJob": "gres:gpu:8", "NumNodes": "2-2"}, 8, (), 4),
        ({"TresPerNode": "", "TresPerTask": "gres:gpu:1", "NumTasks": "4", "NumNodes": "2"}, 4, (), 2),
    ],
)
def test_gpus_are_counted_over_all_nodes(
    given: dict[str, str], gpus: int, types: tuple[str, ...], by_node: int
) -> None:
    request = read_request("17", {**DETAILS, **given})
    resources = read_job(request.document).resources
    assert resources.wanted() == (gpus, types)
    assert (request.gpus_per_node, resources.nodes) == (by_node, gpus // by_node)


def test_the_account_is_the_queue_and_the_comment_comes_first() -> None:
    assert read_request("17", {**DETAILS, "Account": "vision"}).document["queue"] == "vision"
    comment = "horae: queue=nlp steps=90000, duration=1h30m preemptible=no grace=90 class=bert"
    request = read_request("17", {**DETAILS, "Account": "vision", "Comment": comment})
    job = read_job(request.document)
    assert (job.queue, job.estimate.steps, job.estimate.duration) == ("nlp", 90000, 5400)
    assert (job.preemptible, job.checkpoint.grace, job.job_class) == (False, 90, "bert")
    assert request.duration_s == 5400


def test_a_job_that_may_not_run_twice_is_not_preempted() -> None:
    assert not read_job(read_request("17", {**DETAILS, "Requeue": "0"}).document).preemptible


def test_a_time_limit_of_a_year_says_nothing() -> None:
    assert read_request("17", {**DETAILS, "TimeLimit": "365-00:00:00"}).duration_s == 3600
    assert read_request("17", {**DETAILS, "TimeLimit": "UNLIMITED"}).duration_s == 3600


@pytest.mark.parametrize("name", ["", "...", "Ä" * 60, "a" * 80, "x_y-z", "-v"])
def test_any_name_becomes_one_that_a_job_file_may_have(name: str) -> None:
    assert read_job(read_request("123456_12", {**DETAILS, "JobName": name}).document).name.endswith(".123456_12")


@pytest.mark.parametrize("comment", ["", "remember the milk", "horaes: steps=3"])
def test_other_comments_have_no_options(comment: str) -> None:
    assert read_options(comment) == {}


@pytest.mark.parametrize(
    ("details", "sentence"),
    [
        ({"TresPerNode": ""}, "ask for GPUs of one type"),
        ({"TresPerNode": "gres:gpu:v100:1,gres:gpu:p100:1"}, "ask for GPUs of one type"),
        ({"TresPerNode": "", "TresPerJob": "gres:gpu:3", "NumNodes": "2"}, "cannot be divided among 2 nodes"),
        ({"TresPerNode": "", "TresPerTask": "gres:gpu:1", "NumTasks": "3", "NumNodes": "2"}, "cannot be divided"),
        ({"Comment": "horae: step=5"}, "Did you mean 'steps'"),
        ({"Comment": "horae: steps=many"}, "steps=many in the comment is no number"),
        ({"Comment": "horae: duration=long"}, "duration=long in the comment is no time"),
        ({"Comment": "horae: preemptible=perhaps"}, "write yes or no"),
    ],
)
def test_what_cannot_be_ordered_is_told_in_a_sentence(details: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        read_request("17", {**DETAILS, **details})
