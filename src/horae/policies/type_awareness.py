"""Whether a policy goes by the speeds of jobs on GPU types, and what users are told of one that does not.

A policy declares `type_aware`. Under most that ignore speeds, placement starts a job on its fastest type that is free,
and the job does not move when a faster type comes free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from horae.core.cluster import Cluster
from horae.core.job import JobSpec
from horae.core.policy import Policy

#: Ratio of a job's speeds above which two GPU types are unlike.
_UNLIKE = 1.01
#: Policies to try instead; `horae policies` lists all that go by speed.
_SUGGESTED = "sjf-aware, fifo-aware or max-min"


class PolicyWarning(UserWarning):
    """A policy that runs, but does not suit the cluster and the workload."""


class IgnoredSpeeds(NamedTuple):
    """Speeds that a policy does not go by: those of one job, as an example."""

    job: str
    fast_type: str
    slow_type: str
    #: Speed on the fast type over speed on the slow type.
    ratio: float
    #: Whether the policy would go by speeds, but for its setting aware=false.
    by_setting: bool


def is_type_aware(policy: Policy) -> bool:
    """Whether a policy goes by the speeds of jobs on GPU types. A policy that does not say counts as aware."""
    declared = getattr(policy, "type_aware", None)
    return declared is None or (bool(declared) and bool(getattr(policy, "aware", True)))


def ignored_speeds(
    policy: Policy, jobs: Iterable[tuple[JobSpec, Sequence[float]]], cluster: Cluster
) -> IgnoredSpeeds | None:
    """The first job with unlike speeds, if the policy does not go by them. `jobs` have their speed on each GPU type."""
    if len(cluster.gpu_types) < 2 or is_type_aware(policy):
        return None
    by_setting, gpus_by_type = bool(getattr(policy, "type_aware", None)), cluster.gpus_by_type.tolist()
    for job, speeds in jobs:
        usable = [k for k, speed in enumerate(speeds) if speed > 0 and gpus_by_type[k] >= job.gpus_min]
        if len(usable) < 2:
            continue
        fast, slow = max(usable, key=lambda k: speeds[k]), min(usable, key=lambda k: speeds[k])
        ratio = speeds[fast] / speeds[slow]
        if ratio > _UNLIKE:
            return IgnoredSpeeds(job.id, cluster.gpu_types[fast], cluster.gpu_types[slow], ratio, by_setting)
    return None


def ignored_speeds_in_words(found: Sequence[tuple[str, IgnoredSpeeds | None]]) -> str:
    """One sentence on all policies, by name, that ignore speeds; empty if none does."""
    ignoring = [(name, ignored) for name, ignored in found if ignored is not None]
    if not ignoring:
        return ""
    names = list(dict.fromkeys(name for name, _ in ignoring))
    job, fast_type, slow_type, ratio, _ = ignoring[0][1]
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    if all(ignored.by_setting for _, ignored in ignoring):
        advice = "leave aware=false out to go by these speeds"
    else:
        advice = f"policies that go by these speeds, such as {_SUGGESTED}, may do better; `horae policies` lists them"
    treat = "treats" if len(names) == 1 else "treat"
    return (
        f"{listed} {treat} GPU types as alike, and jobs are not equally fast on them "
        f"(job {job} is {ratio:.3g} times as fast on {fast_type} as on {slow_type}): {advice}."
    )
