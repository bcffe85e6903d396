"""A training script's loop: real processes, real signals, and a server that plays the service."""

import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horae.train import STOPPED, Run
from horae_train.reports import PATIENCE_S, ReportAddress, Reporter, RunProgress
from tests.train.service import Service, environment, inside_horae, serving, start, wait_for

COUNTER = Path(__file__).with_name("counter.py")


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as one:
        yield one


def count(*arguments: object, env: dict[str, str]) -> subprocess.Popen[str]:
    return start(COUNTER, *arguments, env=env)


def ended(process: subprocess.Popen[str], code: int) -> tuple[list[str], str]:
    """The lines of a process that must end with this code, and what it complained of."""
    out, complaints = process.communicate(timeout=180)
    assert process.returncode == code, (process.returncode, complaints)
    return out.splitlines(), complaints


def saved(folder: Path) -> dict[str, Any]:
    told = json.loads((folder / "saved.json").read_text())
    assert isinstance(told, dict)
    return told


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def first_steps(process: subprocess.Popen[str], many: int = 3) -> str:
    """Read until the script is well under way; the last line."""
    assert process.stdout is not None
    for line in process.stdout:
        many -= line.startswith("step")
        if many == 0:
            return line
    raise AssertionError("the script ended too soon")


# Outside Horae


def test_outside_horae_it_is_a_plain_loop(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from horae import train\nprint(list(train.Run(3, print, print)))"],
        env=environment(),
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    lines, complaints = ended(process, 0)
    assert lines == ["[0, 1, 2]"]
    assert complaints == ""
    assert list(tmp_path.iterdir()) == []


def test_outside_horae_a_folder_is_enough_for_checkpoints(tmp_path: Path) -> None:
    process = count("--step-s", 0.02, "--folder", tmp_path / "new", env=environment())
    first_steps(process)
    process.terminate()
    ended(process, STOPPED)
    step = saved(tmp_path / "new")["step"]
    lines, _ = ended(count("--folder", tmp_path / "new", env=environment()), 0)
    assert lines[:2] == [f"loaded {step}", f"step {step}"]


def test_it_brings_no_numpy_along(tmp_path: Path) -> None:
    assert ended(count("--steps", 1, env=environment()), 0)[0][-1] == "all done False"


# Restoring and leaving


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.parametrize("shape", [[], ["--as-folder"]])
def test_it_leaves_on_notice_and_goes_on_where_it_was(tmp_path: Path, number: int, shape: list[str]) -> None:
    env = inside_horae(tmp_path)
    process = count("--step-s", 0.02, *shape, env=env)
    seen = first_steps(process)
    os.killpg(process.pid, number)
    lines, _ = ended(process, STOPPED)
    held = saved(tmp_path)
    assert held == {"step": held["step"], "total": 100, "loss": 1 / held["step"], "job": "night-1", "attempt": 3}
    assert held["step"] == int([seen, *lines][-1].split()[1]) + 1

    lines, _ = ended(count(*shape, env=env), 0)
    assert lines[:2] == [f"loaded {held['step']}", f"step {held['step']}"]
    assert saved(tmp_path) == {"step": 100, "total": 100, "loss": 0.01, "job": "night-1", "attempt": 3}
    assert names(tmp_path) == ["horae-100-3", "horae-attempt-3-night-1", "saved.json"]


def test_horae_may_choose_another_signal(tmp_path: Path) -> None:
    process = count("--step-s", 0.02, env=inside_horae(tmp_path, HORAE_STOP_SIGNAL="SIGUSR2"))
    first_steps(process)
    process.send_signal(signal.SIGUSR2)
    ended(process, STOPPED)


def test_many_signals_are_one_notice(tmp_path: Path) -> None:
    process = count("--step-s", 0.05, "--padding", 20000, env=inside_horae(tmp_path))
    first_steps(process)
    for _ in range(20):
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGTERM)
    ended(process, STOPPED)
    ended(count("--padding", 20000, env=inside_horae(tmp_path)), 0)


