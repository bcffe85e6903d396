"""What only real processes show.

Tests backends/local/attempt_folders.py, backends/local/backend.py, backends/local/processes.py,
backends/local/runner.py and backends/local/runner_order.py.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from horae.backends.local import processes, runner
from horae.backends.local.backend import LocalBackend, RunnerDeadlines
from horae.backends.local.processes import ExitWatcher, Process
from horae.backends.protocol import Place
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed
from tests.backends.real import (
    NODES,
    alive,
    bash,
    end_all,
    folder,
    lives,
    next_events,
    opened,
    pid_in,
    python,
    start,
    task,
    text_of,
    until,
    watched,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def backend(state: Path) -> Iterator[LocalBackend]:
    with opened(state) as made:
        yield made


def printed(backend: LocalBackend, job: str = "a-1") -> str:
    return text_of(backend.log(job, 1))


def up(backend: LocalBackend, word: str = "up") -> None:
    until(lambda: word in printed(backend), f"for {word!r} in the log")


def failure(backend: LocalBackend) -> JobFailed:
    (event,) = next_events(backend)
    assert isinstance(event, JobFailed)
    return event


def runner_pid(state: Path) -> int:
    process = until(lambda: folder(state).runner_process(), "for a runner")
    return int(process.pid)


# --- how programs end


@pytest.mark.parametrize(("code", "expected"), [(1, 1), (3, 3), (130, 130), (255, 255)])
def test_exit_codes_are_the_programs_own(backend: LocalBackend, code: int, expected: int) -> None:
    backend.start(start(bash(f"exit {code}")))
    assert failure(backend).exit_code == expected


def test_a_job_that_is_killed_fails_with_the_signal(backend: LocalBackend, state: Path) -> None:
    backend.start(start(bash("echo $$ > pid; exec sleep 60")))
    os.kill(pid_in(folder(state).path / "work" / "pid"), signal.SIGKILL)
    assert failure(backend).exit_code == 137
    end = folder(state).exit()
    assert end is not None
    assert (end.code, end.stopped) == (137, False)


def test_a_missing_program_fails_and_says_why(backend: LocalBackend) -> None:
    backend.start(start(("no-such-program",)))
    assert failure(backend).exit_code == 127
    assert "horae: the program 'no-such-program' was not found" in printed(backend)


def test_a_program_that_may_not_be_run_fails_and_says_why(backend: LocalBackend, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("no program")
    backend.start(start((str(tmp_path / "plain.txt"),)))
    assert failure(backend).exit_code == 126
    assert "cannot be run" in printed(backend)


def test_a_missing_working_folder_fails_and_says_why(backend: LocalBackend) -> None:
    backend.start(start(bash("echo ran"), workdir="/no/such/folder"))
    assert failure(backend).exit_code == 126
    assert "horae: the working folder '/no/such/folder' does not exist" in printed(backend)


def test_a_folder_for_checkpoints_that_cannot_be_made_fails(backend: LocalBackend) -> None:
    backend.start(start(bash("echo ran"), checkpoint_dir="/dev/null/here"))
    assert failure(backend).exit_code == 126
    assert "checkpoint folder" in printed(backend)


def test_a_setup_that_fails_keeps_the_job_from_running(backend: LocalBackend) -> None:
    backend.start(start(bash("echo the job ran"), setup="echo preparing\nfalse\necho never"))
    assert failure(backend).exit_code == 1
    assert printed(backend).splitlines() == [
        "preparing",
        "horae: setup failed with exit code 1; the job was not started",
    ]


def test_a_setup_cannot_ask_to_be_run_again(backend: LocalBackend) -> None:
    backend.start(start(bash("true"), setup="exit 75"))
    assert failure(backend).exit_code == 1


def test_a_job_counts_as_started_while_its_setup_takes_long(state: Path) -> None:
    with opened(state, ready_s=0.2) as backend:
        backend.start(start(bash("echo the job ran"), setup="until [ -e go ]; do sleep .02; done"))
        assert isinstance(next_events(backend)[0], JobStarted)
        assert printed(backend) == ""
        (folder(state).path / "work" / "go").touch()
        assert next_events(backend) == [JobFinished(7.0, "a-1", 1)]


def test_setup_and_job_share_folder_and_environment(backend: LocalBackend, tmp_path: Path) -> None:
    backend.start(start(bash("cat made; pwd"), setup='echo "$WHO" > made', workdir=str(tmp_path), env={}))
    next_events(backend)
    backend.start(start(task(bash("cat made"), "b-1", setup='echo "$WHO" > made', env={"WHO": "ann"})))
    next_events(backend)
    assert printed(backend).splitlines() == ["", str(tmp_path)]
    assert printed(backend, "b-1") == "ann\n"


def test_both_streams_go_to_the_log(backend: LocalBackend) -> None:
    backend.start(start(bash("echo out; echo err >&2; cat")))
    assert isinstance(next_events(backend)[0], JobFinished)
    assert printed(backend) == "out\nerr\n"


def test_a_job_that_says_nothing_counts_as_started_after_a_while(state: Path) -> None:
    with opened(state, ready_s=0.3) as backend:
        before = time.time()
        backend.start(start())
        (started,) = next_events(backend)
        assert isinstance(started, JobStarted)
        assert (started.at_s, started.job, started.attempt) == (7.0, "a-1", 1)
        assert 0.3 <= started.up_s <= time.time() - before, "it is taken to have worked since it was up"
        assert watched(backend, 8.0) == []


@pytest.mark.parametrize("run", ["sleep .3", "sleep .3; exit 3"])
def test_a_job_that_ends_before_it_counts_as_started_says_first_how_long_it_was_up(
    backend: LocalBackend, run: str
) -> None:
    backend.start(start(bash(run)))
    started, ended = until(lambda: watched(backend, 7.0), "for an event")
    assert isinstance(started, JobStarted)
    assert isinstance(ended, JobFinished | JobFailed)
    assert 0.3 <= started.up_s < 10.0


def test_a_job_that_counts_as_started_says_so_once(state: Path) -> None:
    with opened(state, ready_s=0.1) as backend:
        backend.start(start(bash("trap 'exit 75' USR1; sleep 60 & wait")))
        assert isinstance(until(lambda: watched(backend, 7.0), "for the start")[0], JobStarted)
        backend.stop("a-1", 1)
        (ended,) = until(lambda: watched(backend, 7.0), "for the end")
        assert not isinstance(ended, JobStarted)


def test_how_long_a_job_was_up_before_the_machine_went_down_is_unknown(state: Path) -> None:
    forge_runner(state, boot_id="another")
    (ended,) = watched(LocalBackend(state, NODES), 7.0)
    assert isinstance(ended, JobStopped)


# --- process groups and stopping


def test_grandchildren_get_the_notice_and_none_outlives_the_job(backend: LocalBackend, state: Path) -> None:
    work = folder(state).path / "work"
    inner = "trap 'echo saved; exit 75' USR1; echo $$ > inner; sleep 60 & echo up; wait"
    backend.start(start(bash(f'bash -c "{inner.replace("$", chr(92) + "$")}"; exit 9')))
    up(backend)
    backend.stop("a-1", 1)
    # The outer shell dies of the notice at once; the inner one still has its grace.
    assert isinstance(next_events(backend)[0], JobStopped)
    assert "saved" in printed(backend)
    assert not lives(pid_in(work / "inner"))


@pytest.mark.parametrize("escape", ["", "setsid "])
def test_what_a_job_leaves_running_is_ended_with_it(backend: LocalBackend, state: Path, escape: str) -> None:
    backend.start(start(bash(f"{escape}sleep 61 & echo $! > left")))
    assert isinstance(next_events(backend)[0], JobFinished)
    assert not lives(pid_in(folder(state).path / "work" / "left"))


def test_the_stop_signal_comes_first_and_may_be_chosen(backend: LocalBackend) -> None:
    script = "trap 'echo notice; exit 75' INT; trap 'echo term; exit 1' TERM; echo up; sleep 60 & wait"
    backend.start(start(bash(script), stop_signal="SIGINT"))
    up(backend)
    backend.stop("a-1", 1)
    assert next_events(backend) == [JobStopped(7.0, "a-1", 1, work_done=0.0)]
    assert printed(backend).splitlines() == ["up", "notice"]


#: Grace of a job that does not choose one, here.
DEFAULT_GRACE_S = 20.0
HEEDS_TERM = "trap 'echo notice' USR1; trap 'echo term; exit 4' TERM; echo up; while :; do sleep .05; done"


def test_after_the_grace_comes_sigterm(backend: LocalBackend) -> None:
    backend.start(start(bash(HEEDS_TERM), grace_s=0.5))
    up(backend)
    asked = time.monotonic()
    backend.stop("a-1", 1)
    assert isinstance(next_events(backend)[0], JobStopped)
    assert 0.45 <= time.monotonic() - asked < DEFAULT_GRACE_S
    said = [line for line in printed(backend).splitlines() if line in ("up", "notice", "term")]
    assert said == ["up", "notice", "term"]


@pytest.fixture
def impatient_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners that wait less than five seconds between SIGTERM and SIGKILL."""
    text = Path(runner.__file__).read_text()
    hasty = text.replace("_TERM_TO_KILL_S, _KILL_EVERY_S = 5.0, 0.1", "_TERM_TO_KILL_S, _KILL_EVERY_S = 0.6, 0.1")
    assert hasty != text
    copy = tmp_path / "runner.py"
    copy.write_text(hasty)
    monkeypatch.setattr(runner, "__file__", str(copy))
    monkeypatch.setattr(runner, "__spec__", None)


