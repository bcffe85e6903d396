"""TLS from end to end: real certificates, a real service, commands and jobs that verify it.

Tests service/tls.py and service/listening.py.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from horae.client.service_client import service
from horae.core.errors import UserError
from horae.service.listening import CannotServe, Listening, ListenOptions
from horae.service.server import ServeOptions, Server
from horae.service.tls import BadCertificate
from tests.service.live import eventually

HERE = "127.0.0.1"
#: A training script that reports each step, and waits until the service has answered.
_TRAINS = "import horae_train; print([step for step in horae_train.Run(total=3)])"
_PACKAGE = Path(__file__).parents[2] / "packages" / "horae-train" / "src"


@dataclass(frozen=True)
class Files:
    """A certificate, its key, and its CA."""

    cert: Path
    key: Path
    ca: Path

    def listen(self, **more: Any) -> Listening:
        return Listening(ListenOptions(HERE, 0, tls_cert=self.cert, tls_key=self.key, tls_ca=self.ca, **more))

    @property
    def options(self) -> list[str]:
        return ["--tls-cert", str(self.cert), "--tls-key", str(self.key), "--tls-ca", str(self.ca)]


def write(folder: Path, ca: trustme.CA, *names: str, **when: datetime.datetime) -> Files:
    """Files of a certificate for these names, written over those that are there."""
    folder.mkdir(exist_ok=True)
    files = Files(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    issued = ca.issue_cert(*names, **when)
    files.key.write_bytes(issued.private_key_pem.bytes())
    files.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    ca.cert_pem.write_to_path(files.ca)
    return files


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, ca: trustme.CA) -> Files:
    return write(tmp_path / "tls", ca, HERE, "localhost")


def days(number: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=number)


# Certificates that clients would not accept


def refusal(files: Files, **more: Any) -> str:
    with pytest.raises((BadCertificate, CannotServe)) as caught:
        files.listen(**more)
    return str(caught.value)


def test_a_good_certificate_makes_https(files: Files) -> None:
    listening = files.listen()
    listening.socket.close()
    assert re.fullmatch(r"https://127\.0\.0\.1:\d+", listening.url)
    assert listening.environment == {
        "HORAE_URL": listening.url,
        "HORAE_CA": files.ca.read_text(),
        "HORAE_PROOF": "1",
    }


def test_key_and_certificate_may_be_in_one_file(files: Files) -> None:
    files.cert.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    listening = Listening(ListenOptions(HERE, 0, tls_cert=files.cert, tls_ca=files.ca))
    listening.socket.close()
    assert listening.url.startswith("https:")


def test_an_expired_certificate_is_refused(tmp_path: Path, ca: trustme.CA) -> None:
    files = write(tmp_path, ca, HERE, not_before=days(-20), not_after=days(-10))
    assert "has expired: renew it" in refusal(files)


def test_a_certificate_of_tomorrow_is_refused(tmp_path: Path, ca: trustme.CA) -> None:
    files = write(tmp_path, ca, HERE, not_before=days(1), not_after=days(10))
    assert "not valid yet: check this machine's clock" in refusal(files)


def test_a_key_that_does_not_fit_is_refused(tmp_path: Path, ca: trustme.CA, files: Files) -> None:
    other = write(tmp_path / "other", ca, HERE)
    assert f"The key {other.key} does not fit" in refusal(Files(files.cert, other.key, files.ca))


def test_a_key_of_another_type_does_not_fit(tmp_path: Path, ca: trustme.CA, files: Files) -> None:
    key = tmp_path / "other.pem"
    issued = ca.issue_cert(HERE, key_type=trustme.KeyType.RSA)
    key.write_bytes(issued.private_key_pem.bytes())
    assert f"The key {key} does not fit" in refusal(Files(files.cert, key, files.ca))


def test_a_key_that_openssl_finds_too_small_is_told_so(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HERE)])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, days(-1), days(1)).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    files = Files(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "cert.pem")
    files.cert.write_bytes(made.public_bytes(pem))
    plain = serialization.NoEncryption()
    files.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    assert f"refuses the certificate {files.cert} with the key {files.key} (ee key too small)" in refusal(files)


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_a_missing_file_is_named(files: Files, which: str) -> None:
    getattr(files, which).unlink()
    assert re.search(rf"{which}\.pem cannot be read \(No such file .*check --tls-{which}", refusal(files))


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
@pytest.mark.parametrize("content", [b"", b"no certificate", b"\xff\x00\xfe"])
def test_a_file_of_another_kind_is_named(files: Files, which: str, content: bytes) -> None:
    getattr(files, which).write_bytes(content)
    said = refusal(files)
    assert f"{which}.pem" in said
    assert "PEM" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_key_is_named(files: Files) -> None:
    files.key.chmod(0)
    assert "Permission denied" in refusal(files)


def test_an_encrypted_key_is_refused_without_a_question(files: Files) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")))
    assert "is encrypted: decrypt it" in refusal(files)


def test_a_certificate_of_another_ca_is_refused(tmp_path: Path, files: Files) -> None:
    other = write(tmp_path / "other", trustme.CA(), HERE)
    assert f"No CA in {other.ca} has issued" in refusal(Files(files.cert, files.key, other.ca))
    with pytest.raises(BadCertificate, match="No CA that this machine trusts has issued"):
        Listening(ListenOptions(HERE, 0, tls_cert=files.cert, tls_key=files.key))


def test_a_certificate_for_another_name_needs_a_url(tmp_path: Path, ca: trustme.CA) -> None:
    files = write(tmp_path, ca, "head.example.org")
    assert "is not for 127.0.0.1: call the service by a name of the certificate" in refusal(files)
    assert "is not for tail.example.org" in refusal(files, job_url="https://tail.example.org:1")
    listening = files.listen(job_url="https://head.example.org:1")
    listening.socket.close()
    assert listening.url == listening.job_url == "https://head.example.org:1"


def test_a_large_ca_file_is_refused(files: Files) -> None:
    files.ca.write_text(files.ca.read_text() * 200)
    assert "too large for --tls-ca" in refusal(files)


# Plain HTTP


def test_plain_http_beyond_loopback_needs_a_word(files: Files) -> None:
    with pytest.raises(CannotServe, match="--tls-cert and --tls-key, or accept that with --allow-plain-http"):
        Listening(ListenOptions("0.0.0.0", 0))
    Listening(ListenOptions("0.0.0.0", 0, allow_plain_http=True)).socket.close()
    Listening(ListenOptions("0.0.0.0", 0, tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca)).socket.close()


@pytest.mark.parametrize("url", ["http://head:8642", "http://10.0.0.1:1"])
def test_jobs_are_not_sent_beyond_loopback_without_encryption(url: str) -> None:
    with pytest.raises(CannotServe, match="tokens of jobs would cross the network"):
        Listening(ListenOptions(HERE, 0, job_url=url))
    listening = Listening(ListenOptions(HERE, 0, job_url=url, allow_plain_http=True))
    listening.socket.close()
    assert listening.environment == {"HORAE_URL": url, "HORAE_ALLOW_PLAIN_HTTP": "1", "HORAE_PROOF": "1"}


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.2:1", "http://[::1]:1", "https://proxy:1"])
def test_other_urls_need_no_word(url: str) -> None:
    Listening(ListenOptions(HERE, 0, job_url=url)).socket.close()


def test_a_service_with_tls_is_not_called_by_http(files: Files) -> None:
    assert "use https://" in refusal(files, job_url=f"http://{HERE}:1")


# Renewal


def shown(listening: Listening, files: Files) -> bytes:
    """The certificate that a new connection is shown."""
    client = ssl.create_default_context(cafile=str(files.ca))
    with (
        socket.create_connection((HERE, listening.port)) as wire,
        client.wrap_socket(wire, server_hostname=HERE) as tls,
    ):
        found = tls.getpeercert(binary_form=True)
    assert found
    return found


@contextmanager
def answering(listening: Listening) -> Iterator[None]:
    """A server behind a listening socket that only shakes hands."""
    from horae.service.server import Http

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody asks")

    http = Http(app, *listening.listeners)  # type: ignore[arg-type]
    http.start()
    try:
        yield
    finally:
        http.close()


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path, ca: trustme.CA, files: Files) -> None:
    listening = files.listen()
    assert listening.tls
    with answering(listening):
        before = shown(listening, files)
        assert listening.tls.renew() == ""
        assert shown(listening, files) == before
        write(files.cert.parent, ca, HERE)
        assert listening.tls.renew() == "", "files that have just changed may be half written"
        assert shown(listening, files) == before
        assert listening.tls.renew() == ""
        assert shown(listening, files) != before


def test_a_bad_renewal_is_told_once_and_not_used(tmp_path: Path, ca: trustme.CA, files: Files) -> None:
    listening = files.listen()
    assert listening.tls
    with answering(listening):
        before = shown(listening, files)
        write(files.cert.parent, ca, HERE, not_before=days(-20), not_after=days(-10))
        told = [listening.tls.renew() for _ in range(4)]
        assert [bool(text) for text in told] == [False, True, False, False]
        assert "has expired: renew it. The certificate in use stays." in told[1]
        assert shown(listening, files) == before
        files.key.unlink()
        assert "key.pem cannot be read" in "".join(listening.tls.renew() for _ in range(2))
        write(files.cert.parent, ca, HERE)
        assert [listening.tls.renew() for _ in range(2)] == ["", ""]
        assert shown(listening, files) != before


def test_a_new_ca_reaches_the_next_jobs(files: Files) -> None:
    listening = files.listen()
    listening.socket.close()
    assert listening.tls
    other = trustme.CA()
    write(files.cert.parent, other, HERE)
    assert [listening.tls.renew() for _ in range(2)] == ["", ""]
    assert listening.environment["HORAE_CA"] == other.cert_pem.bytes().decode()


# A whole service


class Secure:
    """A service with TLS in a process of its own."""

    def __init__(self, folder: Path, files: Files) -> None:
        words = ["serve", "--port", "0", "--gpus", "v100:2", "--state", str(folder), "-o", "json", *files.options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "horae", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.said: dict[str, Any] = json.loads(line)
        self.env = {**os.environ, "HORAE_URL": self.said["url"], "HORAE_TOKEN_FILE": self.said["token_file"]}

    def horae(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A command of a user."""
        return subprocess.run(
            [sys.executable, "-m", "horae", *words],
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Iterator[tuple[Secure, Files]]:
    folder = tmp_path_factory.mktemp("secure")
    files = write(folder / "tls", ca, HERE)
    running = Secure(folder / "state", files)
    yield running, files
    running.close()


def test_commands_and_jobs_verify_the_service(secure: tuple[Secure, Files]) -> None:
    running, files = secure
    assert running.said["url"].startswith("https://127.0.0.1:")
    command = ["env", f"PYTHONPATH={_PACKAGE}", sys.executable, "-c", _TRAINS]
    submitted = running.horae("submit", "-o", "json", "--", *command, HORAE_CA=str(files.ca))
    assert submitted.returncode == 0, submitted.stderr
    job = json.loads(submitted.stdout)["ids"][0]
    assert running.horae("wait", job, HORAE_CA=files.ca.read_text()).returncode == 0, "the CA may be a text"
    log = running.horae("logs", job, HORAE_CA=str(files.ca)).stdout
    assert log == "[0, 1, 2]\n", "no report failed"
    record = json.loads(running.horae("status", job, "-o", "json", HORAE_CA=str(files.ca)).stdout)
    assert (record["state"], record["progress"]) == ("finished", 1.0), record


def test_commands_on_this_machine_find_the_ca_themselves(secure: tuple[Secure, Files], tmp_path: Path) -> None:
    running, files = secure
    (tmp_path / "horae").symlink_to(running.said["state"])
    address = json.loads((tmp_path / "horae" / "address.json").read_text())
    assert address["ca"] == str(files.ca)
    env = {name: value for name, value in running.env.items() if not name.startswith("HORAE_")}
    running.env, kept = {**env, "XDG_STATE_HOME": str(tmp_path)}, running.env
    try:
        assert running.horae("queue").returncode == 0
    finally:
        running.env = kept


def test_a_job_that_does_not_know_the_ca_trains_on(secure: tuple[Secure, Files]) -> None:
    running, _ = secure
    env = {**running.env, "HORAE_JOB_ID": "somebody", "HORAE_TOKEN": "token", "PYTHONPATH": str(_PACKAGE)}
    done = subprocess.run([sys.executable, "-c", _TRAINS], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[0, 1, 2]\n")
    assert done.stderr.startswith("horae: a progress report did not get through")
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr


@pytest.mark.parametrize(
    ("url", "wrong_ca", "says"),
    [
        ("https://127.0.0.1:{port}", "", "No CA that this machine trusts has issued its certificate: set HORAE_CA"),
        ("https://127.0.0.1:{port}", "other.pem", "No CA that this machine trusts has issued its certificate"),
        ("https://localhost:{port}", "right", "Its certificate is for another name"),
        ("http://127.0.0.1:{port}", "right", "its address does not begin with https://"),
        ("https://127.0.0.1:{port}", "none.pem", "cannot be read (No such file or directory): check HORAE_CA"),
        ("https://127.0.0.1:{port}", "text.pem", "has no certificates in PEM form"),
    ],
)
def test_what_cannot_be_verified_is_refused_in_a_sentence(
    secure: tuple[Secure, Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, wrong_ca: str, says: str
) -> None:
    running, files = secure
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    (tmp_path / "text.pem").write_text("words")
    right = {"right": str(files.ca), "": ""}
    monkeypatch.setenv("HORAE_CA", right.get(wrong_ca, str(tmp_path / wrong_ca)))
    monkeypatch.setenv("HORAE_TOKEN_FILE", running.said["token_file"])
    port = running.said["url"].rpartition(":")[2]
    with pytest.raises(UserError, match=re.escape(says)), service(url.format(port=port)) as client:
        client.get("/v1/queues")


def test_a_service_without_tls_is_not_called_by_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(ServeOptions(tmp_path, port=0, gpus="v100:1"))
    try:
        monkeypatch.setenv("HORAE_TOKEN_FILE", str(server.token_file))
        with (
            pytest.raises(UserError, match="does not speak TLS"),
            service(server.url.replace("http:", "https:")) as client,
        ):
            client.get("/v1/queues")
    finally:
        server.close()


def test_a_running_service_takes_up_a_renewed_certificate(tmp_path: Path, ca: trustme.CA) -> None:
    files = write(tmp_path / "tls", ca, HERE)
    running = Secure(tmp_path / "state", files)
    try:
        port = int(running.said["url"].rpartition(":")[2])
        before = ssl.get_server_certificate((HERE, port))
        write(tmp_path / "tls", ca, HERE)
        begun_s = time.monotonic()
        eventually(lambda: ssl.get_server_certificate((HERE, port)) != before, "the renewal")
        assert time.monotonic() - begun_s < 10
        assert running.horae("queue", HORAE_CA=str(files.ca)).returncode == 0
        files.cert.write_text("nothing")
        assert running.process.stderr
        assert "The certificate in use stays." in running.process.stderr.readline()
    finally:
        running.close()
