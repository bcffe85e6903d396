"""Crash reports hold what is needed, and no secrets."""

from pathlib import Path

import pytest

from horae import __version__
from horae.crash import redact, write_report


def crash() -> Exception:
    try:
        raise KeyError("a job that never was")
    except KeyError as error:
        return error


def test_a_report_tells_version_command_and_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = write_report(crash(), ["simulate", "--cluster", "2x4"])
    text = path.read_text()
    assert path.is_relative_to(tmp_path)
    assert f"horae {__version__}" in text
    assert "horae simulate --cluster 2x4" in text
    assert "a job that never was" in text
    assert "Traceback" in text
    assert path.stat().st_mode & 0o077 == 0, "for its owner alone"


def test_a_report_finds_another_place_when_the_state_folder_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    path = write_report(crash(), [])
    assert path.exists()
    path.unlink()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--token", "s3cret", "--seed", "1"], ["--token", "[hidden]", "--seed", "1"]),
        (["--token=s3cret"], ["--token=[hidden]"]),
        (["--set", "api_key=s3cret"], ["--set", "api_key=[hidden]"]),
        (["--env", "DB_PASSWORD=s3cret"], ["--env", "DB_PASSWORD=[hidden]"]),
        (["https://me:s3cret@host/path"], ["https://[hidden]@host/path"]),
        (["--env=API_KEY=s3c=ret"], ["--env=API_KEY=[hidden]"]),
        (["--set", "quantum=600"], ["--set", "quantum=600"]),
    ],
)
def test_secrets_are_hidden(words: list[str], shown: list[str]) -> None:
    assert list(redact(words)) == shown
