"""A whole service whose jobs run under real accounts: as root, with accounts that are made for it and removed again.

Tests service/job_isolation.py with it, and what is refused without an isolation.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from horae.backends.local.isolation.accounts import (
    CannotIsolate,
    check_only_root_writes,
    service_account,
    service_name,
)
from horae.core.errors import UserError
from horae.service.job_isolation import chosen_isolation, make_isolation, moved_folders
from horae.service.roles import Role
from horae.service.server import ServeOptions, Server
from horae.service.store.store import Store
from horae.service.tokens import Tokens, operator
from tests.backends.job_accounts import needs_bubblewrap, open_folder, why_not
from tests.backends.real import start
from tests.service.live import submit
from tests.service.served_process import patiently

SRC = Path(__file__).parents[2] / "src"
SITE = Path(httpx.__file__).parents[1]
#: A Python that every account can run; the one of this environment may be in somebody's home.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")


def why_no_accounts() -> str:
    """Why no accounts can be made here; empty if they can."""
    if why := why_not():
        return why
    if not shutil.which("useradd") or not PYTHON:
        return "needs useradd, and a Python in /usr/bin"
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    version = subprocess.run([PYTHON, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    return "" if version.startswith(f"{ours}.") else f"{PYTHON} is not Python {ours}"


class AccountService:
    """`horae serve --isolation account` in a folder, and accounts of this machine that are removed afterwards."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, root / "home" / "state"
        tag = f"hor{os.getpid()}"
        self.user, self.group, self.ann = f"{tag}s", f"{tag}j", f"{tag}a"
        run("groupadd", self.group)
        run("useradd", "--system", "-m", "-d", str(root / "home"), self.user)
        run("useradd", "-m", "-d", str(root / "ann"), "-s", "/bin/bash", "-G", self.group, self.ann)
        self.process: subprocess.Popen[bytes] | None = None

    def remove(self) -> None:
        self.end(signal.SIGKILL)
        for name in (self.user, self.ann):
            patiently(lambda name=name: subprocess.run(["userdel", name], capture_output=True).returncode in (0, 6))
        subprocess.run(["groupdel", self.group], check=False, capture_output=True)
        for parent in Path("/sys/fs/cgroup").glob(f"*/horae/{service_name(self.state)}"):
            patiently(lambda parent=parent: not any(path.is_dir() for path in parent.iterdir()))
            parent.rmdir()

    def serve(self) -> None:
        words = ["--isolation", "account", "--user", self.user, "--job-group", self.group, "--state", str(self.state)]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{SRC}:{SITE}", "NUMBA_DISABLE_JIT": "1"}
        with (self.root / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(PYTHON), "-m", "horae", "serve", "--gpus", "v100:2", "--port", "0", *words],
                env=env,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        patiently(lambda: self._is_up() or self.process.poll() is not None, "for the service")  # type: ignore[union-attr]
        assert self._is_up(), self.output()

    def output(self) -> str:
        return (self.root / "serve.log").read_text()

    def _is_up(self) -> bool:
        try:
            address = json.loads((self.state / "address.json").read_text())
        except (OSError, ValueError):
            return False
        return bool(self.process and address["pid"] == self.process.pid)

    def end(self, number: signal.Signals) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(30)

    def client(self, token: str | None = None) -> httpx.Client:
        url = json.loads((self.state / "address.json").read_text())["url"]
        bearer = token or (self.state / "token").read_text().strip()
        return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {bearer}"}, timeout=30, trust_env=False)

    def token(self, user: str) -> str:
        with self.client() as admin:
            made = admin.post("/v1/tokens", json={"user": user, "role": "user"})
        assert made.status_code == 200, made.text
        return str(made.json()["token"])


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture(scope="module")
def accounts() -> Iterator[AccountService]:
    with open_folder() as root:
        service = AccountService(root)
        try:
            service.serve()
            yield service
        finally:
            service.remove()


