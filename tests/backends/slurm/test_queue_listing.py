"""The list of all users' jobs, and the details of one."""

import pytest

from horae.backends.slurm.queue_listing import FAR, read_details, read_duration, read_queue

LINE = "17|gpu|ann|PENDING|BeginTime|1000||2026-01-01T10:00:00|2|0|2099-01-01T00:00:00|0:00|(null)|"


def test_a_job_that_horae_keeps_waiting() -> None:
    (job,) = read_queue(LINE)
    assert (job.id, job.user, job.restarts, job.submitted) == ("17", "ann", 2, "2026-01-01T10:00:00")
    assert job.is_waiting
    assert job.is_postponed
    assert not job.is_held
    assert not job.was_put_back
    assert FAR.startswith("2099")


def test_a_task_of_an_array_that_runs() -> None:
    (job,) = read_queue(
        "17_3|gpu|ann|RUNNING|None|1000|v[1-2]|2026-01-01T10:00:00|0|0|2026-01-01T10:00:00|1:02|(null)|\n"
    )
    assert (job.id, job.hosts, job.run_s) == ("17_3", ("v1", "v2"), 62.0)
    assert job.may_run
    assert not job.is_waiting
    assert not job.is_postponed


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("SPECIAL_EXIT", "JobHeldUser"),
        ("PENDING", "job requeued in held state"),
        ("PENDING", "launch failed requeued held"),
    ],
)
def test_a_job_that_slurm_has_put_back_waits_and_is_held_by_slurm(state: str, reason: str) -> None:
    (job,) = read_queue(f"17|gpu|ann|{state}|{reason}|0||2026-01-01T10:00:00|1|19200|2026-01-01T10:02:00|0:00|(null)|")
    assert job.is_waiting
    assert job.is_held
    assert job.was_put_back
    assert job.code == 75


def test_a_signal_is_told_as_shells_tell_it() -> None:
    (job,) = read_queue("17|gpu|ann|FAILED|JobLaunchFailure|1000|v1|2026-01-01T10:00:00|0|10|N/A|0:05|(null)|")
    assert job.code == 138
    assert job.is_ended


def test_the_oldest_job_comes_first() -> None:
    lines = [LINE.replace("17|", f"{job}|", 1) for job in ("17_10", "18", "17_9")]
    lines.append(LINE.replace("10:00:00", "09:00:00", 1).replace("17|", "99|", 1))
    assert [job.id for job in read_queue("\n".join(lines))] == ["99", "17_9", "17_10", "18"]


def test_lines_that_do_not_fit_are_left_out() -> None:
    assert read_queue("slurm_load_jobs error\n\n17|gpu\n") == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:05", 5),
        ("1:02:03", 3723),
        ("1-02:00:00", 93600),
        ("30", 1800),
        ("UNLIMITED", None),
        ("", None),
        ("2-0", 172800),
    ],
)
def test_durations_are_read(text: str, seconds: float | None) -> None:
    assert read_duration(text) == seconds


def test_details_of_a_job() -> None:
    details = read_details(
        "JobId=17 ArrayJobId=17 ArrayTaskId=1 JobName=my train = 3\n"
        "   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A\n"
        "   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n"
        "   ReqNodeList=(null) ExcNodeList=(null)\n"
        "   NumNodes=1-1 NumCPUs=1 NumTasks=1\n"
        "   Comment=horae: steps=5 queue=a \n"
        "   TresPerNode=gres:gpu:2\n"
    )
    assert details["JobName"] == "my train = 3"
    assert details["Comment"] == "horae: steps=5 queue=a"
    assert (details["Requeue"], details["NumNodes"], details["TresPerNode"]) == ("1", "1-1", "gres:gpu:2")
    assert "ReqNodeList" not in details
