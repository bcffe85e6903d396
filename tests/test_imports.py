"""Which way the packages may look, and what the pure ones may never touch."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "horae"

#: What each package may import of horae, itself aside.
MAY_IMPORT = {
    "core": set(),
    "solve": {"core"},
    "placement": {"core"},
    "policies": {"core", "solve"},
    "workload": {"core", "solve", "train", "plugins", "backends"},
    "report": {"core"},
    "backends": {"core", "plugins"},
    "train": set(),
    "client": {"core", "service"},
    "plugins": {"core", "policies"},
    "simulator": {"core", "solve", "policies", "placement", "plugins"},
    "service": {"core", "solve", "policies", "placement", "backends", "report", "simulator", "workload", "plugins"},
    "experiments": {"core", "policies", "plugins", "simulator", "workload", "report", "service", "client", "backends"},
    "testing": {"core", "policies", "placement", "simulator", "workload", "backends"},
    "api": {"core", "policies", "plugins", "simulator", "workload", "report", "experiments", "client"},
    "cli": {
        "core",
        "solve",
        "policies",
        "placement",
        "workload",
        "report",
        "simulator",
        "backends",
        "service",
        "client",
        "testing",
        "plugins",
        "experiments",
    },
}
#: `horae/__init__.py` names what is public, and loads it when it is asked for.
MAY_IMPORT["public"] = {*MAY_IMPORT} - {"cli"}
PURE = ("core", "solve", "placement", "policies")

#: Clocks, chance, files, processes and the network: a driver's business, never the engine's.
IMPURE = set(
    "asyncio concurrent ctypes datetime fileinput glob http importlib io logging multiprocessing os pathlib platform "
    "random sched secrets select shutil signal socket ssl subprocess sys tempfile threading time urllib uuid "
    "warnings polars matplotlib requests httpx rich typer yaml".split()
)
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}
#: Of numpy.random, only generators made from a seed.
SEEDED = {"default_rng", "Generator", "SeedSequence", "PCG64", "BitGenerator"}

MODULES = sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    """The package a module belongs to; empty for other modules at the top. `python -m horae` is the command line."""
    parts = path.relative_to(SOURCE).parts
    if parts == ("__main__.py",):
        return "cli"
    if parts == ("__init__.py",):
        return "public"
    return parts[0] if len(parts) > 1 else ""


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every module a file imports, anywhere in it, by its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports in full, so that they can be checked"
            module = node.module or ""
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def imported_packages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The packages of horae that a file imports."""
    for line, name in imported_modules(tree):
        parts = name.split(".")
        if parts[0] == "horae" and len(parts) > 1 and (SOURCE / parts[1]).is_dir():
            yield line, parts[1]


def violations(source: str, package: str) -> list[str]:
    """Everything in a file of a package that breaks the rules."""
    tree = ast.parse(source)
    allowed = MAY_IMPORT.get(package, set()) | {package}
    found = [f"line {line}: imports horae.{name}" for line, name in imported_packages(tree) if name not in allowed]
    if package in PURE:
        found += impurities(tree)
    return found


def impurities(tree: ast.AST) -> list[str]:
    """Imports and calls that reach outside."""
    found = [f"line {line}: imports {name}" for line, name in imported_modules(tree) if name.split(".")[0] in IMPURE]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            found.append(f"line {node.lineno}: calls {node.func.id}()")
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
            found += [] if node.attr in SEEDED else [f"line {node.lineno}: uses the global np.random.{node.attr}"]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way_and_the_pure_packages_stay_pure(path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), package_of(path)) == []


def test_the_public_api_and_the_command_line_are_for_nobody_inside() -> None:
    inside = {package: allowed for package, allowed in MAY_IMPORT.items() if package != "public"}
    assert [package for package, allowed in inside.items() if allowed & {"api", "cli"}] == []
    # The demonstration starts the small clusters of the tests.
    assert [package for package, allowed in inside.items() if "testing" in allowed] == ["cli"]


def test_every_package_has_a_rule() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages - set(MAY_IMPORT) == set()


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("core", "from horae.policies import POLICIES"),
        ("core", "def late():\n    from horae import simulator"),
        ("workload", "import horae.simulator.run"),
        ("report", "from horae.cli.output import note"),
        ("policies", "import time"),
        ("policies", "from os import path"),
        ("placement", "import numpy as np\nnp.random.seed(1)"),
        ("core", "print('hello')"),
    ],
)
def test_the_check_notices(package: str, source: str) -> None:
    assert violations(source, package) != []


def test_a_generator_with_a_seed_is_pure() -> None:
    assert violations("import numpy as np\nrng = np.random.default_rng(3)", "policies") == []
