"""A service on a real Ray that is killed with its jobs running, while parts of Ray die and freeze.

Nothing may run twice, no step may be lost. HORAE_STORM=1 runs it (`make test-ray`): twelve minutes, with figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.testing.ray_cluster import NODES
from tests.backends.ray.rig import needs_ray, started
from tests.backends.ray.storm import RaySite, make_ray_suffer
from tests.engine_folder import engine_folder
from tests.service.cluster_storm import Probe, await_attempts, seconds_to_begin, summary
from tests.service.crashes import Storm, examine, service

pytestmark = [
    *needs_ray,
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("HORAE_STORM"), reason="twelve minutes: `make test-ray` runs it"),
]

#: Seconds for which jobs are submitted after the last blow, at most.
_LOAD_S = 900.0
SEED = int(os.environ.get("HORAE_SEED", "1"))


@pytest.fixture
def site() -> Iterator[RaySite]:
    with engine_folder("ray") as folder, started(NODES) as ray:
        yield RaySite(folder / "shared", ray, SEED)


def test_nothing_runs_twice_and_no_step_is_lost_whoever_dies(
    site: RaySite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(tmp_path, "time-slice", ("quantum=5",), site.cluster) as running:
        site.ray.let_in(running.port)
        storm = Storm(running, SEED, long=(400, 600))
        storm.begin()
        probe = Probe(running)
        make_ray_suffer(site, storm)
        await_attempts(storm.submitter.marks, attempts=70, repeated=36, patience_s=_LOAD_S)
        storm.end()
        probe.stop()
        begin_s = seconds_to_begin(running, storm.submitter.marks)
        found = examine(storm)
        assert not site.jobs_left()
    with capsys.disabled():
        print(f"\n{summary(found, probe, begin_s)}")  # noqa: T201
    assert found.daemon_kills >= 5
    assert found.acknowledged >= 30
    assert (found.attempts >= 60, found.preemptions >= 25, found.over_nodes >= 10) == (True, True, True), found
    assert found.failed_attempts == 0
    assert set(found.stops) <= {"preempted", "moved", "node lost"}, "nobody is stopped but by the death of a raylet"
    assert probe.p99_s() < 0.2
