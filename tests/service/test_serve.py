"""`horae serve` as operators meet it: real processes, real jobs, real signals.

Tests service/clock.py, service/server.py and service/start_options.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from horae import prepare_compilation
from horae.backends import BACKENDS, BackendOptions
from horae.backends.local.gpu_detection import BadGpus
from horae.backends.reconcile import Reconciler
from horae.backends.task import Task
from horae.cli.main import main
from horae.cli.serve import _excuse_slow_start
from horae.core.commands import Decided
from horae.core.errors import UserError
from horae.core.events import JobSubmitted, SettingsChanged
from horae.core.job import JobSpec
from horae.service.daemon import Change
from horae.service.listening import CannotServe, listen
from horae.service.server import ServeOptions, Server
from tests.backends.scripted_cluster import ScriptedCluster
from tests.service.live import eventually, in_state, submit

SERVE = [sys.executable, "-m", "horae", "serve", "--port", "0", "--gpus", "v100:2,k80:2"]


class Process:
    """A service in a process of its own."""

    def __init__(self, state: Path, *words: str) -> None:
        self.state = state
        self.process = subprocess.Popen(
            [*SERVE, "--state", str(state), "-o", "json", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.said: dict[str, Any] = json.loads(line)
        token = Path(self.said["token_file"]).read_text().strip()
        self.client = httpx.Client(
            base_url=self.said["url"],
            headers={"Authorization": f"Bearer {token}"},
            timeout=20,
            trust_env=False,
            verify=False,
        )

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; gives the exit code and what was said on stderr."""
        self.client.close()
        self.process.send_signal(number)
        _, error = self.process.communicate(timeout=60)
        return self.process.returncode, error


@contextmanager
def serving(state: Path, *words: str) -> Iterator[Process]:
    service = Process(state, *words)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.process.kill()
            service.process.communicate()


