"""The words of a batch job's shell, from a file in whose place there may be anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from horae.backends.slurm.batch_output import last_line

_ENDED = "srun: error: p1: task 0: Exited with exit code 127\nsrun: error: p[1-2]: tasks 0-1: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n \n", ""),
        ("horae: 1: exec: /x/python: not found\n", "exec: /x/python: not found"),
        ("horae: line 1: /x/python: Permission denied\n\n", "/x/python: Permission denied"),
        (f"horae: 1: exec: /x/python: not found\n{_ENDED}", "exec: /x/python: not found"),
        ("srun: error: Unable to create step: no GPUs.\n", "srun: error: Unable to create step: no GPUs"),
        ("a\x1b[31mred\x00\n", "a [31mred"),
        ("x" * 10_000, "x" * 300),
    ],
)
def test_the_last_line_that_tells_something(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "slurm-4.txt").write_text(text)
    assert last_line(tmp_path / "slurm-4.txt") == line


def test_what_is_no_plain_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe", "missing"):
        assert last_line(tmp_path / name) == ""
