"""Horae's own format gives back exactly the jobs it was given, as CSV and as Parquet."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.job import JobSpec
from horae.workload.traces import load_trace, save_trace

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
seconds = st.floats(0, 1e12)
speeds = st.floats(0, 1e6)


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    low, size, high = sorted(draw(st.tuples(*[st.integers(1, 10**6)] * 3)))
    return JobSpec(
        id=draw(names),
        submit_s=draw(seconds),
        gpus=size,
        work=draw(st.floats(1e-9, 1e15)),
        unit=draw(st.sampled_from(["seconds", "steps"])),
        gpus_min=low,
        gpus_max=high,
        job_class=draw(st.just("") | names),
        gpu_types=tuple(draw(st.lists(names, max_size=3))),
        throughput=draw(st.dictionaries(names, speeds, max_size=3)),
        slowdown=tuple(sorted(draw(st.tuples(*[st.floats(1, 10)] * 4)))),
        weight=draw(st.floats(1e-3, 1e3)),
        app=draw(st.just("") | names),
        queue="/".join(draw(st.lists(names.filter(lambda name: "/" not in name), min_size=1, max_size=3))),
        checkpoint_s=draw(st.none() | seconds),
        restore_s=draw(st.none() | seconds),
        checkpoint_every_s=draw(seconds),
        min_runtime_s=draw(seconds),
        deadline_s=draw(st.none() | seconds),
        max_restarts=draw(st.integers(0, 10)),
        retry_exit_codes=tuple(draw(st.lists(st.integers(0, 255), max_size=3))),
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


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e22, 1 / 3, 123456789.125])
def test_csv_keeps_every_digit(tmp_path: Path, value: float) -> None:
    save_trace(tmp_path / "trace.csv", [JobSpec("a", value, 1, value)])
    (job,) = load_trace(tmp_path / "trace.csv").jobs
    assert (job.submit_s, job.work) == (value, value)
