"""Jobs in bubblewrap, with real processes; needs `bwrap` (`make sandbox`).

Tests backends/local/isolation/sandbox.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from horae.backends.local.backend import LocalBackend
from horae.backends.local.isolation.modes import CannotIsolate, nvidia_devices
from horae.backends.local.isolation.sandbox import SandboxIsolation, find_bubblewrap
from horae.backends.protocol import Place
from horae.core.events import JobFailed, JobFinished, JobStopped
from tests.backends.job_accounts import needs_bubblewrap
from tests.backends.real import bash, folder, lives, next_events, opened, start, text_of, until

#: Character devices of this machine that stand for GPUs; a sandbox has none of them by itself.
DEVICES = [path for path in (Path("/dev/kmsg"), Path("/dev/loop-control"), Path("/dev/rtc0")) if path.exists()]


class SandboxedBackend:
    """A backend whose jobs are in sandboxes, and what they printed."""

    def __init__(self, backend: LocalBackend, state: Path, secrets: Path) -> None:
        self.backend, self.state, self.secrets = backend, state, secrets
        self.end: Any = None

    def run(self, text: str, job: str = "a-1", **more: Any) -> str:
        self.backend.start(start(bash(text), job=job, **more))
        (self.end,) = next_events(self.backend)
        return self.log(job)

    def begin(self, text: str, job: str = "a-1", **more: Any) -> None:
        self.backend.start(start(bash(text), job=job, **more))
        until(lambda: "up" in self.log(job), f"for {job} to be up")

    def log(self, job: str = "a-1") -> str:
        return text_of(self.backend.log(job, 1))


@pytest.fixture
def sandboxed(tmp_path: Path) -> Iterator[SandboxedBackend]:
    state, secrets = tmp_path / "state", tmp_path / "secrets"
    for place, name in ((state, "token"), (state, "secret"), (state, "journal.db"), (secrets, "KEY")):
        place.mkdir(exist_ok=True)
        (place / name).write_text("hidden treasure")

    def devices(numbers: Sequence[int]) -> list[str]:
        return [str(DEVICES[number]) for number in numbers]

    isolation = SandboxIsolation((state, secrets, None), devices)
    with opened(state, secrets=secrets, isolation=isolation) as backend:
        yield SandboxedBackend(backend, state, secrets)


@needs_bubblewrap
def test_a_job_has_its_folders_its_secrets_and_the_machine_to_read(sandboxed: SandboxedBackend) -> None:
    text = "pwd; touch here $HORAE_CHECKPOINT_DIR/there /tmp/x; echo $KEY; head -c 4 /etc/passwd; touch /etc/x"
    log = sandboxed.run(text, secrets=("KEY",)).splitlines()
    assert log[:3] == [
        str(sandboxed.state / "jobs/a-1/1/work"),
        "hidden treasure",
        "roottouch: cannot touch '/etc/x'" + ": Read-only file system",
    ]
    assert (sandboxed.state / "jobs/a-1/1/work/here").exists()
    assert (sandboxed.state / "jobs/a-1/checkpoint/there").exists()
    assert not Path("/tmp/x").exists()


@needs_bubblewrap
def test_a_job_finds_nothing_of_the_service_or_of_other_jobs(sandboxed: SandboxedBackend) -> None:
    sandboxed.begin("echo hidden treasure > $HORAE_CHECKPOINT_DIR/model; echo up; sleep 60", job="b-1")
    runner = folder(sandboxed.state, "b-1").runner_process()
    assert runner
    state, theirs = sandboxed.state, sandboxed.state / "jobs/b-1"
    reads = [state / "token", state / "secret", state / "journal.db", theirs / "1/log.txt", theirs / "1/order.json"]
    reads += [theirs / "checkpoint/model", sandboxed.secrets / "KEY", state / "jobs/a-1/1/order.json"]
    reads += [Path(f"/proc/{pid}/environ") for pid in (runner.pid, os.getpid())]
    tries = [f"cat {path}" for path in reads]
    tries += [f"kill -9 {pid}" for pid in (runner.pid, os.getpid())]
    tries += [f"echo x > {theirs}/checkpoint/model", f"ls {theirs}", "ls /proc/$PPID/root/etc/shadow/x"]
    tries += ["grep -r treasure /proc/[0-9]*/environ"]
    log = sandboxed.run("\n".join(f"({one}) && echo DONE: '{one}'" for one in tries) + "\ntrue")
    assert isinstance(sandboxed.end, JobFinished)
    assert "DONE" not in log
    assert "treasure" not in log
    assert (theirs / "checkpoint/model").read_text() == "hidden treasure\n"
    assert lives(runner.pid)


@needs_bubblewrap
@pytest.mark.parametrize("rights", ["", "unshare --user --map-root-user --mount "])
def test_what_is_hidden_stays_hidden_from_jobs_that_make_namespaces(sandboxed: SandboxedBackend, rights: str) -> None:
    state = sandboxed.state
    tries = [f"umount {state}", f"umount -l {state}", "mount -o remount,rw /", f"mount -t proc proc {state}/../p"]
    text = "\n".join(f"{one}; ls {state}; cat {state}/token; touch /etc/x" for one in tries)
    log = sandboxed.run(f"{rights}bash -c '{text}'; grep -E 'NoNewPrivs|CapEff' /proc/self/status")
    assert "treasure" not in log
    assert "journal.db" not in log
    assert "NoNewPrivs:\t1" in log
    assert f"CapEff:\t{'0' * 16}" in log
    assert not Path("/etc/x").exists()


@pytest.mark.long
@needs_bubblewrap
@pytest.mark.skipif(len(DEVICES) < 2, reason="needs two devices of this machine")
def test_a_job_has_the_devices_that_it_was_given(sandboxed: SandboxedBackend) -> None:
    log = sandboxed.run("ls /dev", places=(Place("v100", (1,)),)).split()
    assert DEVICES[1].name in log
    assert DEVICES[0].name not in log
    assert not {path.name for path in DEVICES[2:]} & set(log)
    assert nvidia_devices((0, 2), {2: 5})[:3] == ["/dev/nvidia0", "/dev/nvidia5", "/dev/nvidiactl"]


@needs_bubblewrap
def test_a_preempted_job_hears_the_stop_signal_and_saves(sandboxed: SandboxedBackend) -> None:
    save = """trap 'echo "{\\"step\\": 40, \\"total\\": 100}" > $HORAE_CHECKPOINT_DIR/saved.json; exit 75' USR1"""
    sandboxed.begin(f"{save}\necho up; while :; do sleep 0.05; done")
    sandboxed.backend.stop("a-1", 1)
    (event,) = next_events(sandboxed.backend)
    assert isinstance(event, JobStopped)
    assert event.work_done == 40.0


@pytest.mark.long
@needs_bubblewrap
def test_a_process_that_saves_after_its_shell_died_of_the_stop_signal_keeps_the_grace_period(
    sandboxed: SandboxedBackend,
) -> None:
    child = "trap 'sleep 1; touch $HORAE_CHECKPOINT_DIR/saved; exit 75' USR1; echo up; while :; do sleep 0.05; done"
    sandboxed.begin(f'bash -c "{child}"; true')
    sandboxed.backend.stop("a-1", 1)
    (event,) = next_events(sandboxed.backend)
    assert isinstance(event, JobStopped)
    assert (sandboxed.state / "jobs/a-1/checkpoint/saved").exists()


@pytest.mark.long
@needs_bubblewrap
@pytest.mark.parametrize(("text", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("no-such-program", 127)])
def test_exit_codes_come_through(sandboxed: SandboxedBackend, text: str, code: int) -> None:
    sandboxed.run(text)
    assert isinstance(sandboxed.end, JobFailed)
    assert sandboxed.end.exit_code == code


@needs_bubblewrap
@pytest.mark.long
def test_what_a_service_replaces_in_a_hidden_folder_is_not_shown_to_jobs_that_run(sandboxed: SandboxedBackend) -> None:
    work = sandboxed.state.parent / "outside"
    work.mkdir()
    key = sandboxed.secrets / "KEY"
    sandboxed.begin(f"echo up; until [ -e go ]; do sleep 0.05; done; cat {key} || echo nothing", workdir=str(work))
    key.unlink()
    key.write_text("hidden treasure")
    (work / "go").touch()
    next_events(sandboxed.backend)
    assert "treasure" not in sandboxed.log()
    assert "nothing" in sandboxed.log()


@needs_bubblewrap
@pytest.mark.long
def test_a_cancelled_job_leaves_nothing_behind(sandboxed: SandboxedBackend) -> None:
    stray = "(setsid env -i bash -c \"trap '' TERM; sleep 611; sleep 611\" &)"
    sandboxed.begin(f"trap '' TERM USR1; {stray}; echo up; sleep 611; sleep 611", grace_s=0.2)
    sandboxed.backend.stop("a-1", 1)
    (event,) = next_events(sandboxed.backend)
    assert isinstance(event, JobStopped)
    until(lambda: not _sleepers("611"), "for all processes to be gone")


@pytest.mark.long
@needs_bubblewrap
def test_a_runner_that_is_killed_leaves_nothing_behind(sandboxed: SandboxedBackend) -> None:
    sandboxed.begin("(setsid env -i sleep 612 &); echo up; sleep 612")
    runner = folder(sandboxed.state).runner_process()
    assert runner
    os.kill(runner.pid, signal.SIGKILL)
    (event,) = next_events(sandboxed.backend)
    assert isinstance(event, JobStopped), "no fault of the job"
    until(lambda: not _sleepers("612"), "for all processes to be gone")


def _sleepers(seconds: str) -> list[str]:
    """Processes that sleep so long."""
    words = f"sleep\0{seconds}\0"
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if text_of_process(path) == words]
    return [str(path) for path in found]


def text_of_process(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.mark.long
@needs_bubblewrap
def test_a_working_folder_outside_may_be_written_and_the_services_own_may_not(
    sandboxed: SandboxedBackend, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    assert "fine" in sandboxed.run("touch file && echo fine", workdir=str(mine))
    assert (mine / "file").exists()
    log = sandboxed.run("cat secrets/KEY; cat state/token; ls state; touch x", job="a-2", workdir=str(tmp_path))
    assert "treasure" not in log
    assert not (tmp_path / "x").exists(), "who may write there could put another folder in the place of the service's"
    for job, path in (("a-3", sandboxed.state), ("a-4", sandboxed.state / "jobs/a-1/checkpoint")):
        assert "belongs to the service, or to another job" in sandboxed.run("true", job=job, workdir=str(path))


@pytest.mark.long
@needs_bubblewrap
def test_a_checkpoint_folder_that_is_a_link_to_anothers_is_refused(sandboxed: SandboxedBackend, tmp_path: Path) -> None:
    sandboxed.run("echo treasure > $HORAE_CHECKPOINT_DIR/model", job="b-1")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "link").symlink_to(sandboxed.state / "jobs/b-1/checkpoint")
    log = sandboxed.run("cat $HORAE_CHECKPOINT_DIR/model", workdir=str(mine), checkpoint_dir="link")
    assert "belongs to the service, or to another job" in log
    assert "treasure" not in log


@pytest.mark.long
@needs_bubblewrap
def test_the_home_and_the_installation_of_the_service_stay_read_only(
    sandboxed: SandboxedBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    for name in (".config/horae", ".ssh", "project"):
        (home / name).mkdir(parents=True)
    (home / ".config/horae/token").write_text("hidden treasure")
    monkeypatch.setenv("HOME", str(home))
    sandboxed.backend._isolation = SandboxIsolation((sandboxed.state, sandboxed.secrets))
    log = sandboxed.run("cat .config/horae/token; echo evil >> .bashrc", workdir=str(home))
    assert "it is read-only" in log
    assert "treasure" not in log
    assert not (home / ".bashrc").exists()
    assert "fine" in sandboxed.run("touch x && echo fine", job="a-2", workdir=str(home / "project"))
    assert "it is read-only" in sandboxed.run("touch x", job="a-3", workdir=str(home / ".config"))
    assert not (home / ".config/x").exists()
    planted = sandboxed.state / "jobs/b-1/1/stop"
    assert "belongs to the service" in sandboxed.run("true", job="a-4", checkpoint_dir=str(planted))
    assert not planted.exists()


@pytest.mark.long
@needs_bubblewrap
def test_nothing_from_outside_is_open_or_loaded(sandboxed: SandboxedBackend) -> None:
    (sandboxed.state / "token").write_text("hidden treasure")
    walk = (
        "for fd in /proc/self/fd/*; do ls -la $fd; cat $fd/../../../../token $fd/../../token 2>&1; done; ls /proc/$$/fd"
    )
    log = sandboxed.run(walk)
    assert "treasure" not in log
    assert "/jobs/" not in log
    preloaded = sandboxed.run("true", job="a-2", env={"LD_PRELOAD": "/nowhere/evil.so"})
    # Loaded by the job's program inside alone: bubblewrap, which is outside, does not see the variable.
    assert preloaded.count("/nowhere/evil.so") <= 2, preloaded


def test_a_machine_without_bubblewrap_is_told_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(CannotIsolate, match="apt-get install bubblewrap"):
        find_bubblewrap("no-such-program")
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(CannotIsolate, match=r"No permissions to create new namespace.*user namespaces"):
        find_bubblewrap(str(broken))
