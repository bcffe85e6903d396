"""Renders docs/benchmarks.md and its pictures from `benchmarks/results.json`: `python -m benchmarks.page`.

The prose here has no measured number: tables and notes bring them, each with the commit it was measured at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.arbiter import draw_arbiter
from benchmarks.auction import draw_auctions
from benchmarks.machine import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
_IMAGES = PAGE.parent / "images"

_TOP = """\
# Benchmarks

How fast Horae is, on what, and how to measure it again. This page is rendered from `benchmarks/results.json` by
`make docs`; `make bench` measures and writes that file. CPU seconds are what the system charges the whole process,
children, imports and compilation included, unless a table says otherwise.

## How to repeat them
```sh
make bench                                      # every part, into benchmarks/results.json
.venv/bin/python -m benchmarks --quick          # shorter traces; writes nothing
.venv/bin/python -m benchmarks --only limits    # one part, printed
.venv/bin/python -m benchmarks --only limits --write
.venv/bin/python -m benchmarks -o json          # for programs
```
The exit code is 1 if a limit is missed. Traces are found in the folder that `HORAE_DATA` names or in `../shared/data`.
A part whose data is absent is left out, or run on generated jobs whose results are not kept.

`make test` ends with a gate that compares short workloads with references in the same process and fails when one has
become slower than recorded: `benchmarks/gate`, `python -m benchmarks.gate --help`.
"""

#: Heading and introduction of each part, in the order of the page.
SECTIONS: dict[str, tuple[str, str]] = {
    "start": ("Start", "A simulation of ten jobs: what a process costs before it does any work."),
    "commands": ("Commands", "Commands as somebody types them."),
    "limits": (
        "The whole Philly trace",
        (
            "Microsoft's Philly trace with `--placement anywhere --restart-cost 0`. Each line is a `horae simulate` "
            "in a process of its own."
        ),
    ),
    "scale": (
        "Large clusters",
        "Generated jobs on clusters where hardly any job waits: the cost of a decision lies in what changed.",
    ),
    "lengths": (
        "Cost against length",
        "The first jobs of the Philly trace, and all. A job costs mostly what its launches and reports cost.",
    ),
    "variants": (
        "Other placements and clusters",
        "The whole Philly trace where nodes matter, and on eight GPU types.",
    ),
    "naive": (
        "A naive loop",
        (
            "`benchmarks/naive.py` is a scheduler of objects, lists and a sort at every event. Every run checks that "
            "it gives every job the same start and end as Horae. Both are timed in one process, scheduling alone."
        ),
    ),
    "decisions": (
        "One decision",
        "Full GPUs and a queue: a job ends, another comes, the engine decides.",
    ),
    "snapshots": (
        "What a snapshot costs",
        (
            "Ways to show a policy the active jobs, spread at random over the table of all jobs. Why rows never move "
            "is told in [Jobs as columns](design/columns.md)."
        ),
    ),
    "solver": (
        "Allocation problems",
        "Gavel's programs, against plain programs with a row for each job that the same HiGHS solves.",
    ),
    "max-min": ("Gavel's trace", "Gavel's recorded trace under `max-min`."),
    "rates": ("Gavel's continuous experiment", "`horae sweep` with jobs that come at a constant rate."),
    "auctions": ("Auctions alone", "Made-up bids, for any machines of a rack or for machines by name."),
    "arbiter": ("A decision of Themis", "All apps bid for all GPUs of an empty cluster."),
    "service": ("A service under load", "A real `horae serve` with virtual GPUs on loopback."),
    "recovery": ("Recovery", "How long a service takes to come back from its journal."),
    "agreement": (
        "Live and simulated",
        "The same jobs on a live service and in a simulation; see [Live runs](design/live.md).",
    ),
}

#: Pictures that are drawn from the rows of a part.
PICTURES: dict[str, tuple[str, str, Callable[..., None]]] = {
    "auctions": ("auction-scaling.png", "CPU time and memory of auctions against the number of apps", draw_auctions),
    "arbiter": (
        "decision-scaling.png",
        "CPU time and memory of agents, arbiter and whole decision against the number of apps",
        draw_arbiter,
    ),
}


def render(measured: Mapping[str, results.Result]) -> str:
    """The page, with a section for every part that was measured."""
    sections = [_section(name, measured[name]) for name in SECTIONS if name in measured]
    return "\n".join([_TOP, *sections, _sources(measured)])


def _section(name: str, result: results.Result) -> str:
    heading, introduction = SECTIONS[name]
    lines = [
        f"## {heading}",
        introduction,
        "",
        *markdown_table(result["rows"]),
        "",
        *(f"- {note}" for note in result["notes"]),
    ]
    lines += [f"- **Missed:** {miss}" for miss in result["missed"]]
    if name in PICTURES:
        file, text, _ = PICTURES[name]
        lines += ["", f"![{text}](images/{file})"]
    return "\n".join(lines) + "\n"


def markdown_table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as a Markdown table; columns are named as in the results."""
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    return [_line(columns), "|" + "---|" * len(columns), *map(_line, cells)]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f"{value:,}"
    return "" if value == "-" else str(value).replace("|", "\\|")


def _sources(measured: Mapping[str, results.Result]) -> str:
    """Where and when each part was measured."""
    rows = [
        {
            "part": name,
            "commit": f"`{result['commit'][:12]}`",
            "date": result["date"],
            "machine": f"{result['cpu']}, {result['cores']} cores, Python {result['python']}",
            "load before": result["load_before"],
            "load after": result["load_after"],
        }
        for name, result in ((name, measured[name]) for name in SECTIONS if name in measured)
    ]
    text = "Load is the number of processes that wanted a core in the minute before, on average."
    return (
        "\n".join(["## Measured at", text, "", *(markdown_table(rows) if rows else ["Nothing has been measured."])])
        + "\n"
    )


def write(page: Path = PAGE, images: Path = _IMAGES) -> None:
    """Write the page and the pictures of the parts that were measured."""
    measured = results.load()
    page.write_text(render(measured), encoding="utf-8")
    for name, (file, _, draw) in PICTURES.items():
        if name in measured:
            draw(measured[name]["rows"], images / file)


if __name__ == "__main__":
    write()