def test_jobs_run_and_outlive_the_service(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(state) as service:
        assert json.loads((state / "address.json").read_text()) == {
            "url": service.said["url"],
            "pid": service.process.pid,
            "socket": str(state / "horae.sock"),
        }
        script = "echo began $HORAE_JOB_ID; while [ ! -e go ]; do sleep 0.05; done; echo went on"
        word = "$(touch bad); `id` > bad"
        (job, said) = submit(
            service.client,
            {"name": "waits", "run": script, "workdir": str(tmp_path)},
            {"name": "said", "run": ["echo", word], "workdir": str(tmp_path)},
        )
        in_state(service.client, said, "finished")
        assert service.client.get(f"/v1/jobs/{said}/logs").text == f"{word}\n"
        assert not (tmp_path / "bad").exists(), "a shell has read an argument"
        eventually(lambda: "began" in service.client.get(f"/v1/jobs/{job}/logs").text)
        assert service.end() == (0, ""), "and it does not wait for the job, which waits for a file"
        assert not (state / "address.json").exists()
    with serving(state) as service:
        record = service.client.get(f"/v1/jobs/{job}").json()
        assert (record["state"] in ("launching", "running"), record["attempt"]) == (True, 1)
        (tmp_path / "go").touch()
        in_state(service.client, job, "finished")
        log = service.client.get(f"/v1/jobs/{job}/logs").text
        assert log == f"began {job}\nwent on\n", "it ran once, from its beginning to its end"
        assert service.end(signal.SIGINT) == (0, "")


def test_a_second_service_on_the_same_state_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        second = subprocess.run([*SERVE, "--state", str(tmp_path)], capture_output=True, text=True, check=False)
        assert (second.returncode, second.stdout) == (1, "")
        assert second.stderr.startswith("error: Another service")
        assert second.stderr.count("\n") == 1
        assert service.client.get("/healthz").status_code == 200
        assert (tmp_path / "address.json").exists()


def test_a_killed_service_comes_back_with_its_jobs(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        (job,) = submit(service.client, {"run": ["sleep", "60"], "checkpoint": {"grace": 1, "signal": "SIGTERM"}})
        in_state(service.client, job, "launching", "running")
        service.end(signal.SIGKILL)
    with serving(tmp_path) as service:
        assert service.client.get(f"/v1/jobs/{job}").json()["attempt"] == 1
        service.client.post(f"/v1/jobs/{job}/cancel")
        in_state(service.client, job, "cancelled")


# ------------------------------------------------------------------- in-process


@contextmanager
def served(state: Path, **asked: Any) -> Iterator[Server]:
    server = Server(ServeOptions(state, **{"port": 0, "gpus": "v100:4", **asked}))
    try:
        yield server
    finally:
        server.close()


def test_nothing_on_disk_is_for_others_to_read(tmp_path: Path) -> None:
    with served(tmp_path / "state") as server:
        for path in (server.state, *server.state.rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path


def gpus_there(server: Server) -> list[int]:
    """GPUs of each type that the service has now."""
    at = server.daemon.status
    return np.bincount(at.cluster.gpu_type[at.gpu_there], minlength=len(at.cluster.gpu_types)).tolist()


def test_a_later_day_keeps_what_was_unless_told_otherwise(tmp_path: Path) -> None:
    with served(tmp_path, policy="las") as server:
        assert server.daemon.status.policy == "las"
        epoch = server.store.epoch
    with served(tmp_path, gpus=None) as server:
        assert server.daemon.status.policy == "las"
        assert server.daemon.status.cluster.gpus == 4
        assert server.store.epoch == epoch
    with served(tmp_path, policy="srtf", gpus="v100:4,k80:2") as server:
        at = server.daemon.status
        assert (at.policy, at.cluster.gpus) == ("srtf", 6)
        assert server.daemon.initial_settings.policy == "las"
    with served(tmp_path, gpus=None) as server:
        assert gpus_there(server) == [4, 2], "as on the day before, not as on the first"
    with served(tmp_path, gpus="k80:1"):
        pass
    with served(tmp_path, gpus=None) as server:
        assert gpus_there(server) == [0, 1]
    with pytest.raises(CannotServe, match="which cannot change"):
        Server(ServeOptions(tmp_path, port=0, placement="consolidated"))


def test_a_service_says_at_its_start_that_its_policy_ignores_speeds(tmp_path: Path) -> None:
    speeds = {"steps": 1000, "throughput": {"v100": 4.0, "k80": 1.0}}
    with serving(tmp_path) as service:
        (job,) = submit(service.client, {"run": "sleep 60", "estimate": speeds})
        assert service.end() == (0, ""), "no job was known at the start"
    with serving(tmp_path, "--policy", "las") as service:
        code, said = service.end()
        assert (code, said.count("\n")) == (0, 1)
        assert said.startswith(
            f"las treats GPU types as alike, and jobs are not equally fast on them (job {job} is 4 times"
        )
    with serving(tmp_path, "--policy", "max-min") as service:
        service.client.post(f"/v1/jobs/{job}/cancel")
        in_state(service.client, job, "cancelled")
        assert service.end() == (0, "")


def test_a_service_on_any_port_comes_back_on_the_one_it_had(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        url = server.url
    with served(tmp_path) as server:
        assert server.url == url, "jobs that still run report there"
    with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))), served(tmp_path) as server:
        assert server.url != url, "somebody else has it now"
        other = server.url
    with served(tmp_path) as server:
        assert server.url == other


def kinds_in(server: Server) -> list[type[object]]:
    """What kinds of records the journal of a service holds."""
    return [type(record) for _, record in server.store.tail()]


def test_the_numbers_of_a_file_that_a_setting_names_are_stored_and_the_file_is_needed_once(tmp_path: Path) -> None:
    samples = tmp_path / "samples.csv"
    samples.write_text("100\n200\n4000\n")
    state = tmp_path / "state"
    with served(state, policy="tiresias-gittins", settings={"samples": str(samples)}) as server:
        assert server.daemon.status.settings == {"samples": "100.0,200.0,4000.0"}
    with served(state, settings={"samples": str(samples)}) as server:
        assert SettingsChanged not in kinds_in(server), "the same numbers are no change"
    samples.unlink()
    with served(state) as server:
        assert server.daemon.status.settings == {"samples": "100.0,200.0,4000.0"}
        assert server.daemon.engine.policy.samples == "100.0,200.0,4000.0"  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"samples\.csv is not a text file"):
        Server(ServeOptions(state, port=0, gpus="v100:4", settings={"samples": str(samples)}))


