"""Formats are told apart, rows become the right jobs, and bad rows are named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from horae.core.cluster import Span
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.throughputs import Setting, Throughputs
from horae.workload.traces import FORMATS, load_trace, save_trace

TIRESIAS = """job_id,num_gpu,submit_time,iterations,model_name,duration,interval
a,1,30,606,vgg19,164,30
b,8,0,133,vgg11,147,23
c,2,30,157,inception4,127,26
"""
PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:01:55,2951.0,4,11804.0,6214e9
"""
ELASTICFLOW = """job_id,submission_time,duration,num_gpu
930dd644,9940,16235,1
5c338a83,11086,16627,64
"""
NATIVE = """job_id,submit_s,gpus,work
x,5,2,100
y,1.5,1,7.25
"""


def gavel_ten(steps: object = 100, gpus: object = 2, weight: object = 1, slo: object = -1, arrival: object = 0) -> str:
    cells = ("LM (batch size 5)", "python3 main.py", "lm", "--steps", 1, steps, gpus, weight, slo, arrival)
    return "\t".join(map(str, cells)) + "\n"


def gavel_seven(sixth: object, seventh: object) -> str:
    return "\t".join(map(str, ("LM (batch size 5)", "python3 main.py", "--steps", 1, 100, sixth, seventh))) + "\n"


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (TIRESIAS, "tiresias"),
        (PHILLY, "philly"),
        (ELASTICFLOW, "elasticflow"),
        (NATIVE, "horae"),
        (gavel_ten(), "gavel"),
        (gavel_seven(0, 1), "gavel"),
        ("\ufeff\r\n" + TIRESIAS.replace("\n", "\r\n"), "tiresias"),
    ],
)
def test_the_first_line_tells_the_format(write, text: str, name: str) -> None:
    path = write(text)
    assert load_trace(path).format == name
    assert load_trace(path, format=name).jobs == load_trace(path).jobs


def test_every_format_is_listed_with_a_summary() -> None:
    assert list(FORMATS) == ["horae", "tiresias", "gavel", "philly", "elasticflow", "slurm"]
    assert all(known.summary for known in FORMATS.values())


def test_tiresias_rows_come_sorted_and_ties_keep_the_files_order(write) -> None:
    jobs = load_trace(write(TIRESIAS)).jobs
    assert [job.id for job in jobs] == ["b", "a", "c"]
    assert jobs[1] == JobSpec("a", 30.0, 1, 164.0, job_class="vgg19")


def test_philly_time_starts_at_the_earliest_row_and_ids_are_row_numbers(write) -> None:
    assert load_trace(write(PHILLY)).jobs == (
        JobSpec("1", 0.0, 4, 2951.0, queue="6214e9"),
        JobSpec("0", 3600.0, 1, 66.0, queue="11cb48"),
    )


def test_philly_times_span_days_and_heed_time_zones(write) -> None:
    text = PHILLY + "2017-10-12 06:01:55,5,1,5,a\n2017-10-09 10:01:55+02:00,5,1,5,a\n"
    assert {job.id: job.submit_s for job in load_trace(write(text)).jobs} == {"1": 0, "0": 3600, "2": 259200, "3": 7200}


def test_elasticflow_keeps_its_own_origin_of_time(write) -> None:
    assert load_trace(write(ELASTICFLOW)).jobs[0] == JobSpec("930dd644", 9940.0, 1, 16235.0)


def test_gavel_rows_count_steps_and_carry_their_weight(write) -> None:
    path = write(gavel_ten(arrival=50) + gavel_ten(steps=9, gpus=1, weight=5, arrival=20))
    first, second = load_trace(path).jobs
    assert first == JobSpec("1", 20.0, 1, 9.0, "steps", job_class="LM (batch size 5)", weight=5.0)
    assert (second.id, second.gpus, second.deadline_s) == ("0", 2, None)


def test_a_quote_in_a_gavel_command_is_a_character_like_any_other(write) -> None:
    path = write(gavel_ten().replace("main.py", 'main.py "') + gavel_ten(arrival=3))
    assert len(load_trace(path).jobs) == 2


def test_a_gavel_slo_is_a_multiple_of_the_duration_on_a_v100(write) -> None:
    speeds = Throughputs()
    speeds.put(Setting("LM (batch size 5)", "v100", 2, Span.NODE), 4.0)
    (job,) = load_trace(write(gavel_ten(steps=100, slo=1.2)), throughputs=speeds).jobs
    assert job.deadline_s == pytest.approx(30.0)


def test_a_gavel_slo_without_speeds_is_not_dropped_in_silence(write) -> None:
    with pytest.raises(UserError, match="--throughputs"):
        load_trace(write(gavel_ten(slo=1.2)))
    with pytest.raises(UserError, match="LM"):
        load_trace(write(gavel_ten(slo=1.2)), throughputs=Throughputs())


