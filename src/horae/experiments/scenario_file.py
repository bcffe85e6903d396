"""Scenarios as files: YAML or JSON, by the ending of the name. Stored: keys are added, never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from horae.core.cluster import Cluster, Node, Span
from horae.core.errors import UserError, in_plain_words
from horae.core.job import JobSpec
from horae.core.queues import Queue
from horae.core.throughputs import Origin, Setting, Throughputs
from horae.plugins.places import place_of
from horae.plugins.policies import load_policy
from horae.policies import POLICIES
from horae.policies.outside import is_built_in
from horae.simulator.faults import Faults
from horae.simulator.scenario import JobSource, PolicyChoice, Scenario
from horae.workload.generated_jobs import GeneratedJobs
from horae.workload.generator import Workload
from horae.workload.job_durations import DURATIONS
from horae.workload.model_mixes import MIXES

#: What tells a scenario from any other file, and the version of its form.
_MARK, _VERSION = "horae_scenario", 1
_JOBS, _NODES = TypeAdapter(tuple[JobSpec, ...]), TypeAdapter(tuple[Node, ...])
_QUEUES, _FAULTS = TypeAdapter(tuple[Queue, ...]), TypeAdapter(Faults)
#: Keys that stand in the file as they are in the scenario.
_PLAIN = ("placement", "restart_cost_s", "seed", "until")
#: Parts of a workload that are objects, by the name of their class.
_PARTS = {type(part).__name__: type(part) for part in (*DURATIONS.values(), *MIXES.values())}


class BadScenario(UserError):
    """A scenario that cannot be written, or a file that holds none."""


def write_scenario(path: str | Path, scenario: Scenario) -> None:
    """Write a scenario to a file. A policy that only this program has cannot be written."""
    path = Path(path)
    document = {_MARK: _VERSION, **_as_dict(scenario)}
    if path.suffix in (".yaml", ".yml"):
        import yaml

        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    else:
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


def read_scenario(path: str | Path) -> Scenario:
    """Read a scenario that `write_scenario` wrote; a policy from a file or module is loaded."""
    path = Path(path)
    document = _load(path)
    try:
        return _from_dict(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadScenario(f"{path}: {where}: {in_plain_words(first['msg'])}; correct it.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise BadScenario(f"{path} is no whole scenario ({type(error).__name__}: {error}); write it again.") from None


def _load(path: Path) -> dict[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        document = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except OSError as error:
        raise BadScenario(f"The scenario {path} cannot be read ({error.strerror}); check the path.") from None
    except (ValueError, yaml.YAMLError) as error:
        raise BadScenario(f"{path} is neither YAML nor JSON ({' '.join(str(error).split())}).") from None
    if not isinstance(document, dict) or document.get(_MARK) != _VERSION:
        raise BadScenario(f"{path} holds no scenario of this version: it must begin with {_MARK}: {_VERSION}.")
    return document


def _as_dict(scenario: Scenario) -> dict[str, Any]:
    if scenario.node_changes:
        raise BadScenario("The scenario cannot be written: its nodes come and go; write it without node_changes.")
    policy, settings = _policy(scenario.choice)
    return {
        "policy": policy,
        "settings": settings,
        **{key: getattr(scenario, key) for key in _PLAIN},
        "faults": scenario.faults and asdict(scenario.faults),
        "queues": _QUEUES.dump_python(scenario.queues, mode="json"),
        "cluster": _NODES.dump_python(scenario.cluster.nodes, mode="json"),
        "throughputs": _table(scenario.throughputs),
        "truth": _table(scenario.truth),
        "workload": _workload(scenario.workload),
    }


def _from_dict(document: Mapping[str, Any]) -> Scenario:
    return Scenario(
        workload=_jobs(document["workload"]),
        cluster=Cluster(_NODES.validate_python(document["cluster"])),
        policy=load_policy(str(document["policy"])),
        settings={str(key): str(value) for key, value in document["settings"].items()},
        throughputs=_throughputs(document["throughputs"]),
        truth=_throughputs(document["truth"]),
        queues=_QUEUES.validate_python(document["queues"]),
        faults=None if document["faults"] is None else _FAULTS.validate_python(document["faults"]),
        **{key: document[key] for key in _PLAIN},
    )


def _policy(choice: PolicyChoice) -> tuple[str, dict[str, str]]:
    """The name and the settings by which the policy can be made again."""
    name = choice.name
    if not is_built_in(POLICIES.get(name)) and place_of(name) is None:
        raise BadScenario(
            f"The scenario cannot be written: its policy {name!r} is known to this program only; put the class into a "
            f"file and name it by its place, such as ./mine.py:{name}."
        )
    return name, choice.shown_settings


def _workload(workload: Sequence[JobSpec] | JobSource) -> dict[str, Any]:
    if isinstance(workload, GeneratedJobs):
        return {"generate": {field.name: _value(getattr(workload.workload, field.name)) for field in fields(Workload)}}
    if isinstance(workload, JobSource):
        raise BadScenario(
            f"The scenario cannot be written: its jobs are drawn by {type(workload).__name__}; give them as a list."
        )
    return {"jobs": _JOBS.dump_python(tuple(workload), mode="json", exclude_defaults=True)}


def _jobs(document: Mapping[str, Any]) -> Sequence[JobSpec] | JobSource:
    if "jobs" in document:
        return _JOBS.validate_python(document["jobs"])
    return GeneratedJobs(Workload(**{key: _object(value) for key, value in document["generate"].items()}))


def _value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, **asdict(value)}
    return value


def _object(value: Any) -> Any:
    """A value of a workload: lists are tuples there."""
    if isinstance(value, dict):
        named = {key: _object(inner) for key, inner in value.items() if key != "class"}
        return _PARTS[value["class"]](**named)
    return tuple(_object(inner) for inner in value) if isinstance(value, list) else value


def _table(table: Throughputs | None) -> list[list[Any]] | None:
    if table is None:
        return None
    return [
        [key.job_class, key.gpu_type, key.gpus, int(key.span), key.neighbour, speed.steps_per_s, speed.origin.value]
        for key, speed in table.settings()
    ]


def _throughputs(rows: Sequence[Sequence[Any]] | None) -> Throughputs | None:
    if rows is None:
        return None
    table = Throughputs()
    for job_class, gpu_type, gpus, span, neighbour, steps_per_s, origin in rows:
        table.put(Setting(job_class, gpu_type, gpus, Span(span), neighbour), steps_per_s, Origin(origin))
    return table