def test_a_service_comes_back_without_the_files_of_a_policy_it_left(tmp_path: Path) -> None:
    """Journals of earlier releases name the file itself."""
    samples = tmp_path / "samples.csv"
    samples.write_text("100\n200\n4000\n")
    state = tmp_path / "state"
    by_file = SettingsChanged(0.0, "tiresias-gittins", {"samples": str(samples)})
    with served(state, policy="las") as server:
        server.daemon.ask(lambda engine, now_s: (Change((replace(by_file, at_s=now_s),)), None))
        task = Task("a", "ann", "a", ("true",), 1.0)
        submitted = JobSpec("a", 0.0, 8, 1.0)
        server.daemon.ask(lambda engine, now_s: (Change((JobSubmitted(now_s, submitted),), (task,)), None))
    with served(state) as server:
        assert server.daemon.status.settings == {"samples": str(samples)}
    samples.unlink()
    with pytest.raises(CannotServe, match=r"samples.csv .*--policy"):
        Server(ServeOptions(state, port=0, gpus="v100:4"))
    with served(state, policy="fifo", gpus="v100:2") as server:
        kinds = eventually(lambda: found if (found := kinds_in(server))[-1] is Decided else None)
        before = next(kind for kind in reversed(kinds) if kind is not Decided)
        assert before is SettingsChanged, "nothing is decided by a policy that is on its way out"
    with served(state) as server:
        assert (server.daemon.status.policy, len(server.daemon.status)) == ("fifo", 1)


def admin_of(server: Server) -> httpx.Client:
    token = server.token_file.read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=20, trust_env=False, verify=False)


def test_jobs_are_not_run_again_from_another_folder(tmp_path: Path) -> None:
    """The journal may lie elsewhere; what runs is known by the state folder alone."""
    url = f"sqlite:///{tmp_path}/elsewhere/journal.db"
    with served(tmp_path / "one", database=url) as server, admin_of(server) as client:
        (job,) = submit(client, {"run": ["sleep", "60"], "checkpoint": {"grace": 0}})
        in_state(client, job, "launching", "running")
    with pytest.raises(CannotServe, match=f"--state {tmp_path}/one"):
        Server(ServeOptions(tmp_path / "two", database=url, port=0, gpus="v100:4"))
    with served(tmp_path / "one", database=url) as server, admin_of(server) as client:
        client.post(f"/v1/jobs/{job}/cancel")
        in_state(client, job, "cancelled")
    with served(tmp_path / "two", database=url):
        """With nothing that runs the folder may change."""


class Scripted:
    """A backend from outside with a cluster in memory, and the options of its last start."""

    def __init__(self) -> None:
        self.cluster = ScriptedCluster(("n1",), lasts_s=3600.0)
        self.options: BackendOptions | None = None

    def __call__(self, options: BackendOptions) -> Reconciler:
        self.options = options
        return Reconciler(self.cluster, options.shared or options.state / "shared")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    made = Scripted()
    monkeypatch.setitem(BACKENDS, "scripted", made)
    return made


def test_jobs_are_not_run_again_with_another_shared_folder(tmp_path: Path, scripted: Scripted) -> None:
    asked: dict[str, Any] = {"gpus": None, "backend": "scripted", "shared": tmp_path / "one"}
    with served(tmp_path / "state", **asked) as server, admin_of(server) as client:
        (job,) = submit(client, {"run": ["sleep", "60"], "checkpoint": {"grace": 0}})
        in_state(client, job, "launching", "running")
    with pytest.raises(CannotServe, match=f"Jobs of this service run: start it with --shared {tmp_path}/one"):
        Server(ServeOptions(tmp_path / "state", port=0, shared=tmp_path / "two"))
    with pytest.raises(CannotServe, match="start it without --adopt"):
        Server(ServeOptions(tmp_path / "state", port=0, adopt="gpu", shared=tmp_path / "one"))
    assert not (tmp_path / "two").exists(), "no backend was opened"
    with served(tmp_path / "state", gpus=None) as server, admin_of(server) as client:
        assert client.get(f"/v1/jobs/{job}").json()["attempt"] == 1
        client.post(f"/v1/jobs/{job}/cancel")
        in_state(client, job, "cancelled")
    with served(tmp_path / "state", gpus=None, shared=tmp_path / "two"):
        assert scripted.options
        assert scripted.options.shared == tmp_path / "two"