def test_a_run_that_is_over_only_loads(tmp_path: Path) -> None:
    env = inside_horae(tmp_path)
    ended(count("--steps", 5, env=env), 0)
    assert ended(count("--steps", 5, env=env), 0)[0] == ["loaded 5", "all done False"]


def test_without_save_it_leaves_all_the_same(tmp_path: Path) -> None:
    process = count("--no-save", "--step-s", 0.02, env=inside_horae(tmp_path))
    first_steps(process)
    process.send_signal(signal.SIGUSR1)
    ended(process, STOPPED)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["fork", "spawn", "forkserver"])
def test_workers_outlive_the_notice_and_can_be_terminated(tmp_path: Path, kind: str) -> None:
    process = count("--worker", kind, "--steps", 30, "--step-s", 0.02, env=inside_horae(tmp_path))
    first_steps(process)
    members = (Path(f"/proc/{process.pid}/task/{process.pid}/children")).read_text().split()
    for member in members:
        os.kill(int(member), signal.SIGUSR1)
    lines, _ = ended(process, 0)
    assert f"worker {-signal.SIGTERM}" in lines


def test_a_notice_that_a_thread_of_the_script_gets_is_seen(tmp_path: Path) -> None:
    """One from before the run does not inherit that the signal is blocked."""
    go = threading.Event()
    early = threading.Thread(target=go.wait)
    early.start()

    def save(path: Path) -> None:
        path.touch()
        assert early.ident is not None
        signal.pthread_kill(early.ident, signal.SIGUSR1)
        go.set()
        early.join()

    with pytest.raises(SystemExit) as left:
        list(quiet(10, save, tmp_path, every_s=1e-9))
    assert left.value.code == STOPPED
    assert saved(tmp_path)["step"] == 2


def test_a_loop_in_another_thread_ends_the_process_on_notice(tmp_path: Path) -> None:
    """An exception would end the thread alone, and the job would count as finished."""
    process = count("--thread", "--step-s", 0.02, env=inside_horae(tmp_path))
    first_steps(process)
    process.send_signal(signal.SIGUSR1)
    ended(process, STOPPED)
    assert 3 <= saved(tmp_path)["step"] < 100
    assert ended(count("--thread", env=inside_horae(tmp_path)), 0)[0][-1] == "all done False"


def test_the_signal_to_terminate_works_again_after_the_loop(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    for _ in quiet(2, Path.touch, tmp_path):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


# Checkpoints


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """Steps take no time and every one is saved, so that most kills fall into a save."""
    env = inside_horae(tmp_path)
    chance = random.Random(5)
    reached, writing = 0, 0
    for _ in range(25):
        process = count("--steps", 10**6, "--every-s", 1e-9, "--padding", 300, "--as-folder", env=env)
        first_steps(process, 1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, 0.06))
        process.kill()
        assert process.communicate()[1] == ""
        writing += (tmp_path / "horae-saving-3").exists()
        held = saved(tmp_path)["step"] if (tmp_path / "saved.json").exists() else 0
        assert held >= reached
        reached = held
    assert reached > 5
    assert writing > 5
    lines, _ = ended(count("--steps", reached + 3, "--as-folder", env=env), 0)
    assert lines[0] == f"loaded {reached}"
    assert names(tmp_path) == [f"horae-{reached + 3}-3", "horae-attempt-3-night-1", "saved.json"]


def test_a_save_that_fails_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    calls = []

    def save(path: Path) -> None:
        path.write_text("state")
        calls.append(path)
        if len(calls) == 2:
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left") as trouble:
        list(quiet(10, save, tmp_path, every_s=1e-9))
    assert re.search(r"step 2 could not be saved in .*, where \d+ MB are free", trouble.value.__notes__[0])
    assert saved(tmp_path)["step"] == 1
    assert (tmp_path / "horae-1" / "checkpoint").read_text() == "state"
    assert not (tmp_path / "horae-saving").exists()