@pytest.mark.parametrize(
    "columns",
    [
        [(0, 1), (7.5, 4), (7.5, 2), (90, 1)],  # arrival, then size
        [(1, 0), (4, 7.5), (2, 7.5), (1, 90)],  # size, then arrival
        [(1, 0), (4, 7.5), ("oops", "oops"), (2, 7.5), (1, 90)],  # the same, with a bad row
    ],
)
def test_seven_gavel_columns_are_told_apart_by_what_they_hold(write, columns) -> None:
    jobs = load_trace(write("".join(gavel_seven(*pair) for pair in columns)), skip_bad=True).jobs
    assert [(job.submit_s, job.gpus) for job in jobs] == [(0, 1), (7.5, 4), (7.5, 2), (90, 1)]


def test_seven_gavel_columns_of_small_whole_numbers_are_told_apart_by_falling(write) -> None:
    jobs = load_trace(write("".join(gavel_seven(*pair) for pair in [(2, 5), (1, 6), (2, 7)]))).jobs
    assert [(job.submit_s, job.gpus) for job in jobs] == [(5, 2), (6, 1), (7, 2)]


def test_seven_gavel_columns_that_could_be_either_are_arrival_then_size(write) -> None:
    (job,) = load_trace(write(gavel_seven(2, 4))).jobs
    assert (job.submit_s, job.gpus) == (2.0, 4)


def test_native_rows_fill_in_the_defaults(write) -> None:
    assert load_trace(write(NATIVE)).jobs == (JobSpec("y", 1.5, 1, 7.25), JobSpec("x", 5.0, 2, 100.0))


def test_native_columns_may_come_in_any_order_with_maps_as_json(write) -> None:
    text = 'work,unit,gpus,job_id,submit_s,throughput,gpu_types\n9,steps,1,a,0,"{""v100"": 2.5}","[""v100""]"\n'
    (job,) = load_trace(write(text)).jobs
    assert job == JobSpec("a", 0.0, 1, 9.0, "steps", throughput={"v100": 2.5}, gpu_types=("v100",))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("z,0,1,nan", "work is nan"),
        ("z,0,1,inf", "work is inf"),
        ("z,0,1,-4", "work is -4"),
        ("z,0,1,0", "work is 0"),
        ("z,0,1,long", "work is 'long', not a number"),
        ("z,0,1,", "work is missing"),
        ("z,0,0,5", "0 GPUs"),
        ("z,0,1.5,5", "gpus is '1.5', not a whole number"),
        ("z,0,nan,5", "gpus is 'nan', not a whole number"),
        ("z,-1,1,5", "submission time -1"),
        (",0,1,5", "job_id is missing"),
        ("z,0,1", "3 columns instead of 4"),
        ("z,0,1,5,6", "5 columns instead of 4"),
        ("x,0,1,5", "job id 'x' is taken by line 2"),
    ],
)
def test_a_bad_row_is_reported_with_file_line_and_reason(write, row: str, reason: str) -> None:
    path = write(NATIVE + "\n" + row + "\n")
    with pytest.raises(UserError, match=r"^1 of 3 rows in .*trace.csv cannot be jobs \(line 5: .*--skip-bad") as caught:
        load_trace(path)
    assert reason in str(caught.value)
    trace = load_trace(path, skip_bad=True)
    assert [job.id for job in trace.jobs] == ["y", "x"]
    assert [(bad.path, bad.line) for bad in trace.skipped] == [(str(path), 5)]
    assert reason in trace.skipped[0].reason
    assert str(trace.skipped[0]).startswith(f"{path}:5: ")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("throughput", "fast"),
        ("throughput", '"[1]"'),
        ("throughput", '"{""v100"": true}"'),
        ("gpu_types", '"{}"'),
        ("slowdown", '"[1, 2]"'),
        ("slowdown", '"[1, 1, 1, NaN]"'),
        ("retry_exit_codes", '"[1.5]"'),
        ("unit", "epochs"),
        ("queue", "org//user"),
        ("deadline_s", "-3"),
    ],
)
def test_a_bad_cell_in_an_optional_column_makes_a_bad_row(write, column: str, value: str) -> None:
    path = write(f"job_id,submit_s,gpus,work,{column}\na,0,1,5,\nb,0,1,5,{value}\n")
    trace = load_trace(path, skip_bad=True)
    assert [job.id for job in trace.jobs] == ["a"]
    assert trace.skipped[0].line == 3


def test_many_bad_rows_make_one_short_error(write) -> None:
    with pytest.raises(UserError, match=r"^20 of 22 rows .*line 4: .*line 5: .*line 6: .*; and 17 more\)") as caught:
        load_trace(write(NATIVE + "z,0,0,5\n" * 20))
    assert "line 7" not in str(caught.value)


def test_a_row_that_spans_lines_is_reported_where_it_begins(write) -> None:
    text = 'job_id,submit_s,gpus,work,app\nx,0,1,5,"two\nlines"\nz,0,0,5,\n'
    trace = load_trace(write(text), skip_bad=True)
    assert [bad.line for bad in trace.skipped] == [4]
    assert [job.app for job in trace.jobs] == ["two\nlines"]


