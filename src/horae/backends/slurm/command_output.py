"""Reads what Slurm's commands print: nodes, jobs, GPUs, racks, settings. Pure functions.

Only formats that were asked for field by field (`-o`) are read, and those of `scontrol show`, which have been the
same for many releases. `--json` is not used: its form changes with each release, and it ignores some options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from horae.backends.driver import EndCause, PieceEnded, PieceRunning, PieceState, PieceWaiting
from horae.backends.protocol import KILLED

#: `sinfo -N -o`: the reason may hold any character, so it comes last.
NODE_FORMAT = "%N|%T|%G|%c|%m|%f|%o|%E"
#: `squeue -o`: the name may hold any character, so it comes last.
#: %n: nodes asked for; %N: nodes given; %b: GPUs asked for on each node.
JOB_FORMAT = "%i|%u|%T|%r|%n|%N|%b|%j"

#: Characters after a node's state: not responding, power saving, reboot, planned, maintenance ...
_MARKS = "*~#!%$@^-+"
_NO_ANSWER = "*"
_LOST = {"down", "future"}
_OPEN = {"idle", "allocated", "mixed", "completing", "planned"}

_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_ENDED = {
    "COMPLETED": EndCause.EXITED,
    "FAILED": EndCause.FAILED,
    "OUT_OF_MEMORY": EndCause.FAILED,
    "CANCELLED": EndCause.CANCELLED,
    "BOOT_FAIL": EndCause.STOPPED,
    "DEADLINE": EndCause.STOPPED,
    "NODE_FAIL": EndCause.STOPPED,
    "PREEMPTED": EndCause.STOPPED,
    "REVOKED": EndCause.STOPPED,
    "TIMEOUT": EndCause.STOPPED,
}
#: Multipliers in counts of GRES.
_UNITS = {"": 1, "K": 1024, "M": 1024**2}
#: A feature such as `a100`, `rtx3090`, `h100_80gb` or `nvidia_l40s`: the type of GPUs that are declared without one.
_GPU_FEATURE = re.compile(r"(nvidia_|amd_|tesla_|geforce_)?(rtx_?|gtx_?|mi|gh|gb|[abhklptv])\d+\w*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SlurmHost:
    """One line of `sinfo`."""

    name: str
    address: str
    #: GPU count by GRES type; the type is empty if Slurm knows none.
    gpus: dict[str, int]
    cpus: int
    memory_mb: int
    features: tuple[str, ...]
    is_open: bool
    is_lost: bool
    why: str

    @property
    def answers(self) -> bool:
        """Whether the daemon on the host answers, whether or not the host takes jobs."""
        return not self.is_lost and _NO_ANSWER not in self.why.partition(":")[0]


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One line of `squeue`."""

    id: str
    user: str
    name: str
    state: PieceState
    #: Hosts that the job has or asked for by name.
    hosts: tuple[str, ...]
    #: GRES type that the job asked for; empty for GPUs of any type.
    gpu_type: str


def read_hosts(text: str) -> dict[str, SlurmHost]:
    """Hosts by name, from `sinfo -N`, which lists a host once for each of its partitions."""
    hosts = (_read_host(line) for line in text.splitlines() if line.count("|") >= NODE_FORMAT.count("|"))
    return {host.name: host for host in hosts}


def _read_host(line: str) -> SlurmHost:
    name, state, gres, cpus, memory, features, address, reason = line.split("|", NODE_FORMAT.count("|"))
    is_open, is_lost = read_node_state(state)
    given = "" if reason.strip() in ("none", "(null)") else reason.strip()
    return SlurmHost(
        name=name,
        address=address,
        gpus=read_gres(gres),
        cpus=_number(cpus),
        memory_mb=_number(memory),
        features=() if features == "(null)" else tuple(features.split(",")),
        is_open=is_open,
        is_lost=is_lost,
        why="" if is_open else ": ".join(filter(None, (state, given))),
    )


def read_node_state(state: str) -> tuple[bool, bool]:
    """Whether a node takes jobs, and whether Slurm has given it up.

    A node that does not answer (`idle*`) takes no jobs, but is not lost: Slurm gives it up (`down*`) after
    SlurmdTimeout.
    """
    # `+` is a mark at the end (`allocated+`: a job is completing there), else it joins words (`IDLE+DRAIN`).
    words = {word.rstrip(_MARKS) for word in state.lower().rstrip(_MARKS).split("+")}
    is_lost = bool(words & _LOST)
    return words <= _OPEN and _NO_ANSWER not in state, is_lost


