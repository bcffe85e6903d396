"""Backends on a real Ray, for tests: one cluster for a module, a service and a shared folder for each test."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from horae.backends.attempt_round import ReconcilerSettings
from horae.backends.driver import OutOfSight
from horae.backends.ray.dashboard import job_path
from horae.backends.ray.driver import RayDriver
from horae.backends.ray.gang_job import RaySettings
from horae.backends.reconcile import Reconciler
from horae.testing.ray_cluster import MadeUpRayNode, RayCluster, why_not
from tests.backends.real import until
from tests.contracts.backend_rigs import LocalRig
from tests.engine_folder import engine_folder

#: `make test-ray` runs these tests, `make test` does not: a Ray takes half a minute to start.
needs_ray = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=f"needs Ray: {why_not()}"),
]


class RayRig(LocalRig):
    """The same jobs, as Ray jobs."""

    backend: Reconciler  # type: ignore[assignment]

    def __init__(self, state: Path, ray: RayCluster) -> None:
        self.ray, self.service = ray, secrets.token_hex(4)
        self.driver = RayDriver(RaySettings(self.service, state), ray.dashboard)
        super().__init__(state)

    def _open(self) -> None:
        settings = ReconcilerSettings(look_every_s=0.2, ready_s=0.0)
        self.backend = Reconciler(self.driver, self.state, settings=settings)

    def close(self) -> None:
        """End all jobs of the service, and wait until Ray has their GPUs back."""
        super().close()
        end_all_jobs(self.ray)


Rig = TypeVar("Rig", bound=RayRig)


def end_all_jobs(ray: RayCluster) -> None:
    """Stop all jobs of a Ray, and drop its records of them."""

    def gone() -> bool:
        for job in ray.dashboard.read("/api/jobs/"):
            if job["status"] in ("PENDING", "RUNNING"):
                ray.dashboard.ask("POST", job_path(job["submission_id"], "/stop"))
            else:
                ray.dashboard.ask("DELETE", job_path(job["submission_id"]))
        return not ray.dashboard.read("/api/jobs/") and not held()

    def held() -> list[object]:
        groups = ray.dashboard.read_state("placement_groups", {"state": "CREATED"})
        actors = ray.dashboard.read_state("actors", {"state": "ALIVE"})
        return [*groups, *(actor for actor in actors if actor["required_resources"].get("GPU"))]

    def ended() -> bool:
        try:
            return gone()
        except OutOfSight:
            return False

    until(ended, "for all Ray jobs to end")


@contextmanager
def started(nodes: Sequence[MadeUpRayNode], packages: Sequence[Path] = ()) -> Iterator[RayCluster]:
    """A Ray in a temporary folder."""
    with engine_folder("ray") as folder, RayCluster(folder, nodes, packages) as ray:
        yield ray


@contextmanager
def opened(ray: RayCluster, make: Callable[[Path, RayCluster], Rig]) -> Iterator[Rig]:
    """A backend on a Ray."""
    with engine_folder("ray") as folder:
        rig = make(folder / "shared", ray)
        try:
            yield rig
        finally:
            rig.close()