def submitted(client: httpx.Client, text: str) -> str:
    return submit(client, {"run": ["bash", "-c", text]})[0]


def ended(client: httpx.Client, job: str) -> str:
    def state() -> str:
        return str(client.get(f"/v1/jobs/{job}").json()["state"])

    patiently(lambda: state() in ("finished", "failed", "cancelled"), f"for {job}")
    return state()


needs_accounts = pytest.mark.skipif(bool(why_no_accounts()), reason=f"real accounts: {why_no_accounts()}")


@pytest.mark.long
@needs_accounts
def test_jobs_of_real_users_run_under_their_accounts_through_kills(accounts: AccountService) -> None:
    with accounts.client(accounts.token(accounts.ann)) as ann:
        steal = f"id -un; cat {accounts.state}/token; cat {accounts.state}/journal.db; ls {accounts.state}"
        job = submitted(ann, steal)
        assert ended(ann, job) == "failed"
        log = ann.get(f"/v1/jobs/{job}/logs").text
        assert log.splitlines()[0] == accounts.ann
        assert log.count("Permission denied") == 3
    with accounts.client(accounts.token("nobody-has-this")) as eve:
        refused = eve.post("/v1/jobs", json=[{"run": ["true"]}])
        assert refused.status_code == 400
        assert "no account 'nobody-has-this'. Ask the operator" in refused.text
    token = accounts.token(accounts.ann)
    with accounts.client(token) as ann:
        job = submitted(ann, "echo up; sleep 8; echo once >> $HORAE_CHECKPOINT_DIR/ran; cat $HORAE_CHECKPOINT_DIR/ran")
        patiently(lambda: "up" in ann.get(f"/v1/jobs/{job}/logs").text)
    accounts.end(signal.SIGKILL)
    accounts.serve()
    with accounts.client(token) as ann:
        assert ended(ann, job) == "finished"
        assert ann.get(f"/v1/jobs/{job}/logs").text == "up\nonce\n"


@pytest.mark.long
@needs_accounts
def test_a_service_without_its_helper_ends_with_a_sentence_and_its_jobs_go_on(accounts: AccountService) -> None:
    token = accounts.token(accounts.ann)
    with accounts.client(token) as ann:
        job = submitted(ann, "echo up; sleep 5; echo fine")
        patiently(lambda: "up" in ann.get(f"/v1/jobs/{job}/logs").text)
    assert accounts.process
    children = Path(f"/proc/{accounts.process.pid}/task/{accounts.process.pid}/children").read_text().split()
    (helper,) = [int(pid) for pid in children if Path(f"/proc/{pid}").stat().st_uid == 0]
    os.kill(helper, signal.SIGKILL)
    assert accounts.process.wait(30) == 1
    assert "The root helper has ended: start the service again." in accounts.output()
    accounts.serve()
    with accounts.client(token) as ann:
        assert ended(ann, job) == "finished"
        assert ann.get(f"/v1/jobs/{job}/logs").text == "up\nfine\n"


# ------------------------------------------------------------- what is refused


def server(state: Path, **asked: Any) -> Server:
    return Server(ServeOptions(state, **{"port": 0, "gpus": "v100:2", **asked}))


def test_a_second_user_gets_no_token_before_an_isolation_is_chosen(tmp_path: Path) -> None:
    made = server(tmp_path)
    try:
        headers = {"Authorization": f"Bearer {made.token_file.read_text().strip()}"}
        with httpx.Client(base_url=made.url, headers=headers, trust_env=False) as admin:
            for role in ("admin", "member", "user"):
                refused = admin.post("/v1/tokens", json={"user": "ann", "role": role})
                assert refused.status_code == 400
                assert "choose --isolation account" in refused.text
            for body in ({"user": operator(), "role": "user"}, {"user": "ann", "role": "viewer"}):
                assert admin.post("/v1/tokens", json=body).status_code == 200
    finally:
        made.close()


