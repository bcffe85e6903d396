"""Builds Kubernetes' API server and controllers from Debian's source package, once, into the user's cache folder.

    python -m horae.testing.kubernetes_cluster build     # two to six minutes, and 1.5 GB of disk meanwhile

Nothing of the system is changed: apt works on a state of its own, and Go on a cache of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from horae.core.errors import UserError

#: The Debian packages with what is not built: Go to build the rest, etcd, and openssl for keys.
INSTALL = "apt-get install -y --no-install-recommends golang-go dpkg-dev etcd-server openssl"
VERSION = "1.20.2"
#: What is built.
API_SERVER, CONTROLLERS = "kube-apiserver", "kube-controller-manager"
_ROOT = "k8s.io/kubernetes"
_GENERATED = "pkg/generated/openapi/zz_generated.openapi.go"
_MARK = "+k8s:openapi-gen=true"
#: Folders whose types are no part of the API.
_NO_API = re.compile(r"_test\.go|/testdata/|sample-|/test/|code-generator|/examples/")


class BuildTrouble(UserError):
    """Kubernetes could not be built."""


def binaries() -> Path:
    """The folder of the built programs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "horae" / "engines" / f"kubernetes-{VERSION}" / "bin"


def is_built() -> bool:
    """Whether all programs were built."""
    return all((binaries() / name).is_file() for name in (API_SERVER, CONTROLLERS))


def build() -> None:
    """Build what is missing."""
    if is_built():
        return
    for program in ("go", "apt-get"):
        if not shutil.which(program):
            raise BuildTrouble(f"{program} is not installed: `{INSTALL}` installs what the build needs, on Debian.")
    binaries().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="build-", dir=binaries().parent) as name:
        folder = Path(name)
        source = _source(folder)
        environment = _go_environment(folder, source)
        if not (source / _GENERATED).exists():
            _generate_openapi(folder, source, environment)
        for program in (API_SERVER, CONTROLLERS):
            draft = folder / program
            _go_build(draft, f"{_ROOT}/cmd/{program}", source, environment, ("-ldflags", _version_flags()))
            draft.rename(binaries() / program)
        # Go's module files are read-only.
        _run(["chmod", "-R", "u+w", str(folder)], folder)


def _source(folder: Path) -> Path:
    """Fetch and unpack the source package."""
    state = folder / "apt"
    for name in ("etc", "lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    for number, (suffix, text) in enumerate(_source_lists()):
        (state / "etc" / f"source{number}{suffix}").write_text(text, encoding="utf-8")
    paths = {
        "Etc::SourceList": "/dev/null",
        "Etc::SourceParts": state / "etc",
        "State::Lists": state / "lists",
        "Cache": state / "cache",
    }
    options = [word for key, value in paths.items() for word in ("-o", f"Dir::{key}={value}")]
    _run(["apt-get", *options, "update", "-qq"], folder)
    _run(["apt-get", *options, "source", "-qq", "--download-only", "kubernetes"], folder)
    archive = next(folder.glob("kubernetes_*.orig.tar.*"), None)
    if archive is None:
        raise BuildTrouble("Debian's source package kubernetes was not found: are there Debian sources for apt?")
    _run(["tar", "xf", archive.name], folder)
    return next(path for path in folder.glob("kubernetes-*") if path.is_dir())


def _source_lists() -> Iterator[tuple[str, str]]:
    """The machine's own apt sources with Debian's packages, as sources of source packages."""
    apt = Path("/etc/apt")
    for path in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))):
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        if "debian" not in text:
            continue
        if path.suffix == ".sources":
            yield ".sources", re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE)
        elif path.suffix == ".list":
            yield ".list", re.sub(r"^deb ", "deb-src ", text, flags=re.MULTILINE)


def _go_environment(folder: Path, source: Path) -> dict[str, str]:
    """A Go that fetches nothing. The package is found in a GOPATH of its own."""
    place = folder / "gopath" / "src" / _ROOT
    place.parent.mkdir(parents=True)
    place.symlink_to(source)
    settings = {"GO111MODULE": "off", "GOPROXY": "off", "CGO_ENABLED": "0", "GOFLAGS": ""}
    return {**os.environ, **settings, "GOPATH": str(folder / "gopath"), "GOCACHE": str(folder / "gocache")}


def _generate_openapi(folder: Path, source: Path, environment: Mapping[str, str]) -> None:
    """Make the one generated file that the source package leaves out."""
    generator = folder / "openapi-gen"
    _go_build(generator, f"{_ROOT}/vendor/k8s.io/kube-openapi/cmd/openapi-gen", source, environment)
    staged = _marked(source / "staging" / "src", ("k8s.io",))
    packages = [f"{_ROOT}/vendor/{name}" for name in staged]
    packages += [f"{_ROOT}/{name}" for name in _marked(source, ("pkg", "cmd"))]
    header = source / "hack" / "boilerplate" / "boilerplate.generatego.txt"
    options = ["--go-header-file", str(header), "-i", ",".join(packages), "-O", "zz_generated.openapi"]
    report = ["-p", f"{_ROOT}/pkg/generated/openapi", "-r", str(folder / "violations.txt")]
    _run([str(generator), *options, *report], _in_gopath(environment), environment)


def _marked(root: Path, folders: Sequence[str]) -> list[str]:
    """Packages whose types are part of the API, by their path under a folder."""
    found = set()
    for path in (path for folder in folders for path in (root / folder).rglob("*.go")):
        name = path.relative_to(root).as_posix()
        if not _NO_API.search(name) and _MARK in path.read_text(encoding="utf-8", errors="replace"):
            found.add(Path(name).parent.as_posix())
    return sorted(found)


def _version_flags() -> str:
    """Linker flags that tell the programs their version."""
    major, minor, _ = VERSION.split(".")
    values = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    package = f"{_ROOT}/vendor/k8s.io/component-base/version"
    return " ".join(["-s -w", *(f"-X {package}.{name}={value}" for name, value in values.items())])


def _go_build(
    to: Path, package: str, source: Path, environment: Mapping[str, str], options: Sequence[str] = ()
) -> None:
    words = ["go", "build", "-tags", "providerless", *options, "-o", str(to), package]
    _run(words, _in_gopath(environment), environment)


def _in_gopath(environment: Mapping[str, str]) -> Path:
    return Path(environment["GOPATH"]) / "src" / _ROOT


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    # Go finds its packages by the path that it is told of, not by the one that a link leads to.
    variables = {**(environment or os.environ), "PWD": str(folder)}
    ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, errors="replace")
    if ran.returncode:
        lines = (ran.stderr or ran.stdout).strip().splitlines()
        raise BuildTrouble(f"{command[0]} failed while Kubernetes was built: {' '.join(lines[-3:])}")
