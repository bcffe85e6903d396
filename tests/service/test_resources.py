"""CPUs, memory and an image of a job: from the job file to the backend, or to a sentence.

Tests service/job_file.py and service/operations.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from horae.service.job_file import BadJobFile, read_job, task_of
from tests.service.live import live, submit

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