def test_a_folder_that_takes_nothing_is_told_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a disk that is not there")
    steps: list[int] = []
    with pytest.raises(OSError, match="link") as trouble:
        steps.extend(quiet(3, Path.touch, tmp_path / "link"))
    assert steps == []
    assert "nothing can be saved in" in trouble.value.__notes__[0]


def test_a_checkpoint_that_does_not_load_is_named_and_left(tmp_path: Path) -> None:
    list(quiet(3, Path.touch, tmp_path))

    def load(path: Path) -> None:
        raise RuntimeError("size mismatch for weight")

    with pytest.raises(RuntimeError, match="size mismatch") as trouble:
        list(Run(3, print, load, folder=tmp_path))
    note = trouble.value.__notes__[0]
    assert f"{tmp_path / 'horae-3' / 'checkpoint'}, the checkpoint of step 3, could not be loaded" in note
    assert f"remove {tmp_path / 'saved.json'} to start anew" in note
    assert saved(tmp_path)["step"] == 3


def test_a_library_may_append_to_the_name(tmp_path: Path) -> None:
    list(quiet(1, lambda path: path.with_suffix(".npz").write_text("state"), tmp_path))
    found: list[Path] = []
    list(Run(1, print, found.append, folder=tmp_path, rank=1))
    assert found == [tmp_path / "horae-1" / "checkpoint.npz"]


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_a_save_that_writes_elsewhere_is_told_so(tmp_path: Path, names: list[str]) -> None:
    def save(path: Path) -> None:
        for name in names:
            path.with_name(name).touch()

    with pytest.raises(FileNotFoundError, match=r"save\(path\) must write at `path`"):
        list(quiet(1, save, tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step": "x"}', '{"step": 7'])
def test_a_broken_record_is_an_error_and_not_a_new_beginning(tmp_path: Path, text: str) -> None:
    (tmp_path / "saved.json").write_text(text)
    with pytest.raises(ValueError, match="remove it to start anew"):
        list(quiet(1, print, tmp_path))


def test_a_checkpoint_that_is_gone_is_an_error_and_not_a_new_beginning(tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_text('{"step": 7, "total": 9, "loss": null}')
    with pytest.raises(FileNotFoundError, match=r"horae-7 is gone, .* remove saved.json to start anew"):
        list(quiet(9, print, tmp_path))


def test_files_of_the_user_stay(tmp_path: Path) -> None:
    """Those of other libraries, too: `checkpoint-500` is what many of them call a checkpoint."""
    theirs = ["checkpoint-500", "horae-best", "result.json", "saving"]
    for name in (*theirs, "horae-1"):
        (tmp_path / name).mkdir()
    list(quiet(2, Path.touch, tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*theirs, "horae-2", "saved.json"])


def quiet(total: int, save: Any, folder: Path, **more: Any) -> Run:
    """A run in this process that has nothing to load."""
    return Run(total, save, print, folder=folder, **more)


# Reports


def test_reports_begin_with_ready_and_end_with_the_last_step(tmp_path: Path, service: Service) -> None:
    ended(count("--steps", 30, "--step-s", 0.05, env=inside_horae(tmp_path, service.url)), 0)
    assert set(service.paths) == {"/v1/attempts/night-1/3/progress"}
    assert service.reports[0] == {"step": 0, "total": 30, "loss": None, "ready": True}
    assert service.reports[-1] == {"step": 30, "total": 30, "loss": 1 / 30, "ready": False}
    # About one a second, not one a step.
    assert len(service.reports) < 20


def test_reports_go_to_the_service_that_has_taken_over(tmp_path: Path, service: Service) -> None:
    """The first address is dead, the second that of a standby, the third that of the active service."""
    with serving() as standby:
        standby.standby = True
        urls = {"HORAE_STANDBY_URL": f"{standby.url},{service.url}"}
        ended(count("--steps", 30, "--step-s", 0.05, env=inside_horae(tmp_path, "http://127.0.0.1:9", **urls)), 0)
        assert standby.refused == 1, "the active service is asked first from then on"
    assert service.reports[-1] == {"step": 30, "total": 30, "loss": 1 / 30, "ready": False}


def test_ready_comes_after_loading_and_says_where_it_begins(tmp_path: Path, service: Service) -> None:
    ended(count("--steps", 40, env=inside_horae(tmp_path)), 0)
    ended(count("--steps", 40, env=inside_horae(tmp_path, service.url)), 0)
    assert service.reports[0] == {"step": 40, "total": 40, "loss": 1 / 40, "ready": True}


def test_no_rung_is_skipped(tmp_path: Path, service: Service) -> None:
    env = inside_horae(tmp_path, service.url, HORAE_REPORT_AT="7,8,300.5,2000")
    ended(count("--steps", 1000, env=env), 0)
    losses = {report["step"]: report["loss"] for report in service.reports if report["step"]}
    assert losses.items() >= {7: 1 / 7, 8: 1 / 8, 301: 1 / 301, 1000: 1 / 1000}.items()
    assert service.steps() == sorted(service.steps())


def test_a_rung_is_sent_again_until_it_arrives(tmp_path: Path, service: Service) -> None:
    service.failures = 3
    ended(count("--steps", 50, env=inside_horae(tmp_path, service.url, HORAE_REPORT_AT="7")), 0)
    assert (service.steps()[0], service.steps()[-1]) == (7, 50)
    assert [report["ready"] for report in service.reports] == [True] + [False] * (len(service.reports) - 1)


def test_an_answer_can_stop_the_run_at_its_rung(tmp_path: Path, service: Service) -> None:
    service.stop = lambda report: report["step"] == 20
    env = inside_horae(tmp_path, service.url, HORAE_REPORT_AT="20")
    lines, _ = ended(count(env=env), STOPPED)
    assert lines[-1] == "step 19"
    assert saved(tmp_path)["step"] == 20


def test_a_notice_in_the_last_step_changes_nothing(tmp_path: Path, service: Service) -> None:
    service.stop = lambda report: report["step"] == 50
    ended(count("--steps", 50, env=inside_horae(tmp_path, service.url)), 0)


def test_no_service_is_no_trouble(tmp_path: Path) -> None:
    env = inside_horae(tmp_path, "http://127.0.0.1:1", HORAE_REPORT_AT="7,8,9,10,11,12,13,14")
    _, complaints = ended(count("--steps", 50, env=env), 0)
    assert complaints.startswith("horae: a progress report did not get through")
    assert complaints.count("\n") == 1
    assert saved(tmp_path)["step"] == 50


@pytest.mark.parametrize("url", ["nonsense", "http://", "http://127.0.0.1:notaport", "ftp://127.0.0.1"])
def test_a_bad_address_is_no_trouble(tmp_path: Path, url: str) -> None:
    _, complaints = ended(count("--steps", 5, env=inside_horae(tmp_path, url)), 0)
    assert "training goes on" in complaints


def test_a_wrong_token_is_told_once_and_not_insisted_on(tmp_path: Path, service: Service) -> None:
    env = inside_horae(tmp_path, service.url, token="wrong", HORAE_REPORT_AT="7,8,9")
    _, complaints = ended(count("--steps", 50, env=env), 0)
    assert complaints == "horae: a progress report was refused (HTTP 401); training goes on\n"
    assert "wrong" not in complaints
    assert 4 <= service.refused <= 5
    assert service.reports == []


@pytest.mark.parametrize("answer", [b"not json", b"[]", b"{}", b'{"stop": 1}', b'{"stop": "no"}', b"x" * 200_000])
def test_an_answer_that_makes_no_sense_stops_nothing(tmp_path: Path, service: Service, answer: bytes) -> None:
    service.nonsense = answer
    ended(count("--steps", 5, env=inside_horae(tmp_path, service.url)), 0)
    assert service.steps()[-1] == 5


def test_a_slow_service_takes_no_time_from_training(tmp_path: Path, service: Service) -> None:
    """Not one report is answered before all steps are done."""
    service.answering.clear()
    process = count("--steps", 5000, env=inside_horae(tmp_path, service.url))
    first_steps(process, 5000)
    service.answering.set()
    ended(process, 0)
    assert service.steps()[-1] == 5000


def test_patience_is_spent_once_and_comes_back_with_the_service(service: Service) -> None:
    reporter = Reporter(ReportAddress({"HORAE_URL": service.url, "HORAE_JOB_ID": "a-1", "HORAE_TOKEN": "x"}))
    reporter._patience_s = 0.1
    reporter._address = ReportAddress({"HORAE_URL": "http://127.0.0.1:1", "HORAE_JOB_ID": "a-1", "HORAE_TOKEN": "x"})
    for step in range(50):
        reporter.require(RunProgress(step, 100, None))
    assert reporter._patience_s == 0
    reporter._address = ReportAddress(inside_horae(Path("/"), service.url))
    wait_for(lambda: len(service.reports) == 50)
    assert service.steps() == list(range(50))
    wait_for(lambda: reporter._patience_s == PATIENCE_S)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 10**400, "high", None, object()])
def test_a_loss_that_is_no_number_is_left_out(tmp_path: Path, loss: Any) -> None:
    run = Run(1)
    for _ in run:
        run.report(loss)
    assert run._progress().loss is None


# Several processes


def test_only_the_first_process_saves_and_reports(tmp_path: Path, service: Service) -> None:
    env = inside_horae(tmp_path, service.url, WORLD_SIZE="2", RANK="1", HORAE_REPORT_AT="7")
    process = count("--step-s", 0.02, "--every-s", 0.01, env=env)
    first_steps(process)
    process.send_signal(signal.SIGUSR1)
    ended(process, STOPPED)
    assert service.reports == []
    assert list(tmp_path.iterdir()) == []


def test_all_processes_stop_when_one_is_told(tmp_path: Path) -> None:
    """One that is not told itself hears of it by `agree`, and leaves the saving to the first."""
    asked: list[bool] = []
    gathered: list[int] = []

    def agree(flag: bool) -> bool:
        asked.append(flag)
        return run.done == 4

    run = quiet(10, Path.touch, tmp_path, agree=agree, gather=lambda: gathered.append(run.done), rank=1)
    with pytest.raises(SystemExit) as left:
        list(run)
    assert left.value.code == STOPPED
    assert run.done == 4
    assert gathered == [4]
    assert list(tmp_path.iterdir()) == []
    # Before the loop, after each step, whether to leave, and once more when all is saved.
    assert asked == [False] * 6 + [True]


def test_a_save_that_is_due_is_not_a_stop(tmp_path: Path) -> None:
    gathered: list[int] = []
    run = quiet(3, Path.touch, tmp_path, every_s=1e-9, agree=bool, gather=lambda: gathered.append(run.done))
    assert list(run) == [0, 1, 2]
    assert gathered == [1, 2, 3]


# Mistakes


def test_a_total_may_be_any_whole_number(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    for total in (2, 2.0, np.int64(2)):
        list(quiet(total, Path.touch, tmp_path / str(type(total))))
        assert saved(tmp_path / str(type(total)))["total"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        *({"total": total} for total in (-1, 1.5, math.inf, math.nan)),
        {"total": 1, "every_s": 0},
        {"total": 1, "save": print},
    ],
)
def test_mistakes_are_told(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a run has|save and load go together"):
        Run(**arguments)
