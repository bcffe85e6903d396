"""The documentation is true: its commands run, its output is what they print, its links lead somewhere."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from fastapi import FastAPI

from horae.core.cluster import Cluster
from horae.core.job import JobSpec
from horae.policies import POLICIES
from horae.service.api import admin, agents, health, jobs, streams
from horae.service.job_file import JobFile, read_job
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from tests.cli.conftest import Horae
from tests.cli.job_file_keys import keys

DOCS = Path(__file__).parents[2] / "docs"


def build_script() -> ModuleType:
    """docs/build.py, which is no package."""
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sessions(page: Path) -> list[tuple[str, list[str]]]:
    """The commands of a page's console blocks, each with the lines shown below it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ horae "):
                found.append((line.removeprefix("$ horae "), []))
            else:
                found[-1][1].append(line)
    return found


def words_of(line: str) -> str:
    return " ".join(line.split())


def test_the_tutorial_prints_what_it_says(horae: Horae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = sessions(DOCS / "tutorial.md")
    assert len(commands) >= 8
    for command, shown in commands:
        answer = horae(*shlex.split(command))
        assert answer.code == 0, f"{command}: {answer.err}"
        printed = {words_of(line) for line in (answer.out + answer.err).splitlines()}
        assert [line for line in shown if words_of(line) not in printed] == [], command


def test_the_command_reference_is_up_to_date() -> None:
    assert (DOCS / "reference" / "cli.md").read_text() == build_script().command_reference(), "run `make docs`"


def test_the_job_file_of_the_how_to_is_one() -> None:
    (source,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "how-to.md").read_text(), flags=re.DOTALL)
    job = read_job(yaml.safe_load(source))
    assert job.resources.wanted() == (2, ("v100", "k80"))


def test_the_policy_of_the_how_to_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "how-to.md").read_text(), flags=re.DOTALL)
    (source,) = (block for block in blocks if "class HeaviestFirst" in block)
    module = ModuleType("heaviest_first")
    monkeypatch.setitem(sys.modules, "heaviest_first", module)
    exec(source, module.__dict__)
    monkeypatch.setitem(POLICIES, "heaviest-first", module.__dict__["HeaviestFirst"])
    jobs = [JobSpec("light", 0, 1, 100), JobSpec("middle", 1, 1, 100, weight=2), JobSpec("heavy", 2, 1, 100, weight=3)]
    history = simulate(Scenario(jobs, Cluster.of([("gpu", 1, 1)]), policy="heaviest-first", restart_cost_s=0))
    assert sorted(range(3), key=lambda job: history.end_s[job]) == [2, 1, 0]


def first_cells(page: str) -> set[str]:
    """What stands in backquotes in the first column of a page's tables."""
    rows = re.findall(r"^\| (.+?) \|", (DOCS / "reference" / page).read_text(), re.MULTILINE)
    return {word for row in rows for word in re.findall("`([^`]+)`", row)}


def test_every_key_of_a_job_and_every_request_is_described() -> None:
    described = first_cells("jobs.md")
    wanted = set(keys(JobFile))
    assert {"run", "class", "checkpoint.grace"} <= wanted
    app = FastAPI()
    for part in (agents, health, jobs, admin, streams):
        app.include_router(part.router)
    requests = {f"{verb.upper()} {path}" for path, ways in app.openapi()["paths"].items() for verb in ways}
    assert len(requests) > 20
    assert wanted | requests <= described
    of_pages = {one for one in described if one.startswith(("GET", "POST", "PUT", "DELETE")) or one.islower()}
    assert of_pages <= wanted | requests
