"""The distribution horae-train: what it imports, which Python it needs, and how it lives beside Horae.

It names every module of horae_train that has no test file of its own: checkpoint, reports, run and stop_notice are
tested in test_run.py, the adapter torch in test_torch.py and test_ddp.py.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

import horae
import horae.train
import horae_train
from tests.train.service import environment

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "packages" / "horae-train"
SOURCE = PROJECT / "src" / "horae_train"
MODULES = sorted(SOURCE.glob("*.py"))

#: With each package that is named: training stops itself after step 5, and a second run finishes.
SCRIPT = """
import importlib, importlib.util, json, os, signal, sys
from pathlib import Path

def train(package, folder):
    done = []
    run = package.Run(20, lambda path: path.write_text(json.dumps(done)),
                      lambda path: done.extend(json.loads(path.read_text())), folder=folder)
    for step in run:
        done.append(step)
        run.report(1 / (step + 1))
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
    return len(done)

folder, *names = sys.argv[1:]
packages = [importlib.import_module(name) for name in names]
for package in packages:
    try:
        print(train(package, Path(folder, package.__name__)))
    except SystemExit as stop:
        print(stop.code, train(package, Path(folder, package.__name__)), package.skew([1, 2, 5]))
found = [importlib.util.find_spec(name) is not None for name in ("horae", "horae_train")]
print(len({package.Run for package in packages}), *found)
"""


def python(code: str, *arguments: object, program: Path | str = sys.executable, **env: str) -> str:
    """The output of a program of a few lines; it must succeed."""
    command = [str(program), "-c", code, *map(str, arguments)]
    ended = subprocess.run(command, env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


# The sources


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_it_imports_the_standard_library_alone_except_for_the_adapter(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, *(["torch"] if path.name == "torch.py" else [])}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] in allowed for alias in node.names), ast.unparse(node)
        if isinstance(node, ast.ImportFrom):
            # Imports within the package are relative, so that it works under both of its names.
            assert node.level == 1 or (node.level == 0 and str(node.module).split(".")[0] in allowed), ast.unparse(node)


def test_importing_it_loads_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); from horae import train; train.Run(1); "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    assert python(code, **environment()) == "horae"


def vermin(*paths: Path) -> subprocess.CompletedProcess[str]:
    """A check of sources against Python 3.9, with the options of `make lint`."""
    options = ["--quiet", "--no-tips", "--violations", "--target=3.9-"]
    command = [sys.executable, "-c", "from vermin import main; main()", *options, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_it_needs_no_more_than_python_3_9(tmp_path: Path) -> None:
    pytest.importorskip("vermin", reason="needs vermin: pip install vermin")
    checked = vermin(*MODULES)
    assert checked.returncode == 0, checked.stdout
    newer = tmp_path / "newer.py"
    newer.write_text("match 1:\n    case 1:\n        pass\n")
    assert vermin(newer).returncode != 0


def test_both_distributions_have_the_same_version_and_licence() -> None:
    assert horae_train.__version__ == horae.__version__
    assert (PROJECT / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_horae_train_has_no_dependencies() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert "dependencies" not in project
    assert project["requires-python"] == ">=3.9"


# The two names


def test_horae_offers_the_same_objects() -> None:
    """Pytest finds the sources of horae-train, as if it were installed beside Horae."""
    assert horae.train.__all__ == horae_train.__all__
    assert all(getattr(horae.train, name) is getattr(horae_train, name) for name in horae_train.__all__)


def test_horae_uses_its_own_copy_where_horae_train_is_missing() -> None:
    assert python("from horae import train; print(train.Run.__module__)", **environment()) == (
        "horae.train.horae_train.run"
    )


@pytest.mark.parametrize("text", ['__version__ = "0.0.1"', ""], ids=["another version", "no version"])
def test_horae_uses_its_own_copy_beside_another_version(tmp_path: Path, text: str) -> None:
    (tmp_path / "horae_train").mkdir()
    (tmp_path / "horae_train" / "__init__.py").write_text(text)
    env = environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"}
    code = "from horae import train; import horae_train; print(train.Run.__module__, horae_train.__file__)"
    assert python(code, **env) == f"horae.train.horae_train.run {tmp_path / 'horae_train' / '__init__.py'}"


def test_horae_uses_its_own_copy_beside_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "horae_train").mkdir()
    env = environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"}
    assert python("from horae.train import Run; print(Run.__module__)", **env) == "horae.train.horae_train.run"


@pytest.mark.parametrize("with_distribution", [False, True])
def test_the_adapter_is_the_same_under_both_names(tmp_path: Path, with_distribution: bool) -> None:
    """Without PyTorch itself: a few empty modules stand for it."""
    (tmp_path / "torch" / "nn" / "parallel").mkdir(parents=True)
    (tmp_path / "torch" / "nn" / "__init__.py").touch()
    (tmp_path / "torch" / "__init__.py").write_text("distributed = None")
    (tmp_path / "torch" / "nn" / "parallel" / "__init__.py").write_text("DistributedDataParallel = None")
    paths = [tmp_path, ROOT / "src", *([SOURCE.parent] if with_distribution else [])]
    package = "horae_train" if with_distribution else "horae.train.horae_train"
    code = (
        f"from horae import train; import {package} as package, horae.train.torch; "
        "from horae.train.torch import Run, State; "
        "assert train.torch is horae.train.torch; assert Run is train.torch.Run is package.torch.Run; "
        "assert State is package.torch.State; assert issubclass(Run, train.Run)"
    )
    python(code, **environment() | {"PYTHONPATH": os.pathsep.join(map(str, paths))})


# The wheels


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels, built from this checkout."""
    pytest.importorskip("hatchling", reason="needs hatchling: pip install hatchling")
    folder = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, PROJECT):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=60)
    (train,) = folder.glob("horae_train-*.whl")
    (whole,) = folder.glob("horae-*.whl")
    return {"horae": whole, "horae-train": train}


