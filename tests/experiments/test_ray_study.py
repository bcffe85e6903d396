"""Batches on a Ray cluster: against a fake dashboard, and on a real Ray of this machine."""

from __future__ import annotations

import base64
import io
import json
import pickle
import shlex
import site
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horae
from horae.backends.ray.dashboard import Dashboard
from horae.core.cluster import Cluster
from horae.core.errors import UserError
from horae.experiments import ray_tasks, study_node
from horae.experiments.executors import executor_on
from horae.experiments.parallel import Batch, Outcome, run_in_turn
from horae.experiments.ray_study import RayStudy, read_outcomes
from horae.simulator.scenario import Scenario
from horae.testing import cluster, job
from horae.testing.ray_cluster import MadeUpRayNode
from tests.backends.ray.fake_dashboard import FakeDashboard, Reply, serving
from tests.backends.ray.rig import needs_ray, started


def scenario(policy: str = "fifo", machines: Cluster | None = None) -> Scenario:
    jobs = [job(f"j{number}", submit_s=10.0 * number, gpus=1 + number % 3, work=100.0) for number in range(12)]
    return Scenario(jobs, machines or cluster("2x4"), policy)


BATCH = Batch([scenario("fifo"), scenario("las"), scenario("srtf")], histories=frozenset({0}))


def content_of(outcome: Outcome) -> tuple[object, ...]:
    """All that an outcome holds, but what it has cost; arrays as bytes."""
    history = outcome.history
    arrays = {} if history is None else {f.name: getattr(history, f.name) for f in fields(history)}
    kept = {name: value.tobytes() for name, value in arrays.items() if isinstance(value, np.ndarray)}
    return json.dumps(outcome.report.as_dict()), outcome.waiting, kept


def silent(done: float, whole: float) -> None:
    pass


@dataclass
class FakeRay(FakeDashboard):
    """Performs the runs of a job in this process when it is submitted. `spoil` may change what a run came to."""

    packages: dict[str, bytes] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    spoil: Callable[[int, int], tuple[str, bytes] | None] = lambda job, number: None
    folder: Path = Path()

    def answer(self, line: str, content: bytes, headers: dict[str, str]) -> Reply:
        method, path = line.split()
        name = path.split("/")[3] if path.count("/") > 2 else ""
        if path.startswith("/api/packages/gcs/"):
            name = path.rpartition("/")[2]
            if method == "PUT":
                self.packages[name] = content
            return (200, {}) if name in self.packages else (404, "no such package")
        self.asked.append((line, None))
        if path == "/api/version":
            return 200, {"ray_version": "2.9.0"}
        if line == "POST /api/jobs/":
            return self._submit(json.loads(content))
        if name not in self.logs:
            return 404, f"{name} does not exist"
        return 200, {"logs": self.logs[name]} if path.endswith("/logs") else {"status": "SUCCEEDED", "message": "over"}

    def _submit(self, request: dict[str, Any]) -> Reply:
        package = self.packages[request["runtime_env"]["working_dir"].removeprefix("gcs://")]
        zipfile.ZipFile(io.BytesIO(package)).extractall(self.folder)
        study = json.loads(shlex.split(request["entrypoint"])[-1])
        lines = ["Ray says something"]
        for number in study["numbers"]:
            spoiled = self.spoil(len(self.logs), number)
            what, said = spoiled or ray_tasks.perform(number, study["fingerprint"], str(self.folder / study["batch"]))
            lines.append(f"{ray_tasks.RUN} {number} {what} {base64.b64encode(said).decode()}")
        self.logs[request["submission_id"]] = "\n".join([*lines, ""])
        return 200, {"submission_id": request["submission_id"]}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeRay]:
    with serving(FakeRay(folder=tmp_path)) as ray:
        study_node._batch.cache_clear()
        yield ray  # type: ignore[misc]


def study(fake: FakeDashboard) -> RayStudy:
    return RayStudy(Dashboard(fake.address), poll_s=0.01)


def test_outcomes_are_those_of_this_machine_in_their_order(fake: FakeRay) -> None:
    here, there = run_in_turn(BATCH, silent), study(fake).run(BATCH, silent)
    assert [content_of(outcome) for outcome in there] == [content_of(outcome) for outcome in here]
    assert [outcome.history is not None for outcome in there] == [True, False, False]
    assert fake.asked[-1][0].split()[0] == "DELETE", "nothing is left there"


def test_runs_that_were_lost_are_run_again_and_only_those(fake: FakeRay) -> None:
    asked: list[tuple[int, int]] = []

    def lose_once(job: int, number: int) -> tuple[str, bytes] | None:
        asked.append((job, number))
        return (ray_tasks.LOST, b"WorkerCrashedError") if job == 0 and number == 1 else None

    fake.spoil = lose_once
    assert len(study(fake).run(BATCH, silent)) == 3
    assert asked == [(0, 0), (0, 1), (0, 2), (1, 1)]


def test_runs_that_are_lost_every_time_are_told(fake: FakeRay) -> None:
    fake.spoil = lambda job, number: (ray_tasks.LOST, b"WorkerCrashedError") if number == 2 else None
    with pytest.raises(UserError, match="1 of 3 runs were lost on Ray 3 times"):
        study(fake).run(BATCH, silent)


def test_another_horae_on_a_node_is_told_with_what_to_do(fake: FakeRay) -> None:
    fake.spoil = lambda job, number: (ray_tasks.UNLIKE, b"node n3 has Horae 0.0.9 (abc) on Python 3.12")
    with pytest.raises(UserError, match=r"needs the same Horae .* node n3 has Horae 0.0.9 .*Install the same one"):
        study(fake).run(BATCH, silent)


