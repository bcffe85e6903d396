"""Thirty jobs on a real Ray, under a service and a cluster that are killed and frozen; about ten minutes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from horae.testing.ray_cluster import NODES
from tests.backends.ray.rig import needs_ray, started
from tests.backends.ray.storm import RayService, RayStorm, findings, pieces_left
from tests.service.crashes import check_journal, check_witnesses, processes_of

pytestmark = [*needs_ray, pytest.mark.long]


def test_a_storm_on_ray_runs_nothing_twice_and_loses_no_step() -> None:
    with TemporaryDirectory(prefix="horae-storm-") as name, started(NODES) as ray:
        service = RayService(Path(name).resolve(), ray)
        storm = RayStorm(service, ray, seed=1)
        ray.let_in(service.port)
        try:
            storm.run(jobs=30)
            assert {*service.states().values()} == {"finished"}
            assert not storm.submitter.odd
            check_witnesses(storm.submitter, "ray")
            assert pieces_left(ray) == []
            left = {pid: kind for pid, kind in processes_of(service.shared).items() if kind in ("runner", "job")}
            assert not left
            found = findings(storm, check_journal(service, "ray"))
        finally:
            storm.close()
    if "HORAE_FINDINGS" in os.environ:
        Path(os.environ["HORAE_FINDINGS"]).write_text(json.dumps(asdict(found), indent=1))
    assert found.jobs >= 30
    assert found.launches >= 60
    assert found.preemptions >= 25
    assert found.gangs_over_nodes >= 10
    assert found.blows == {"horae": 5, "driver": 2, "raylet": 2, "freeze": 1, "gcs": 1}
    assert found.answer_p99_s < 0.2
