"""Logs as files: their ends, and what comes while they are read."""

from __future__ import annotations

import base64
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.service.views.logs import BLOCK_BYTES, LONGEST_SECRET, MAX_BYTES, FollowedLog, masked, read_log


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
    assert sum(len(line) for _ in range(3) for line in log.lines(finished=False)) == 3 * BLOCK_BYTES - LONGEST_SECRET
    assert [len(line) for line in log.lines(finished=True)] == [LONGEST_SECRET]


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


def test_a_secret_at_any_place_of_an_endless_line_is_never_shown_in_parts(tmp_path: Path) -> None:
    secret, path = "s3cret-" + "k" * 30, tmp_path / "log.txt"
    edges = (BLOCK_BYTES - LONGEST_SECRET, BLOCK_BYTES)
    for place in (edge - back for edge in edges for back in (0, 1, 18, 36, 37)):
        path.write_text("." * place + secret + "." * (2 * BLOCK_BYTES))
        log = FollowedLog(path, None, lambda text: masked(text, [secret]))
        shown = "".join(masked(line, [secret]) for _ in range(4) for line in log.lines(finished=False))
        shown += "".join(masked(line, [secret]) for line in log.lines(finished=True))
        assert "k" not in shown, f"at {place}"
        assert shown.count("hidden") == 1


@pytest.mark.parametrize("before", ["", "u", "us:", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_in_base64_is_hidden_wherever_it_begins(before: str, encode: object) -> None:
    secret = "hunter2-?~hunter2"
    assert callable(encode)
    text = encode(f"{before}{secret} and more".encode()).decode()
    shown = masked(f"key: {text}", [f"{secret}\n"])
    assert "[hidden]" in shown
    left = shown.replace("[hidden]", "")
    assert len(left) <= len(f"key: {text}") - len(secret), "no more of it is left than what its neighbours are part of"
    assert masked(base64.b64encode(f"{secret}\n".encode()).decode(), [secret]).startswith("[hidden]")


def test_a_log_without_line_feeds_is_looked_through_for_a_little_only(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with path.open("wb") as file:
        file.write(b"first\n")
        file.truncate(40 * 2**30)
    begun_s = time.process_time()
    assert len(read_log(path, 1)) == MAX_BYTES
    assert len(read_log(path, None)) == MAX_BYTES
    assert time.process_time() - begun_s < 2.0
    assert FollowedLog(path, 5).lines(finished=False) is not None


def parts_of(folder: Path, **parts: str) -> Path:
    """A log in parts: `at_0` is log.txt, `at_90` the part that begins with byte 90."""
    for name, content in parts.items():
        offset = name.removeprefix("at_")
        (folder / ("log.txt" if offset == "0" else f"log.txt.{offset}")).write_text(content)
    return folder / "log.txt"


def test_parts_are_shown_as_one_log_that_says_what_is_missing(tmp_path: Path) -> None:
    path = parts_of(tmp_path, at_0="a\nb", at_3="c\n", at_90="d\ne\n", at_94="f\n")
    assert read_log(path, None) == "a\nbc\n\nhorae: 85 bytes of the output were left out here\nd\ne\nf\n"
    assert read_log(path, 2) == "e\nf\n"
    lines = FollowedLog(path, None)
    found = [line for _ in range(6) for line in lines.lines(finished=True)]
    assert found == ["a", "bc", "horae: 85 bytes of the output were left out here", "d", "e", "f"]
    assert [line for log in [FollowedLog(path, 2)] for _ in range(3) for line in log.lines(finished=True)] == ["e", "f"]


def test_who_follows_goes_on_where_the_oldest_part_was_dropped(tmp_path: Path) -> None:
    path = parts_of(tmp_path, at_0="a\n", at_2="b\n")
    log = FollowedLog(path, None)
    assert [*log.lines(finished=False), *log.lines(finished=False)] == ["a", "b"]
    assert log.at_end
    (tmp_path / "log.txt.2").unlink()
    parts_of(tmp_path, at_6="d\n")
    assert log.lines(finished=False) == ["horae: 2 bytes of the output were left out here", "d"]


def test_no_link_is_followed_on_the_way_to_a_log(tmp_path: Path) -> None:
    other = tmp_path / "jobs" / "b-1" / "1"
    other.mkdir(parents=True)
    parts_of(other, at_0="of another user\n", at_99="more\n")
    mine = tmp_path / "jobs" / "a-1"
    mine.mkdir()
    (mine / "1").symlink_to(other)
    (tmp_path / "jobs" / "c-1").symlink_to(tmp_path / "jobs" / "b-1")
    assert read_log(mine / "1" / "log.txt", None) == ""
    assert read_log(tmp_path / "jobs" / "c-1" / "1" / "log.txt", None) == ""
    (other / "log.txt.200").symlink_to("/etc/hostname")
    os.mkfifo(other / "log.txt.300")
    (other / "log.txt.400").mkdir()
    assert read_log(other / "log.txt", 1) == "more\n"
