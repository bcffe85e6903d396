"""Where the commands look for the service and for a token, and what they say when there is none."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from horae.client.address import NoService, NoToken, find_address
from tests.cli.conftest import Horae
from tests.cli.live.conftest import FakeService, job


def private(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def own_service(home: Path, url: str = "http://127.0.0.1:9", pid: int | None = None) -> None:
    private(home / "state" / "horae" / "address.json", json.dumps({"url": url, "pid": pid or os.getpid()}))


def test_nothing_known_names_the_next_step(home: Path) -> None:
    with pytest.raises(NoService, match="horae serve"):
        find_address(None)


def test_the_option_wins_over_the_variable_and_that_over_the_own_service(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_service(home)
    private(home / "state" / "horae" / "token", "admin\n")
    assert find_address(None).url == "http://127.0.0.1:9"
    monkeypatch.setenv("HORAE_URL", "http://127.0.0.1:8/")
    assert find_address(None).url == "http://127.0.0.1:8"
    assert find_address("http://127.0.0.1:7").url == "http://127.0.0.1:7"


def test_the_most_particular_token_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://localhost:9"
    private(home / "state" / "horae" / "token", "of-the-state")
    assert find_address(url).token == "of-the-state"
    private(home / ".config" / "horae" / "token", "of-the-config\n")
    assert find_address(url).token == "of-the-config"
    monkeypatch.setenv("HORAE_TOKEN_FILE", str(private(home / "file", "of-the-file")))
    assert find_address(url).token == "of-the-file"
    monkeypatch.setenv("HORAE_TOKEN", "of-the-variable")
    assert find_address(url).token == "of-the-variable"


def test_the_admins_token_is_not_shown_to_other_machines(home: Path) -> None:
    private(home / "state" / "horae" / "token", "of-the-state")
    with pytest.raises(NoToken, match="HORAE_TOKEN"):
        find_address("https://gpu.example.org:8642")


def test_no_token_crosses_the_network_without_encryption_unasked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORAE_TOKEN", "secret")
    with pytest.raises(NoService, match=r"use https://, or.* set HORAE_ALLOW_PLAIN_HTTP=1") as refused:
        find_address("http://gpu.example.org:8642")
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("HORAE_ALLOW_PLAIN_HTTP", "1")
    assert not find_address("http://gpu.example.org:8642").local


@pytest.mark.parametrize("folder", [".config/horae", "state/horae"])
def test_a_token_that_others_can_read_is_refused(home: Path, folder: str) -> None:
    path = private(home / folder / "token", "secret")
    path.chmod(0o640)
    with pytest.raises(NoToken, match=f"chmod 600 {path}"):
        find_address("http://127.0.0.1:9")


@pytest.mark.parametrize("text", ["", "two words", "sécret", "a\nb"])
def test_what_is_no_token_is_never_sent(home: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HORAE_TOKEN", text)
    with pytest.raises(NoToken, match="HORAE_TOKEN does not contain a token"):
        find_address("http://127.0.0.1:9")


def test_a_token_file_that_is_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORAE_TOKEN_FILE", "/nowhere/token")
    with pytest.raises(NoToken, match="/nowhere/token cannot be read: No such file"):
        find_address("http://127.0.0.1:9")


@pytest.mark.parametrize("url", ["localhost:8642", "ftp://x", "http://", "http://x:99999", "http://a b", "http://[::1"])
def test_what_is_no_address_is_refused(home: Path, url: str) -> None:
    with pytest.raises(NoService, match="write it like http://"):
        find_address(url)


def test_a_password_in_an_address_is_refused_and_not_repeated(home: Path) -> None:
    with pytest.raises(NoService) as error:
        find_address("http://ana:hunter2@127.0.0.1:9")
    assert "hunter2" not in str(error.value)


def test_a_service_that_has_ended_is_not_shown_the_token(home: Path) -> None:
    """Somebody else may listen at its address by now."""
    with subprocess.Popen([sys.executable, "-c", ""]) as program:
        program.wait()
    own_service(home, pid=program.pid)
    with pytest.raises(NoService, match="has ended"):
        find_address(None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "http://x", "pid": "y"}'])
def test_a_broken_address_file_is_told(home: Path, text: str) -> None:
    private(home / "state" / "horae" / "address.json", text)
    with pytest.raises(NoService, match="cannot be read"):
        find_address(None)


def test_a_refused_connection_names_the_next_step(home: Path, horae: Horae, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("HORAE_TOKEN", "letmein")
        answer = horae("queue", "--url", url)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"error: No service answers at {url}: start one with `horae serve`, or name another with --url or HORAE_URL.\n"
    )


def test_a_proxy_of_the_environment_is_passed_by(
    fake: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    fake.answers["GET /v1/jobs"] = {"jobs": [], "total": 0}
    assert horae("queue").code == 0
    assert fake.last.token == "letmein"


def test_what_the_service_says_is_shown_as_it_is(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs"] = (401, {"error": "This token is not known: ask an admin for one."})
    answer = horae("queue")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "error: This token is not known: ask an admin for one.\n"


@pytest.mark.parametrize(
    "said", [b"<html>", b"[1, 2]", b"", b"{}", {"jobs": 3}, {"jobs": [1]}, (502, b"Bad gateway"), (302, b""), (500, {})]
)
def test_an_answer_from_something_else_is_told(fake: FakeService, horae: Horae, said: object) -> None:
    fake.answers["GET /v1/jobs"] = said
    answer = horae("queue", "-o", "json")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.count("\n") == 1
    assert "version" in answer.err
    assert "bug" not in answer.err


def test_a_service_that_is_asked_too_often_is_asked_again_later(fake: FakeService, horae: Horae) -> None:
    busy = (429, {"error": "Too many requests."})
    fake.answers["GET /v1/jobs"] = [busy, {"jobs": [job()], "total": 1, "states": {"waiting": 1}}]
    fake.headers["Retry-After"] = "0"
    assert "train-1" in horae("queue").out
    fake.headers["Retry-After"] = "60"
    fake.answers["GET /v1/jobs"] = busy
    assert "Too many requests." in horae("queue").err, "a long wait is the user's business"


def test_a_service_that_does_not_know_the_token_does_not_get_it(
    fake: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORAE_TOKEN", "anothers")
    assert "did not prove that it knows your token" in horae("queue").err
    assert fake.asked == []


def test_a_standby_on_this_machine_is_found_beside_the_service_or_alone(home: Path) -> None:
    private(home / "state" / "horae" / "token", "admin\n")
    standby = {"url": "http://127.0.0.1:7", "pid": os.getpid()}
    private(home / "state" / "horae" / "standby.json", json.dumps(standby))
    own_service(home)
    found = find_address(None)
    assert (found.url, found.others) == ("http://127.0.0.1:9", ("http://127.0.0.1:7",))
    ended = subprocess.Popen(["true"])
    ended.wait()
    own_service(home, pid=ended.pid)
    found = find_address(None)
    assert (found.url, found.others) == ("http://127.0.0.1:7", ())