def test_a_node_compares_its_horae_with_the_clients() -> None:
    what, said = ray_tasks.perform(0, "Horae of yesterday", "nowhere")
    assert what == ray_tasks.UNLIKE
    assert study_node.fingerprint() in said.decode()


def test_a_sentence_for_the_user_and_a_bug_come_through(fake: FakeRay) -> None:
    fake.spoil = lambda job, number: (ray_tasks.REFUSED, b"No policy is called 'fifi'.")
    with pytest.raises(UserError, match=r"^No policy is called 'fifi'\.$"):
        study(fake).run(BATCH, silent)
    fake.spoil = lambda job, number: (ray_tasks.BROKEN, b"Traceback: ZeroDivisionError")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        study(fake).run(BATCH, silent)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.check_output, (["touch", "/nowhere/at/all"],)


@pytest.mark.parametrize("value", [_Evil(), {"a": 1}, UserError], ids=["program", "no outcome", "class"])
def test_an_answer_that_is_no_outcome_runs_nothing(value: object) -> None:
    with pytest.raises(UserError, match="The cluster sent a result that"):
        study_node.unpack_outcome(zlib.compress(pickle.dumps(value)))


def test_lines_that_are_cut_off_or_rays_own_are_left_out() -> None:
    (outcome,) = run_in_turn(replace(BATCH, scenarios=BATCH.scenarios[:1]), silent)
    text = base64.b64encode(study_node.pack_outcome(outcome)).decode()
    log = f"(raylet) {ray_tasks.RUN} 7 done x\n{ray_tasks.RUN} 0 done {text}\n{ray_tasks.RUN} 1 done {text[:40]}"
    assert [*read_outcomes(log)] == [0]


def test_a_line_whose_content_is_broken_is_a_lost_run() -> None:
    assert read_outcomes(f"{ray_tasks.RUN} 0 done abc\n{ray_tasks.RUN} ² done YWJj\n") == {}
    no_text = base64.b64encode(b"No policy \xff").decode()
    with pytest.raises(UserError, match="No policy"):
        read_outcomes(f"{ray_tasks.RUN} 0 refused {no_text}\n")


@pytest.mark.parametrize("said", ["<html>Welcome</html>", {}, [], "null", {"ray_version": "2.9.0"}])
def test_a_server_that_says_yes_to_everything_is_not_taken_for_ray(said: object) -> None:
    class Agreeable(FakeDashboard):
        def answer(self, line: str, content: bytes, headers: dict[str, str]) -> Reply:
            return 200, said

    began_s = time.monotonic()
    with serving(Agreeable()) as other, pytest.raises(UserError) as caught:
        study(other).run(BATCH, silent)
    assert "not answer as Ray's dashboard does: check --on" in str(caught.value) or "Is --on" in str(caught.value)
    assert time.monotonic() - began_s < 30, "nobody waits for it to come back"


def test_a_record_without_a_status_is_not_rays(fake: FakeRay) -> None:
    answer = fake.answer

    def forget(line: str, content: bytes, headers: dict[str, str]) -> Reply:
        is_record = line.startswith("GET /api/jobs/") and not line.endswith("/logs")
        return (200, {}) if is_record else answer(line, content, headers)

    fake.answer = forget  # type: ignore[method-assign]
    with pytest.raises(UserError, match="does not answer as Ray's dashboard does"):
        study(fake).run(BATCH, silent)


def test_nobody_at_the_address_is_told() -> None:
    with pytest.raises(UserError, match=r"cannot be spread over Ray.*Is --on the dashboard's address"):
        RayStudy(Dashboard("http://127.0.0.1:9")).run(BATCH, silent)


@pytest.mark.parametrize("on", ["http://head:8265", "dask:x", "ray"])
def test_places_that_are_not_known_are_refused(on: str) -> None:
    with pytest.raises(UserError, match="write it like --on ray:http://head:8265"):
        executor_on(on, None)


class TestOnRealRay:
    pytestmark = needs_ray

    def test_a_comparison_and_a_sweep_give_the_same_to_the_last_digit(self, tmp_path: Path) -> None:
        packages = [Path(horae.__file__).parent.parent, *map(Path, site.getsitepackages())]
        nodes = [MadeUpRayNode("v1", "v100", cpus=1), MadeUpRayNode("v2", "v100", cpus=1)]
        compare = ["compare", "--generate", "plain", "--cluster", "4x4", "--jobs", "40", "--policies", "fifo,las,srtf"]
        sweep = ["sweep", "--generate", "plain", "--cluster", "2x4", "--jobs", "30", "--vary", "load=0.5,1"]
        with started(nodes, packages) as ray:
            for words in (compare, [*sweep, "--policies", "fifo,las"]):
                here, there = (_records(words, more) for more in ([], ["--on", f"ray:{ray.address}"]))
                assert here == there
            assert {job["status"] for job in ray.dashboard.read("/api/jobs/")} <= {"SUCCEEDED", "FAILED"}


def _records(words: list[str], more: list[str]) -> object:
    """The answer of a command as JSON, without what it has cost."""
    ran = subprocess.run(
        [sys.executable, "-m", "horae", *words, *more, "-o", "json"], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    for record in answer.get("points", []):
        record.pop("cpu_s")
    return answer.get("policies", answer.get("points"))
