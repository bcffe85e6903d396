"""Checks a site's settings for what would surprise Horae, and says it in sentences. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

#: Seconds for which Slurm should know an ended job, so that no look misses it.
_LEAST_JOB_AGE_S = 30
_NO_LIMIT = ("", "0", "UNLIMITED", "INFINITE", "NONE", "N/A", "ALL", "(null)")


@dataclass(frozen=True, slots=True)
class SiteReport:
    """What was found: errors keep jobs from running, warnings are worth knowing."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_site(
    name: str, config: Mapping[str, str], partition: Mapping[str, str], user: str, groups: Collection[str]
) -> SiteReport:
    """Check the settings of a cluster and of the partition `name` for a service that runs as `user`."""
    if not partition:
        return SiteReport((f"Slurm has no partition {name!r}. `sinfo -s` lists them.",))
    errors = (
        *_closed(name, partition),
        *_rights(name, config, partition, user, groups),
        *_whole_nodes(config, partition),
    )
    warnings = (
        *_limits(name, partition),
        *_requeue(config),
        *_memory(config, partition),
        *_strangers(config, partition),
    )
    return SiteReport(errors, (*warnings, *_isolation(config)))


def _closed(name: str, partition: Mapping[str, str]) -> Iterator[str]:
    state = partition.get("State", "UP")
    if state != "UP":
        yield f"Partition {name} is {state}: Slurm starts no jobs there. `scontrol update` can open it."


def _rights(
    name: str, config: Mapping[str, str], partition: Mapping[str, str], user: str, groups: Collection[str]
) -> Iterator[str]:
    if partition.get("RootOnly") == "YES" and user != "root":
        yield f"Only root may submit to partition {name}, and the service runs as {user}."
    if "YES" in (partition.get("DisableRootJobs"), config.get("DisableRootJobs", "").upper()) and user == "root":
        yield f"Partition {name} takes no jobs of root: run the service as another user."
    allowed = partition.get("AllowGroups", "ALL")
    if allowed not in _NO_LIMIT and user != "root" and not {*allowed.split(",")} & {*groups}:
        yield f"Partition {name} is for the groups {allowed}, and {user} is in none of them."


def _whole_nodes(config: Mapping[str, str], partition: Mapping[str, str]) -> Iterator[str]:
    if "gpu" not in config.get("GresTypes", "gpu").split(","):
        yield "Slurm does not manage GPUs here: GresTypes in slurm.conf must name gpu."
    if config.get("SelectType", "") == "select/linear":
        yield "Slurm gives whole nodes only (SelectType=select/linear): GPUs beside a small job would stay idle."
    if partition.get("OverSubscribe", "").startswith("EXCLUSIVE"):
        yield "The partition gives whole nodes only (OverSubscribe=EXCLUSIVE): GPUs beside a small job would stay idle."


def _limits(name: str, partition: Mapping[str, str]) -> Iterator[str]:
    if (limit := partition.get("MaxTime", "")) not in _NO_LIMIT:
        yield (
            f"Partition {name} ends every job after {limit} (MaxTime). An attempt that reaches it is stopped and "
            "runs again from its checkpoint."
        )
    if (limit := partition.get("MaxNodes", "")) not in _NO_LIMIT:
        yield f"Partition {name} gives a job at most {limit} nodes (MaxNodes): larger gangs are refused."
    if (limit := partition.get("MaxCPUsPerNode", "")) not in _NO_LIMIT:
        yield f"Partition {name} gives a job at most {limit} CPUs on a node (MaxCPUsPerNode)."
    for key in ("AllowAccounts", "AllowQos"):
        if (names := partition.get(key, "ALL")) not in _NO_LIMIT:
            yield f"Partition {name} takes only {key}={names}: name one of them with the service."


def _requeue(config: Mapping[str, str]) -> Iterator[str]:
    for key in ("RequeueExit", "RequeueExitHold"):
        if codes := config.get(key, ""):
            yield f"Slurm runs jobs again that exit with {codes} ({key}). {_effect(codes)}"
    if (plugins := config.get("JobSubmitPlugins", "")) not in _NO_LIMIT:
        yield f"The site may change jobs when they are submitted (JobSubmitPlugins={plugins})."


def _effect(codes: str) -> str:
    """What it means that Horae's batch scripts always exit with 0."""
    if any(part.split("-")[0].strip() == "0" for part in codes.split(",")):
        return "That includes 0, the exit code of every batch script of Horae: remove 0 there."
    return "Batch scripts of Horae exit with 0, so that attempts are not affected."


def _memory(config: Mapping[str, str], partition: Mapping[str, str]) -> Iterator[str]:
    counted = f"{config.get('SelectTypeParameters', '')},{partition.get('SelectTypeParameters', '')}".upper()
    if "MEMORY" not in counted:
        yield "Slurm does not count memory (SelectTypeParameters): jobs on a node can use up each other's."
    for key in ("MaxMemPerNode", "MaxMemPerCPU"):
        limit = partition.get(key, config.get(key, ""))
        if limit not in _NO_LIMIT:
            yield f"Jobs may use at most {limit} MB ({key}): ask for less per GPU if Slurm refuses them."


def _strangers(config: Mapping[str, str], partition: Mapping[str, str]) -> Iterator[str]:
    mode = partition.get("PreemptMode", config.get("PreemptMode", "OFF"))
    if config.get("PreemptType", "preempt/none") != "preempt/none" and mode != "OFF":
        yield f"Other jobs may preempt those of this partition ({config['PreemptType']}, PreemptMode={mode})."
    if "jobs" in config.get("PrivateData", "").split(","):
        yield "Jobs of others cannot be seen (PrivateData=jobs): nodes that they use look free."
    if (age := _seconds(config.get("MinJobAge", ""))) is not None and age < _LEAST_JOB_AGE_S:
        yield f"Slurm forgets ended jobs after {age} s (MinJobAge): {_LEAST_JOB_AGE_S} s or more are better."
    if wait := _seconds(config.get("CompleteWait", "")):
        yield f"Slurm may wait {wait} s after a job before it starts the next (CompleteWait)."


def _isolation(config: Mapping[str, str]) -> Iterator[str]:
    if config.get("ProctrackType", "proctrack/cgroup") != "proctrack/cgroup":
        yield f"Processes that leave their session may outlive their job (ProctrackType={config['ProctrackType']})."
    if config.get("ConstrainDevices", "no") != "yes":
        yield "A job can use GPUs of others if it ignores CUDA_VISIBLE_DEVICES (ConstrainDevices is not set)."


def _seconds(value: str) -> int | None:
    match = re.match(r"(\d+)", value)
    return int(match[1]) if match else None
