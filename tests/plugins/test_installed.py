"""What an installed package offers: a real one, with metadata, in a folder on PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = '''
from pathlib import Path

import horae
from horae.backends.fake import FakeBackend, FakeJob, FakeWorld
from horae.workload.formats.table import Format, Table


class Largest:
    """Large gangs first, from a package."""

    def plan(self, now, memory):
        return horae.Wishes(now.rows, -now.gpus.astype(float))


def read(path):
    lines = path.read_text().splitlines()[1:]
    return Table(path, tuple("abc"), list(range(2, 2 + len(lines))), [line.split() for line in lines], 3)


def row_reader(table, throughputs):
    return lambda number, row: horae.JobSpec(row[0], float(row[1]), int(row[2]), 100.0)


SPACED = Format("spaced", "words with spaces between", lambda line: line == "%spaced", read, row_reader)


def make_fake(options):
    return FakeBackend(options.nodes, FakeWorld(default=FakeJob(lasts_s=0.1)))
'''
ENTRIES = """
[horae.policies]
largest = outside_package:Largest
broken = outside_package:nothing
no-policy = outside_package:read
[horae.formats]
spaced = outside_package:SPACED
[horae.backends]
fake = outside_package:make_fake
"""
TRACE = "%spaced\na 0 1\nb 1 4\n"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "outside_package.py").write_text(MODULE)
    info = folder / "outside_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (folder / "day.txt").write_text(TRACE)
    return folder


def with_package(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=package, text=True, capture_output=True, check=False
    )


def test_policies_formats_and_backends_of_a_package_are_found_by_name(package: Path) -> None:
    script = """
import horae
assert "largest" not in horae.POLICIES, "nothing is looked for before it is asked for"
for trace in (horae.read_trace("day.txt"), horae.read_trace("day.txt", "spaced")):
    print(trace.format, len(trace.jobs))
print(horae.simulate(trace, cluster="1x4", policy="largest"))
from pathlib import Path
from horae.backends import BackendOptions, open_backend
print(type(open_backend("fake", BackendOptions(Path(".")))).__name__)
for wrong in ("broken", "no-policy", "largets"):
    try:
        horae.simulate(trace, cluster="1x4", policy=wrong)
    except horae.UserError as error:
        print(error)
try:
    horae.read_trace("day.txt", "spacd")
except horae.UserError as error:
    print(error)
"""
    ran = with_package(package, "-c", script)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[:2] == ["spaced 2", "spaced 2"]
    assert lines[2].startswith("<Run of largest: 2 of 2 jobs")
    assert lines[3] == "FakeBackend"
    assert lines[4].startswith("'broken' of outside-package cannot be loaded (AttributeError")
    assert lines[5].startswith("'no-policy' of an installed package is no policy class")
    assert lines[6].startswith("No policy is called 'largets'. Did you mean 'largest'?")
    assert lines[7].startswith("No trace format is called 'spacd'. Did you mean 'spaced'?")


def test_commands_know_them_too(package: Path) -> None:
    listed = with_package(package, "-m", "horae", "policies", "-o", "csv")
    assert 'largest,"Large gangs first, from a package."' in listed.stdout
    assert "broken" not in listed.stdout, "what cannot be loaded is left out of a list"
    ran = with_package(
        package, "-m", "horae", "compare", "--trace", "day.txt", "--cluster", "1x4", "--policies", "fifo,largest",
        "--workers", "1", "-o", "csv",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert [line.partition(",")[0] for line in ran.stdout.splitlines()] == ["policy", "fifo", "largest"]
