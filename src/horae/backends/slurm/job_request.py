"""What a Slurm job asks for, as a job file of Horae. Pure functions.

Options that Slurm does not have come in the comment: `sbatch --comment 'horae: queue=vision steps=90000'`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from horae.backends.adoption_options import DEFAULT_S, OPTIONS, BadRequest, duration_of, put_option, read_value
from horae.backends.slurm.command_output import read_gres
from horae.backends.slurm.queue_listing import read_duration
from horae.core.errors import did_you_mean

#: Text in the admin comment of jobs that the plugin holds.
HELD_BY_PLUGIN = "horae: held by job_submit.lua"
#: The longest time limit (s) that says how long a job takes.
_LONGEST_S = 30 * 86400.0


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
    nodes = _first_number(details.get("NumNodes", "1"))
    gpu_type, per_node = _gpus(details, nodes)
    limit_s = read_duration(details.get("TimeLimit", ""))
    document: dict[str, Any] = {
        "name": _name(details.get("JobName", ""), slurm_id),
        "run": ["sbatch", f"Slurm job {slurm_id}"],
        "resources": {"gpus": f"{gpu_type}:{per_node * nodes}" if gpu_type else per_node * nodes, "nodes": nodes},
        "estimate": {"duration": limit_s if limit_s and limit_s <= _LONGEST_S else DEFAULT_S},
    }
    if account := details.get("Account"):
        document["queue"] = account
    if details.get("Requeue") == "0":
        document["preemptible"] = False
    for name, value in read_options(details.get("Comment", "")).items():
        put_option(document, name, value)
    return JobRequest(document, nodes, per_node, duration_of(document, "the comment"))


def _gpus(details: Mapping[str, str], nodes: int) -> tuple[str, int]:
    """GPU type, empty for any, and GPUs on each node."""
    by_node, by_job = read_gres(details.get("TresPerNode", "")), read_gres(details.get("TresPerJob", ""))
    by_task = read_gres(details.get("TresPerTask", ""))
    asked = by_node or by_job or by_task
    if len(asked) != 1:
        raise BadRequest("Horae orders jobs that ask for GPUs of one type: use --gres=gpu:2 or --gres=gpu:v100:2.")
    (gpu_type, count), *_ = asked.items()
    if not by_node and not by_job:
        count *= _first_number(details.get("NumTasks", "1"))
    if not by_node and count % nodes:
        raise BadRequest(f"{count} GPUs cannot be divided among {nodes} nodes: ask for GPUs by node, --gres=gpu:2.")
    return gpu_type, count if by_node else count // nodes


def _first_number(text: str) -> int:
    """The number at the beginning of a text such as `2` or `2-4`; 1 if there is none."""
    digits = re.match(r"\d*", text)
    return int(digits[0]) if digits and digits[0] else 1


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
        if part and (not equals or not value or name not in OPTIONS):
            hint = did_you_mean(name, OPTIONS)
            raise BadRequest(
                f"{part!r} in the comment is not understood.{hint} Write options such as horae: {_EXAMPLE}."
            )
        if part:
            options[name] = read_value(name, value, "the comment")
    return options


_EXAMPLE = "queue=vision steps=90000"
