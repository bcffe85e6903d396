"""One self-contained HTML page about one run, or about several side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from horae.core.errors import UserError
from horae.core.history import History
from horae.report.audit.html_section import render_verdicts
from horae.report.audit.verdict import Verdict
from horae.report.formatting import NOTHING, duration, number, percent
from horae.report.metrics.deadlines import names as given_up
from horae.report.metrics.measure import Report
from horae.report.pages.palette import is_dashed, line_colour
from horae.report.pages.timeline import choose_colours, draw_timeline
from horae.report.tables import MEASURES, ReportFigure, Row, comparison_rows, run_labels

Run = tuple[History, Report]

#: Pixels that the timelines of one page may use together, so that the page stays below 3 MB.
_TIMELINE_PIXELS = 1_400_000

#: What a comparison shows as bars, with the words that go above them.
_BARS = {
    "avg_jct_s": ("Average completion time", "from submission to the end of a job"),
    "p95_jct_s": ("Slowest jobs", "95 of 100 jobs were done within"),
    "queueing_delay_s.avg": ("Wait for the first start", "on average, from submission"),
    "rho.avg": ("Slowdown versus fair share", "average of all apps; 1× is exactly the fair share"),
    "rho.max": ("Worst slowdown", "the app that fared worst against its fair share"),
    "utilization": ("GPUs in use", "share of all GPU-time that jobs held"),
}

_WORDS = {
    "JCT": "Job completion time: from submission to the end of a job that finished, waiting included.",
    "Slowdown versus fair share (rho)": "Time an app took, over the time it would have taken alone on 1/N of the GPUs "
    "(at most as many as it can use), N being the average number of apps present during its life. "
    "At most 1× means that sharing cost it nothing.",
    "Slowdown versus isolated run": "A job's completion time over the one in an ideal run that gives each job present "
    "an equal part of every GPU type at every instant (isolated_rho).",
    "Jain's index": "1 when everybody is slowed down alike; 1/n when one of n bears it all.",
    "GPUs in use": "GPU-time that jobs held, over all GPU-time between the first submission and the last end. "
    "A GPU that two jobs share is in use once, and half of its time is counted for each.",
    "Preemption": "A running job that loses its GPUs, wholly or to move elsewhere.",
    "GPU-time lost to restarts": "GPU-time held while loading or saving a checkpoint, or by a launch that failed.",
    "Fragmentation": "Share of the idle GPU-time that lay on nodes where another GPU was in use.",
}


def write_page(
    path: str | Path, runs: Sequence[Run], labels: Sequence[str] | None = None, verdicts: Sequence[Verdict] = ()
) -> None:
    """Write the page: everything it needs is inside the one file. The same runs give the same bytes.

    `labels` replaces the policies' names; `verdicts` are those of an audit of the first run.
    """
    Path(path).write_text(render_page(runs, labels, verdicts), encoding="utf-8")


def render_page(runs: Sequence[Run], labels: Sequence[str] | None = None, verdicts: Sequence[Verdict] = ()) -> str:
    """The page as text."""
    if not runs:
        raise UserError("A page needs at least one run; simulate one first.")
    names = list(labels) if labels else run_labels([report for _, report in runs])
    title = f"How {names[0]} shared the cluster" if len(runs) == 1 else f"{len(runs)} policies compared"
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)} · Horae</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
            _header(title, runs),
            *(_overview(runs[0][1]) if len(runs) == 1 else _comparison([report for _, report in runs], names)),
            *(render_verdicts(verdicts) if verdicts else ()),
            *_plots(runs, names),
            *_timelines(runs, names),
            *(_breakdown(runs[0][1]) if len(runs) == 1 else ()),
            *_footer(runs, names),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _header(title: str, runs: Sequence[Run]) -> str:
    history, report = runs[0]
    cluster = history.cluster
    kinds = [f"{number(n)} {name}" for name, n in zip(cluster.gpu_types, cluster.gpus_by_type, strict=True)]
    machines = f"{number(cluster.gpus)} GPUs on {_count(len(cluster.nodes), 'node')} ({', '.join(kinds)})"
    jobs = _count(report.jobs, "job") + (f" of {_count(report.apps, 'app')}" if report.apps != report.jobs else "")
    window = report.window
    if window.end_job - window.first_job < len(history.jobs):
        jobs += f" (numbers {window.first_job:,} to {window.end_job - 1:,} of {len(history.jobs):,})"
    return (
        f'<header><div class="brand">Horae</div><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(jobs)}, {escape(machines)}</p></header>'
    )


def _overview(report: Report) -> Iterator[str]:
    """The headline numbers of one run, in plain words."""
    unfair = f"{percent(report.rho.over_1)} of apps would have fared better on a fair share of their own"
    restarts = f"restarts cost {percent(report.restart_overhead.share)} of the GPU-time"
    cards = [
        ("Average completion time", report.avg_jct_s, f"half of the jobs took at most {duration(report.median_jct_s)}"),
        ("Slowest jobs", report.p95_jct_s, f"5 of 100 jobs took longer; 1 of 100 over {duration(report.p99_jct_s)}"),
        (
            "Wait for the first start",
            report.queueing_delay_s.avg,
            f"on average; half of the jobs started {_soon(report.queueing_delay_s.median)}",
        ),
        ("From first submission to last end", report.makespan_s, f"{number(report.gpu_hours)} GPU-hours were held"),
    ]
    yield '<section class="grid">'
    yield from (_card(what, duration(seconds), why) for what, seconds, why in cards)
    yield _card("Slowdown versus fair share", f"{number(report.rho.avg)} ×", f"average; {unfair}")
    yield _card("Worst slowdown", f"{number(report.rho.max)} ×", "the app that fared worst against its fair share")
    idle = f"{percent(report.fragmentation)} of the idle GPU-time lay in pieces, on nodes partly in use"
    shared = f"{percent(report.shared_gpu_share)} of the time in use by two jobs at once; "
    yield _card("GPUs in use", percent(report.utilization), shared * (report.shared_gpu_share > 0) + idle)
    due = report.deadlines
    if due.jobs:
        late = f"{number(due.missed)} missed, {number(due.relaxed)} relaxed before they passed"
        yield _card("Deadlines met", f"{number(due.met)} of {number(due.jobs)}", late)
    sold = report.auctions
    if sold.held:
        won = f"of {number(sold.gpus_won)} GPUs won in {_count(sold.held, 'auction')}, which others could then have"
        yield _card("Paid with in auctions", percent(sold.paid_share), won)
    yield _card("Preemptions", number(report.preemptions), f"{restarts}; {_ended(report)}")
    yield "</section>"


def _soon(seconds: float) -> str:
    return f"within {duration(seconds)}" if seconds >= 1 else "at once"


def _card(what: str, value: str, why: str) -> str:
    figure, _, unit = value.partition(" ")
    shown = escape(figure) + (f"<small>{escape(unit)}</small>" if unit else "")
    return (
        f'<div class="card"><div class="what">{escape(what)}</div><div class="number">{shown}</div>'
        f'<div class="why">{escape(why)}</div></div>'
    )


def _ended(report: Report) -> str:
    """How many jobs came to what end."""
    parts = [f"{number(report.finished)} of {_count(report.jobs, 'job')} finished"]
    parts += [f"{number(report.failed)} failed"] if report.failed else []
    parts += [f"{number(report.cancelled)} were cancelled"] if report.cancelled else []
    parts += [f"{number(report.given_up)} were given up by their apps"] if report.given_up else []
    return ", ".join(parts)


def _comparison(reports: Sequence[Report], names: Sequence[str]) -> Iterator[str]:
    """Bars for what people ask first, then every number in a table."""
    by_path = {measure.path: measure for measure in MEASURES}
    yield '<section class="thirds">'
    for path, (what, why) in _BARS.items():
        yield _bar_card(what, why, by_path[path], reports, names)
    yield "</section><h2>All numbers</h2>"
    yield '<section class="card"><p class="note">The best of each row is marked.</p>'
    yield _table(names, comparison_rows(reports)) + "</section>"


def _bar_card(what: str, why: str, measure: ReportFigure, reports: Sequence[Report], names: Sequence[str]) -> str:
    """One measure of all runs as bars from 0."""
    values = [measure.of(report) for report in reports]
    row = comparison_rows(reports, [measure])[0]
    unit = row.label.rpartition("(")[2].rstrip(")") if measure.path.endswith("_s") or "_s." in measure.path else ""
    suffix = f" {unit}" if unit else "×" if "rho" in measure.path else ""
    longest = 1.0 if measure.path == "utilization" else max([v for v in values if math.isfinite(v)], default=0.0)
    lines = []
    for k, (name, value, text) in enumerate(zip(names, values, row.cells, strict=True)):
        width = 100 * value / longest if math.isfinite(value) and longest > 0 else 0.0
        bar = f'<span class="bar" style="width:{width:.2f}%;background:{line_colour(k)}"></span>'
        lines.append(
            f'<span class="name" title="{escape(name)}">{escape(name)}</span><span class="track">{bar}</span>'
            f'<span class="value{" best" if k in row.best else ""}">{escape(text + suffix * (text != NOTHING))}</span>'
        )
    return (
        f'<div class="card"><div class="what">{escape(what)}</div><div class="why">{escape(why)}</div>'
        f'<div class="bars">{"".join(lines)}</div></div>'
    )


def _table(names: Sequence[str], rows: Iterable[Row]) -> str:
    """Rows of text under one heading a column; the best cells are marked."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr><th>{escape(row.label)}</th>"
        + "".join(
            f"<td{' class=best' if k in row.best else ''}>{escape(cell)}</td>" for k, cell in enumerate(row.cells)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _plots(runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    """How long jobs took, how fair it was, and how it went over time."""
    from horae.report.pages.plots import draw_delays, draw_jct, draw_slowdowns, draw_usage, draw_waiting

    legend = _line_legend(names) if len(runs) > 1 else ""
    yield '<h2>How long jobs took</h2><section class="pair">'
    yield _figure("Completion times", "The further left, the sooner jobs were done.", legend, draw_jct(runs))
    note = "How soon jobs got their first GPUs; within a second counts as one second."
    yield _figure("Wait for the first start", note, legend, draw_delays(runs))
    yield '</section><h2>Whether it was fair</h2><section class="pair">'
    note = "Left of the dashed line, sharing the cluster cost the app nothing."
    yield _figure("Slowdown versus fair share", note, legend, draw_slowdowns(runs, "rho"))
    note = "The same against an ideal run that divides every GPU type equally at every instant."
    yield _figure("Slowdown versus isolated run", note, legend, draw_slowdowns(runs, "isolated_rho"))
    yield '</section><h2>Over time</h2><section class="pair">'
    yield _figure("GPUs in use", "Share of all GPUs that jobs held.", legend, draw_usage(runs))
    note = "Jobs submitted that hold no GPU, preempted ones included."
    yield _figure("Jobs waiting", note, legend, draw_waiting(runs))
    yield "</section>"


def _figure(title: str, note: str, legend: str, svg: str) -> str:
    return (
        f'<div class="card"><h3>{escape(title)}</h3><p class="note">{escape(note)}</p>'
        f'{legend}<div class="scroll">{svg}</div></div>'
    )


def _line_legend(names: Sequence[str]) -> str:
    entries = [
        f'<span><i style="border-color:{line_colour(k)}{";border-top-style:dashed" if is_dashed(k) else ""}"></i>'
        f"{escape(name)}</span>"
        for k, name in enumerate(names)
    ]
    return f'<div class="legend">{"".join(entries)}</div>'


def _timelines(runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    """Who held which GPU when: one drawing a run, all on the same axis; beyond three, folded after the first."""
    from horae.report.pages.plots import life_s

    begin_s, end_s = life_s(runs)
    yield "<h2>Who held which GPU when</h2>"
    for k, ((history, report), name) in enumerate(zip(runs, names, strict=True)):
        colours = choose_colours(history)
        drawing = draw_timeline(history, colours, begin_s, end_s, _TIMELINE_PIXELS // len(runs))
        note = f"One row a GPU. {colours.meaning}; grey is idle.{_halves_note(report)}"
        legend = "".join(
            f'<span><i class="block" style="background:{colour}"></i>{escape(label)}</span>'
            for label, colour in colours.legend
        )
        body = (
            f'<p class="note">{escape(note)}</p><div class="legend">{legend}</div><div class="scroll">{drawing}</div>'
        )
        if len(runs) > 1:
            is_open = " open" if k == 0 or len(runs) <= 3 else ""
            body = f"<details{is_open}><summary>{escape(name)}</summary>{body}</details>"
        yield f'<section class="card wide">{body}</section>'


def _halves_note(report: Report) -> str:
    return " While two jobs share a GPU, each has half of its row." if report.shared_gpu_share else ""


def _breakdown(report: Report) -> Iterator[str]:
    """Queues and GPU types of one run, where there are several."""
    if len(report.by_queue) > 1:
        heads = ["jobs", "finished", "JCT, average", "wait, average", "GPU-hours", "preemptions", "slowdown", "worst"]
        queues = [
            (
                name,
                number(q.jobs),
                number(q.finished),
                duration(q.avg_jct_s),
                duration(q.avg_queueing_delay_s),
                number(q.gpu_hours),
                number(q.preemptions),
                f"{number(q.rho.avg)}×",
                f"{number(q.rho.max)}×",
            )
            for name, q in report.by_queue.items()
        ]
        yield "<h2>By queue</h2>" + _plain_table(heads, queues)
    if len(report.by_gpu_type) > 1:
        heads = ["GPUs", "in use", "GPU-hours", "jobs that ran there"]
        kinds = report.by_gpu_type.items()
        rows = [
            (name, number(t.gpus), percent(t.utilization), number(t.gpu_hours), number(t.jobs)) for name, t in kinds
        ]
        yield "<h2>By GPU type</h2>" + _plain_table(heads, rows)


def _plain_table(heads: Sequence[str], rows: Iterable[tuple[str, ...]]) -> str:
    texts = [Row(name, tuple(cells), frozenset()) for name, *cells in rows]
    return f'<section class="card">{_table(heads, texts)}</section>'


def _footer(runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    """Under which settings the numbers came about, and what the words mean."""
    settings = {name: _pairs(report.settings) for (_, report), name in zip(runs, names, strict=True) if report.settings}
    counters = {name: _pairs(report.counters) for (_, report), name in zip(runs, names, strict=True) if report.counters}
    relaxed = {
        name: given_up(report.deadlines.relaxed_jobs)
        for (_, report), name in zip(runs, names, strict=True)
        if report.deadlines.relaxed
    }
    sections = (
        ("Deadlines relaxed, by job", relaxed),
        ("Settings", settings),
        ("Counted on the way", counters),
        ("What the words mean", _WORDS),
    )
    for title, pairs in sections:
        if pairs:
            entries = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs.items())
            yield f'<h2>{title}</h2><section class="card"><dl>{entries}</dl></section>'


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{key} = {value:,}" if isinstance(value, int) else f"{key} = {value}" for key, value in values.items()
    )


def _count(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
