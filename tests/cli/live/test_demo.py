"""`horae demo`, with fewer jobs: real processes, real preemptions, the same losses."""

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from horae.cli.live import demo
from horae.cli.live.demo import DemoJob
from horae.cli.live.share_bars import bar
from horae.client.service_client import ServiceClient
from horae.core.events import JobCancelled
from horae.service.store.store import Store
from tests.cli.conftest import Horae
from tests.service.live import eventually


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three jobs of two people that each want both GPUs."""
    jobs = (
        DemoJob("ann", "vision", "one", 2, 150, 0.05, 1),
        DemoJob("ann", "vision", "two", 2, 130, 0.02, 2),
        DemoJob("bob", "speech", "three", 2, 140, 0.05, 3),
    )
    monkeypatch.setattr(demo, "JOBS", jobs)
    monkeypatch.setattr(demo, "VIRTUAL", "v100:2")
    monkeypatch.setattr(demo, "LEASE_S", 2)
    monkeypatch.delenv("HORAE_TOKEN", raising=False)


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_jobs_that_were_preempted_end_with_the_loss_of_an_undisturbed_run(horae: Horae, tmp_path: Path) -> None:
    answer = horae("demo", "--state", tmp_path / "state", "--html", tmp_path / "demo.html", "-o", "json")
    assert answer.code == 0, answer.err
    told = answer.json
    assert [job["id"] for job in told["jobs"]] == ["one-1", "two-2", "three-3"]
    assert told["same_loss"] == 3
    assert len({job["loss"] for job in told["jobs"]}) == 3
    assert all(job["loss"] == job["loss_undisturbed"] for job in told["jobs"])
    assert sum(job["preemptions"] for job in told["jobs"]) >= 2
    assert told["report"]["finished"] == 3
    assert "three-3" in (tmp_path / "demo.html").read_text()
    assert json.loads((tmp_path / "state/jobs/one-1/checkpoint/result.json").read_text())["loss"]


@pytest.mark.usefixtures("small")
def test_a_loss_that_differs_is_an_error(horae: Horae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "JOBS", (DemoJob("ann", "vision", "one", 2, 20, 0.05, 1),))
    monkeypatch.setattr(demo, "undisturbed", lambda job: -1.0)
    answer = horae("demo", "--state", tmp_path / "state")
    assert answer.code == 1
    assert "0 of 1 jobs ended with the same loss" in answer.out
    assert "Job one-1 ended with another loss" in answer.err
    assert (tmp_path / "state" / "demo.html").exists()


@pytest.mark.usefixtures("small")
def test_who_leaves_while_jobs_are_being_submitted_leaves_none_behind(
    horae: Horae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = demo._submit

    def interrupted(*where: Any) -> None:
        submit(*where)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_submit", interrupted)
    answer = horae("demo", "--state", tmp_path / "state")
    assert answer.code == 130
    assert (
        answer.err == f"interrupted; the service and its jobs have ended, and what they wrote is in {tmp_path}/state\n"
    )
    assert ends(tmp_path / "state") == {"one-1", "two-2", "three-3"}


def test_ctrl_c_twice_ends_the_service_and_every_job(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "horae", "demo", "--state", str(tmp_path / "state")]
    demo = subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert demo.stdout
    assert "Service at" in demo.stdout.readline()
    assert "12 jobs" in demo.stdout.readline()
    eventually(lambda: list(tmp_path.glob("state/jobs/*/1/runner.json")), "the first job")
    os.killpg(demo.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        # The second one meets the demo while it tidies up.
        demo.wait(timeout=0.1)
    os.killpg(demo.pid, signal.SIGINT)
    _, said = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert said.count("\n") == 1
    assert said.startswith("interrupted;")
    assert processes_in(tmp_path) == []


@pytest.mark.parametrize("columns", [80, 200])
def test_the_live_table_has_one_line_a_job_on_any_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "is_wide", lambda wanted: wanted <= columns)
    jobs = [
        {"id": f"{one.name}-{k}", "queue": one.queue, "gpus": one.gpus, "state": "launching" if k % 2 else "waiting",
         "on": ["v100[0,1,2,3]"], "progress": 0.5, "loss": 0.12345, "preemptions": 10, "reason": "AwaitingBids"}
        for k, one in enumerate(demo.JOBS)
    ]  # fmt: skip
    console = Console(width=columns, file=io.StringIO())
    console.print(demo._live_table(jobs))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().strip().splitlines()
    assert len(shown) == len(jobs) + 2, "the heads and the line below them"
    assert ("loss" in shown[0]) is (columns == 200)
    assert all(bar(0.5, 5 if columns == 80 else 20) in line for line in shown[2:])


def processes_in(folder: Path) -> list[str]:
    """Processes that name a folder in their words or their variables."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            said = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in said:
            found.append(said.replace(b"\0", b" ").decode(errors="replace"))
    return found


def ends(state: Path) -> set[str]:
    """Jobs that were cancelled."""
    store = Store(f"sqlite:///{state}/journal.db")
    try:
        return {record.job for _, record in store.tail() if isinstance(record, JobCancelled)}
    finally:
        store.close()


@pytest.mark.usefixtures("small")
def test_who_leaves_early_leaves_no_job_behind_and_the_folder_is_not_used_again(
    horae: Horae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def interrupted(at: ServiceClient, *_: object) -> None:
        seen.append(at.get("/v1/jobs", {"all": True})["jobs"])
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_watch", interrupted)
    assert horae("demo", "--state", tmp_path / "state").code == 130
    assert len(seen[0]) == 3
    assert ends(tmp_path / "state") == {"one-1", "two-2", "three-3"}
    again = horae("demo", "--state", tmp_path / "state")
    assert again.code == 1
    assert "already has the state of a service" in again.err
