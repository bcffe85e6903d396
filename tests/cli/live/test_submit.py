"""`horae submit`: what is sent for what was typed."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Answer, Horae
from tests.cli.live.conftest import FakeService

FILE = """\
name: train
queue: vision/ana
resources: {gpus: 2, gpus_max: 4}
envs: {SEED: "1", DATA: /data}
run: python train.py
max_duration: 1h
"""


@pytest.fixture
def taken(fake: FakeService) -> FakeService:
    """A service that takes one job."""
    fake.answers["POST /v1/jobs"] = {"ids": ["train-7"]}
    return fake


def sent(taken: FakeService, horae: Horae, *words: object) -> dict[str, Any]:
    """The one job that a command line came to."""
    answer = horae("submit", *words)
    assert answer.code == 0, answer.err
    (job,) = taken.last.body
    assert isinstance(job, dict)
    return job


def refused(horae: Horae, fake: FakeService, *words: object) -> Answer:
    """The answer to a command line of which nothing was sent."""
    answer = horae("submit", *words)
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert [asked for asked in fake.asked if asked.line.startswith("POST")] == []
    return answer


def test_a_program_is_sent_word_by_word(taken: FakeService, horae: Horae) -> None:
    words = ["python", "train.py", "--note", "a; rm -rf $HOME && `x`", "", "--gpus", "-h", "--", "--debug"]
    job = sent(taken, horae, "--gpus", "2", "--", *words)
    assert job == {"run": words, "resources": {"gpus": "2"}, "workdir": str(Path.cwd())}
    assert taken.last.query == {}


def test_what_comes_with_each_gpu_is_sent_and_shown(taken: FakeService, horae: Horae) -> None:
    words = ["--cpus-per-gpu", "8", "--memory-per-gpu", "16GiB", "--image", "train:1"]
    answer = horae("submit", "--gpus", "4", "--nodes", "2", *words, "--", "true")
    asked = {"cpus_per_gpu": 8, "memory_per_gpu": "16GiB", "image": "train:1"}
    assert taken.last.body[0]["resources"] == {"gpus": "4", "nodes": 2, **asked}
    for shown in ("nodes  ", "cpus per gpu", "memory per gpu", "16GiB", "train:1"):
        assert shown in answer.out


def test_a_grid_fills_in_the_image(fake: FakeService, horae: Horae) -> None:
    fake.answers["POST /v1/jobs"] = {"ids": ["train-7", "train-8"]}
    assert horae("submit", "--grid", "v=1,2", "--image", "train:{v}", "--", "true").code == 0
    assert [job["resources"]["image"] for job in fake.last.body] == ["train:1", "train:2"]


def test_flags_override_the_file_and_leave_the_rest(taken: FakeService, horae: Horae) -> None:
    Path("job.yaml").write_text(FILE)
    job = sent(taken, horae, "job.yaml", "--gpus", "v100:4,k80:4", "--env", "SEED=2", "--time", "4h", "-n", "other")
    assert job == {
        "name": "other",
        "queue": "vision/ana",
        "resources": {"gpus": {"any_of": ["v100:4", "k80:4"]}, "gpus_max": 4},
        "envs": {"SEED": "2", "DATA": "/data"},
        "run": "python train.py",
        "max_duration": "4h",
        "workdir": str(Path.cwd()),
    }


def test_every_flag_has_its_key(taken: FakeService, horae: Horae, tmp_path: Path) -> None:
    job = sent(
        taken, horae, "-n", "t", "--queue", "a/b", "--app", "sweep", "--app-scheduler", "halving:eta=3",
        "--steps", "100", "--max-restarts", "2", "--min-runtime", "5m", "--not-preemptible",
        "--workdir", tmp_path, "--class", "resnet", "--", "true",
    )  # fmt: skip
    assert job == {
        "name": "t",
        "queue": "a/b",
        "app": "sweep",
        "app_scheduler": "halving:eta=3",
        "estimate": {"steps": 100.0},
        "recovery": {"max_restarts": 2},
        "min_runtime": "5m",
        "preemptible": False,
        "workdir": str(tmp_path),
        "class": "resnet",
        "run": ["true"],
    }


def test_the_program_behind_the_dashes_overrides_that_of_the_file(taken: FakeService, horae: Horae) -> None:
    Path("job.yaml").write_text(FILE)
    assert sent(taken, horae, "job.yaml", "--", "python", "other.py")["run"] == ["python", "other.py"]


def test_only_named_variables_are_inherited(taken: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "3")
    monkeypatch.setenv("OTHER", "4")
    assert sent(taken, horae, "--env", "SEED", "--env", "EQ=a=b", "--", "true")["envs"] == {"SEED": "3", "EQ": "a=b"}


def test_folders_are_sent_in_full(taken: FakeService, horae: Horae) -> None:
    Path("sub").mkdir()
    Path("job.yaml").write_text("run: x\nworkdir: sub\ncheckpoint: {dir: saved}\n")
    job = sent(taken, horae, "job.yaml")
    assert (job["workdir"], job["checkpoint"]["dir"]) == (str(Path("sub").resolve()), str(Path("sub/saved").resolve()))
    Path("job.yaml").write_text("run: x\nworkdir: sub\ncheckpoint: {dir: /saved}\n")
    assert sent(taken, horae, "job.yaml")["checkpoint"]["dir"] == "/saved"


def test_the_answer_is_the_plan_and_what_to_do_next(taken: FakeService, horae: Horae) -> None:
    out = horae("submit", "--gpus", "v100:2", "--env", "API_KEY=hunter2", "--", "python", "train.py", "a b").out
    assert "python train.py 'a b'" in out
    assert "v100:2" in out
    assert "Submitted 1 job: train-7" in out
    for line in ("horae queue", "horae why train-7", "horae logs -f train-7", "horae cancel train-7"):
        assert f"  {line}  " in out
    assert "API_KEY" in out
    assert "hunter2" not in out


def test_json_is_alone_on_stdout(taken: FakeService, horae: Horae) -> None:
    assert horae("submit", "-o", "json", "--", "true").json == {"ids": ["train-7"], "dry_run": False}
    assert horae("submit", "-o", "csv", "--", "true").out == "id\ntrain-7\n"


def test_what_the_service_notes_is_said_once_and_is_no_noise_for_programs(fake: FakeService, horae: Horae) -> None:
    fake.answers["POST /v1/jobs"] = {"ids": ["train-7"], "notes": ["It starts over."]}
    assert horae("submit", "--", "true").out.count("It starts over.") == 1
    assert horae("submit", "-o", "json", "--", "true").json["notes"] == ["It starts over."]
    assert horae("submit", "-o", "csv", "--", "true").out == "id\ntrain-7\n"


def test_a_dry_run_says_that_nothing_was_submitted(taken: FakeService, horae: Horae) -> None:
    out = horae("submit", "--dry-run", "--", "true").out
    assert taken.last.query == {"dry_run": ["true"]}
    assert "Nothing was submitted" in out
    assert "Submitted" not in out


def test_a_grid_is_sent_at_once(fake: FakeService, horae: Horae) -> None:
    fake.answers["POST /v1/jobs"] = {"ids": [f"job-{n}" for n in range(1, 5)]}
    answer = horae("submit", "--grid", "lr=0.1,0.01", "--grid", "h=16,32", "--", "train", "{lr}", "{h}")
    assert [job["run"] for job in fake.last.body] == [
        ["train", "0.1", "16"],
        ["train", "0.1", "32"],
        ["train", "0.01", "16"],
        ["train", "0.01", "32"],
    ]
    assert "Submitted 4 jobs: job-1 to job-4" in answer.out
    assert "train 0.01 32" in answer.out


def test_waiting_for_the_end_is_in_the_exit_code(taken: FakeService, horae: Horae) -> None:
    taken.answers["GET /v1/jobs/train-7/why"] = [{"state": "running"}, {"state": "failed"}]
    answer = horae("submit", "--wait", "-o", "json", "--", "false")
    assert answer.code == 100
    assert answer.json["ids"] == ["train-7"]
    assert answer.err == "train-7: failed\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "There is no program to run"),
        (["--"], "There is no program to run"),
        (["nowhere.yaml"], "There is no job file nowhere.yaml; write a program after `--`"),
        (["--env", "NOT_SET_HERE", "--", "x"], "--env NOT_SET_HERE: there is no such variable here"),
        (["--env", "HORAE_URL=x", "--", "x"], "names of variables must not begin with HORAE_"),
        (["--gpus", "many", "--", "x"], "'many' is not a number of GPUs; write 4 or v100:4"),
        (["--gpus", "v100:4,k80:2", "--", "x"], "the same number of GPUs"),
        (["--time", "soon", "--", "x"], "max_duration: 'soon' is not a duration"),
        (["-n", "../x", "--", "x"], "'../x' cannot be a name"),
        (["--workdir", "/nowhere", "--", "x"], "There is no folder /nowhere to run in"),
        (["--grid", "lr=1,2", "--", "x", "{rate}"], "{rate} is not defined"),
    ],
)
def test_what_cannot_be_right_is_not_sent(fake: FakeService, horae: Horae, words: list[str], said: str) -> None:
    answer = refused(horae, fake, *words)
    assert answer.code == 1
    assert said in answer.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: x\nresourcs: {gpus: 2}\n", "job.yaml: resourcs is not a key of a job. Did you mean 'resources'?"),
        ("run: x\nresources: 3\n", "job.yaml: resources: it must be a map"),
        ("run: x\ngpus: 2\n", "job.yaml: gpus is not a key of a job. Did you mean 'resources.gpus'?"),
        ("run: x\nenvs: {text: 3}\n", "job.yaml: envs.text: it must be text."),
        ("run: []\n", "There is no program to run"),
        ("run: [x, 3]\n", "job.yaml: run.1: it must be text."),
        ('run: [x, "a\\0b"]\n', "job.yaml: run.1: it has characters that cannot be passed to a program."),
        ('run: [x, "\\uDCFF"]\n', "job.yaml: run.1: it has characters that cannot be passed to a program."),
        ("- run: x\n", "job.yaml is not a map"),
        ("run: [", "job.yaml is not YAML"),
        ("name: x\n", "There is no program to run"),
        ("rnu: python train.py\n", "job.yaml: rnu is not a key of a job. Did you mean 'run'?"),
    ],
)
def test_a_wrong_file_is_told_by_name(fake: FakeService, horae: Horae, text: str, said: str) -> None:
    Path("job.yaml").write_text(text)
    assert said in refused(horae, fake, "job.yaml", "--gpus", "1").err


def test_a_misspelt_choice_of_gpus_is_told_as_such(fake: FakeService, horae: Horae) -> None:
    Path("job.yaml").write_text("run: x\nresources: {gpus: {anyof: [v100:2]}}\n")
    said = refused(horae, fake, "job.yaml").err
    assert said == "error: job.yaml: resources.gpus.anyof is not a key of a job. Did you mean 'any_of'?\n"


@pytest.mark.parametrize("words", [["python", "train.py"], ["--array", "0", "--", "x"], ["--steps", "many", "--", "x"]])
def test_wrong_usage_is_exit_code_2(fake: FakeService, horae: Horae, words: list[str]) -> None:
    assert refused(horae, fake, *words).code == 2


def test_a_program_without_the_dashes_is_told_where_they_go(fake: FakeService, horae: Horae) -> None:
    assert "after `--`: horae submit -- python train.py" in refused(horae, fake, "python", "train.py").err
    assert "write the options of your program after `--`" in refused(horae, fake, "python", "train.py", "--lr", "1").err


def test_what_the_service_refuses_is_told_in_its_words(fake: FakeService, horae: Horae) -> None:
    fake.answers["POST /v1/jobs"] = (400, {"error": "There is no GPU of type h100. There are v100, k80."})
    answer = horae("submit", "--gpus", "h100:1", "--", "x")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "error: There is no GPU of type h100. There are v100, k80.\n"
