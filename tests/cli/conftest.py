"""The command line in-process: real parsing and real error handling, without the cost of a process."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from horae.cli.main import main
from horae.experiments import parallel
from horae.experiments.parallel import Advance, Batch, Outcome

#: Five small jobs in the Tiresias format; the third is a gang of four.
TRACE = """\
job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,100,vgg19,100,1
1,2,10,100,vgg19,200,1
2,4,20,100,vgg19,50,1
3,1,30,100,vgg19,400,1
4,1,40,100,vgg19,20,1
"""


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The answer as JSON; fails unless stdout holds nothing else."""
        return json.loads(self.out)


Horae = Callable[..., Answer]
RunAll = Callable[[Batch, int, Advance], list[Outcome]]


def _run_here_or_all(run_all: RunAll) -> RunAll:
    return lambda batch, workers, advance: (
        run_all(batch, workers, advance) if workers > 1 else parallel.run_in_turn(batch, advance)
    )


@pytest.fixture
def horae(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Horae:
    """Run `horae` with some words; crash reports go to the test's own folder.

    Runs are performed in this process, unless the words ask for several workers: each takes a second to start.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(parallel, "run_all", _run_here_or_all(parallel.run_all))

    def run(*words: object) -> Answer:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A small trace."""
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path
