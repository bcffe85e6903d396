"""`horae trace`: in, out and a look inside."""

from pathlib import Path

import pytest

from horae.workload.traces import load_trace
from tests.cli.conftest import TRACE, Horae


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_an_imported_trace_holds_the_same_jobs(name: str, horae: Horae, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / name
    answer = horae("trace", "import", trace, "--out", out, "-o", "json")
    assert answer.json == {"out": str(out), "jobs": 5, "format": "tiresias", "skipped": 0}
    assert load_trace(out).format == "horae"
    assert load_trace(out).jobs == load_trace(trace).jobs


def test_bad_rows_stop_an_import_unless_they_may_be_skipped(horae: Horae, tmp_path: Path) -> None:
    path, out = tmp_path / "trace.csv", tmp_path / "out.csv"
    path.write_text(TRACE + "5,0,50,1,vgg19,10,1\n")
    refused = horae("trace", "import", path, "--out", out)
    assert refused.code == 1
    assert "line 7" in refused.err
    assert not out.exists()
    taken = horae("trace", "import", path, "--out", out, "--skip-bad", "-o", "json")
    assert taken.json["skipped"] == 1
    assert len(load_trace(out).jobs) == 5


def test_what_is_rightly_no_job_is_left_out_and_counted(horae: Horae, tmp_path: Path) -> None:
    path, out = tmp_path / "sacct.txt", tmp_path / "out.csv"
    rows = (
        "1|2024-03-01T00:00:00|60|gres/gpu=2",
        "1.0|2024-03-01T00:00:00|60|gres/gpu=2",
        "2|2024-03-01T00:00:00|60|cpu=1",
    )
    path.write_text("\n".join(("JobID|Submit|ElapsedRaw|AllocTRES", *rows)))
    answer = horae("trace", "import", path, "--out", out, "-o", "json")
    assert answer.json == {"out": str(out), "jobs": 1, "format": "slurm", "skipped": 0}
    assert "left out: jobs without GPUs (1)" in answer.err


def test_a_generated_trace_depends_on_its_seed_alone(horae: Horae, tmp_path: Path) -> None:
    def made(name: str, seed: int) -> bytes:
        out = tmp_path / name
        words = ["--cluster", "4x8", "--jobs", "30", "--load", "0.5", "--seed", seed, "--out", out]
        assert horae("trace", "generate", "plain", *words).code == 0
        return out.read_bytes()

    assert made("a.csv", 1) == made("b.csv", 1)
    assert made("a.csv", 1) != made("c.csv", 2)


def test_the_generator_takes_settings(horae: Horae, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    words = ["--workload", "teams=2", "--workload", "sizes=single", "--workload", "deadline_multiples=2,4"]
    answer = horae("trace", "generate", "plain", "--cluster", "2x2", "--jobs", "40", "--out", out, *words)
    assert answer.code == 0
    jobs = load_trace(out).jobs
    assert {job.queue for job in jobs} == {"org/team-0", "org/team-1"}
    assert {job.gpus for job in jobs} == {1}
    assert {round(job.deadline_s / job.work) for job in jobs if job.deadline_s} == {2, 4}


def test_info_in_every_form(horae: Horae, trace: Path) -> None:
    facts = horae("trace", "info", trace, "-o", "json").json
    assert (facts["format"], facts["jobs"], facts["gpus"]) == ("tiresias", 5, {"1": 3, "2": 1, "4": 1})
    assert "tiresias" in horae("trace", "info", trace).out
    assert "gpus.4" in horae("trace", "info", trace, "-o", "csv").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["info", "nowhere.csv"], "nowhere.csv"),
        (["info", "."], "folder"),
        (["import", "trace.csv", "--out", "out.txt"], ".parquet or .csv"),
        (["import", "trace.csv", "--out", "missing/out.csv"], "missing"),
        (["import", "trace.csv", "--out", "trace.csv"], "named twice"),
        (["generate", "plain", "--cluster", "./trace.csv", "--out", "trace.csv"], "named twice"),
        (["generate", "plain", "--cluster", "1x1", "--out", "out.csv"], "gangs of 8 GPUs"),
        (
            ["generate", "plain", "--cluster", "2x8", "--out", "out.csv", "--workload", "team=2"],
            "Did you mean 'teams'?",
        ),
        (["generate", "plain", "--cluster", "2x8", "--out", "out.csv", "--hours-from", "trace.csv"], "less than a day"),
    ],
)
def test_a_wrong_input_gets_one_sentence(
    words: list[str], told: str, horae: Horae, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    answer = horae("trace", *words)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert told in answer.err
    assert [path.name for path in trace.parent.iterdir()] == ["trace.csv"]


def test_info_reads_deadlines_with_a_table_of_speeds(horae: Horae, tmp_path: Path) -> None:
    trace, speeds = tmp_path / "trace", tmp_path / "speeds.json"
    trace.write_text("LM\ttrain\t.\t-n\t0\t1000\t1\t1\t1.2\t0\n")
    speeds.write_text("""{"v100": {"('LM', 1)": {"null": 10}}}""")
    assert "--throughputs" in horae("trace", "info", trace).err
    assert horae("trace", "info", trace, "--throughputs", speeds, "-o", "json").json["jobs"] == 1
