"""What `import horae` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import horae
from horae.core.errors import UserError


def test_every_public_name_is_there() -> None:
    for name in horae.__all__:
        assert getattr(horae, name) is not None
    assert set(horae.__all__) <= set(dir(horae))
    assert horae.UserError is UserError
    assert list(horae.__all__) == sorted(horae.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = horae.nothing


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    script = "import sys; before = set(sys.modules); import horae; print(sorted(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-I", "-c", script], text=True, capture_output=True, check=True)
    assert ran.stdout.strip() == "['__future__', 'horae']"


def test_names_that_are_modules_below_do_not_hide_functions() -> None:
    script = "import horae.simulator.run, horae.testing; import horae; print(horae.simulate.__module__, horae.train)"
    ran = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=True)
    assert ran.stdout.startswith("horae.api.runs <module 'horae.train'")


def test_type_checkers_see_the_names() -> None:
    import ast
    from pathlib import Path

    tree = ast.parse(Path(horae.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    lines = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    typed = {(str(line.module), alias.name) for line in lines for alias in line.names}
    assert {name for _, name in typed} == set(horae.__all__)
    for module, name in typed:
        assert module == "horae" or horae._MODULE_OF[name] == module
