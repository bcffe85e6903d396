"""`horae policies`: what there is to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from horae.cli.options import OutputOption
from horae.cli.output import Output, print_csv, print_json, print_rich, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from horae.policies import PolicyInfo

#: How a policy takes GPU types on which jobs are not equally fast.
_GPU_TYPES = {True: "by speed", False: "as alike", None: "-"}


def command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One policy, in full.", show_default=False)] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the policies and placements, or describe one policy: objective, GPU types, parameters, paper."""
    from horae.placement import PLACEMENTS
    from horae.plugins.policies import load_all_policies, load_policy
    from horae.policies import POLICIES, describe

    if name is None:
        load_all_policies()
    chosen = [describe(known) for known in POLICIES] if name is None else [describe(load_policy(name))]
    match output:
        case Output.JSON:
            placements = [{"name": key, "summary": summary} for key, summary in PLACEMENTS.items()]
            records = [_record(info) for info in chosen]
            print_json({"policies": records, "placements": placements} if name is None else records[0])
        case Output.CSV:
            print_csv(_row(info) for info in chosen)
        case Output.TABLE if name is None:
            print_rich(*_overview(chosen, PLACEMENTS))
        case Output.TABLE:
            print_rich(*_description(chosen[0]))


def _record(info: PolicyInfo) -> dict[str, object]:
    """A policy as JSON shows it."""
    return {
        "name": info.name,
        "summary": info.summary,
        "objective": info.objective,
        "unit": info.unit,
        "paper": info.paper,
        "type_aware": info.type_aware,
        "parameters": [
            {"name": item.name, "default": item.default, "summary": item.summary} for item in info.parameters
        ],
    }


def _row(info: PolicyInfo) -> dict[str, object]:
    """A policy as one line of CSV: parameters as `name=default`, with spaces between."""
    parameters = " ".join(f"{item.name}={item.default}" for item in info.parameters)
    return {**_record(info), "parameters": parameters}


def _overview(policies: Sequence[PolicyInfo], placements: dict[str, str]) -> list[RenderableType]:
    rows = [
        (
            info.name,
            info.summary,
            _goal(info),
            _GPU_TYPES[info.type_aware],
            ", ".join(f"{p.name}={p.default}" for p in info.parameters),
        )
        for info in policies
    ]
    return [
        table(("policy", "what it does", "objective (unit)", "GPU types", "parameters"), rows),
        table(("placement", "what it does"), list(placements.items())),
        "horae policies NAME tells more about one.",
    ]


def _goal(info: PolicyInfo) -> str:
    """What is to be best, and what it is counted in."""
    return f"{info.objective} ({info.unit})" if info.unit.strip("-") else info.objective


def _description(info: PolicyInfo) -> list[RenderableType]:
    facts = [("objective", _goal(info)), ("GPU types", _GPU_TYPES[info.type_aware]), ("paper", info.paper)]
    parts: list[RenderableType] = [f"{info.name}: {info.summary}"]
    parts.extend(f"{label}: {text}" for label, text in facts if text)
    if info.parameters:
        rows = [(item.name, item.default, item.summary) for item in info.parameters]
        parts.append(table(("parameter", "default", "what it does"), rows))
    return parts
