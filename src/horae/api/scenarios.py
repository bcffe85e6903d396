"""Scenarios from what people write in Python: names, texts, numbers, files."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from horae.core.cluster import Cluster
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.policy import Policy
from horae.core.queues import Queue
from horae.core.throughputs import Throughputs
from horae.experiments.prices import with_prices
from horae.plugins.policies import load_policy
from horae.policies.settings import text_of
from horae.policies.type_awareness import IgnoredSpeeds, PolicyWarning, ignored_speeds_in_words
from horae.simulator.faults import Faults
from horae.simulator.scenario import JobSource, PolicyChoice, Scenario
from horae.workload.clusters import cluster_queues, load_queues, parse_cluster
from horae.workload.generated_jobs import GeneratedJobs
from horae.workload.generator import preset
from horae.workload.roofline import with_estimates
from horae.workload.skew import profiled
from horae.workload.speed_files import load_throughputs
from horae.workload.traces import Trace, load_trace

#: A trace, a list of jobs, what `generate` gives, or a whole scenario.
WorkloadLike = Trace | Iterable[JobSpec] | JobSource | Scenario
#: A name, a place such as `./mine.py:MyPolicy`, a class, an object, or a name with settings.
PolicyLike = str | type[Any] | Policy | tuple[str | type[Any], Mapping[str, object]]


class Conditions(TypedDict, total=False):
    """What a run depends on beside workload and policy; `Scenario` says what each is."""

    cluster: str | Cluster
    settings: Mapping[str, object]
    placement: str
    restart_cost_s: float
    throughputs: str | Path | Throughputs | None
    truth: str | Path | Throughputs | None
    queues: str | Path | Iterable[Queue]
    seed: int
    faults: Faults | Mapping[str, float] | None
    until: int | None


def scenario(workload: WorkloadLike, *, policy: PolicyLike | None = None, **conditions: Unpack[Conditions]) -> Scenario:
    """A scenario from a workload, a policy and conditions.

    The cluster is written as on the command line (`"8x4"`, `"v100:2x4,k80:4x4"`, a YAML file); so are queues and
    throughputs, which may be files. Settings may be numbers. Jobs of a trace are treated as by the commands: what the
    catalogue knows of their models is added. Of a scenario, what is named here is changed.
    """
    if isinstance(workload, Scenario):
        return _changed(workload, policy, conditions)
    if "cluster" not in conditions or policy is None:
        missing = "cluster" if "cluster" not in conditions else "policy"
        raise UserError(f"A run needs a {missing}: give one, such as cluster='8x4', policy='las'.")
    machines = cluster(conditions["cluster"])
    chosen = with_prices(choice_of(policy, conditions.get("settings")), machines)
    speeds, truth = _speeds(conditions.get("throughputs")), _speeds(conditions.get("truth"))
    jobs = _jobs(workload)
    if not isinstance(jobs, JobSource):
        jobs = profiled(jobs)
        speeds = with_estimates(speeds, jobs, machines.gpu_types)
    return Scenario(
        jobs,
        machines,
        chosen.policy,
        chosen.settings,
        conditions.get("placement", "best-effort"),
        conditions.get("restart_cost_s", 30.0),
        speeds,
        truth,
        _queues(conditions.get("queues"), conditions["cluster"]),
        conditions.get("seed", 0),
        _faults(conditions.get("faults")),
        conditions.get("until"),
    )


def cluster(spec: str | Cluster) -> Cluster:
    """A cluster from `"15x4"`, `"v100:2x4,p100:4x4/2"` (type:nodes x GPUs/nodes a rack), a YAML or a Tiresias file."""
    return spec if isinstance(spec, Cluster) else parse_cluster(str(spec))


def read_trace(
    path: str | Path,
    format: str | None = None,  # noqa: A002, the word every user of traces expects
    *,
    skip_bad: bool = False,
    throughputs: str | Path | Throughputs | None = None,
) -> Trace:
    """Read the jobs of a trace file; without a format name, its first line tells the format.

    Rows that cannot be jobs are an error that quotes them; with `skip_bad` they are left out and stand in
    `Trace.skipped`. `throughputs` matter only for deadlines in Gavel's traces, which are multiples of a duration.
    """
    return load_trace(path, format, skip_bad, _speeds(throughputs))


def generate(name: str = "plain", **changes: Any) -> GeneratedJobs:
    """A workload to draw jobs from: a preset with some settings changed. Every seed gives other jobs.

    Presets are plain, themis, tiresias, gavel and gavel-single; settings are those of
    `horae.workload.generator.Workload`, such as `jobs=500, load=0.9`. For the jobs themselves:
    `horae.generate("plain").jobs(horae.cluster("8x4"), seed=1)`.
    """
    return GeneratedJobs(preset(name, **changes))


def choice_of(policy: PolicyLike, settings: Mapping[str, object] | None = None) -> PolicyChoice:
    """A policy with its settings as text, made once to see whether it can be."""
    own: dict[str, object] = dict(settings or {})
    named: Any = policy
    if isinstance(policy, tuple):
        named, own = policy[0], {**dict(policy[1]), **own}
    named = load_policy(named) if isinstance(named, str) else named
    chosen = PolicyChoice(named, {key: text_of(value) for key, value in own.items()})
    chosen.make()
    return chosen


def warn_of_ignored_speeds(found: Sequence[tuple[str, IgnoredSpeeds | None]]) -> None:
    """Warn whoever called the API of policies that ignore that jobs are not equally fast on all GPU types."""
    if sentence := ignored_speeds_in_words(found):
        warnings.warn(sentence, PolicyWarning, stacklevel=3)


def _changed(base: Scenario, policy: PolicyLike | None, conditions: Conditions) -> Scenario:
    """A scenario in which some things are others."""
    changes: dict[str, Any] = dict(conditions)
    if policy is not None or "settings" in changes:
        chosen = choice_of(base.policy if policy is None else policy, changes.pop("settings", None))
        changes |= {"policy": chosen.policy, "settings": chosen.settings}
    readers: dict[str, Any] = {
        "cluster": cluster,
        "throughputs": _speeds,
        "truth": _speeds,
        "queues": _queues,
        "faults": _faults,
    }
    for name, read in readers.items():
        if name in changes:
            changes[name] = read(changes[name])
    return replace(base, **changes)


def _jobs(workload: WorkloadLike) -> Sequence[JobSpec] | JobSource:
    if isinstance(workload, Trace):
        return workload.jobs
    if isinstance(workload, JobSource):
        return workload
    if isinstance(workload, str | Path) or not isinstance(workload, Iterable):
        raise UserError(
            f"{workload!r} is no workload: give horae.read_trace(...), horae.generate(...) or a list of jobs."
        )
    jobs = tuple(workload)
    strange = next((job for job in jobs if not isinstance(job, JobSpec)), None)
    if strange is not None:
        raise UserError(f"{strange!r} is no job: a list of jobs holds horae.JobSpec objects.")
    return jobs


def _speeds(value: str | Path | Throughputs | None) -> Throughputs | None:
    return load_throughputs(value) if isinstance(value, str | Path) else value


def _queues(value: str | Path | Iterable[Queue] | None, spec: str | Cluster = "") -> tuple[Queue, ...]:
    """Queues of a file, as they are, or those that the cluster's own file holds."""
    if value is None:
        return cluster_queues(spec) if isinstance(spec, str) and spec else ()
    return load_queues(value) if isinstance(value, str | Path) else tuple(value)


def _faults(value: Faults | Mapping[str, float] | None) -> Faults | None:
    if value is None or isinstance(value, Faults):
        return value
    try:
        return Faults(**value)
    except TypeError as error:
        raise UserError(f"These are no faults ({error}): see horae.Faults.") from None
