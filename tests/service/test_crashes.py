"""`kill -9` at random moments under load, a full disk and a locked journal: nothing acknowledged is ever lost.

HORAE_KILLS=100 makes it long (`make soak`); HORAE_SEED chooses another storm.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.service.crashes import Storm, examine, service

KILLS = int(os.environ.get("HORAE_KILLS", "6"))
SEED = int(os.environ.get("HORAE_SEED", "1"))


def tell(record_property: object, capsys: pytest.CaptureFixture[str], **figures: object) -> None:
    """Show the figures of a long storm."""
    if KILLS > 20:
        with capsys.disabled():
            print(f"\n{figures}")  # noqa: T201, what the long form is run for


@pytest.mark.parametrize("policy", [("time-slice", ("quantum=1",))])
def test_no_acknowledged_job_is_lost_or_runs_twice_however_often_the_daemon_is_killed(
    tmp_path: Path, policy: tuple[str, tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    with service(tmp_path, *policy) as running:
        storm = Storm(running, SEED)
        storm.begin()
        storm.kill_daemons(KILLS)
        storm.end()
        found = examine(storm)
    print(found)
    assert found.daemon_kills == KILLS