def test_bad_rows_in_other_formats_are_found_too(write) -> None:
    text = PHILLY + "yesterday,5,1,5,a\n2017-10-09 06:01:55,x,1,5,a\n2017-10-09 06:01:55,5,1,5,\nshort,1\n"
    trace = load_trace(write(text), skip_bad=True)
    assert [bad.line for bad in trace.skipped] == [4, 5, 6, 7]
    assert [job.id for job in trace.jobs] == ["1", "0"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("\n  \n", "is empty"),
        ("job_id,submit_s,gpus,work\n", "no jobs"),
        ("name,when\nx,1\n", "--format"),
        ("job_id,submit_s,gpus,work,weigth\na,0,1,5,2\n", "Did you mean 'weight'"),
        ("job_id,submit_s,gpus,work,gpus\na,0,1,5,2\n", "two columns called 'gpus'"),
        ("job_id,submit_s,gpus,work\na,0,0,5\n", "1 of 1 rows"),
    ],
)
def test_a_file_that_is_no_trace_gets_a_next_step(write, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_trace(write(text), skip_bad=True)


def test_a_missing_column_is_named(write) -> None:
    with pytest.raises(UserError, match="lacks the column 'submit_time'"):
        load_trace(write("job_id,num_gpu,duration\n1,1,5\n"), format="tiresias")


def test_paths_that_hold_no_trace(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", Path("x" * 5000)):
        with pytest.raises(UserError, match="no trace file"):
            load_trace(path)
    with pytest.raises(UserError, match="is a folder"):
        load_trace(tmp_path, format="philly")


def test_binary_and_damaged_files_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"job_id,submit_s,gpus,work\n\xff\xfe,0,1,1\n")
    with pytest.raises(UserError, match="UTF-8"):
        load_trace(binary)
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(UserError, match="Parquet"):
        load_trace(damaged)


def test_an_unknown_format_gets_a_suggestion(write) -> None:
    with pytest.raises(UserError, match="Did you mean 'gavel'"):
        load_trace(write(NATIVE), format="gravel")


def test_a_trace_is_saved_as_csv_or_parquet_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.csv or \.parquet"):
        save_trace(tmp_path / "trace.txt", [JobSpec("a", 0.0, 1, 1.0)])
    with pytest.raises(UserError, match="cannot be written"):
        save_trace(tmp_path / "none" / "trace.csv", [JobSpec("a", 0.0, 1, 1.0)])


def test_a_saved_csv_names_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    save_trace(path, [JobSpec("a", 0.0, 2, 1.5), JobSpec("b", 1.25, 1, 3.0, queue="org/x")])
    assert path.read_text().split() == [
        "job_id,submit_s,gpus,work,unit,queue",
        "a,0,2,1.5,seconds,default",
        "b,1.25,1,3,seconds,org/x",
    ]


@pytest.mark.parametrize(
    ("name", "known", "jobs"),
    [
        ("philly/philly_pollux.csv", "philly", 82_247),
        ("elasticflow/cluster01.csv", "elasticflow", 1_595),
        ("elasticflow/cluster02.csv", "elasticflow", 5_778),
        ("elasticflow/cluster03.csv", "elasticflow", 3_011),
        ("elasticflow/cluster04.csv", "elasticflow", 15_802),
        ("elasticflow/cluster05.csv", "elasticflow", 3_629),
        ("gavel/max_min_fairness.trace", "gavel", 96),
        ("gavel/minimize_makespan.trace", "gavel", 100),
        ("tiresias/60_job.csv", "tiresias", 60),
        ("tiresias/480gen_job.csv", "tiresias", 480),
        ("tiresias/philly103959_job.csv", "tiresias", 876),
    ],
)
def test_the_real_traces_load_whole(shared_data: Path, name: str, known: str, jobs: int) -> None:
    trace = load_trace(shared_data / name)
    assert (trace.format, len(trace.jobs), trace.skipped) == (known, jobs, ())
    submissions = [job.submit_s for job in trace.jobs]
    assert submissions == sorted(submissions)


def test_the_philly_trace_keeps_its_gpu_time(shared_data: Path) -> None:
    path = shared_data / "philly" / "philly_pollux.csv"
    gpu_time = sum(float(line.split(",")[3]) for line in path.read_text().splitlines()[1:] if line)
    assert sum(job.gpus * job.work for job in load_trace(path).jobs) == pytest.approx(gpu_time)


def test_a_last_line_without_a_newline_is_a_job_too(write) -> None:
    assert len(load_trace(write(ELASTICFLOW.rstrip("\n"))).jobs) == 2


def test_nobody_is_told_to_skip_all_rows(write) -> None:
    with pytest.raises(UserError) as told:
        load_trace(write(NATIVE.splitlines()[0] + "\nz,0,0,5\n"), skip_bad=True)
    assert "--skip-bad" not in str(told.value)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe or a device"):
        load_trace(tmp_path / "pipe")
