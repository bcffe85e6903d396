"""Adoption on a real Slurm of this machine: users submit with sbatch, Horae orders.

The rules themselves are tested without Slurm, in test_adoption_steps.py.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial

import pytest

from horae.backends.slurm.queue_listing import FAR
from horae.testing.slurm_cluster import PARTITION, SlurmTrouble, why_not
from tests.backends.slurm.adoption_rig import USERS, AdoptionRig, prepare
from tests.engine_folder import engine_folder
from tests.service.served_process import patiently

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(bool(why_not()), reason=f"needs Slurm: {why_not()}"),
    pytest.mark.skipif(os.getuid() != 0, reason="needs root, to submit jobs of two users"),
]
ANN, BOB = USERS
#: Saves at the notice and exits with 75.
SAVES = "trap 'exit 75' USR1; i=0; while [ $i -lt 6000 ]; do sleep 0.1; i=$((i + 1)); done"


@pytest.fixture
def rig() -> Iterator[AdoptionRig]:
    with engine_folder("slurm") as folder, prepare(folder) as slurm:
        made = AdoptionRig(folder, slurm)
        try:
            yield made
        finally:
            made.end(signal.SIGKILL)


def is_moved(rig: AdoptionRig, job: str) -> bool:
    seen = rig.queue()[job]
    return seen.restarts == 1 and seen.state == "RUNNING"


def test_a_job_is_held_ordered_and_run_as_its_user(rig: AdoptionRig) -> None:
    early = rig.sbatch("--gres=gpu:2", "--job-name=Early Bird", "--account=vision", script=f"id -un > {rig.marks}/who")
    assert rig.queue()[early].is_held, "the plugin holds it"
    others = rig.sbatch("--gres=gpu:1", partition="others")
    by_cpu = rig.sbatch("--cpus-per-task=1")
    assert rig.wait_for(others, "RUNNING").user == ANN
    rig.serve()
    assert rig.wait_for(early, "COMPLETED").user == ANN
    assert (rig.marks / "who").read_text() == f"{ANN}\n"
    job = patiently(lambda: (found := rig.jobs().get(early)) and found["state"] == "finished" and found, "for its end")
    assert (job["id"], job["user"], job["queue"], job["attempt"]) == (f"early-bird.{early}-1", ANN, "vision", 1)
    assert rig.queue()[by_cpu].state == "RUNNING", "a job without GPUs is Slurm's"
    assert rig.queue()[others].state == "RUNNING"
    assert set(rig.jobs()) == {early}


def test_nobody_gets_gpus_past_the_plugin(rig: AdoptionRig) -> None:
    both = rig.sbatch("--gres=gpu:1", partition=f"others,{PARTITION}")
    assert (rig.queue()[both].partition, rig.queue()[both].is_held) == (PARTITION, True)
    rig.as_user(ANN, "scontrol", "update", f"jobid={both}", f"partition={PARTITION},others")
    assert rig.queue()[both].partition == PARTITION
    refused = f"srun and salloc get no GPUs of partition {PARTITION}: Horae orders its jobs. Use sbatch."
    for command in (["srun", "-p", f"{PARTITION},others", "--gpus=1"], ["salloc", "--gres=gpu:1"]):
        with pytest.raises(SlurmTrouble, match=re.escape(refused)):
            rig.as_user(ANN, *command, "true")
    assert rig.as_user(ANN, "srun", "--chdir=/", "-p", PARTITION, "echo", "by CPU") == "by CPU\n"
    assert rig.as_user(ANN, "srun", "--chdir=/", "-p", "others", "--gres=gpu:1", "echo", "there") == "there\n"


@pytest.mark.long
def test_users_cancel_hold_and_release_in_slurm_and_in_horae(rig: AdoptionRig) -> None:
    rig.serve()
    runs = rig.sbatch("--gres=gpu:v100:4", script=SAVES)
    cancelled = rig.sbatch("--gres=gpu:p100:4", user=BOB, script=SAVES)
    held = rig.sbatch("--gres=gpu:v100:1", "--hold", script="true")
    for job in (runs, cancelled):
        rig.wait_for(job, "RUNNING")
    patiently(lambda: rig.jobs().get(held, {}).get("state") == "held", "for the hold")
    rig.as_user(ANN, "scontrol", "release", held)
    rig.wait_for(held, "COMPLETED")
    rig.as_user(BOB, "scancel", cancelled)
    patiently(lambda: rig.jobs()[cancelled]["state"] == "cancelled", "for the cancellation")
    events = rig.get(f"/v1/jobs/{rig.jobs()[cancelled]['id']}/events")
    assert f"slurm: {BOB}" in str(events)
    rig.as_user(ANN, "scontrol", "hold", runs)
    patiently(lambda: rig.jobs()[runs]["state"] == "held", "for the hold of a running job")
    assert rig.queue()[runs].is_held
    rig.post("/v1/jobs/cancel", {"ids": [rig.jobs()[runs]["id"]]})
    rig.wait_for(runs, "CANCELLED")


@pytest.mark.long
def test_a_job_that_dies_of_the_notice_or_is_deaf_to_it_runs_again(rig: AdoptionRig) -> None:
    rig.serve()
    dies = rig.sbatch("--gres=gpu:v100:4", script="sleep 600")
    deaf = rig.sbatch("--gres=gpu:p100:4", "--comment=horae: grace=3", script="trap '' USR1; sleep 600")
    for job in (dies, deaf):
        rig.wait_for(job, "RUNNING")
    for node in {rig.queue()[job].hosts[0] for job in (dies, deaf)}:
        rig.post(f"/v1/nodes/{node}/drain", {"evict": True})
    for job in (dies, deaf):
        patiently(partial(is_moved, rig, job), "for the move")
        assert rig.jobs()[job]["attempt"] == 2


def test_jobs_on_several_nodes_get_as_many_alike(rig: AdoptionRig) -> None:
    rig.serve()
    says = f"srun -l sh -c 'echo $SLURM_NODEID $CUDA_VISIBLE_DEVICES' > {rig.marks}/$SLURM_JOB_ID; sleep 600"
    by_node = rig.sbatch("--nodes=2", "--gpus-per-node=2", script=says)
    by_task = rig.sbatch("--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1", user=BOB, script=says)
    for job in (by_node, by_task):
        assert len(rig.wait_for(job, "RUNNING").hosts) == 2
        patiently(lambda: rig.jobs()[job]["state"] == "running", "for its start")  # noqa: B023, read at once
        told = rig.jobs()[job]
        assert (told["gpus"], told["nodes"], told["attempt"]) == (4, 2, 1)
        assert sorted(len(place.partition("[")[2].split(",")) for place in told["on"]) == [2, 2]
    for job in (by_node, by_task):
        rig.as_user(ANN if job == by_node else BOB, "scancel", job)
    too_many = rig.sbatch("--nodes=3", "--gpus-per-node=v100:2", script="true")
    sentence = "asks for 3 nodes of one type with 2 GPUs each, and there are only 2 with so many"
    patiently(lambda: sentence in rig.slurm.run("scontrol", "show", "job", too_many), "for the sentence")


def test_a_job_that_cannot_run_is_told_so_in_slurm(rig: AdoptionRig) -> None:
    rig.serve()
    large = rig.sbatch("--gres=gpu:v100:4", "--nodes=2", "--comment=horae: steps=many", script="true")
    patiently(lambda: "steps=many in the comment is no number" in rig.slurm.run("scontrol", "show", "job", large))
    rig.wait_for(large, "COMPLETED")
    assert rig.jobs() == {}


@pytest.mark.long
def test_blind_at_a_restart_nobody_is_stopped(rig: AdoptionRig) -> None:
    rig.serve()
    job = rig.sbatch("--gres=gpu:4", script=SAVES)
    rig.wait_for(job, "RUNNING")
    patiently(lambda: rig.jobs()[job]["state"] == "running", "for its start")
    saved = rig.slurm.folder / "state" / "job_state"
    began_s = time.time()
    patiently(lambda: saved.stat().st_mtime > began_s, "for Slurm to save its jobs")
    rig.end(signal.SIGKILL)
    rig.slurm.kill_controller()
    rig.serve()
    patiently(lambda: "out of sight" in rig.get("/v1/nodes")["trouble"], "for the trouble")
    assert rig.jobs()[job]["state"] == "running"
    rig.slurm.start_controller()
    patiently(lambda: not rig.get("/v1/nodes")["trouble"], "for sight")
    assert (rig.jobs()[job]["state"], rig.jobs()[job]["attempt"]) == ("running", 1)
    assert (rig.queue()[job].state, rig.queue()[job].restarts) == ("RUNNING", 0)


@pytest.mark.long
def test_another_service_is_refused_and_what_it_would_take_is_said(rig: AdoptionRig) -> None:
    rig.serve()
    second = rig.horae(
        "serve", "--state", str(rig.folder / "b"), "--port", "0", "--backend", "slurm", "--adopt", PARTITION
    )
    assert second.returncode == 1
    assert f"Partition {PARTITION} belongs to another Horae service" in second.stderr
    shared = ["--partition", PARTITION, "--shared", str(rig.folder / "shared")]
    third = rig.horae("serve", "--state", str(rig.folder / "c"), "--port", "0", "--backend", "slurm", *shared)
    assert f"Partition {PARTITION} belongs to another Horae service" in third.stderr


@pytest.mark.long
def test_after_uninstalling_jobs_are_plain_slurms(rig: AdoptionRig) -> None:
    rig.serve()
    first = [rig.sbatch("--gres=gpu:4", script=SAVES) for _ in range(4)]
    for job in first:
        rig.wait_for(job, "RUNNING")
    asked = rig.sbatch("--gres=gpu:4", "--nodelist=p2", script="true")
    held = rig.sbatch("--gres=gpu:4", "--hold", script="true")
    patiently(lambda: rig.jobs().get(held, {}).get("state") == "held" and asked in rig.jobs(), "for the jobs")
    patiently(lambda: rig.queue()[asked].is_postponed, "for Horae's order")
    refused = rig.horae("slurm", "uninstall", "--partition", PARTITION, "--state", str(rig.state))
    assert "still runs" in refused.stderr
    rig.end()
    done = rig.horae("slurm", "uninstall", "--partition", PARTITION, "--state", str(rig.state))
    assert done.returncode == 0, done.stderr
    assert "horae" not in (rig.slurm.folder / "job_submit.lua").read_text()
    assert {rig.queue()[job].state for job in first} == {"RUNNING"}
    assert "ReqNodeList=p2" in rig.slurm.run("scontrol", "show", "job", asked)
    assert rig.queue()[held].is_held
    assert not rig.queue()[held].is_postponed
    for job in first:
        rig.as_user(ANN, "scancel", job)
    rig.wait_for(asked, "COMPLETED")
    rig.as_user(ANN, "scontrol", "release", held)
    rig.wait_for(held, "COMPLETED")
    plain = rig.sbatch("--gres=gpu:1", script="true")
    rig.wait_for(plain, "COMPLETED")
    assert "horae-service" not in rig.slurm.run("squeue", "-h", "-o", "%j")


def test_jobs_are_given_back_without_the_services_state_folder(rig: AdoptionRig) -> None:
    waits, held = rig.sbatch("--gres=gpu:1", script="true"), rig.sbatch("--gres=gpu:1", script="true")
    for job in (waits, held):
        rig.slurm.run("scontrol", "update", f"jobid={job}", f"starttime={FAR}")
        rig.slurm.run("scontrol", "release", job)
    rig.as_user(ANN, "scontrol", "hold", held)
    done = rig.horae("slurm", "uninstall", "--partition", PARTITION, "--state", str(rig.folder / "another"))
    assert "2 waiting jobs are Slurm's again.\n2 of them have no record" in done.stdout
    rig.wait_for(waits, "COMPLETED")
    assert rig.queue()[held].is_held
    rig.as_user(ANN, "scontrol", "release", held)
    rig.wait_for(held, "COMPLETED")


def test_install_writes_the_plugin_and_says_what_slurm_conf_needs(rig: AdoptionRig) -> None:
    done = rig.horae("slurm", "install", "--partition", "others")
    assert done.returncode == 0, done.stderr
    assert "horae serve --backend slurm --adopt others" in done.stdout
    assert "users submit with sbatch" in done.stdout
    job = rig.sbatch("--gres=gpu:1", partition="others")
    assert rig.queue()[job].is_held
    missing = rig.horae("slurm", "install", "--partition", "nowhere")
    assert "no partition 'nowhere'" in missing.stderr