def read_gres(text: str) -> dict[str, int]:
    """GPU count by type from `gpu:a100:8(S:0-1)`, `gpu:4`, `gres/gpu:v100:2` or a list of those."""
    counts: dict[str, int] = {}
    for entry in _split_outside(text.strip(), "()"):
        name, *rest = re.sub(r"\(.*", "", re.sub(r"^gres[:/]", "", entry)).split(":")
        words = [word for word in rest if word != "no_consume"]
        number = re.fullmatch(r"(\d+)([KM]?)", words[-1]) if words else None
        gpu_type = ":".join(words[:-1] if number else words)
        if name == "gpu":
            counts[gpu_type] = counts.get(gpu_type, 0) + (int(number[1]) * _UNITS[number[2]] if number else 1)
    return {gpu_type: count for gpu_type, count in counts.items() if count}


def gpu_type_of(features: tuple[str, ...]) -> str:
    """The GPU type of a host that declares its GPUs without one: a feature that looks like a GPU, else `gpu`."""
    return next((feature for feature in features if _GPU_FEATURE.fullmatch(feature)), "gpu")


def read_jobs(text: str) -> list[SlurmJob]:
    """Jobs from `squeue`. Lines that do not fit, such as the rest of a name with a line break, are left out."""
    return [_read_job(line) for line in text.splitlines() if line.count("|") >= JOB_FORMAT.count("|")]


def _read_job(line: str) -> SlurmJob:
    number, user, state, reason, wanted, given, gres, name = line.split("|", JOB_FORMAT.count("|"))
    # While a job completes, %N leaves out the hosts that have completed.
    hosts = tuple(dict.fromkeys(read_node_list(wanted) + read_node_list(given)))
    return SlurmJob(number, user, name, read_job_state(state, reason), hosts, next(iter(read_gres(gres)), ""))


def read_job_state(state: str, reason: str) -> PieceState:
    """The state of a piece. States that are new here count as running: nothing is concluded from them."""
    why = ": ".join(word for word in (state, reason) if word not in ("None", "(null)", ""))
    if state in _WAITING:
        return PieceWaiting(why)
    if state not in _ENDED:
        return PieceRunning()
    message = "" if state == "COMPLETED" else f"Slurm says: {why}"
    return PieceEnded(KILLED if state == "OUT_OF_MEMORY" else None, _ENDED[state], message)


def read_node_list(text: str) -> list[str]:
    """Names in a list of Slurm, such as `p1,v[1-2,05-06]`."""
    if text in ("", "(null)", "None", "N/A"):
        return []
    return [name for entry in _split_outside(text, "[]") for name in _expand(entry)]


def _expand(entry: str) -> Iterator[str]:
    """The names of `a[1-2]b[3,5]`, brackets from left to right."""
    match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", entry)
    if not match:
        yield entry
        return
    for numbers in match[2].split(","):
        first, _, last = numbers.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from _expand(f"{match[1]}{number:0{len(first)}d}{match[3]}")


def read_racks(text: str) -> dict[str, str]:
    """The rack of each host from `scontrol show topology`: its lowest switch, or its block."""
    racks = {}
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        rack = words.get("BlockName") or (words.get("SwitchName") if words.get("Level") == "0" else None)
        if rack:
            racks.update(dict.fromkeys(read_node_list(words.get("Nodes", "")), rack))
    return racks


def read_config(text: str) -> dict[str, str]:
    """Settings from `scontrol show config`: one `Key = value` in each line."""
    pairs = (line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    return {key.strip(): "" if value.strip() == "(null)" else value.strip() for key, value in pairs}


def read_partition(text: str) -> dict[str, str]:
    """Settings from `scontrol show partition`: `Key=value`, several in each line."""
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def controller_is_up(text: str) -> bool:
    """Whether `scontrol ping` found a controller, the first or a backup."""
    return any(line.endswith(" is UP") for line in text.splitlines())


def _split_outside(text: str, brackets: str) -> list[str]:
    """The parts between commas that are not in brackets."""
    opening, closing = map(re.escape, brackets)
    pattern = rf"(?:[^,{opening}]|{opening}[^{closing}]*{closing})+"
    return re.findall(pattern, text)


def _number(text: str) -> int:
    """A whole number; Slurm puts `+` after the smallest of several."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0
