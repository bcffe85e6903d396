"""Twenty jobs of two users, preempted again and again, while the service and Slurm's controller are killed."""

from __future__ import annotations

import json
import os
import pwd
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from horae.testing.slurm_cluster import why_not
from tests.backends.slurm.adopted_witness import chain
from tests.backends.slurm.adoption_rig import PYTHON, USERS, AdoptionRig, prepare
from tests.engine_folder import engine_folder
from tests.service.served_process import patiently

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=f"needs Slurm: {why_not()}"),
    pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"needs {PYTHON}, for jobs of other users"),
    pytest.mark.skipif(os.getuid() != 0, reason="needs root, to submit jobs of two users"),
]
JOBS, STEPS, STEP_S = 20, 100, 0.1
LEAST_PREEMPTIONS = 15


@pytest.fixture
def rig() -> Iterator[AdoptionRig]:
    with engine_folder("slurm") as folder, prepare(folder) as slurm:
        made = AdoptionRig(folder, slurm, "time-slice", ["quantum=4"])
        try:
            yield made
        finally:
            made.end(signal.SIGKILL)


def preemptions(rig: AdoptionRig) -> int:
    return sum(line["what"] == "saved" for line in rig.lines())


def wait_for_preemptions(rig: AdoptionRig, count: int) -> None:
    patiently(lambda: preemptions(rig) >= count, f"for {count} preemptions")


def is_longer(rig: AdoptionRig, count: int) -> bool:
    return len(rig.lines()) > count


def wait_for_saved_state(rig: AdoptionRig) -> None:
    """Wait until Slurm has saved what it did so far: a killed controller forgets the last seconds."""
    saved, began_s = rig.slurm.folder / "state" / "job_state", time.time()
    patiently(lambda: saved.stat().st_mtime > began_s, "for Slurm to save its state")


def made_by(steps: int) -> str:
    made = ""
    for step in range(steps):
        made = chain(made, step)
    return made


def check_witnesses(lines: list[dict[str, Any]], users: dict[str, str]) -> None:
    """Nothing ran twice at a time, no saved step was lost, every job ended, and ran as its user.

    If a job ends right after a killed controller has forgotten its launch, Slurm knows nothing of that end: the job
    begins once more, at its last step.
    """
    assert [line for line in lines if line["what"] == "twice"] == []
    ends = [line for line in lines if line["what"] == "end"]
    assert {line["job"] for line in ends} == {*users}
    assert {(line["step"], line["made"]) for line in ends} == {(STEPS, made_by(STEPS))}
    uids = {job: pwd.getpwnam(user).pw_uid for job, user in users.items()}
    assert {line["job"] for line in lines if line["uid"] != uids[line["job"]]} == set()
    last: dict[str, int] = {}
    for line in lines:
        if line["what"] == "begin":
            assert line["step"] == last.get(line["job"], 0), f"{line} begins where nothing was saved"
        last[line["job"]] = line["step"]


def test_a_controller_that_is_killed_right_after_launches_and_ends_loses_nothing(rig: AdoptionRig) -> None:
    """It comes back with an older state: jobs wait that ran, and run that have ended; ids and restarts are older."""
    rig.serve()
    users = {rig.witness(USERS[k % 2], STEPS, gpus=4 if k % 4 else 2): USERS[k % 2] for k in range(8)}
    wait_for_saved_state(rig)  # a controller forgets jobs of its last seconds altogether
    for _ in range(2):
        patiently(partial(is_longer, rig, len(rig.lines())), "for a launch or an end")
        rig.slurm.kill_controller()
        rig.slurm.start_controller()
    rig.until_quiet(480)
    check_witnesses(rig.lines(), users)
    jobs = rig.jobs()
    assert {job: (record["user"], record["state"]) for job, record in jobs.items()} == {
        job: (user, "finished") for job, user in users.items()
    }
    assert len(rig.get("/v1/jobs?all=true")["jobs"]) == len(users), "no job was taken in twice"


def test_a_job_of_a_node_that_died_waits_until_its_processes_are_gone(rig: AdoptionRig) -> None:
    rig.serve()
    job = rig.witness(USERS[0], steps=1500, gpus=4)
    (node,) = rig.wait_for(job, "RUNNING").hosts
    patiently(rig.lines, "for its begin")
    rig.slurm.kill_node(node)
    patiently(lambda: rig.queue()[job].restarts == 1, "for Slurm to give the node up")
    end_s = time.monotonic() + 5
    while time.monotonic() < end_s:
        assert rig.jobs()[job]["attempt"] == 1, "its processes still live there"
        time.sleep(0.5)
    rig.slurm.start_node(node)
    patiently(lambda: rig.jobs()[job]["attempt"] == 2, "for its next attempt")
    patiently(lambda: len(rig.lines()) == 2, "for its begin")
    assert [line["what"] for line in rig.lines()] == ["begin", "begin"]


def test_twenty_jobs_of_two_users_survive_preemptions_and_crashes(
    rig: AdoptionRig, record_property: Callable[[str, object], None]
) -> None:
    script = f"echo $$ >> {rig.marks}/foreign; sleep 600"
    foreign = [rig.sbatch("--gres=gpu:1", "--nodelist=p2", partition="others", script=script) for _ in range(2)]
    for job in foreign:
        rig.wait_for(job, "RUNNING")
    rig.serve()
    began_s = time.monotonic()
    users = {rig.witness(USERS[k % 2], STEPS, gpus=4 if k % 4 else 2): USERS[k % 2] for k in range(JOBS)}
    for kills in range(1, 4):
        wait_for_preemptions(rig, 3 * kills)
        rig.end(signal.SIGKILL)
        if kills == 2:
            wait_for_saved_state(rig)
            rig.slurm.kill_controller()
            rig.slurm.start_controller()
        rig.serve()
    rig.until_quiet(600)
    seconds = time.monotonic() - began_s
    jobs, queue = rig.jobs(), rig.queue()
    check_witnesses(rig.lines(), users)
    assert len([line for line in rig.lines() if line["what"] == "end"]) == JOBS
    assert preemptions(rig) >= LEAST_PREEMPTIONS
    assert {job: record["user"] for job, record in jobs.items()} == users, "each once, under its user's name"
    assert {record["state"] for record in jobs.values()} == {"finished"}
    assert {job: record["attempt"] for job, record in jobs.items()} == {job: queue[job].restarts + 1 for job in users}
    assert {queue[job].state for job in users} == {"COMPLETED"}
    usage = json.loads(rig.horae("report", "usage", "-o", "json").stdout)["usage"]
    assert {row["user"]: row["finished"] for row in usage} == dict.fromkeys(USERS, JOBS // 2)
    # The others' jobs never noticed.
    assert {(queue[job].state, queue[job].restarts) for job in foreign} == {("RUNNING", 0)}
    assert len((rig.marks / "foreign").read_text().split()) == len(foreign)
    record_property("preemptions", preemptions(rig))
    record_property("seconds", round(seconds))