@pytest.mark.long
def test_an_isolation_that_was_chosen_once_holds(tmp_path: Path) -> None:
    made = server(tmp_path, isolation="none")
    try:
        headers = {"Authorization": f"Bearer {made.token_file.read_text().strip()}"}
        with httpx.Client(base_url=made.url, headers=headers, trust_env=False) as admin:
            assert admin.post("/v1/tokens", json={"user": "ann", "role": "user"}).status_code == 200
    finally:
        made.close()
    server(tmp_path).close()


def test_a_service_with_several_users_does_not_start_without_a_choice(tmp_path: Path) -> None:
    server(tmp_path, isolation="none").close()
    store = Store(f"sqlite:///{tmp_path}/journal.db", own=True)
    tokens = Tokens(store, b"s" * 32, lambda: 0.0)
    tokens.add(tokens.draft("ann", Role.MEMBER, None)[1])
    store.save_serve_options({name: value for name, value in store.serve_options().items() if name != "isolation"})
    store.close()
    with pytest.raises(UserError, match=r"ann can submit jobs.*choose --isolation account"):
        server(tmp_path)
    server(tmp_path, isolation="none").close()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"isolation": "acount"}, "No isolation is called 'acount'. Did you mean 'account'?"),
        ({"isolation": "account"}, "start it as root, with --isolation account --user NAME"),
    ],
)
def test_an_isolation_that_cannot_be_had_is_refused_in_a_sentence(
    tmp_path: Path, asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        server(tmp_path, **asked)
    assert sentence in str(refused.value)


def test_accounts_are_not_left_out_silently_at_a_later_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="runs jobs under the accounts of their users"):
        chosen_isolation(ServeOptions(tmp_path), {"isolation": "account"}, "local")
    assert "with --isolation account, and change that when they have ended" in moved_folders(
        "none", {"isolation": "account"}
    )
    assert moved_folders("sandbox", {"isolation": "none"}) == moved_folders(None, {}) == ""
    assert chosen_isolation(ServeOptions(tmp_path), {}, "slurm") == "none"
    with pytest.raises(UserError, match="slurm keeps jobs apart itself"):
        chosen_isolation(ServeOptions(tmp_path, isolation="sandbox"), {}, "slurm")


@needs_bubblewrap
def test_a_sandbox_hides_the_folders_of_database_socket_and_key(tmp_path: Path) -> None:
    state, run = tmp_path / "state", tmp_path / "run"
    asked = ServeOptions(
        state, database=f"sqlite:///{tmp_path}/db/journal.db", socket=run / "horae.sock", tls_key=state / "key.pem"
    )
    order = make_isolation("sandbox", asked, state, ()).adapt(
        {"env": {"HORAE_ATTEMPT_DIR": str(state / "jobs" / "a-1" / "1")}}, start(), []
    )
    assert order["sandbox"]["hide"][:3] == [str(state), str(run), str(tmp_path / "db")]
    for place in (Path.home(), Path("/srv"), Path("/tmp")):
        with pytest.raises(UserError, match="into the state folder, or into a folder of its own"):
            make_isolation("sandbox", ServeOptions(state, socket=place / "horae.sock"), state, ())


def test_the_service_itself_needs_an_account_that_is_not_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for user, sentence in (("", "--user horae"), ("no-such-user", "useradd"), ("root", "must not run as root")):
        with pytest.raises(CannotIsolate, match=sentence):
            service_account(user)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotIsolate, match="sudo horae serve"):
        service_account("horae")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_helper_is_no_program_that_others_can_change() -> None:
    with open_folder() as folder:
        program = folder / "helper.py"
        program.touch(mode=0o755)
        check_only_root_writes(program)
        os.chown(program, 54321, 54321)
        with pytest.raises(CannotIsolate, match="install Horae as root"):
            check_only_root_writes(program)
        os.chown(program, 0, 0)
        folder.chmod(0o777)
        with pytest.raises(CannotIsolate, match="Others than root can change"):
            check_only_root_writes(program)
