"""The page "From Python": every example is run, in order, in an empty folder; so are the examples that are files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from horae.plugins.policies import load_policy
from horae.service.server import ServeOptions, Server
from horae.testing import check_policy

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "from-python.md"


def test_every_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 10
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    server = Server(ServeOptions(tmp_path / "state", port=0, gpus="v100:4"))
    try:
        monkeypatch.setenv("HORAE_URL", server.url)
        monkeypatch.setenv("HORAE_TOKEN", server.token_file.read_text().strip())
        notebook: dict[str, Any] = {"__name__": "__main__"}
        for block in blocks:
            exec(compile(block, "from-python.md", "exec"), notebook)
    finally:
        server.close()
    for made in ("las.html", "comparison.html", "load.png", "base.yaml", "jobs.csv"):
        assert (tmp_path / made).stat().st_size > 0


def test_the_page_is_linked() -> None:
    assert "(from-python.md)" in (ROOT / "docs" / "index.md").read_text()
    assert "(docs/from-python.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("example", "written"), [("own_policy.py", ""), ("study.py", "study.png")])
def test_the_examples_run_in_an_empty_folder(tmp_path: Path, example: str, written: str) -> None:
    source = (ROOT / "examples" / example).read_text()
    # Fewer jobs and seeds: the point is that every line runs.
    short = re.sub(r"jobs=1[02]0", "jobs=12", source).replace("range(5)", "range(2)").replace("0.5, 0.7, 0.9, ", "")
    (tmp_path / example).write_text(short)
    ran = subprocess.run([sys.executable, example], cwd=tmp_path, text=True, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "policy" in ran.stdout or "load" in ran.stdout or "srtf" in ran.stdout
    if written:
        assert (tmp_path / written).read_bytes().startswith(b"\x89PNG")


def test_the_example_policy_keeps_the_contract_and_is_short(registries: None) -> None:
    path = ROOT / "examples" / "own_policy.py"
    assert len(path.read_text().splitlines()) < 40
    check_policy(load_policy(f"{path}:Patient"), seeds=range(3))
