"""Jobs that a backend finds are submitted once, in their users' names. Tests backends/found_jobs.py, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from horae.backends import BACKENDS
from horae.backends.fake import FakeBackend, FakeWorld
from horae.backends.found_jobs import FindsJobs, FoundJob, TakenJob
from horae.core.cluster import Node
from horae.core.states import State
from horae.service.job_file import BadJobFile
from horae.service.job_taker import JobTaker
from horae.service.listening import CannotServe
from horae.service.server import ServeOptions, Server
from tests.service.stepped_service import SteppedService


class Finder:
    """The part of a backend that finds jobs."""

    submit_with = "sbatch"

    def __init__(self, *found: FoundJob) -> None:
        self.jobs = list(found)
        self.taken: Mapping[str, TakenJob] = {}
        self.refused: dict[str, str] = {}

    def found(self) -> list[FoundJob]:
        return [job for job in self.jobs if job.key not in self.taken]

    def follow(self, jobs: Mapping[str, TakenJob]) -> None:
        self.taken = jobs

    def refuse(self, key: str, why: str) -> None:
        self.refused[key] = why


class FindingBackend(FakeBackend, Finder):
    """A backend that finds jobs."""

    def __init__(self, nodes: Sequence[Node], world: FakeWorld | None = None) -> None:
        FakeBackend.__init__(self, nodes, world)
        Finder.__init__(self)


def found(key: str = "17@noon", user: str = "ann", **document: Any) -> FoundJob:
    return FoundJob(key, user, {"name": "train.17", "run": ["sbatch"], **document})


def take_in(service: SteppedService, finder: Finder) -> None:
    """One round of the taker's thread."""
    taker = JobTaker(service.daemon, service.operations, finder)

    def once() -> None:
        for job in finder.found():
            taker._take_in(job)

    taker._follow()
    service.ask(once)
    JobTaker(service.daemon, service.operations, finder)._follow()


def test_a_found_job_runs_as_its_users(tmp_path: Path) -> None:
    service, finder = SteppedService(tmp_path), Finder(found(user="zoe", queue="vision"))
    take_in(service, finder)
    assert finder.taken == {"17@noon": TakenJob("train.17-1", State.LAUNCHING)}
    task = service.daemon.tasks["train.17-1"]
    assert (task.user, task.found_as) == ("zoe", "17@noon")
    assert [(act.actor, act.action) for act in service.store.acts()] == [("zoe", "submit")]


@pytest.mark.parametrize(("policy", "nodes"), [("fifo", 1), ("themis", 0)])
def test_a_number_of_nodes_is_kept_where_placement_chooses_them(tmp_path: Path, policy: str, nodes: int) -> None:
    service = SteppedService(tmp_path, policy=policy)
    take_in(service, finder := Finder(found(resources={"gpus": 2, "nodes": 1})))
    assert not finder.refused, "the cluster manager itself sees to them otherwise"
    assert service.daemon.engine.jobs.nodes[0] == nodes


def test_a_job_is_taken_in_once_however_often_it_is_found(tmp_path: Path) -> None:
    service = SteppedService(tmp_path)
    for _ in range(2):
        take_in(service, Finder(found()))
    service.crash()
    service.reopen()
    finder = Finder(found(), found("18@noon"))
    take_in(service, finder)
    assert {key: taken.job for key, taken in finder.taken.items()} == {"17@noon": "train.17-1", "18@noon": "train.17-2"}


def test_a_job_that_cannot_run_is_refused_in_a_sentence_and_others_are_taken(tmp_path: Path) -> None:
    service = SteppedService(tmp_path, gpus=2)
    finder = Finder(found(resources={"gpus": 9}), found("18@noon"), found("19@noon", colour="red"))
    take_in(service, finder)
    assert list(finder.taken) == ["18@noon"]
    assert "needs 9 GPUs of one type, but there are only 2" in finder.refused["17@noon"]
    assert "colour is not a key of a job" in finder.refused["19@noon"]


def test_the_backend_hears_of_every_end(tmp_path: Path) -> None:
    service, finder = SteppedService(tmp_path), Finder(found())
    take_in(service, finder)
    service.to(20)
    JobTaker(service.daemon, service.operations, finder)._follow()
    assert finder.taken["17@noon"].state is State.FINISHED


def test_nothing_is_told_again_while_nothing_changes(tmp_path: Path) -> None:
    service, finder = SteppedService(tmp_path), Finder(found())
    take_in(service, finder)
    taker = JobTaker(service.daemon, service.operations, finder)
    taker._follow()
    finder.taken = {}
    taker._follow()
    assert finder.taken == {}


def test_such_a_service_keeps_jobs_on_as_few_nodes_as_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS, "finding", lambda options: FindingBackend([Node("v1", "v100", 2)]))
    with pytest.raises(CannotServe, match="use --placement consolidated"):
        Server(ServeOptions(tmp_path / "a", port=0, backend="finding", placement="anywhere"))
    server = Server(ServeOptions(tmp_path / "b", port=0, backend="finding"))
    try:
        assert server.daemon.initial_settings.placement == "consolidated"
    finally:
        server.close()


def test_jobs_for_such_a_backend_are_not_submitted_to_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SteppedService(tmp_path)
    backend = FindingBackend(service.nodes, service.world)
    assert isinstance(backend, FindsJobs)
    monkeypatch.setattr(service.daemon.backend, "_backend", backend)
    with pytest.raises(BadJobFile, match="use `sbatch`"):
        service.submit()


def test_a_job_with_a_broken_record_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service, finder = SteppedService(tmp_path), Finder(found("1@noon"), found("2@noon", user="zoe"))
    take = service.operations.take_in

    def fail_for_one(job: FoundJob) -> str:
        if job.key == "1@noon":
            raise KeyError("broken")
        return take(job)

    monkeypatch.setattr(service.operations, "take_in", fail_for_one)
    taker = JobTaker(service.daemon, service.operations, finder)

    def once() -> None:
        for job in finder.found():
            taker._take_in(job)

    for _ in range(2):
        service.ask(once)
    taker._follow()
    assert list(finder.taken) == ["2@noon"]
    assert [record.getMessage() for record in caplog.records] == [
        "The job 1@noon of the cluster could not be taken in."
    ]
