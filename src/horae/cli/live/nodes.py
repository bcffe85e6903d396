"""`horae nodes`: list nodes, take a node out of service and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.live.rendering import UrlOption, answer, next_steps, pass_down, visible
from horae.cli.live.share_bars import bar
from horae.cli.options import OutputOption
from horae.cli.output import Output, print_text, table
from horae.cli.usage_errors import PlainUsage
from horae.client.service_client import part, records_of, service
from horae.core.cluster import Cluster, Node
from horae.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(
    help="List the nodes; take a node out of service and back.", rich_markup_mode=None, invoke_without_command=True
)

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", show_default=False)]


#: Heading of each kind of room.
_ROOM_HEADINGS = {"cpus": "cpus", "memory_mb": "GiB"}


class NodesOutput(StrEnum):
    """The forms in which nodes are listed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    #: A cluster file, for `--cluster` of simulations.
    YAML = "yaml"


NodesOutputOption = Annotated[
    NodesOutput, typer.Option("-o", "--output", help="Form of the output; yaml is a cluster file for simulations.")
]


@app.callback()
def _default(ctx: typer.Context, url: UrlOption = None, output: NodesOutputOption = NodesOutput.TABLE) -> None:
    """List the nodes; take a node out of service and back."""
    pass_down(ctx, url, output)
    if ctx.invoked_subcommand is None:
        list_nodes(url, output)


@app.command("list", cls=PlainUsage)
def list_nodes(url: UrlOption = None, output: NodesOutputOption = NodesOutput.TABLE) -> None:
    """List the nodes: GPUs, how many are used, and by which jobs.

    With -o yaml, write them as a cluster file, which `horae simulate --cluster FILE` reads. Nodes that are down are
    left out.
    """
    with service(url) as client:
        response = client.get("/v1/nodes")
    records = records_of(response, "nodes")
    if output is NodesOutput.YAML:
        print_text(_cluster_file(records))
        return
    # In CSV, one column per job would make the columns unpredictable.
    named = [{**record, "jobs": list(record.get("jobs") or {})} for record in records]
    answer(Output(output.value), response, named, lambda: _overview(records, visible(response.get("trouble", ""))))


@app.command("drain", cls=PlainUsage)
def drain(
    node: NodeArgument,
    evict: Annotated[
        bool, typer.Option("--evict", help="Also stop the node's jobs; they run again elsewhere.")
    ] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Drain a node: start no new jobs on it."""
    with service(url) as client:
        response = client.post(f"/v1/nodes/{part(node)}/drain", {"evict": evict})
    record = {"node": node, "state": "draining", "evict": evict, **response}
    jobs = "its jobs are being stopped, and run elsewhere" if evict else "its jobs stay until they end"
    after = next_steps(("horae nodes", "what still runs there"), (f"horae nodes resume {node}", "bring it back"))
    answer(output, record, [record], lambda: [f"{visible(node)} takes no new jobs; {jobs}.", *after])


@app.command("lost", cls=PlainUsage)
def lost(
    node: NodeArgument,
    sure: Annotated[
        bool, typer.Option("--sure", help="You are sure: its power is off, or none of its processes is left.")
    ] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run the jobs of a dead node elsewhere at once, without waiting until it must be dead."""
    if not sure:
        raise UserError(
            f"If {node} still lives, its jobs would run twice. Cut its power, or look that none of its processes "
            f"is left; then run: horae nodes lost {node} --sure"
        )
    with service(url) as client:
        response = client.post(f"/v1/nodes/{part(node)}/lost", {"sure": True})
    record = {"node": node, "state": "draining", **response}
    after = next_steps(("horae nodes", "what still counts as running there"), (f"horae nodes resume {node}", "use it"))
    answer(output, record, [record], lambda: [f"The jobs of {visible(node)} have ended and run elsewhere.", *after])


@app.command("resume", cls=PlainUsage)
def resume(node: NodeArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Start jobs on a drained node again."""
    with service(url) as client:
        response = client.post(f"/v1/nodes/{part(node)}/resume")
    record = {"node": node, "state": "up", **response}
    closed = record["state"] == "draining"
    what = "stays closed, since the cluster itself keeps it closed" if closed else "takes jobs again"
    answer(output, record, [record], lambda: [f"{visible(node)} {what}."])


def _cluster_file(records: list[dict[str, Any]]) -> str:
    """The nodes as a cluster file."""
    from horae.workload.clusters import cluster_as_yaml

    down = [str(record["node"]) for record in records if record.get("state") == "down"]
    if len(down) == len(records):
        raise UserError("This service has no nodes that are up: look at `horae nodes`, and try again later.")
    nodes = [
        Node(
            str(record["node"]),
            str(record["gpu_type"]),
            int(record["gpus"]),
            str(record["rack"]),
            int(record.get("cpus") or 0),
            int(record.get("memory_mb") or 0),
        )
        for record in records
        if record.get("state") != "down"
    ]
    left_out = f"# Left out, since they are down: {', '.join(map(visible, down))}\n" if down else ""
    return left_out + cluster_as_yaml(Cluster(tuple(nodes)))


def _overview(records: list[dict[str, Any]], trouble: str) -> list[RenderableType]:
    used, gpus = (sum(int(record.get(key) or 0) for record in records) for key in ("used", "gpus"))
    room = [key for key in ("cpus", "memory_mb") if any(record.get(key) for record in records)]
    names = [_ROOM_HEADINGS[key] for key in room]
    return [
        table(
            ("node", "type", "state", "gpus", "used", "", *names, "jobs"), [_row(record, room) for record in records]
        ),
        f"{used:,} of {gpus:,} GPUs are used.",
        *_closed_lines(records),
        *([trouble] if trouble else []),
    ]


def _closed_lines(records: list[dict[str, Any]]) -> list[str]:
    """Why the cluster keeps nodes closed, once for each reason."""
    whys: dict[str, list[str]] = {}
    for record in records:
        if why := visible(record.get("why", "")):
            whys.setdefault(why, []).append(visible(record.get("node", "")))
    return [f"The cluster keeps {', '.join(nodes)} closed: {why}" for why, nodes in whys.items()]


def _room_cell(record: Mapping[str, Any], key: str) -> str:
    """CPUs, or GiB of memory, that jobs take and that there are; empty where they are not counted."""
    total, used = int(record.get(key) or 0), int(record.get(f"used_{key}") or 0)
    if not total:
        return ""
    return f"{used:,}/{total:,}" if key == "cpus" else f"{used / 1024:,.0f}/{total / 1024:,.0f}"


def _row(record: Mapping[str, Any], room: Sequence[str]) -> tuple[object, ...]:
    used, gpus = int(record.get("used") or 0), int(record.get("gpus") or 0)
    jobs = record.get("jobs") or {}
    return (
        visible(record.get("node", "")),
        visible(record.get("gpu_type", "")),
        visible(record.get("state", "")),
        gpus,
        used,
        bar(used / gpus if gpus else 0, 8),
        *(_room_cell(record, key) for key in room),
        visible(", ".join(f"{job} ({number})" for job, number in jobs.items())),
    )
