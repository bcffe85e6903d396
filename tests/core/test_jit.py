"""Compiled code on disk is as old as the sources it was made from, and no older."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import horae

SOURCE = Path(horae.__file__).parent


def imported(name: str) -> set[str]:
    """Modules of horae that a module imports when it is loaded."""
    path = SOURCE / f"{name.replace('.', '/')}.py"
    if not path.exists():
        path = SOURCE / name.replace(".", "/") / "__init__.py"
    modules = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("horae."):
            modules.add(node.module.removeprefix("horae."))
    return modules


def compiled() -> set[str]:
    """Modules with compiled functions."""
    names = (".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py"))
    return {name for name in names if not name.endswith("__init__") and "core.jit" in imported(name)}


def closure(names: set[str]) -> set[str]:
    """Some modules and all that they import: compiled code has the values of their constants in it."""
    known: set[str] = set()
    while names:
        known |= names
        names = {other for name in names for other in imported(name)} - known
    return known


def test_the_cache_goes_by_the_sources_that_compiled_code_is_made_from_and_no_others() -> None:
    assert set(horae.COMPILED) == closure(compiled())
    assert "core.engine" not in horae.COMPILED


def folder(tree: Path, **environment: str) -> Path:
    """Where a copy of the package keeps compiled code."""
    code = "import os, horae; horae.prepare_compilation(); print(os.environ['NUMBA_CACHE_DIR'])"
    clean = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "PYTHONPATH")}
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {"PYTHONPATH": str(tree)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(answer.stdout.strip())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what compiled code is made from, and of a module that has nothing to do with it."""
    for name in ("__init__", *(module.replace(".", "/") for module in horae.COMPILED), "core/engine"):
        target = tmp_path / "tree" / "horae" / f"{name}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / f"{name}.py", target)
    return tmp_path / "tree"


def test_only_an_edit_of_what_is_compiled_asks_for_another_folder(tree: Path) -> None:
    before = folder(tree)
    engine, choose = tree / "horae" / "core" / "engine.py", tree / "horae" / "placement" / "choose.py"
    engine.write_text(engine.read_text() + "\n# Edited.\n")
    assert folder(tree) == before
    choose.write_text(choose.read_text() + "\n# Edited.\n")
    assert folder(tree) != before


def test_processes_that_inherit_the_folder_do_not_nest_it(tree: Path, tmp_path: Path) -> None:
    chosen = folder(tree, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert chosen.parent == tmp_path / "cache"
    assert folder(tree, NUMBA_CACHE_DIR=str(chosen)) == chosen
