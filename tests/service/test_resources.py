"""CPUs, memory and an image of a job: from the job file to the backend, or to a sentence.

Tests service/job_file.py and service/operations.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from horae.core.cluster import Node
from horae.service.job_file import BadJobFile, read_job, task_of
from horae.service.roles import Role
from tests.service.live import eventually, in_state, live, submit

ALL = frozenset({"cpus_per_gpu", "memory_per_gpu", "image"})
ASKED = {"gpus": 2, "cpus_per_gpu": 8, "memory_per_gpu": "1.5GiB", "image": "registry.example/team/train:1.2"}


@pytest.mark.parametrize(
    ("text", "mb"),
    [
        ("16GiB", 16384),
        ("16G", 16384),
        ("16Gi", 16384),
        ("16 gib", 16384),
        ("16GB", 15259),
        ("512MiB", 512),
        ("0.5T", 524288),
        ("1KiB", 1),
    ],
)
def test_memory_is_counted_in_mib_rounded_up(text: str, mb: int) -> None:
    job = read_job({"run": "true", "resources": {"memory_per_gpu": text}})
    assert task_of(job, "job-1", "ana", 1.0).memory_mb_per_gpu == mb


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"memory_per_gpu": 16}, "write it like 16GiB"),
        ({"memory_per_gpu": "16"}, "not an amount of memory"),
        ({"memory_per_gpu": "-1GiB"}, "not an amount of memory"),
        ({"memory_per_gpu": "16PiB"}, "not an amount of memory"),
        ({"memory_per_gpu": "0MiB"}, "greater than or equal to 1|at least 1"),
        ({"memory_per_gpu": "999999TiB"}, "1073741824"),
        ({"cpus_per_gpu": 0}, "cpus_per_gpu"),
        ({"cpus_per_gpu": 2.5}, "cpus_per_gpu"),
        ({"image": "two words"}, "cannot be the name of an image"),
        ({"image": "--privileged"}, "cannot be the name of an image"),
        ({"memory": "16GiB"}, "Did you mean"),
        ({"gpus": 6, "nodes": 4}, "6 GPUs cannot be divided equally among 4 nodes; ask for 4 or 8 GPUs"),
        ({"gpus_min": 2, "gpus": 4, "nodes": 2}, "leave out nodes, or gpus_min and gpus_max"),
        ({"nodes": 0}, "nodes"),
    ],
)
def test_what_makes_no_sense_is_told(resources: dict[str, Any], says: str) -> None:
    with pytest.raises(BadJobFile, match=says):
        read_job({"run": "true", "resources": resources})


def test_a_backend_that_honours_them_gets_them(tmp_path: Path) -> None:
    with live(tmp_path) as service:
        service.backend.honours = ALL
        ana = service.person("ana")
        (job,) = submit(ana, {"resources": ASKED})
        task = ana.get(f"/v1/jobs/{job}").json()["task"]
        assert (task["cpus_per_gpu"], task["memory_mb_per_gpu"], task["image"]) == (8, 1536, ASKED["image"])
        kept = service.store.tasks()[job]
        assert (kept.cpus_per_gpu, kept.memory_mb_per_gpu, kept.image) == (8, 1536, ASKED["image"])


def test_an_image_is_refused_where_there_are_no_containers(tmp_path: Path) -> None:
    with live(tmp_path) as service:
        answer = service.person("ana").post("/v1/jobs", json=[{"run": "true", "resources": ASKED}])
        assert answer.status_code == 400
        assert "no containers" in answer.json()["error"]
        assert "leave out resources.image" in answer.json()["error"]


def test_ignored_cpus_and_memory_are_told_at_submission(tmp_path: Path) -> None:
    with live(tmp_path) as service:
        ana = service.person("ana")
        job = {"run": "true", "resources": {"cpus_per_gpu": 8, "memory_per_gpu": "1GiB"}}
        said = ana.post("/v1/jobs", json=[job]).json()
        ignored = "resources.cpus_per_gpu and resources.memory_per_gpu"
        assert said["notes"] == [f"This service's backend ignores {ignored}: it does not divide those."]
        service.backend.honours = frozenset({"memory_per_gpu"})
        assert ana.post("/v1/jobs", json=[job]).json()["notes"] == [
            "This service's backend ignores resources.cpus_per_gpu: it does not divide those."
        ]
        assert ana.post("/v1/jobs", json=[{"run": "true"}]).json()["notes"] == []


def test_a_job_runs_on_as_many_nodes_as_it_asks_for(tmp_path: Path) -> None:
    with live(tmp_path, nodes=tuple(Node(f"n{k}", "v100", 4) for k in range(3))) as service:
        ana = service.person("ana")
        (corner, gang) = submit(ana, {"resources": {"gpus": 3}}, {"resources": {"gpus": 4, "nodes": 2}})
        told = in_state(ana, gang, "running")
        assert (told["gpus"], told["nodes"]) == (4, 2)
        assert told["on"] == ["n1[0,1]", "n2[0,1]"]
        assert in_state(ana, corner, "running")["nodes"] is None
        (waits,) = submit(ana, {"resources": {"gpus": 6, "nodes": 2}})
        why = eventually(lambda: (told := ana.get(f"/v1/jobs/{waits}/why").json())["reason"] == "NoFreeGpus" and told)
        assert why["numbers"]["fitting_nodes"] == 0
        assert "needs 2 nodes of one type with 3 GPUs free on each, and no node has so many" in why["sentence"]
        events = ana.get(f"/v1/jobs/{gang}/events").json()["events"]
        assert "4 GPUs on 2 nodes, alike" in str(events)


def test_nodes_that_there_never_are_are_refused_with_what_there_is(tmp_path: Path) -> None:
    with live(tmp_path) as service:
        wide = {"name": "wide", "run": "true", "resources": {"gpus": 4, "nodes": 2}}
        refused = service.person("ana").post("/v1/jobs", json=[wide])
        assert refused.status_code == 400
        said = "Job 'wide' asks for 2 nodes of one type with 2 GPUs each, and there is only 1 with so many: ask for"
        assert said in refused.json()["error"]
        large = {"name": "large", "run": "true", "resources": {"gpus": 8, "nodes": 1}}
        refused = service.person("ana").post("/v1/jobs", json=[large])
        assert "needs 8 GPUs of one type, but there are only 4" in refused.json()["error"]


def test_a_policy_that_chooses_nodes_itself_refuses_a_number_of_nodes(tmp_path: Path) -> None:
    with live(tmp_path, "themis") as service:
        ana, admin = service.person("ana"), service.person("root", Role.ADMIN)
        refused = ana.post("/v1/jobs", json=[{"run": "true", "resources": {"gpus": 2, "nodes": 1}}])
        assert refused.status_code == 400
        assert "the policy themis chooses nodes itself and does not know that" in refused.json()["error"]
        assert admin.put("/v1/settings", json={"policy": "fifo-backfill"}).status_code == 200
        (gang,) = submit(ana, {"resources": {"gpus": 2, "nodes": 1}})
        refused = admin.put("/v1/settings", json={"policy": "themis"})
        assert refused.status_code == 400
        assert f"Job {gang} asks for 1 node, alike, and the policy themis chooses nodes itself" in refused.text
        assert ana.post(f"/v1/jobs/{gang}/hold").status_code == 200
        assert admin.put("/v1/settings", json={"policy": "themis"}).status_code == 400, "it may be released"


COUNTED = (Node("n0", "v100", 4, cpus=8, memory_mb=4096),)


def test_jobs_are_placed_by_their_cpus_and_nodes_show_them(tmp_path: Path) -> None:
    with live(tmp_path, nodes=COUNTED) as service:
        ana = service.person("ana")
        first, second = submit(ana, *[{"resources": {"gpus": 1, "cpus_per_gpu": 5, "memory_per_gpu": "1GiB"}}] * 2)
        in_state(ana, first, "running")
        told = eventually(
            lambda: (told := ana.get(f"/v1/jobs/{second}/why").json())["reason"] == "LacksCpusOrMemory" and told
        )
        assert "it takes 5 CPUs and 1,024 MiB with each of its 1 GPU" in told["sentence"]
        (node,) = ana.get("/v1/nodes").json()["nodes"]
        shown = [node[key] for key in ("cpus", "used_cpus", "memory_mb", "used_memory_mb")]
        assert shown == [8, 5, 4096, 1024]


def test_cpus_that_no_node_has_are_refused_with_the_most_there_is(tmp_path: Path) -> None:
    with live(tmp_path, nodes=COUNTED) as service:
        ana = service.person("ana")
        job = {"name": "big", "run": "true", "resources": {"gpus": 1, "cpus_per_gpu": 9}}
        refused = ana.post("/v1/jobs", json=[job])
        assert refused.status_code == 400
        said = "Job 'big' asks for 9 CPUs with each GPU, and the largest node it could use has 8 CPUs: ask for less"
        assert said in refused.json()["error"]
        job["resources"] = {"gpus": 1, "cpus_per_gpu": 2}
        assert ana.post("/v1/jobs", json=[job]).json()["notes"] == [
            "Jobs are placed by resources.cpus_per_gpu, but nothing keeps a job from using more."
        ]
