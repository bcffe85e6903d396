"""For authors of policies and backends: builders, fakes, and checks of what a policy or a backend promises."""

from horae.backends.fake import FakeBackend, FakeJob, FakeWorld
from horae.testing.backend_contract import BACKEND_CHECKS, FakeRig, Rig, check_backend
from horae.testing.builders import Cell, Script, cluster, ends, job, run, times
from horae.testing.policy_contract import check_policy, random_scenario

__all__ = [
    "BACKEND_CHECKS",
    "Cell",
    "FakeBackend",
    "FakeJob",
    "FakeRig",
    "FakeWorld",
    "Rig",
    "Script",
    "check_backend",
    "check_policy",
    "cluster",
    "ends",
    "job",
    "random_scenario",
    "run",
    "times",
]
