"""`horae share`: entitlement and usage of each queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horae.cli.live.rendering import UrlOption, answer, visible
from horae.cli.live.share_bars import bar
from horae.cli.options import OutputOption
from horae.cli.output import Output, filled, is_wide
from horae.client.service_client import records_of, service

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Terminal width that has space for bars.
_WIDE = 110
_COLUMNS = ("queue", "weight", "quota", "running", "waiting", "entitled", "used", "share", "normalised", "used of all")


def command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the queue tree: the GPUs each queue is entitled to now, and the GPUs it uses.

    A queue is entitled to GPUs by its weight among its siblings that have running or waiting jobs, within its quota.
    Normalised shares count a GPU by its speed relative to the fastest type, so that a slow GPU counts less than a fast
    one. In the bars, the vertical line is the entitlement.
    """
    with service(url) as client:
        response = client.get("/v1/share")
    records = records_of(response, "queues")
    answer(output, response, records, lambda: _tree(records))


def _tree(records: list[dict[str, Any]]) -> list[RenderableType]:
    """Queues below their parents, siblings by name."""
    ordered = sorted(records, key=lambda record: _parts(record))
    return [filled(_COLUMNS, [_row(record) for record in ordered])]


def _parts(record: Mapping[str, Any]) -> list[str]:
    path = str(record.get("queue", ""))
    return [] if path == "(all)" else path.split("/")


def _row(record: Mapping[str, Any]) -> tuple[object, ...]:
    parts = _parts(record)
    name = f"{'  ' * len(parts)}{parts[-1]}" if parts else "(all)"
    entitled, used = _number(record, "entitled_share"), _number(record, "used_share")
    return (
        visible(name),
        f"{_number(record, 'weight'):g}",
        _quota(record),
        f"{record.get('running', 0)}",
        f"{record.get('waiting', 0)}",
        f"{_number(record, 'entitled_gpus'):.1f}",
        f"{_number(record, 'used_gpus'):g}",
        f"{100 * used:.0f}%",
        f"{100 * _number(record, 'used_share_normalised'):.0f}%",
        bar(used, 20, mark=entitled) if is_wide(_WIDE) else "",
    )


def _number(record: Mapping[str, Any], key: str) -> float:
    return float(record.get(key) or 0)


def _quota(record: Mapping[str, Any]) -> str:
    """Guaranteed GPUs and most GPUs of a queue, as text."""
    least, most = record.get("gpus_min") or 0, record.get("gpus_max")
    if most is None:
        return f"{least} or more" if least else ""
    return f"{least} to {most}"
