"""A service under siege (siege.py): honest jobs are each done once, and an honest user is answered soon.

HORAE_SIEGE_S=3600 makes it long (`make soak`) and shows figures; HORAE_SEED chooses another siege.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.service.crashes import Cluster, examine, service
from tests.service.siege import Siege, half_open
from tests.service.small_disk import small_disk

SIEGE_S = float(os.environ.get("HORAE_SIEGE_S", "0"))
SEED = int(os.environ.get("HORAE_SEED", "1"))
#: Honest jobs, connections that are never used, and most seconds in which 99 of 100 honest submissions are answered:
#: the short siege runs beside other tests.
JOBS, HALF_OPEN, ANSWER_S = (300, 5000, 0.2) if SIEGE_S else (25, 300, 2.0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "state", megabytes=256):
        yield tmp_path / "state"


@pytest.mark.long
def test_honest_jobs_are_done_once_whatever_the_attacker_does(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--gpus", "v100:6,k80:4", "--max-log", "8M", "--isolation", "none")
    with service(tmp_path, "time-slice", ("quantum=2",), Cluster(disk, words)) as running:
        siege = Siege.of(running, SEED, disk, JOBS)
        with half_open(running.port, HALF_OPEN):
            siege.go_on(SIEGE_S or 40.0)
        siege.end()
        found = examine(siege.storm, strangers=True)
    if SIEGE_S:
        with capsys.disabled():
            print(f"\n{siege.figures()} {asdict(found)}")  # noqa: T201
    assert len(siege.storm.submitter.acknowledged) >= JOBS
    assert siege.answered_within_s(0.99) < ANSWER_S