def test_a_service_may_begin_and_cease_to_adopt(tmp_path: Path, scripted: Scripted) -> None:
    def options(**asked: Any) -> tuple[str, str, Path | None, str]:
        with served(tmp_path / "state", gpus=None, backend="scripted", **asked):
            found = scripted.options
            assert found
            return found.adopt, found.partition, found.shared, found.context

    assert options(adopt="gpu", context="lab") == ("gpu", "", None, "lab")
    assert options() == ("gpu", "", None, "lab")
    own = ("", "other", tmp_path / "one", "lab")
    assert options(partition="other", shared=tmp_path / "one") == own
    assert options(context="lab") == own
    assert options(adopt="gpu") == ("gpu", "", None, "lab")


def test_a_namespace_may_be_added_while_jobs_run(tmp_path: Path, scripted: Scripted) -> None:
    asked: dict[str, Any] = {"gpus": None, "backend": "scripted"}
    with served(tmp_path, adopt="a", **asked) as server, admin_of(server) as client:
        (job,) = submit(client, {"run": ["sleep", "60"]})
        in_state(client, job, "launching", "running")
    with served(tmp_path, adopt="b,a", **asked):
        assert scripted.options
        assert scripted.options.adopt == "b,a"
    with pytest.raises(CannotServe, match="with --adopt b,a"):
        Server(ServeOptions(tmp_path, port=0, adopt="a"))


def test_options_of_other_backends_that_earlier_versions_stored_are_left_alone(tmp_path: Path) -> None:
    with served(tmp_path) as server, admin_of(server) as client:
        (job,) = submit(client, {"run": ["sleep", "60"], "checkpoint": {"grace": 0}})
        in_state(client, job, "launching", "running")
        server.store.save_serve_options({**server.store.serve_options(), "shared": "/nfs/horae", "volume": "team:/mnt"})
    with served(tmp_path) as server, admin_of(server) as client:
        client.post(f"/v1/jobs/{job}/cancel")
        in_state(client, job, "cancelled")


@pytest.mark.parametrize(
    ("backend", "asked", "why"),
    [
        (None, {"partition": "gpu"}, "--partition is for --backend slurm, not local"),
        ("ray", {"image": "train:1"}, "--image is for --backend kubernetes, not ray"),
        ("slurm", {"address": "http://head"}, "--address is for --backend ray, not slurm"),
    ],
)
def test_options_of_another_backend_are_refused(
    tmp_path: Path, backend: str | None, asked: dict[str, str], why: str
) -> None:
    with pytest.raises(CannotServe, match=why):
        Server(ServeOptions(tmp_path, port=0, gpus="v100:4", backend=backend, **asked))


