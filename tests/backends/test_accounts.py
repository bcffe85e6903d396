"""Jobs under the accounts of their users, with real processes; needs root and control groups.

Tests backends/local/isolation/accounts.py and backends/local/isolation/modes.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from horae.backends.local.backend import LocalBackend
from horae.backends.local.isolation.accounts import AccountIsolation
from horae.backends.local.machine_room import with_machine_room
from horae.backends.local.processes import process_ids
from horae.backends.local.runner import stat_of
from horae.backends.protocol import Place
from horae.core.events import Event, JobFailed, JobFinished, JobStopped, LaunchFailed
from tests.backends.job_accounts import FIRST_UID, MadeUpAccounts, forked_helper, groups_left, needs_root, open_folder
from tests.backends.real import NODES, bash, folder, next_events, opened, start, text_of, until

pytestmark = needs_root

#: Bytes that are kept of what a job prints.
MOST = 80_000
#: Counts up, and saves when it is told to stop.
COUNTS = r"""
cd $HORAE_CHECKPOINT_DIR
trap 'echo "{\"step\": 40, \"total\": 100}" > saved.json; exit 75' USR1
echo up; while :; do sleep 0.05; done
"""


class Machine:
    """A state folder, accounts and a helper; backends are opened on them."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.state = root, root / "state"
        self.accounts = MadeUpAccounts(root)
        self.stack = stack
        self.helper, self.helper_pid = stack.enter_context(forked_helper(self.accounts, device_prefix=str(root)))
        self.given: dict[int, str] = {}
        self.backend = self.opened()

    def opened(self) -> LocalBackend:
        return self.stack.enter_context(opened(self.state, isolation=self.isolation(), max_log_bytes=MOST))

    def isolation(self) -> AccountIsolation:
        def files(numbers: Sequence[int]) -> list[str]:
            return [self.given[number] for number in numbers if number in self.given]

        return AccountIsolation(self.helper, NODES, devices=files, find=self.accounts.find)

    def run(self, text: str, job: str = "a-1", **more: Any) -> str:
        """Run a job to its end; returns its log."""
        self.backend.start(start(bash(text), job=job, **more))
        self.end = next_events(self.backend)[0]
        return self.log(job)

    def begin(self, text: str, job: str = "a-1", **more: Any) -> None:
        """Start a job, and wait until it prints `up`."""
        self.backend.start(start(bash(text), job=job, **more))
        until(lambda: "up" in self.log(job), f"for {job} to be up: {self.log(job)}")

    def next_event(self) -> Event:
        return next_events(self.backend)[0]

    def log(self, job: str = "a-1", attempt: int = 1) -> str:
        return text_of(self.backend.log(job, attempt))


@pytest.fixture
def machine() -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(stack.enter_context(open_folder()), stack)


def processes_of(uid: int) -> list[int]:
    """Living processes of a user."""
    found = []
    for pid in process_ids():
        with suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid == uid and stat_of(pid)[:1] not in ([], ["Z"], ["X"]):
                found.append(pid)
    return found


def all_gone() -> bool:
    return not processes_of(FIRST_UID) and not groups_left()


def test_a_job_runs_as_its_user_in_folders_of_its_own(machine: Machine) -> None:
    log = machine.run("id -u; id -G; pwd; echo $HOME $USER; touch x; stat -c %u:%a . $HORAE_CHECKPOINT_DIR")
    home = machine.accounts.find("ann").home
    jobs = f"{home}/horae-jobs/test-{os.getpid()}/a-1"
    owned = f"{FIRST_UID}:700"
    assert log.splitlines() == [str(FIRST_UID), f"{FIRST_UID} 100", f"{jobs}/1", f"{home} ann", owned, owned]
    assert isinstance(machine.end, JobFinished)
    until(all_gone, "for the control group to be removed")


@pytest.mark.long
def test_a_job_gains_no_rights_by_programs_with_a_set_user_id(machine: Machine) -> None:
    log = machine.run("grep -E 'NoNewPrivs|CapEff|CapPrm|CapAmb' /proc/self/status; ulimit -c; setpriv --reuid 0 true")
    assert "NoNewPrivs:\t1" in log
    assert log.count("0000000000000000") == 3
    assert isinstance(machine.end, JobFailed)


