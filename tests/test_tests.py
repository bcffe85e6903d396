"""The tests themselves: helpers have one name, and every module of the scheduler is tested somewhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src" / "horae"

#: Packages whose every module has a test file of its name, or is named in the docstring of the file that tests it.
TESTED = ("core", "placement", "policies", "solve", "service", "backends")

FILES = sorted(TESTS.rglob("*.py"))
OWN = {path.stem for path in TESTS.rglob("*.py")} | {path.name for path in TESTS.iterdir() if path.is_dir()}
#: Names of helpers and folders here that are also names of libraries: `import json` is not one of ours.
LIBRARIES = {"__init__", "__main__"}


def name_of(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules that a file imports, in full; a relative import begins with its dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            if module == "tests" or module.startswith("tests."):
                yield from (f"{module}.{alias.name}" for alias in node.names)


def wrong_imports(source: str) -> list[str]:
    """Imports of helpers by another name than `tests.…`, and imports from test modules."""
    found = []
    for module in imports(ast.parse(source)):
        parts = module.split(".")
        if module.startswith(".") or (parts[0] in OWN - LIBRARIES and parts[0] != "tests"):
            found.append(f"{module}: import it as tests.…")
        elif parts[0] == "tests" and any(part.startswith("test_") for part in parts[1:2] + parts[-2:]):
            found.append(f"{module}: move what both need into a helper module")
    return found


def modules(package: str) -> list[str]:
    """Modules of a package by their path under it; empty `__init__` files have nothing to test."""
    paths = sorted((SRC / package).rglob("*.py"))
    return [path.relative_to(SRC).as_posix() for path in paths if path.name != "__init__.py"]


def named(docstring: str) -> set[str]:
    """Modules that a docstring names by path, as in "Tests core/evidence.py and core/status.py."."""
    return set(re.findall(r"\b[\w/]+/\w+\.py\b", docstring))


def mirrored(module: str) -> bool:
    """Whether there is a test file of the module's name, in the folder of its package or of one above that."""
    path = Path(module)
    return any((TESTS / folder / f"test_{path.stem}.py").is_file() for folder in list(path.parents)[:-1])


def docstrings() -> dict[str, str]:
    """Docstrings of all test files, by the file's path."""
    tests = [path for path in FILES if path.name.startswith("test_")]
    return {name_of(path): ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in tests}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_helpers_are_imported_by_one_name_and_never_from_tests(path: Path) -> None:
    assert wrong_imports(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("package", TESTED)
def test_every_module_has_a_test_file_or_is_named_in_that_which_tests_it(package: str) -> None:
    spoken_of = set().union(*map(named, docstrings().values()))
    assert [module for module in modules(package) if not mirrored(module) and module not in spoken_of] == []


def test_what_test_files_say_they_test_is_there() -> None:
    roots = (SRC, TESTS.parent / "src", TESTS, TESTS.parent)
    gone = {
        f"{file}: {module}"
        for file, docstring in docstrings().items()
        for module in named(docstring)
        if not any((root / module).is_file() for root in roots)
    }
    assert gone == set()
