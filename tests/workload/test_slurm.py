"""What `sacct --parsable2` prints becomes jobs: each once, with the GPUs and the time it had."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.workload.traces import Trace, load_trace

#: As Slurm 22.05 prints it, with steps, an array, a job of two parts, a requeued job and all kinds of ends.
OLD = """\
JobID|JobName|User|Account|Partition|Submit|Start|End|ElapsedRaw|Elapsed|State|AllocTRES|ReqTRES|NNodes
1|a|ann|vision|batch|2024-03-01T12:00:02|2024-03-01T12:00:03|2024-03-01T12:00:08|5|00:00:05|COMPLETED|\
billing=1,cpu=1,gres/gpu:v100=2,gres/gpu=2,node=1|billing=1,cpu=1,gres/gpu:v100=2,gres/gpu=2,mem=62.50G,node=1|1
1.batch|batch||vision||2024-03-01T12:00:03|2024-03-01T12:00:03|2024-03-01T12:00:08|5|00:00:05|COMPLETED|\
cpu=1,gres/gpu:v100=2,gres/gpu=2,mem=0,node=1||1
1.extern|extern||vision||2024-03-01T12:00:03|2024-03-01T12:00:03|2024-03-01T12:00:08|5|00:00:05|COMPLETED|\
billing=1,cpu=1,gres/gpu:v100=2,gres/gpu=2,node=1||1
1.0|train||vision||2024-03-01T12:00:03|2024-03-01T12:00:03|2024-03-01T12:00:08|5|00:00:05|COMPLETED|\
cpu=1,gres/gpu:v100=2,gres/gpu=2,mem=0,node=1||1
2|fails|bob|nlp|batch|2024-03-01T12:00:00|2024-03-01T12:00:03|2024-03-01T12:00:04|1|00:00:01|FAILED|\
billing=1,cpu=1,gres/gpu:p100=1,gres/gpu=1,node=1|billing=1,cpu=1,gres/gpu=1,mem=62.50G,node=1|1
5|cpu|bob|nlp|batch|2024-03-01T12:00:02|2024-03-01T12:00:03|2024-03-01T12:00:05|2|00:00:02|COMPLETED|\
billing=1,cpu=1,node=1|billing=1,cpu=1,mem=62.50G,node=1|1
6|stop|ann|vision|batch|2024-03-01T12:00:02|2024-03-01T12:00:03|2024-03-01T12:00:06|3|00:00:03|CANCELLED by 1000|\
billing=1,cpu=1,gres/gpu:v100=1,gres/gpu=1,node=1|billing=1,cpu=1,gres/gpu=1,mem=62.50G,node=1|1
7|never|ann|vision|batch|2024-03-01T12:00:02|None|2024-03-01T12:00:06|0|00:00:00|CANCELLED by 1000||\
billing=1,cpu=1,gres/gpu=1,mem=62.50G,node=1|1
8|again|ann|vision|batch|2024-03-01T12:00:02|2024-03-01T12:00:03|2024-03-01T12:00:06|3|00:00:03|REQUEUED|\
billing=1,cpu=1,gres/gpu:v100=1,gres/gpu=1,node=1|billing=1,cpu=1,gres/gpu:v100=1,gres/gpu=1,mem=62.50G,node=1|1
10|long|bob|nlp|batch|2024-03-01T12:00:02|2024-03-01T12:00:05|Unknown|24|00:00:24|RUNNING|\
billing=1,cpu=1,gres/gpu:v100=1,gres/gpu=1,node=1|billing=1,cpu=1,gres/gpu=1,mem=62.50G,node=1|1
11+0|het|bob|nlp|batch|2024-03-01T12:00:02|2024-03-01T12:00:07|2024-03-01T12:00:09|2|00:00:02|TIMEOUT|\
billing=1,cpu=1,gres/gpu:p100=1,gres/gpu=1,node=1|billing=1,cpu=1,gres/gpu=1,mem=62.50G,node=1|1
11+0.batch|batch||nlp||2024-03-01T12:00:07|2024-03-01T12:00:07|2024-03-01T12:00:09|2|00:00:02|COMPLETED|\
cpu=1,gres/gpu:p100=1,gres/gpu=1,mem=0,node=1||1
4_1|arr|bob|nlp|batch|2024-03-01T12:00:02|2024-03-01T12:00:03|2024-03-01T12:00:06|3|00:00:03|COMPLETED|\
billing=1,cpu=1,gres/gpu:v100=1,gres/gpu=1,node=1|billing=1,cpu=1,gres/gpu=1,mem=62.50G,node=1|1
4_[2-3]|arr|bob|nlp|batch|2024-03-01T12:00:02|Unknown|Unknown|0|00:00:00|PENDING||\
billing=1,cpu=1,gres/gpu=1,mem=62.50G,node=1|1
8|again|ann|vision|batch|2024-03-01T12:00:06|2024-03-01T12:00:07|2024-03-01T12:00:13|6|00:00:06|COMPLETED|\
billing=1,cpu=1,gres/gpu:v100=1,gres/gpu=1,node=1|billing=1,cpu=1,gres/gpu:v100=1,gres/gpu=1,mem=62.50G,node=1|1
"""

#: As Slurm 23.11 prints it, in another order and with other columns.
NEW = """\
Submit|AllocTRES|JobID|Elapsed|State|Account|QOS|User
2024-05-01T00:00:00|billing=64,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=512G,node=2|77|1-02:03:04|OUT_OF_MEMORY|\
vision|normal|eve
2024-05-01T00:00:00|cpu=32,gres/gpu:a100=4,gres/gpu=4,mem=256G,node=1|77.batch|1-02:03:04|OUT_OF_MEMORY|vision||
2024-05-02T00:00:00|billing=1,cpu=1,gres/gpu=1,mem=8G,node=1|78_12|00:10:00|NODE_FAIL|vision|normal|eve
2024-05-02T00:00:30|billing=1,cpu=1,gres/gpu:a100=1,gres/gpu:h100=1,gres/gpu=2,mem=8G,node=1|79|00:00:09|PREEMPTED|||
"""


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str, skip_bad: bool = False) -> Trace:
        path = tmp_path / "sacct.txt"
        path.write_text(text, encoding="utf-8")
        return load_trace(path, skip_bad=skip_bad)

    return read


def table(*rows: str, header: str = "JobID|Submit|Start|End|State|AllocTRES") -> str:
    return "\n".join((header, *rows, ""))


def test_what_slurm_22_prints(read) -> None:
    trace = read(OLD)
    assert trace.format == "slurm"
    assert {job.id: job for job in trace.jobs} == {
        "1": JobSpec("1", 2.0, 2, 5.0, gpu_types=("v100",), queue="vision/ann"),
        "2": JobSpec("2", 0.0, 1, 1.0, queue="nlp/bob"),
        "6": JobSpec("6", 2.0, 1, 3.0, queue="vision/ann"),
        "8": JobSpec("8", 2.0, 1, 9.0, gpu_types=("v100",), queue="vision/ann"),
        "11+0": JobSpec("11+0", 2.0, 1, 2.0, queue="nlp/bob"),
        "4_1": JobSpec("4_1", 2.0, 1, 3.0, queue="nlp/bob"),
    }
    assert trace.left_out == {
        "jobs without GPUs": 1,
        "jobs that never ran": 1,
        "jobs that are running or pending": 2,
        "earlier records of jobs that are told again": 1,
    }


def test_what_slurm_23_prints(read) -> None:
    assert list(read(NEW).jobs) == [
        JobSpec("77", 0.0, 8, 86400 + 2 * 3600 + 3 * 60 + 4.0, gpu_types=("a100",), queue="vision/eve"),
        JobSpec("78_12", 86400.0, 1, 600.0, queue="vision/eve"),
        JobSpec("79", 86430.0, 2, 9.0, gpu_types=("a100", "h100")),
    ]


def test_every_line_may_end_with_a_bar_and_files_may_be_put_together(read) -> None:
    plain = read(OLD)
    assert read(OLD.replace("\n", "|\n")) == plain
    assert read(OLD + OLD).jobs == plain.jobs


def test_without_seconds_and_states_start_and_end_tell(read) -> None:
    rows = (
        "1|2024-03-01T00:00:00|2024-03-01T00:00:10|2024-03-01T01:00:10|gres/gpu=1",
        "2|2024-03-01T00:00:00|2024-03-01T00:00:10|Unknown|gres/gpu=1",
        "3|2024-03-01T00:00:00|None|2024-03-01T01:00:10|gres/gpu=1",
    )
    trace = read(table(*rows, header="JobID|Submit|Start|End|AllocTRES"))
    assert [(job.id, job.work) for job in trace.jobs] == [("1", 3600.0)]
    assert trace.left_out == {"jobs that are running or pending": 1, "jobs that never ran": 1}


def test_a_job_is_over_once_a_later_file_says_so_and_not_while_it_waits_again(read) -> None:
    running = "1|2024-03-01T00:00:00|2024-03-01T00:00:10|Unknown|RUNNING|gres/gpu=1"
    ended = "1|2024-03-01T00:00:00|2024-03-01T00:00:10|2024-03-01T00:00:20|NODE_FAIL|gres/gpu=1"
    again = "1|2024-03-01T00:00:20|Unknown|Unknown|PENDING|gres/gpu=1"
    other = "2|2024-03-01T00:00:00|2024-03-01T00:00:10|2024-03-01T00:00:20|COMPLETED|gres/gpu=1"
    assert [job.work for job in read(table(running, ended)).jobs] == [10.0]
    assert [job.work for job in read(table(ended, running)).jobs] == [10.0]
    assert [job.id for job in read(table(again, ended, other)).jobs] == ["2"]


def test_times_that_say_how_far_they_are_from_utc_are_compared_as_moments(read) -> None:
    """As with SLURM_TIME_FORMAT="%FT%T%z", in the night in which clocks go back."""
    rows = (
        "1|2024-10-27T02:30:00+0200|2024-10-27T02:50:00+0200|2024-10-27T02:10:00+0100|COMPLETED|gres/gpu=1",
        "2|2024-10-27T02:20:00+0100|2024-10-27T02:30:00+0100|2024-10-27T02:40:00+0100|COMPLETED|gres/gpu=1",
    )
    assert [(job.id, job.submit_s, job.work) for job in read(table(*rows)).jobs] == [
        ("1", 0.0, 1200.0),
        ("2", 3000.0, 600.0),
    ]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("1|yesterday|2024-03-01T00:00:10|2024-03-01T00:00:20|COMPLETED|gres/gpu=1", "Submit is 'yesterday'"),
        ("1|Unknown|2024-03-01T00:00:10|2024-03-01T00:00:20|COMPLETED|gres/gpu=1", "Submit is missing"),
        ("1|2024-03-01T00:00:00|soon|2024-03-01T00:00:20|COMPLETED|gres/gpu=1", "Start is 'soon'"),
        ("1|2024-03-01T00:00:00|2024-03-01T00:00:10|2024-03-01T00:00:05|FAILED|gres/gpu=1", "work is -5"),
        ("1|2024-03-01T00:00:00|2024-03-01T00:00:10|2024-03-01T00:00:20|EATEN|gres/gpu=1", "State is 'EATEN'"),
        ("1|2024-03-01T00:00:00|2024-03-01T00:00:10|2024-03-01T00:00:20|FAILED|gres/gpu=many", "gres/gpu in AllocTRES"),
        ("1|a|2024-03-01T00:00:00|2024-03-01T00:00:10|2024-03-01T00:00:20|FAILED|gres/gpu=1", "7 columns instead of 6"),
    ],
)
def test_a_row_that_cannot_be_a_job_is_named_or_skipped(read, row: str, complaint: str) -> None:
    good = "9|2024-03-01T00:00:00|2024-03-01T00:00:10|2024-03-01T00:00:20|COMPLETED|gres/gpu=1"
    with pytest.raises(UserError, match=complaint):
        read(table(good, row))
    trace = read(table(good, row), skip_bad=True)
    assert [job.id for job in trace.jobs] == ["9"]
    assert trace.skipped[0].line == 3


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("JobID|State|Elapsed|AllocTRES", "column Submit"),
        ("JobID|Submit|Start|AllocTRES", "column ElapsedRaw or Elapsed or Start and End"),
        ("JobID|Submit|Elapsed|State", "column AllocTRES or ReqTRES"),
    ],
)
def test_a_missing_column_is_named_with_the_command_that_prints_it(read, header: str, missing: str) -> None:
    with pytest.raises(UserError, match=missing) as caught:
        read(table("1|2|3|4", header=header))
    assert "sacct --parsable2" in str(caught.value)


def test_a_file_in_which_nothing_can_be_run_again_says_why(read) -> None:
    with pytest.raises(UserError, match="jobs without GPUs: 1"):
        read(table("1|2024-03-01T00:00:00|2024-03-01T00:00:10|2024-03-01T00:00:20|COMPLETED|cpu=1"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_jobs_that_are_told_as_slurm_would_are_read_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Runs of any number and length, in any order of rows and columns, steps among them."""
    began = datetime.fromisoformat("2024-01-01")
    columns = data.draw(st.permutations(["JobID", "Submit", "Start", "Elapsed", "State", "ReqTRES", "Account"]))
    rows, expected = [], {}
    for number in range(data.draw(st.integers(1, 6))):
        gpus, runs = data.draw(st.integers(1, 64)), data.draw(st.lists(st.integers(1, 200_000), min_size=1, max_size=3))
        name, at = f"{100 + number}_{number}", began + timedelta(seconds=data.draw(st.integers(0, 1000)))
        expected[name] = (at, gpus, float(sum(runs)))
        for elapsed in runs:
            days, rest = divmod(elapsed, 86400)
            clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
            told = {
                "JobID": name,
                "Submit": at.isoformat(),
                "Start": at.isoformat(),
                "Elapsed": f"{days}-{clock}" if days else clock,
                "State": "PREEMPTED",
                "ReqTRES": f"cpu=4,gres/gpu={gpus},mem=4G",
                "Account": "lab",
            }
            rows += [[told[column] for column in columns]]
            rows += [[{**told, "JobID": f"{name}.batch"}[column] for column in columns]]
            at += timedelta(seconds=elapsed + 1)
    path = tmp_path_factory.mktemp("slurm") / "sacct.txt"
    path.write_text("\n".join("|".join(row) for row in [columns, *data.draw(st.permutations(rows))]))
    first = min(at for at, _, _ in expected.values())
    told_again = {
        job.id: (first + timedelta(seconds=job.submit_s), job.gpus, job.work) for job in load_trace(path).jobs
    }
    assert told_again == expected
