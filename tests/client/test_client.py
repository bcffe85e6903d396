"""`horae.Client` against a real service with real processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import horae
from horae.client.client import JobTimeout
from horae.client.service_client import NotThere, Refused
from horae.core.queues import Queue
from horae.service.server import ServeOptions, Server

PROGRAM = "import sys, time\nprint('hello', *sys.argv[1:], flush=True)\ntime.sleep(float(sys.argv[1]))\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    queues = (Queue("vision"),)
    made = Server(ServeOptions(tmp_path_factory.mktemp("state"), port=0, gpus="v100:2,k80:2", queues=queues))
    yield made
    made.close()


@pytest.fixture
def cluster(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[horae.Client]:
    """Found by the environment, as by the commands; the folder is the test's own."""
    monkeypatch.setenv("HORAE_URL", server.url)
    monkeypatch.setenv("HORAE_TOKEN", server.token_file.read_text().strip())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    with horae.Client() as made:
        yield made
        for job in made.jobs():
            job.cancel()
        made.wait(*made.jobs())


def test_a_job_from_submission_to_its_end(cluster: horae.Client, tmp_path: Path) -> None:
    job = cluster.submit([sys.executable, "train.py", "0"], gpus=2, queue="vision", name="tiny", envs={"A": "b"})
    assert job.id.startswith("tiny-")
    assert job.wait(60) == job.state == "finished"
    assert job.logs() == "hello 0\n"
    assert job.events()[0]["kind"] == "submitted"
    assert job.why() == f"{job.id} does not wait: it is finished."
    status = job.status()
    assert (status["queue"], status["gpus"], status["task"]["workdir"]) == ("vision", 2, str(tmp_path))
    assert list(job.follow_logs()) == ["hello 0"]
    assert [one.id for one in cluster.jobs()] == []
    assert job.id in [one.id for one in cluster.jobs(all=True, state="finished")]


def test_jobs_that_wait_say_why_and_can_be_held_released_and_cancelled(cluster: horae.Client) -> None:
    first = cluster.submit([sys.executable, "train.py", "60"], gpus="v100:2")
    second = cluster.submit("exit 3", gpus=["v100:2"])
    with pytest.raises(JobTimeout, match=r"has not ended within 0\.1 s"):
        second.wait(0.1)
    assert "free" in second.why().lower() or "GPUs" in second.why()
    assert second.hold() == "done"
    assert second.hold() == "is held already"
    assert cluster.release(second.id) == {second.id: "done"}
    assert {record["id"] for record in cluster.queue()} == {first.id, second.id}
    assert cluster.cancel(first) == {first.id: "done"}
    assert cluster.wait(first, second.id, timeout_s=60) == {first.id: "cancelled", second.id: "failed"}
    assert first.cancel() == "is cancelled already"
    assert cluster.status()["policy"] == "fifo-backfill"


def test_every_key_of_a_job_file_has_a_keyword(cluster: horae.Client, tmp_path: Path) -> None:
    import inspect

    from horae.client.client import _SECTIONS
    from horae.service.job_file import JobFile
    from tests.cli.job_file_keys import keys

    words = set(inspect.signature(cluster.submit).parameters)
    ours = {f"{section}.{key}": word for section, inner in _SECTIONS.items() for word, key in inner.items()}
    assert {ours.get(key, {"class": "job_class"}.get(key, key)) for key in keys(JobFile)} == words
    job = cluster.submit(
        ["true"], gpus_min=1, gpus_max=2, app="a", processes="gpu", secrets=[], workdir=tmp_path, setup="true",
        max_duration="1h", min_runtime=1, preemptible=False, deadline="2h", weight=1, stop_signal="SIGTERM", grace=5,
        checkpoint_dir="saves", max_restarts=1, on_exit_codes=[3], steps=10, duration="1m",
        throughput={"v100": 5}, job_class="tiny",
    )  # fmt: skip
    assert job.wait(60) == "finished"


def test_mistakes_are_the_services_own_sentences(cluster: horae.Client) -> None:
    with pytest.raises(Refused, match="needs 99 GPUs"):
        cluster.submit(["true"], gpus=99)
    with pytest.raises(horae.UserError, match="is not a signal that a program can catch"):
        cluster.submit(["true"], stop_signal="SIGKILL")
    with pytest.raises(NotThere):
        cluster.job("nobody-7")
    with pytest.raises(horae.UserError, match="at least one job"):
        cluster.cancel()


def test_without_a_service_one_is_told_how_to_start_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORAE_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(horae.UserError, match="horae serve"):
        horae.Client()


def test_what_a_service_has_run_is_replayed(cluster: horae.Client) -> None:
    cluster.submit([sys.executable, "train.py", "0.2"]).wait(60)
    replayed = horae.replay(["las", "fifo"])
    assert replayed.labels == ["as it was (fifo-backfill)", "las", "fifo"]
    assert replayed.frame["run"].to_list() == replayed.labels