@pytest.mark.usefixtures("impatient_runner")
def test_a_job_that_ignores_everything_is_killed(backend: LocalBackend, state: Path) -> None:
    deaf = """
import signal, time
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
print('up', flush=True)
time.sleep(60)
"""
    backend.start(start(python(deaf), grace_s=0.2))
    up(backend)
    asked = time.monotonic()
    backend.stop("a-1", 1)
    backend.stop("a-1", 1)
    assert isinstance(next_events(backend)[0], JobStopped)
    assert time.monotonic() - asked >= 0.75, "the grace, and then the time from SIGTERM to SIGKILL"
    end = folder(state).exit()
    assert end is not None
    assert (end.code, end.stopped) == (137, True)


def test_a_second_stop_does_not_shorten_the_grace(backend: LocalBackend) -> None:
    backend.start(start(bash(HEEDS_TERM), grace_s=1.0))
    up(backend)
    asked = time.monotonic()
    backend.stop("a-1", 1)
    up(backend, "notice")
    backend.stop("a-1", 1)
    next_events(backend)
    assert time.monotonic() - asked >= 0.95
    assert printed(backend).count("notice") == 1


def test_a_stop_during_setup_keeps_the_job_from_running(backend: LocalBackend) -> None:
    backend.start(start(bash("echo the job ran"), setup="trap 'exit 0' USR1; echo up; sleep 60 & wait"))
    up(backend)
    backend.stop("a-1", 1)
    assert isinstance(next_events(backend)[0], JobStopped)
    assert "the job ran" not in printed(backend)


