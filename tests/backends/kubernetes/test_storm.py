"""A service on a real Kubernetes that is killed with its jobs running, while the cluster's own parts die and freeze.

Nothing may run twice, no step may be lost, nobody may be stopped because somebody was out of sight, and nothing may be
left behind. Kubelets are ours, pods are processes. HORAE_STORM=1 makes it long (`make test-kubernetes`), with outages
longer than the fences, and shows figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.testing.kubernetes_build import API_SERVER
from horae.testing.kubernetes_cluster import KUBE_NODES
from tests.backends.kubernetes.stage import needs_kubernetes, pods, running_cluster
from tests.backends.kubernetes.storm_site import StormSite, make_kubernetes_suffer
from tests.backends.real import until
from tests.service.cluster_storm import Probe, await_attempts, seconds_to_begin, summary
from tests.service.crashes import Storm, examine, service

pytestmark = needs_kubernetes

LONG = bool(os.environ.get("HORAE_STORM"))
SEED = int(os.environ.get("HORAE_SEED", "1"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[StormSite]:
    with running_cluster(KUBE_NODES) as kubernetes:
        made = StormSite(tmp_path, kubernetes, SEED)
        yield made
        made.proxy.close()


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason="ten minutes: `make test-kubernetes` runs it")
def test_nothing_runs_twice_and_no_step_is_lost_whoever_dies(
    site: StormSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(tmp_path, "time-slice", ("quantum=2",), site.cluster) as running:
        storm = Storm(running, SEED, long=(400, 900))
        storm.begin()
        probe = Probe(running)
        make_kubernetes_suffer(site, storm)
        assert storm.come_up(), running.said()
        # A busy machine takes its time; some of those that ran again were not preempted, but deleted.
        await_attempts(storm.submitter.marks, attempts=170, repeated=100, patience_s=900.0)
        storm.end()
        probe.stop()
        begin_s = seconds_to_begin(running, storm.submitter.marks)
        until(lambda: not pods(site.kubernetes), f"for pods to go: {[*pods(site.kubernetes)]}", patience_s=90.0)
        found = examine(storm)
    with capsys.disabled():
        print(f"\n{summary(found, probe, begin_s)}\n{dict(site.faults)}; foreign: {dict(site.foreign_ends())}")  # noqa: T201
    assert found.daemon_kills >= 10
    assert found.acknowledged >= 60
    assert (found.attempts >= 150, found.preemptions >= 80, found.over_nodes >= 20) == (True, True, True), found
    assert set(found.stops) <= {"preempted", "moved"}, "nobody is stopped because somebody was out of sight"
    assert found.failed_attempts == 0
    assert site.foreign_ends()["Succeeded"] == 1, "somebody's pod was left alone"
    assert (begin_s[len(begin_s) // 2] < 2.0, probe.p99_s() < 0.2) == (True, True)


def test_a_service_and_an_api_server_that_die_with_jobs_running_lose_nothing(site: StormSite, tmp_path: Path) -> None:
    """A slice of the storm."""
    with service(tmp_path, "time-slice", ("quantum=3",), site.cluster) as running:
        storm = Storm(running, SEED, long=(100, 150))
        storm.begin()
        until(lambda: len(site.running()) > 3, "for jobs to run")
        site.kubernetes.kill(API_SERVER)
        storm.kill_daemons(1)
        storm.come_up()
        site.kubernetes.start_api_server()
        site.cut()
        site.force_delete()
        storm.kill_daemons(1, inside=1.0)
        storm.end()
        until(lambda: not pods(site.kubernetes), "for pods to go", patience_s=90.0)
        found = examine(storm)
    assert (found.daemon_kills >= 2, found.failed_attempts) == (True, 0)
    assert found.preemptions > 0