def test_a_job_reads_and_changes_nothing_of_the_service_or_of_others(machine: Machine) -> None:
    machine.begin("echo secret > $HORAE_CHECKPOINT_DIR/model; echo secret; echo up; sleep 60", job="b-1", user="bob")
    for name in ("token", "secret", "journal.db"):
        (machine.state / name).write_text("secret")
        (machine.state / name).chmod(0o600)
    theirs = f"{machine.accounts.find('bob').home}/horae-jobs/test-{os.getpid()}/b-1"
    (other,) = [pid for pid in processes_of(FIRST_UID + 1) if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    runner = folder(machine.state, "b-1").runner_process()
    assert runner
    files = [machine.state / name for name in ("token", "secret", "journal.db", "jobs/b-1/1/log.txt", "attempts")]
    files += [machine.state / f"jobs/b-1/1/{name}" for name in ("order.json", "runner.json")]
    files += [
        Path(theirs, "checkpoint/model"),
        *(Path(f"/proc/{pid}/environ") for pid in (other, runner.pid, os.getpid())),
    ]
    files += [machine.state / "jobs/a-1/1/order.json"]
    tries = [f"cat {path}" for path in files]
    tries += [f"kill -9 {pid}" for pid in (other, runner.pid, os.getpid(), machine.helper_pid)]
    tries += [f"touch {path}/x" for path in (machine.state, machine.state / "jobs", theirs, f"{theirs}/checkpoint")]
    tries += ["echo > $HORAE_ATTEMPT_DIR/exit.json", "echo 0 > /sys/fs/cgroup/pids/cgroup.procs"]
    log = machine.run("\n".join(f"({one}) && echo DONE: '{one}'" for one in tries) + "\ntrue")
    assert "DONE" not in log
    assert log.count("denied") + log.count("not permitted") >= len(tries), log
    assert isinstance(machine.end, JobFinished)
    machine.backend.stop("b-1", 1)
    assert isinstance(machine.next_event(), JobStopped)


def test_what_a_job_prints_is_written_by_its_runner_and_limited(machine: Machine) -> None:
    log = machine.run("echo out; echo err >&2; echo opened > /dev/stderr; seq 50000; ls -l /proc/self/fd/1")
    assert log.splitlines()[:4] == ["out", "err", "opened", "1"]
    parts = list(folder(machine.state).path.glob("log.txt*"))
    assert all(path.stat().st_uid == os.geteuid() for path in parts)
    assert MOST / 2 < sum(path.stat().st_size for path in parts) <= MOST
    assert "pipe:" in max(parts, key=lambda path: path.stat().st_mtime_ns).read_text()


def make_devices(machine: Machine) -> None:
    for number in range(2):
        # No driver has these numbers: an open that is allowed finds no device.
        path = machine.root / f"gpu{number}"
        os.mknod(path, 0o020666, os.makedev(195, 240 + number))
        path.chmod(0o666)
        machine.given[number] = str(path)


def test_a_job_uses_the_devices_that_it_was_given_and_no_other(machine: Machine) -> None:
    make_devices(machine)
    text = (
        f"for n in 0 1; do echo gpu$n; cat {machine.root}/gpu$n; done; head -c 1 /dev/urandom > /dev/null && echo fine"
    )
    log = machine.run(text, places=(Place("v100", (1,)),)).split("gpu")
    assert "not permitted" in machine.log().split("gpu1\n")[0]
    assert "No such device" in machine.log().split("gpu1\n")[1]
    assert log[-1].endswith("fine\n")


@pytest.mark.long
def test_devices_are_hidden_where_control_groups_do_not_keep_jobs_from_them(machine: Machine) -> None:
    make_devices(machine)
    prefix = f"{machine.root}/gpu"
    machine.helper, _ = machine.stack.enter_context(
        forked_helper(machine.accounts, without="devices", device_prefix=prefix)
    )
    machine.backend = machine.opened()
    undo = f"umount {prefix}0; unshare --user --map-root-user --mount umount {prefix}0"
    log = machine.run(f"stat -c %t:%T {prefix}0 {prefix}1; {undo}; cat {prefix}0", places=(Place("v100", (1,)),))
    assert log.splitlines()[:2] == ["1:3", "c3:f1"], "/dev/null, and the device itself"
    assert log.count("umount: ") == 2
    assert "No such device" not in log


def test_a_job_that_uses_too_much_memory_is_killed_and_told_so(machine: Machine) -> None:
    log = machine.run("head -c 200000000 /dev/zero | tail", memory_mb_per_gpu=64)
    assert "horae: killed: the job used more than 64 MiB of memory" in log
    log = machine.run("exec tail /dev/zero", job="a-2", memory_mb_per_gpu=32)
    assert isinstance(machine.end, JobFailed)
    assert machine.end.exit_code == 137
    assert "more than 32 MiB" in log


@pytest.mark.long
def test_a_job_gets_the_processors_it_asked_for_and_its_share_of_memory(machine: Machine) -> None:
    machine.begin("echo up; sleep 60", cpus_per_gpu=2, places=(Place("v100", (0, 1)),))
    record = folder(machine.state).runner()
    assert record
    group = Path(record.control_group)
    cpu, memory = (Path(str(group).replace("/pids/", f"/{name}/")) for name in ("cpu", "memory"))
    assert (cpu / "cpu.cfs_quota_us").read_text().strip() == "400000"
    assert (cpu / "cpu.shares").read_text().strip() == "2048"
    v100 = next(node for node in with_machine_room(NODES) if node.name == "v100")
    assert (memory / "memory.limit_in_bytes").read_text().strip() == str(v100.memory_mb // v100.gpus * 2 << 20)
    assert machine.backend.honours == {"cpus_per_gpu", "memory_per_gpu"}


def test_a_preempted_job_saves_as_its_user_and_its_work_counts(machine: Machine) -> None:
    machine.begin(COUNTS)
    machine.backend.stop("a-1", 1)
    event = machine.next_event()
    assert isinstance(event, JobStopped)
    assert event.work_done == 40.0
    machine.backend.start(start(bash("cat $HORAE_CHECKPOINT_DIR/saved.json; exit 75"), attempt=2))
    again = machine.next_event()
    assert isinstance(again, JobFailed), "nothing new was saved"
    assert "40" in machine.log(attempt=2)


@pytest.mark.long
@pytest.mark.parametrize(
    "trick",
    [
        "mkfifo saved.json",
        "ln -s /etc/shadow saved.json",
        "ln -s /dev/zero saved.json",
        "truncate -s 3G saved.json",
        "mkdir saved.json",
        "echo '[' > saved.json",
        "echo '[]' > saved.json",
        """echo '{"step": "x", "total": {}}' > saved.json""",
        """echo '{"step": NaN}' > saved.json""",
        f"echo '{{\"step\": {'9' * 4000}}}' > saved.json",
        f'echo \'{{"step": 0, "x": "{"&" * 60_000}"}}\' > saved.json',
    ],
)
def test_a_hostile_file_of_a_job_counts_as_nothing_saved(machine: Machine, trick: str) -> None:
    begun_s = time.monotonic()
    machine.run(f"cd $HORAE_CHECKPOINT_DIR; {trick}; exit 75")
    assert isinstance(machine.end, JobFailed)
    assert machine.end.exit_code == 75
    assert time.monotonic() - begun_s < 20


@pytest.mark.long
def test_a_cancelled_job_leaves_nothing_behind_whatever_it_does(machine: Machine) -> None:
    stray = "(setsid env -i bash -c \"trap '' TERM; sleep 600; sleep 600\" &)"
    text = f"trap '' TERM USR1; {stray}; echo up; sleep 600; sleep 600"
    machine.begin(text, grace_s=0.2)
    assert len(processes_of(FIRST_UID)) >= 3
    machine.backend.stop("a-1", 1)
    assert isinstance(machine.next_event(), JobStopped)
    until(all_gone, "for all processes to be gone")


@pytest.mark.long
def test_processes_that_outlive_the_job_are_ended(machine: Machine) -> None:
    machine.run("(setsid sleep 600 &); echo done")
    assert isinstance(machine.end, JobFinished)
    until(all_gone, "for all processes to be gone")


@pytest.mark.long
def test_a_job_that_forks_without_end_is_limited_and_killed(machine: Machine) -> None:
    machine.begin("echo up; f() { f & f; }; while :; do (sleep 600 &) ; done", grace_s=0.1)
    until(lambda: len(processes_of(FIRST_UID)) > 50, "for processes")
    machine.backend.stop("a-1", 1)
    assert isinstance(machine.next_event(), JobStopped)
    until(all_gone, "for all processes to be gone")


@pytest.mark.long
def test_a_job_outlives_the_backend_and_is_found_again(machine: Machine) -> None:
    machine.begin("echo up; sleep 1; echo once >> $HORAE_CHECKPOINT_DIR/ran")
    machine.backend.close()
    machine.backend = machine.opened()
    machine.backend.start(start(bash("echo twice >> $HORAE_CHECKPOINT_DIR/ran")))
    assert isinstance(machine.next_event(), JobFinished)
    order = folder(machine.state).order()
    assert order
    assert Path(order.content["checkpoint_dir"], "ran").read_text() == "once\n"


def test_a_runner_that_is_killed_takes_its_job_with_it(machine: Machine) -> None:
    machine.begin("(setsid env -i sleep 600 &); echo up; sleep 600")
    process = folder(machine.state).runner_process()
    assert process
    os.kill(process.pid, signal.SIGKILL)
    assert isinstance(machine.next_event(), JobStopped), "no fault of the job"
    assert processes_of(FIRST_UID) == []
    until(all_gone, "for the control group to be removed")


@pytest.mark.long
def test_a_warden_that_is_killed_takes_its_job_with_it(machine: Machine) -> None:
    machine.begin("(setsid env -i sleep 600 &); echo up; sleep 600")
    (warden,) = [
        pid for pid in process_ids() if text_of(Path(f"/proc/{pid}/comm")) == "horae-warden\n" and _is_ours(pid)
    ]
    os.kill(warden, signal.SIGKILL)
    assert isinstance(machine.next_event(), JobStopped), "no fault of the job"
    assert "horae: the process that started the job under its user's account was killed" in machine.log()
    assert processes_of(FIRST_UID) == []
    until(all_gone, "for the control group to be removed")


def _is_ours(warden: int) -> bool:
    """Whether a warden has a child of a made-up account of this test."""
    return any(stat_of(pid)[1:2] == [str(warden)] for pid in processes_of(FIRST_UID))


@pytest.mark.long
def test_jobs_outlive_the_helper_and_no_other_can_start_without_it(machine: Machine) -> None:
    machine.begin("echo up; sleep 1; echo $((6 * 7))")
    assert machine.helper.is_there()
    os.kill(machine.helper_pid, signal.SIGKILL)
    until(lambda: not machine.helper.is_there(), "for the end of the helper to be noticed")
    machine.backend.start(start(bash("true"), job="a-2"))
    first, second = machine.next_event(), machine.next_event()
    assert isinstance(first, LaunchFailed)
    assert "root helper has ended" in first.why
    assert isinstance(second, JobFinished)
    assert "42" in machine.log()
    assert "start the service again" in machine.backend.trouble
    for job in ("a-1", "a-2"):
        machine.backend.forget(job, 1)
    machine.backend.close()
    # A new service has a new helper, which the wardens of the old one do not need.
    machine.helper, machine.helper_pid = machine.stack.enter_context(forked_helper(machine.accounts))
    machine.backend = machine.opened()
    assert "fine" in machine.run("echo fine", job="a-3")


@pytest.mark.long
def test_nothing_is_left_of_an_attempt_whose_service_died_before_its_runner_began(machine: Machine) -> None:
    handle = machine.helper.open("ann", "a-9.1", {"memory_mb": 64})
    until(groups_left, "for the control group")
    os.close(handle)
    until(lambda: not groups_left(), "for the control group to be removed")


def test_users_without_an_account_are_refused_in_a_sentence(machine: Machine) -> None:
    machine.accounts.add("daemon", 2)
    assert machine.backend.refusal("ann") == ""
    assert "no account 'eve'. Ask the operator" in machine.backend.refusal("eve")
    assert "system account" in machine.backend.refusal("daemon")
    machine.backend.start(start(bash("true"), user="eve"))
    event = machine.next_event()
    assert isinstance(event, LaunchFailed)
    assert "no account 'eve'" in event.why


@pytest.mark.long
def test_folders_of_discarded_jobs_are_deleted_in_the_homes_of_their_users(machine: Machine) -> None:
    machine.run("touch $HORAE_CHECKPOINT_DIR/model")
    order = folder(machine.state).order()
    assert order
    job_folder = Path(order.content["job_folder"])
    assert job_folder.is_dir()
    machine.backend.forget("a-1", 1)
    until(lambda: machine.backend.discard(["a-1"], []) == ["a-1"], "for the attempt to be forgotten")
    until(lambda: not job_folder.exists(), "for the folder to be deleted")


@pytest.mark.long
def test_a_working_folder_that_the_user_may_not_enter_is_told(machine: Machine) -> None:
    private = machine.root / "private"
    private.mkdir(mode=0o700)
    log = machine.run("true", workdir=str(private))
    assert f"the working folder '{private}' cannot be used by ann: Permission denied" in log


@pytest.mark.long
def test_setup_and_every_rank_run_as_the_user(machine: Machine) -> None:
    log = machine.run(
        "echo rank $RANK $(id -u)", setup="echo setup $(id -u)", processes="gpu", places=(Place("v100", (0, 1)),)
    )
    assert sorted(log.splitlines()) == [f"rank 0 {FIRST_UID}", f"rank 1 {FIRST_UID}", f"setup {FIRST_UID}"]
