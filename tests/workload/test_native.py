"""Horae's own format gives back exactly the jobs it was given, as CSV and as Parquet."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.loss_curve import LossCurve
from horae.workload.traces import load_trace, save_trace

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
seconds = st.floats(0, 1e12)
speeds = st.floats(0, 1e6)
curves = st.builds(LossCurve, st.floats(5, 10), st.floats(-1, 5), st.floats(1e-3, 1e6))


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    low, size, high = sorted(draw(st.tuples(*[st.integers(1, 10**6)] * 3)))
    return JobSpec(
        id=draw(ids),
        submit_s=draw(seconds),
        gpus=size,
        work=draw(st.floats(1e-9, 1e12)),
        unit=draw(st.sampled_from(["seconds", "steps"])),
        gpus_min=low,
        gpus_max=high,
        cpus_per_gpu=draw(st.integers(0, 64)),
        memory_mb_per_gpu=draw(st.just(0) | st.integers(1, 2**30)),
        job_class=draw(st.just("") | names),
        gpu_types=tuple(draw(st.lists(names, max_size=3))),
        throughput=draw(st.dictionaries(names, speeds, max_size=3)),
        slowdown=tuple(sorted(draw(st.tuples(*[st.floats(1, 10)] * 4)))),
        skew=draw(st.none() | st.floats(0, 1)),
        weight=draw(st.floats(1e-3, 1e3)),
        app=draw(st.just("") | names),
        queue="/".join(draw(st.lists(names.filter(lambda name: "/" not in name), min_size=1, max_size=3))),
        checkpoint_s=draw(st.none() | seconds),
        restore_s=draw(st.none() | seconds),
        start_s=draw(st.none() | seconds),
        checkpoint_every_s=draw(seconds),
        min_runtime_s=draw(seconds),
        deadline_s=draw(st.none() | seconds),
        max_restarts=draw(st.integers(0, 10)),
        retry_exit_codes=tuple(draw(st.lists(st.integers(0, 255), max_size=3))),
        app_scheduler=draw(st.sampled_from(["", "halving", "halving:eta=4,rungs=2", "hyperdrive:margin=0.5"])),
        report_every=draw(st.just(0.0) | st.floats(1e12, 1e13)),
        loss=draw(st.none() | curves),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(jobs(), min_size=1, max_size=5, unique_by=lambda job: job.id), st.sampled_from(["csv", "parquet"]))
def test_what_is_saved_is_loaded_again(jobs: list[JobSpec], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"trace.{suffix}"
        save_trace(path, jobs)
        trace = load_trace(path)
    assert trace.format == "horae"
    assert list(trace.jobs) == sorted(jobs, key=lambda job: job.submit_s)


def test_parquet_is_known_by_its_content_and_numbers_stay_numbers(tmp_path: Path) -> None:
    save_trace(tmp_path / "trace.parquet", [JobSpec("a", 0.5, 2, 9.0, deadline_s=4.0), JobSpec("b", 1.0, 1, 9.0)])
    renamed = (tmp_path / "trace.parquet").rename(tmp_path / "trace.data")
    frame = polars.read_parquet(renamed)
    assert dict(frame.schema) == {
        "job_id": polars.String,
        "submit_s": polars.Float64,
        "gpus": polars.Int64,
        "work": polars.Float64,
        "unit": polars.String,
        "deadline_s": polars.Float64,
    }
    assert [job.deadline_s for job in load_trace(renamed).jobs] == [4.0, None]


def test_bad_rows_of_a_parquet_file_are_counted_from_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    rows = {"job_id": [7, 8, 9], "submit_s": [0, 1, 2], "gpus": [1.0, 1.5, None], "work": [3.0, 3.0, 3.0]}
    polars.DataFrame(rows).write_parquet(path)
    trace = load_trace(path, skip_bad=True)
    assert [job.id for job in trace.jobs] == ["7"]
    assert [(bad.line, bad.reason) for bad in trace.skipped] == [
        (2, "gpus is 1.5, not a whole number"),
        (3, "gpus is missing"),
    ]


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e12, 1 / 3, 123456789.125])
def test_csv_keeps_every_digit(tmp_path: Path, value: float) -> None:
    save_trace(tmp_path / "trace.csv", [JobSpec("a", value, 1, value)])
    (job,) = load_trace(tmp_path / "trace.csv").jobs
    assert (job.submit_s, job.work) == (value, value)


@pytest.mark.parametrize(
    ("column", "cell", "told"),
    [
        ("retry_exit_codes", "[1.5]", "such as \\[1, 137\\]"),
        ("max_restarts", "-1", "max_restarts is -1"),
        ("deadline_s", "1e13", "deadline_s is 1"),
    ],
)
def test_a_setting_out_of_range_is_a_bad_row(tmp_path: Path, column: str, cell: str, told: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"job_id,submit_s,gpus,work,{column}\na,0,1,5,{cell}\n")
    with pytest.raises(UserError, match=told):
        load_trace(path)


@pytest.mark.parametrize(
    ("row", "told"),
    [("a,1e13,1,5", "submission time"), ("a,0,1,1e13", "at most 1e"), ("a\0b,0,1,5", "control character")],
)
def test_what_no_job_can_have_is_a_bad_row(tmp_path: Path, row: str, told: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"job_id,submit_s,gpus,work\n{row}\n")
    with pytest.raises(UserError, match=told):
        load_trace(path)


def test_steps_may_be_more_than_seconds_and_zero_is_no_minimum() -> None:
    assert JobSpec("a", 0, 4, 1e14, unit="steps", gpus_min=0).gpus_min == 4
    with pytest.raises(UserError, match="at most 1e"):
        JobSpec("a", 0, 4, 1e16, unit="steps")


@pytest.mark.parametrize(
    ("column", "cell", "sentence"),
    [
        ("loss", '"{""first"": 1}"', "not a JSON map such as"),
        ("loss", '"{""first"": 1, ""last"": 2, ""halves_at"": 3}"', "would rise"),
        ("app_scheduler", "halfing", "Did you mean 'halving'"),
        ("report_every", "0.001", "1000 reports"),
    ],
)
def test_a_bad_trial_is_told_with_its_line(tmp_path: Path, column: str, cell: str, sentence: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"job_id,submit_s,gpus,work,{column}\na,0,1,100,{cell}\n")
    with pytest.raises(UserError, match=f"line 2: .*{sentence}"):
        load_trace(path)
