"""What a Slurm job asks for, as a job file of Horae. Pure functions.

Options that Slurm does not have come in the comment: `sbatch --comment 'horae: queue=vision steps=90000'`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from horae.backends.slurm.command_output import read_gres
from horae.backends.slurm.queue_listing import read_duration
from horae.core.durations import seconds_of
from horae.core.errors import UserError, did_you_mean

#: Text in the admin comment of jobs that the plugin holds.
HELD_BY_PLUGIN = "horae: held by job_submit.lua"
#: Estimate for a job without a time limit, and the longest time limit that says how long a job takes, in seconds.
_DEFAULT_S, _LONGEST_S = 3600.0, 30 * 86400.0
#: Where options of the comment are in a job file.
_OPTIONS = {
    "queue": ("queue",),
    "app": ("app",),
    "class": ("class",),
    "steps": ("estimate", "steps"),
    "duration": ("estimate", "duration"),
    "grace": ("checkpoint", "grace"),
    "min_runtime": ("min_runtime",),
    "deadline": ("deadline",),
    "preemptible": ("preemptible",),
}
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")


class BadRequest(UserError):
    """A Slurm job that Horae cannot order, in a sentence for its user."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job asks for, and how Slurm will lay it out."""

    document: Mapping[str, Any]
    nodes: int
    gpus_per_node: int
    #: Estimated seconds of the whole job.
    duration_s: float


def read_request(slurm_id: str, details: Mapping[str, str]) -> JobRequest:
    """The request of a job from its details."""
    nodes = int(re.match(r"\d*", details.get("NumNodes", "1"))[0] or 1)  # type: ignore[index]
    gpu_type, per_node = _gpus(details, nodes)
    limit_s = read_duration(details.get("TimeLimit", ""))
    document: dict[str, Any] = {
        "name": _name(details.get("JobName", ""), slurm_id),
        "run": ["sbatch", f"Slurm job {slurm_id}"],
        "resources": {"gpus": f"{gpu_type}:{per_node * nodes}" if gpu_type else per_node * nodes},
        "estimate": {"duration": limit_s if limit_s and limit_s <= _LONGEST_S else _DEFAULT_S},
    }
    if account := details.get("Account"):
        document["queue"] = account
    if details.get("Requeue") == "0":
        document["preemptible"] = False
    for name, value in read_options(details.get("Comment", "")).items():
        _place(document, _OPTIONS[name], value)
    return JobRequest(document, nodes, per_node, _duration_s(document))


def _gpus(details: Mapping[str, str], nodes: int) -> tuple[str, int]:
    """GPU type, empty for any, and GPUs on each node."""
    by_node, by_job = read_gres(details.get("TresPerNode", "")), read_gres(details.get("TresPerJob", ""))
    asked = by_node or by_job
    if len(asked) != 1:
        raise BadRequest("Horae orders jobs that ask for GPUs of one type: use --gres=gpu:2 or --gres=gpu:v100:2.")
    (gpu_type, count), *_ = asked.items()
    if not by_node and count % nodes:
        raise BadRequest(f"{count} GPUs cannot be divided among {nodes} nodes: ask for GPUs by node, --gres=gpu:2.")
    return gpu_type, count if by_node else count // nodes


def _name(name: str, slurm_id: str) -> str:
    """A name for the job that has its Slurm id in it: `train.17`."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")
    return f"{plain[: 38 - len(slurm_id)].rstrip('-_') or 'job'}.{slurm_id}"


def read_options(comment: str) -> dict[str, Any]:
    """Options of a comment that begins with `horae:`; other comments have none."""
    word, colon, rest = comment.strip().partition(":")
    if word.strip().lower() != "horae" or not colon:
        return {}
    options: dict[str, Any] = {}
    for part in re.split(r"[\s,]+", rest.strip()):
        name, equals, value = part.partition("=")
        if part and (not equals or not value or name not in _OPTIONS):
            hint = did_you_mean(name, _OPTIONS)
            raise BadRequest(
                f"{part!r} in the comment is not understood.{hint} Write options such as horae: {_EXAMPLE}."
            )
        if part:
            options[name] = _value(name, value)
    return options


_EXAMPLE = "queue=vision steps=90000"


def _value(name: str, value: str) -> Any:
    if name == "preemptible":
        if value.lower() not in (*_YES, *_NO):
            raise BadRequest(f"preemptible={value} in the comment is not understood: write yes or no.")
        return value.lower() in _YES
    if name == "steps":
        try:
            return float(value)
        except ValueError:
            raise BadRequest(f"steps={value} in the comment is no number.") from None
    return value


def _place(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *sections, key = path
    for section in sections:
        document = document.setdefault(section, {})
    document[key] = value


def _duration_s(document: Mapping[str, Any]) -> float:
    duration = document["estimate"]["duration"]
    try:
        return float(seconds_of(duration) if isinstance(duration, str) else duration) or _DEFAULT_S
    except ValueError:
        raise BadRequest(f"duration={duration} in the comment is no time: write 90m or 2h, for example.") from None