def test_the_wheels_have_no_file_in_common(wheels: dict[str, Path]) -> None:
    names = {name: set(ZipFile(path).namelist()) for name, path in wheels.items()}
    assert not names["horae"] & names["horae-train"]
    assert {name.split("/")[0] for name in names["horae"]} == {"horae", f"horae-{horae.__version__}.dist-info"}
    # Horae's copy is complete.
    copies = {f"horae/train/{name}" for name in names["horae-train"] if name.startswith("horae_train/")}
    assert copies <= names["horae"]
    assert "horae_train/py.typed" in names["horae-train"]


def test_the_source_distribution_of_horae_has_the_package_in_both_places(tmp_path: Path) -> None:
    """A wheel is usually built from it, where no link is left to follow."""
    pytest.importorskip("hatchling", reason="needs hatchling: pip install hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (archive,) = tmp_path.glob("horae-*.tar.gz")
    with tarfile.open(archive) as files:
        names = [name.partition("/")[2] for name in files.getnames()]
    for folder in ("src/horae/train/horae_train", "packages/horae-train/src/horae_train"):
        assert {f"{folder}/{path.name}" for path in MODULES} <= set(names)
    assert len(names) == len(set(names))


class Environment:
    """A virtual environment with Python alone, into which the pip of this environment installs wheels."""

    def __init__(self, folder: Path, wheels: dict[str, Path]) -> None:
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.python = folder / "venv" / "bin" / "python"
        self._wheels = wheels

    def install(self, name: str) -> None:
        self._pip("install", "--no-index", "--no-deps", "--no-compile", self._wheels[name])

    def uninstall(self, name: str) -> None:
        self._pip("uninstall", "--yes", name)

    def _pip(self, *arguments: object) -> None:
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", "--quiet"]
        subprocess.run([*map(str, pip), *map(str, arguments)], check=True, capture_output=True, timeout=120)

    def train(self, folder: Path, installed: set[str]) -> str:
        """Train with every installed package; what the script printed."""
        names = {"horae": "horae.train", "horae-train": "horae_train"}
        return python(SCRIPT, folder, *(names[name] for name in sorted(installed)), program=self.python)


@pytest.mark.long
def test_both_install_and_uninstall_in_either_order(tmp_path: Path, wheels: dict[str, Path]) -> None:
    """Every install and every uninstall, with the other distribution present and absent."""
    here = Environment(tmp_path, wheels)
    installed: set[str] = set()
    walk = "+horae +horae-train -horae +horae -horae-train -horae +horae-train -horae-train"
    for number, step in enumerate(walk.split()):
        (here.install if step.startswith("+") else here.uninstall)(step[1:])
        installed ^= {step[1:]}
        trained = ["75 20 0.625"] * len(installed)
        # Where both are installed, they offer the same class.
        last = f"{min(1, len(installed))} {'horae' in installed} {'horae-train' in installed}"
        assert here.train(tmp_path / str(number), installed).splitlines() == [*trained, last], step
