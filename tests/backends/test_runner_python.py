"""The runner on nodes with other Pythons: 3.9 is enough, and an older one says so. Tests backends/local/runner.py."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from horae.backends.local import runner
from horae.backends.local.attempt_folders import read_json
from horae.backends.local.runner_order import make_order
from tests.backends.real import bash, start, text_of

SOURCE = Path(runner.__file__).read_text(encoding="utf-8")
#: Runs a program as if this Python were of another version.
_PRETEND = """
import runpy, sys
sys.version_info = tuple(map(int, sys.argv[1].split("."))) + (0, "final", 0)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_with(python: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the runner with a Python that says it is this version."""
    command = [sys.executable, "-c", _PRETEND, python, runner.__file__, str(folder), *words]
    env = {**os.environ, runner.NODE: "v1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)


def attempt(folder: Path) -> Path:
    """A piece on node v1 that would say "begun"."""
    piece = folder / "1" / "v1"
    piece.mkdir(parents=True)
    (folder / "1" / "work").mkdir()
    order = make_order(start(bash("echo begun")), folder / "1", {}, None)
    runner.write_atomically(str(piece), runner.ORDER, {**order, "beat_limit_s": 60.0, "take_over": []})
    return piece


@pytest.mark.parametrize("python", ["3.6", "3.8"])
def test_an_old_python_ends_the_piece_with_a_sentence(tmp_path: Path, python: str) -> None:
    piece = attempt(tmp_path)
    assert run_with(python, piece.parent, runner.PIECE).returncode == 0
    why = f"Python {python} of {os.uname().nodename} is too old to run jobs: install Python 3.9 or newer there"
    assert text_of(piece / runner.LOG) == f"horae: {why}\n"
    word = read_json(piece / runner.EXIT)
    assert word
    assert (word["code"], word["stopped"], word["why"]) == (126, False, f"{why}.")
    assert run_with("3.9", piece.parent, runner.PIECE).returncode == 0
    assert "begun" not in text_of(piece / runner.LOG), "it was ended, and never begins"


def test_an_old_python_ends_an_attempt_on_one_machine_likewise(tmp_path: Path) -> None:
    piece = attempt(tmp_path)
    assert "too old to run jobs" in run_with("3.8", piece).stderr
    assert (read_json(piece / runner.EXIT) or {})["code"] == 126


def test_python_3_9_is_enough(tmp_path: Path) -> None:
    piece = attempt(tmp_path)
    assert run_with("3.9", piece.parent, runner.PIECE).returncode == 0
    assert text_of(piece / runner.LOG) == "begun\n"


def test_it_needs_no_more_than_python_3_9() -> None:
    pytest.importorskip("vermin", reason="needs vermin: pip install vermin")
    command = [sys.executable, "-c", "from vermin import main; main()", "--quiet", "--no-tips", "--target=3.9-"]
    checked = subprocess.run([*command, runner.__file__], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_python_3_6_can_read_the_file() -> None:
    tree = ast.parse(SOURCE, feature_version=(3, 6))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    evaluated = [found for function in functions for found in annotations(function)]
    assert len(evaluated) > 40
    strange = [ast.unparse(found) for found in evaluated if not is_plain(found)]
    assert strange == [], "put them in quotes"
    assert not [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]


def annotations(function: ast.FunctionDef) -> list[ast.expr]:
    """What Python evaluates when it defines a function."""
    arguments = function.args
    every = [*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    found = [argument.annotation for argument in every if argument] + [function.returns]
    return [annotation for annotation in found if annotation]


def is_plain(annotation: ast.expr) -> bool:
    """Whether every Python can evaluate it: a built-in name, or a text."""
    is_name = isinstance(annotation, ast.Name) and annotation.id in ("int", "str", "bool", "float", "object")
    return is_name or isinstance(annotation, ast.Constant)