def test_a_stop_right_after_the_start_is_not_lost(backend: LocalBackend) -> None:
    for number in range(8):
        backend.start(start(job=f"a-{number}", run=("sleep", "60")))
        time.sleep(number * 0.005)
        backend.stop(f"a-{number}", 1)
    ends: list[Event] = []
    while len(ends) < 8:
        ends += next_events(backend)
    assert all(isinstance(event, JobStopped) for event in ends)


# --- environment, arguments, secrets


def environment(backend: LocalBackend, job: str = "a-1") -> list[dict[str, str]]:
    """The environments that the processes of `SHOW` printed, by rank."""
    next_events(backend)
    shown = [json.loads(line) for line in printed(backend, job).splitlines()]
    return sorted(shown, key=lambda one: int(one["RANK"]))


SHOW = python("import json, os; os.write(1, (json.dumps(dict(os.environ)) + '\\n').encode())")


def test_the_daemons_environment_does_not_leak(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORAE_TEST_SECRET", "leaked")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("TZ", "UTC")
    backend.start(start(SHOW))
    (shown,) = environment(backend)
    assert "HORAE_TEST_SECRET" not in shown
    assert "PYTHONPATH" not in shown
    assert (shown["LC_TIME"], shown["TZ"], shown["PATH"]) == ("C", "UTC", os.environ["PATH"])


def test_one_process_a_node_sees_the_gpus_of_its_node(backend: LocalBackend, state: Path) -> None:
    places = (Place("v100", (1, 3)), Place("k80", (0,)))
    backend.start(start(SHOW, attempt=1, places=places, env={"HORAE_TOKEN": "t"}, report_at=(100.0, 300.0)))
    first, second = environment(backend)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in (first, second)] == ["1,3", "0"]
    assert [one["GROUP_RANK"] for one in (first, second)] == ["0", "1"]
    for one in (first, second):
        assert (one["WORLD_SIZE"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"]) == ("2", "0", "1")
        assert one["MASTER_ADDR"] == "127.0.0.1"
        assert one["MASTER_PORT"] == first["MASTER_PORT"]
    assert 1024 <= int(first["MASTER_PORT"]) < 65536
    assert first["HORAE_JOB_ID"] == "a-1"
    assert (first["HORAE_ATTEMPT"], first["HORAE_RESTART_COUNT"], first["HORAE_GPU_TYPE"]) == ("1", "0", "v100")
    assert (first["HORAE_REPORT_AT"], first["HORAE_TOKEN"]) == ("100,300", "t")
    assert first["HORAE_CHECKPOINT_DIR"] == str(state / "jobs" / "a-1" / "checkpoint")


def test_one_process_a_gpu_has_torchruns_ranks(backend: LocalBackend) -> None:
    places = (Place("v100", (0, 2)), Place("k80", (1,)))
    backend.start(start(SHOW, processes="gpu", places=places))
    shown = environment(backend)
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
    assert [tuple(one[name] for name in names) for one in shown] == [
        ("0", "0", "0", "2", "3", "0,2"),
        ("1", "1", "0", "2", "3", "0,2"),
        ("2", "0", "1", "1", "3", "1"),
    ]


def test_real_gpus_are_named_by_their_numbers_on_the_machine(state: Path) -> None:
    with opened(state, devices={NODES[0]: (1, 4, 5, 7)}) as backend:
        backend.start(start(SHOW, places=(Place("v100", (1, 3)),)))
        (shown,) = environment(backend)
    assert (shown["CUDA_VISIBLE_DEVICES"], shown["CUDA_DEVICE_ORDER"]) == ("4,7", "PCI_BUS_ID")


def test_a_task_cannot_pose_as_another_job(backend: LocalBackend) -> None:
    backend.start(start(task(SHOW, env={"HORAE_JOB_ID": "other", "MINE": "1"})))
    (shown,) = environment(backend)
    assert (shown["HORAE_JOB_ID"], shown["MINE"]) == ("a-1", "1")


def test_shell_characters_in_arguments_stay_what_they_are(backend: LocalBackend, tmp_path: Path) -> None:
    arguments = ["$(touch /tmp/x)", "`id`", "; rm -rf .", "a b", "*", "'\"", "\n", "&& echo no", "é"]
    show = "import json, os, sys; os.write(1, json.dumps(sys.argv[1:]).encode())"
    backend.start(start((*python(show), *arguments)))
    next_events(backend)
    assert json.loads(printed(backend)) == arguments


def test_secrets_reach_the_process_and_no_file(tmp_path: Path, state: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "API_KEY").write_text("hunter2\n")
    with opened(state, secrets=secrets) as backend:
        backend.start(start(python("import os; print(os.environ['API_KEY'][:3])"), secrets=("API_KEY",)))
        next_events(backend)
        assert printed(backend) == "hun\n"
        assert backend.secrets(("API_KEY", "NONE")) == {"API_KEY": "hunter2\n"}
    assert not [path for path in state.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]


def test_a_missing_secret_fails_the_job_and_is_named(tmp_path: Path, state: Path) -> None:
    with opened(state, secrets=tmp_path) as backend:
        backend.start(start(bash("true"), secrets=("API_KEY",)))
        assert failure(backend).exit_code == 126
        assert "the secret API_KEY cannot be read" in printed(backend)


@pytest.mark.parametrize("name", ["../passwd", "/etc/passwd", "a b", ""])
def test_a_secrets_name_cannot_lead_elsewhere(tmp_path: Path, state: Path, name: str) -> None:
    with opened(state, secrets=tmp_path) as backend:
        backend.start(start(bash("true"), secrets=(name,)))
        (event,) = next_events(backend)
    assert isinstance(event, LaunchFailed)
    assert "cannot be the name of a secret" in event.why


def test_the_token_is_readable_by_its_owner_alone_and_goes_when_forgotten(backend: LocalBackend, state: Path) -> None:
    backend.start(start(bash("ps -o args= -p $PPID"), env={"HORAE_TOKEN": "sesame"}))
    next_events(backend)
    order = folder(state).path / "order.json"
    assert "sesame" in order.read_text()
    assert order.stat().st_mode & 0o077 == 0
    assert order.parent.stat().st_mode & 0o077 == 0
    assert "sesame" not in printed(backend)
    backend.forget("a-1", 1)
    until(lambda: "sesame" not in order.read_text())


def test_a_job_name_cannot_lead_out_of_the_folder(backend: LocalBackend) -> None:
    for name in ("../x", "a/b", ".", "..", "", "A", "a\n"):
        with pytest.raises(AssertionError, match="no safe name"):
            backend.log(name, 1)


# --- many processes


def test_when_one_of_several_processes_fails_the_others_are_ended(backend: LocalBackend) -> None:
    script = 'if [ $RANK = 1 ]; then exit 5; fi; trap "echo term; exit 1" TERM; while :; do sleep .05; done'
    backend.start(start(bash(script), processes="gpu", places=(Place("v100", (0, 1, 2)),)))
    assert failure(backend).exit_code == 5


def test_when_one_asks_to_be_run_again_the_others_may_save(backend: LocalBackend) -> None:
    save = "echo '{\"step\": 7}' > $HORAE_CHECKPOINT_DIR/saved.json; echo saved"
    script = f"if [ $RANK = 1 ]; then exit 75; fi; sleep .5; {save}; exit 75"
    backend.start(start(bash(script), processes="gpu", places=(Place("v100", (0, 1)),)))
    assert isinstance(next_events(backend)[0], JobStopped)
    assert printed(backend) == "saved\n"


def test_a_job_is_done_when_all_its_processes_are(backend: LocalBackend) -> None:
    backend.start(start(bash("sleep .$RANK; echo $RANK"), processes="gpu", places=(Place("v100", (0, 1, 2)),)))
    assert next_events(backend) == [JobFinished(7.0, "a-1", 1)]
    assert printed(backend).splitlines() == ["0", "1", "2"]


# --- checkpoints


@pytest.mark.parametrize(
    ("saved", "work_done"),
    [
        ('{"step": 30, "total": 120}', 25.0),
        ('{"step": 30, "total": null}', 30.0),
        ('{"step": 500, "total": null}', 100.0),
        ('{"step": 500, "total": 100}', 100.0),
        ('{"step": -5}', 0.0),
        ('{"step": NaN}', 0.0),
        ('{"step": 1e999}', 0.0),
        ('{"step": "many"}', 0.0),
        ('{"step": [1], "total": {}}', 0.0),
        ("[1, 2]", 0.0),
        ('{"st', 0.0),
        ("", 0.0),
    ],
)
def test_what_a_checkpoint_holds(backend: LocalBackend, tmp_path: Path, saved: str, work_done: float) -> None:
    (tmp_path / "saved.json").write_text(saved)
    backend.start(start(bash("exit 3"), checkpoint_dir=str(tmp_path)))
    assert next_events(backend) == [JobFailed(7.0, "a-1", 1, 3, work_done)]


def test_a_checkpoint_folder_is_seen_from_the_working_folder(backend: LocalBackend, tmp_path: Path) -> None:
    script = "echo '{\"step\": 7}' > $HORAE_CHECKPOINT_DIR/saved.json; exit 75"
    backend.start(start(bash(script), workdir=str(tmp_path), checkpoint_dir="saves"))
    assert next_events(backend) == [JobStopped(7.0, "a-1", 1, 7.0)]
    assert (tmp_path / "saves" / "saved.json").exists()


def test_a_checkpoint_folder_without_a_working_folder_is_the_same_for_every_attempt(backend: LocalBackend) -> None:
    script = """cat $HORAE_CHECKPOINT_DIR/saved.json; echo '{"step": 7}' > $HORAE_CHECKPOINT_DIR/saved.json; exit 75"""
    for attempt in (1, 2):
        backend.start(start(bash(script), attempt, checkpoint_dir="saves"))
        next_events(backend)
    assert backend.log("a-1", 2).read_text() == '{"step": 7}\n'


# --- crashes


def run_daemon(state: Path, body: str) -> subprocess.Popen[str]:
    """Another process with a backend `b` on the folder, that runs some lines when told to `go`, and then waits."""
    lines = [
        "import sys, time",
        "from pathlib import Path",
        "from tests.backends.real import *",
        f"b = LocalBackend(Path({str(state)!r}), NODES)",
        "sys.stdin.readline()",
        body,
        "assert b._workers.wait(30)",
        "print('done', flush=True)",
        "time.sleep(60)",
    ]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    argv = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(daemon: subprocess.Popen[str]) -> None:
    assert daemon.stdin is not None
    daemon.stdin.write("go\n")
    daemon.stdin.close()


def crash(daemon: subprocess.Popen[str]) -> None:
    """Kill -9 a daemon, once it has done what it was to do."""
    if daemon.stdin is not None and not daemon.stdin.closed:
        go(daemon)
    assert daemon.stdout is not None
    assert daemon.stdout.readline() == "done\n"
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()


def test_after_a_crash_of_the_daemon_running_jobs_are_taken_up(state: Path) -> None:
    wait = "until [ -e go ]; do sleep .02; done; exit 6"
    crash(run_daemon(state, f"b.start(start(bash({wait!r})))\nb.start(start(job='b-1', run=bash('exit 8')))"))
    with opened(state) as backend:
        # The runner may not have looked around yet; ordering it again is what a daemon does then.
        backend.start(start(bash("echo twice")))
        assert ("a-1", 1) in alive(backend)["v100"]
        assert failure(backend) == JobFailed(7.0, "b-1", 1, exit_code=8)
        (folder(state).path / "work" / "go").touch()
        assert failure(backend) == JobFailed(7.0, "a-1", 1, exit_code=6)
        assert "twice" not in printed(backend)


def test_a_stop_goes_on_without_the_daemon(state: Path) -> None:
    body = f"b.start(start(bash({HEEDS_TERM!r}), grace_s=0.5))\nuntil(lambda: 'up' in text_of(b.log('a-1', 1)))\n"
    crash(run_daemon(state, body + "b.stop('a-1', 1)"))
    try:
        until(lambda: folder(state).exit())
        with opened(state) as backend:
            assert isinstance(next_events(backend)[0], JobStopped)
    finally:
        end_all(state)


def runners_below(state: Path) -> list[str]:
    """Commands of the runners of attempts in a state folder."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            commands.append(path.read_text())
    return [command for command in commands if f"\0{state}/jobs/" in command]


def test_two_daemons_that_start_one_attempt_start_one_job(state: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f"echo $HORAE_JOB_ID >> {count}; sleep 60"
    body = f"for k in range(5): b.start(start(bash({script!r}), job=f'a-{{k}}'))"
    daemons = [run_daemon(state, body) for _ in range(2)]
    try:
        for daemon in daemons:
            go(daemon)
        for daemon in daemons:
            crash(daemon)
        with opened(state) as backend:
            until(lambda: not watched(backend, 7.0) and len(alive(backend)["v100"]) == 5)
            until(lambda: len(text_of(count).splitlines()) >= 5)
            until(lambda: len(runners_below(state)) == 5, "for the second runner of an attempt to give up")
            assert sorted(text_of(count).split()) == [f"a-{k}" for k in range(5)]
    finally:
        end_all(state)


def test_an_order_without_a_runner_is_begun_when_ordered_again(backend: LocalBackend, state: Path) -> None:
    backend._order(start(bash("echo ran")))  # a crash comes between the order and the runner
    with opened(state) as restarted:
        assert watched(restarted, 1.0) == []
        assert alive(restarted)["v100"] == ()
        restarted.start(start(bash("echo ran")))
        assert next_events(restarted) == [JobFinished(7.0, "a-1", 1)]
    assert printed(backend) == "ran\n"


def test_when_the_runner_is_killed_the_job_dies_and_runs_again(backend: LocalBackend, state: Path) -> None:
    work = folder(state).path / "work"
    script = "sleep 61 & echo $! > child; setsid sleep 62 & echo $! > escaped; echo $$ > main; wait"
    backend.start(start(bash(script)))
    pids = [pid_in(work / name) for name in ("child", "escaped", "main")]
    os.kill(runner_pid(state), signal.SIGKILL)
    assert next_events(backend) == [JobStopped(7.0, "a-1", 1, 0.0)], "it is no fault of the job"
    assert not any(lives(pid) for pid in pids)
    assert alive(backend)["v100"] == ()


def test_a_job_that_kills_its_runner_each_time_fails_at_the_third_time_without_progress(backend: LocalBackend) -> None:
    saves = """echo "{\\"step\\": 9}" > $HORAE_CHECKPOINT_DIR/saved.json"""
    scripts = ["kill -9 $PPID", f"{saves}; kill -9 $PPID", "kill -9 $PPID", "kill -9 $PPID"]
    ends = []
    for attempt, script in enumerate(scripts, 1):
        backend.start(start(bash(script), attempt))
        ends += next_events(backend)
        backend.forget("a-1", attempt)
    assert [type(end) for end in ends] == [JobStopped, JobStopped, JobStopped, JobFailed], "the second made progress"
    assert ends[-1] == JobFailed(7.0, "a-1", 4, 137, 9.0)


def test_when_the_runner_is_killed_without_a_daemon_the_next_one_clears_up(state: Path) -> None:
    script = "sleep 61 & echo $! > child; wait"
    crash(run_daemon(state, f"b.start(start(bash({script!r})))"))
    child = pid_in(folder(state).path / "work" / "child")
    os.kill(runner_pid(state), signal.SIGKILL)
    with opened(state) as backend:
        assert isinstance(next_events(backend)[0], JobStopped)
        assert not lives(child)


def test_when_the_runner_is_killed_after_a_stop_the_job_has_stopped(backend: LocalBackend, state: Path) -> None:
    backend.start(start(bash("trap '' USR1; echo up; while :; do sleep .05; done")))
    up(backend)
    backend.stop("a-1", 1)
    os.kill(runner_pid(state), signal.SIGKILL)
    assert isinstance(next_events(backend)[0], JobStopped)


def forge_runner(state: Path, **fields: object) -> None:
    """Leave an attempt behind whose runner is said to be this very process, but for some fields."""
    backend = LocalBackend(state, NODES)
    backend._order(start())
    backend.close()
    me = Process.of(os.getpid())
    said = {"pid": me.pid, "start_time": me.start_time, "boot_id": me.boot_id, "group": 0, "up_at": 1.0}
    (folder(state).path / "runner.json").write_text(json.dumps({**said, **fields}))


@pytest.mark.parametrize("fields", [{"start_time": 12345}, {"pid": 2**22 + 1}])
def test_a_number_used_again_is_not_taken_for_the_runner(state: Path, fields: dict[str, object]) -> None:
    forge_runner(state, **fields)
    backend = LocalBackend(state, NODES)
    backend.stop("a-1", 1)  # would end this test if it believed the number
    assert isinstance(next_events(backend)[0], JobStopped)
    backend.close()


def test_a_process_that_is_not_the_attempts_runner_is_neither_followed_nor_killed(state: Path) -> None:
    """A job may write into its runner.json what it likes, such as the daemon's own number or session."""
    forge_runner(state, pid=os.getsid(0), start_time=runner.start_time(os.getsid(0)))
    backend = LocalBackend(state, NODES, deadlines=RunnerDeadlines(stop_s=0.0))
    backend.stop("a-1", 1)
    assert isinstance(next_events(backend)[0], JobStopped)
    backend.close()


@pytest.fixture
def foreign_runner(state: Path) -> Iterator[dict[str, object]]:
    """A process that could be the runner of an attempt, as its runner.json names it."""
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()", str(folder(state).path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        me = until(lambda: Process.of(process.pid).has_argument(argv[-1]) and Process.of(process.pid))
        yield {"pid": me.pid, "start_time": me.start_time}


def test_an_attempt_that_a_later_release_began_is_taken_up(state: Path, foreign_runner: dict[str, object]) -> None:
    forge_runner(state, **foreign_runner)
    path = folder(state).path / "order.json"
    order = json.loads(path.read_text())
    path.write_text(json.dumps({**order, "colour": "red", "task": {**order["task"], "colour": "red"}}))
    backend = LocalBackend(state, NODES)
    assert alive(backend)["v100"] == (("a-1", 1),)
    order = backend._tracked["a-1", 1].order
    assert order
    assert order.task == start().task
    backend.close()


def test_a_runner_that_is_what_it_says_lives(state: Path, foreign_runner: dict[str, object]) -> None:
    forge_runner(state, **foreign_runner)
    backend = LocalBackend(state, NODES)
    assert alive(backend)["v100"] == (("a-1", 1),)
    backend.close()


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_records_cut_off_by_a_power_cut_are_those_of_the_dead(state: Path, content: str) -> None:
    forge_runner(state)
    (folder(state).path / "runner.json").write_text(content)
    went_down_with_the_machine(state)


def test_a_job_that_the_machine_took_down_with_it_has_stopped_and_not_failed(state: Path) -> None:
    forge_runner(state, boot_id="another")
    went_down_with_the_machine(state)


def test_a_container_that_is_started_again_is_another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same machine, with process numbers from 1 on: all that ran before is gone with its first process."""
    here = runner.boot_id()
    assert here == runner.boot_id() == processes.this_boot()
    began = runner.start_time
    monkeypatch.setattr(runner, "start_time", lambda pid: began(pid) + (pid == 1))
    assert runner.boot_id() != here


def went_down_with_the_machine(state: Path) -> None:
    saved = folder(state).path.parent / "checkpoint" / "saved.json"
    saved.parent.mkdir()
    saved.write_text('{"step": 30, "total": 100}')
    for _ in ("at once", "told again until forgotten"):
        backend = LocalBackend(state, NODES)
        backend.stop("a-1", 1)  # would end this test if it believed the number
        assert watched(backend, 5.0) == [JobStopped(5.0, "a-1", 1, 0.3 * start().task.work)]
        backend.close()


def test_a_machine_that_cannot_start_a_runner_says_so(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    backend.start(start())
    (event,) = next_events(backend)
    assert isinstance(event, LaunchFailed)
    assert "/no/such/python" in event.why


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_a_machine_short_of_descriptors_or_memory_starts_the_job_later(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, shortage: int
) -> None:
    with monkeypatch.context() as short:
        tries = refuse_processes(short, shortage)
        backend.start(start(bash("echo up")))
        until(lambda: watched(backend) or len(tries) > 2, "for new tries")
        assert watched(backend) == []
        assert backend.trouble == f"A job cannot be started: {os.strerror(shortage)}."
    assert any(isinstance(event, JobFinished) for event in next_events(backend))
    assert backend.trouble == ""


def test_a_job_that_waits_for_descriptors_can_be_stopped(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as short:
        refuse_processes(short, errno.EMFILE)
        backend.start(start(bash("echo up")))
        until(lambda: watched(backend) or backend.trouble, "for the trouble")
        backend.stop("a-1", 1)
        (event,) = next_events(backend)
        assert isinstance(event, JobStopped)
    assert (watched(backend), backend.trouble) == ([], "")


def refuse_processes(patch: pytest.MonkeyPatch, shortage: int) -> list[object]:
    """Let no process be started; returns a list that grows with each try."""
    tries: list[object] = []

    def refuse(*words: object, **options: object) -> int:
        tries.append(words)
        raise OSError(shortage, os.strerror(shortage))

    patch.setattr(os, "posix_spawn", refuse)
    return tries


def test_a_runner_that_dies_before_the_job_is_a_failed_launch(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    backend.start(start())
    (event,) = next_events(backend)
    assert isinstance(event, LaunchFailed)
    assert "log.txt" in event.why


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_clock_that_is_set_makes_no_job_start_early_or_late(
    state: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    day_s = time.time
    with opened(state, ready_s=1.0) as backend:
        backend.start(start(bash("echo up; sleep 60")))
        up(backend)
        began = time.monotonic()
        monkeypatch.setattr(time, "time", lambda: day_s() + jump_s)
        (event,) = next_events(backend)
        assert isinstance(event, JobStarted)
        assert 1.0 <= event.up_s < 600, "the jump counts for nothing, a busy machine for seconds"
        assert time.monotonic() - began > 0.5


# --- speed, and machines without pidfds


def test_runners_are_followed_without_pidfds_too(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with opened(state) as backend:
        backend.start(start(bash("trap 'exit 75' USR1; echo up; sleep 60 & wait")))
        up(backend)
        until(lambda: backend.watch(7.0) is not None and backend._runners._without_handle)
        backend.stop("a-1", 1)
        assert isinstance(next_events(backend)[0], JobStopped)


def test_no_child_is_left_a_zombie(backend: LocalBackend) -> None:
    backend.start(start(bash("true")))
    child = until(lambda: backend._tracked["a-1", 1].child, "for the runner")
    next_events(backend)
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)


def test_watching_many_costs_little(tmp_path: Path) -> None:
    watcher, me = ExitWatcher(), Process.of(os.getpid())
    for number in range(100):
        watcher.follow(("a", number), me)
    spans = []
    for _ in range(20):
        began = time.process_time()
        assert watcher.poll() == []
        spans.append(time.process_time() - began)
    watcher.close()
    assert min(spans) < 0.002


def test_nothing_left_over_is_found_of_another_boot() -> None:
    assert processes.leftovers(Process(1, 0, "another"), "mark") == []


@pytest.mark.parametrize("place", [Place("v100", (99,)), Place("gone", (0,))])
@pytest.mark.parametrize("real", [True, False])
def test_an_attempt_for_a_gpu_that_is_gone_cannot_be_launched(state: Path, place: Place, real: bool) -> None:
    devices = {node: tuple(range(node.gpus)) for node in NODES} if real else None
    with opened(state, devices=devices) as backend:
        backend.start(start(places=(place,)))
        (event,) = next_events(backend)
        assert isinstance(event, LaunchFailed)
        assert place.node in event.why
