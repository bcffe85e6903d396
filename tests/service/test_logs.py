"""Logs as files: their ends, and what comes while they are read."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from horae.service.views.logs import BLOCK_BYTES, FollowedLog, masked, read_log


@given(
    text=st.text(alphabet="ab\n", max_size=200), tail=st.integers(0, 30), pad=st.sampled_from([0, 1, BLOCK_BYTES - 50])
)
def test_the_tail_is_the_last_lines(text: str, tail: int, pad: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.txt"
        path.write_text("x" * pad + text)
        lines = ("x" * pad + text).splitlines(keepends=True)
        assert read_log(path, tail) == "".join(lines[len(lines) - min(tail, len(lines)) :])
        assert read_log(path, None) == "x" * pad + text


@given(pieces=st.lists(st.text(alphabet="ab\n", max_size=20), max_size=20))
def test_a_followed_log_gives_every_line_once(pieces: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.txt"
        log, lines = FollowedLog(path, None), list[str]()
        for piece in pieces:
            with path.open("a") as file:
                file.write(piece)
            lines += log.lines(finished=False)
        lines += log.lines(finished=True)
        assert log.at_end
        assert lines == "".join(pieces).splitlines()


def test_a_large_log_is_read_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{n}\n" for n in range(100_000)))
    log, lines, turns = FollowedLog(path, None), list[str](), 0
    while not log.at_end:
        lines += log.lines(finished=True)
        turns += 1
    assert lines == [str(n) for n in range(100_000)]
    assert turns > 5


def test_a_line_without_end_comes_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("x" * (3 * BLOCK_BYTES))
    log = FollowedLog(path, None)
    assert sum(len(line) for _ in range(3) for line in log.lines(finished=False)) == 3 * BLOCK_BYTES


def test_nothing_but_a_plain_file_is_read(tmp_path: Path) -> None:
    secret, link = tmp_path / "secret", tmp_path / "log.txt"
    secret.write_text("s3cret")
    link.symlink_to(secret)
    assert read_log(link, None) == ""
    assert read_log(tmp_path / "none.txt", 5) == ""
    assert read_log(Path("/dev/zero"), 5) == ""
    assert FollowedLog(link, 5).lines(finished=True) == []


def test_what_is_no_text_is_shown_as_well_as_can_be(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"ok \xff\xfe\r\nend")
    assert FollowedLog(path, None).lines(finished=True) == ["ok \ufffd\ufffd", "end"]


def test_every_long_line_of_a_secret_is_hidden_the_longest_first() -> None:
    assert masked("-- abcdefgh abcdef abc", ["abcdef\n", "abcdefgh\nabc\n"]) == "-- [hidden] [hidden] abc"


def test_tokens_that_a_job_prints_are_hidden() -> None:
    of_job, of_person = "horj_" + "aB-_" * 10 + "xyz", "hor_" + "0" * 43
    assert masked(f"HORAE_TOKEN={of_job}\nt='{of_person}' hor_mony", []) == (
        "HORAE_TOKEN=[hidden]\nt='[hidden]' hor_mony"
    )