def test_a_crash_of_the_loop_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and a report, and an exit code that says so."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    started: list[Server] = []
    start = Server._start

    def watch(server: Server, *words: Any) -> None:
        start(server, *words)
        started.append(server)

    monkeypatch.setattr(Server, "_start", watch)

    def break_it() -> None:
        server = eventually(lambda: started)[0]
        monkeypatch.setattr(server.daemon.engine, "due", lambda _: 1 / 0)

    breaker = threading.Thread(target=break_it)
    breaker.start()
    answer: list[int] = []
    words = ["serve", "--port", "0", "--gpus", "v100:1", "--state", str(tmp_path / "state")]
    running = threading.Thread(target=lambda: answer.append(main(words)))
    running.start()
    running.join(30)
    breaker.join()
    assert answer == [1]
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "bug in horae (ZeroDivisionError)" in error
    assert "Traceback" in Path(error.split()[-1]).read_text()
    assert not (tmp_path / "state" / "address.json").exists()


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"host": "0.0.0.0"}, "--allow-plain-http"),
        ({"url": "http://head:8642"}, "tokens of jobs would cross the network"),
        ({"url": "head:8642"}, "cannot be the address of the service"),
        ({"tls_key": Path("key.pem")}, "--tls-cert"),
        ({"tls_ca": Path("ca.pem")}, "--url https"),
        ({"host": "no such host"}, "not an address"),
        ({"gpus": "v100"}, "TYPE:NUMBER"),
        ({"policy": "fifa"}, "Did you mean 'fifo'"),
        ({"placement": "nowhere"}, "nowhere"),
        ({"settings": {"nonsense": "1"}}, "nonsense"),
        ({"secrets": Path("/nowhere")}, "no folder"),
        ({"database": "mysql://x/y"}, "cannot hold the journal"),
    ],
)
def test_what_cannot_be_is_told_before_anything_starts(tmp_path: Path, asked: dict[str, Any], hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        Server(ServeOptions(tmp_path, **{"port": 0, "gpus": "v100:4", **asked}))
    with served(tmp_path):
        pass  # Nothing was left behind that keeps a service from starting.


def test_the_journal_is_where_the_environment_says_unless_an_option_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there.db", tmp_path / "here.db"
    monkeypatch.setenv("HORAE_DATABASE", f"sqlite:///{there}")
    with serving(tmp_path / "state") as service:
        (job,) = submit(service.client)
        in_state(service.client, job, "finished")
    assert not (tmp_path / "state" / "journal.db").exists()
    with serving(tmp_path / "another", "--database", f"sqlite:///{here}") as service:
        assert service.client.get("/v1/jobs", params={"all": True}).json()["total"] == 0
    assert there.exists()
    assert here.exists()


def test_queues_that_no_job_could_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("queues: {team/a: {weight: 2}, team b: {}}\n")
    assert main(["serve", "--state", str(tmp_path), "--port", "0", "--gpus", "v100:1", "--queues", str(file)]) == 1
    assert "queues.yaml: 'team b' cannot be a queue" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("terminal", "compiled", "said"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_the_first_start_at_a_terminal_says_why_it_takes_long(
    terminal: bool,
    compiled: bool,
    said: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    prepare_compilation()
    if compiled:
        Path(os.environ["NUMBA_CACHE_DIR"]).mkdir()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    _excuse_slow_start()
    assert ("Compiling, this once" in capsys.readouterr().err) is said


def test_without_gpus_one_is_told_to_declare_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horae.service.server.find_gpus", dict)
    with pytest.raises(BadGpus, match="--gpus"):
        Server(ServeOptions(tmp_path, port=0))


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CannotServe, match="--port"):
            Server(ServeOptions(tmp_path, port=taken.getsockname()[1], gpus="v100:1"))


def test_an_open_bind_needs_a_word() -> None:
    with pytest.raises(CannotServe, match="without encryption"):
        listen("0.0.0.0", 0, allow_remote=False)
    listen("0.0.0.0", 0, allow_remote=True).close()
    listen("localhost", 0, allow_remote=False).close()


def test_a_state_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotServe, match="--state"):
        Server(ServeOptions(tmp_path / "file" / "state", port=0, gpus="v100:1"))


def test_the_announcement_says_what_to_do_next(tmp_path: Path) -> None:
    service = subprocess.Popen(
        [*SERVE, "--state", str(tmp_path / "my state")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    assert service.stdout is not None
    lines = [service.stdout.readline() for _ in range(8)]
    service.send_signal(signal.SIGTERM)
    assert service.wait(20) == 0
    text = "".join(lines)
    assert "2 v100, 2 k80, under fifo-backfill" in text
    assert "horae submit -- python train.py" in text
    assert f"HORAE_TOKEN_FILE='{tmp_path}/my state/token'" in text
