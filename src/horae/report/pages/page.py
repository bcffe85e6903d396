"""One self-contained HTML page about one run, or about several side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from horae.core.counted import counted
from horae.core.errors import UserError
from horae.core.history import History
from horae.report.audit.html_section import render_verdicts
from horae.report.audit.verdict import Verdict
from horae.report.formatting import NOTHING, duration, number, percent
from horae.report.metrics.deadlines import names as listed_jobs
from horae.report.metrics.measure import Report
from horae.report.pages.html import PageFigure, render
from horae.report.pages.palette import line_colour
from horae.report.pages.timeline import choose_colours, draw_timeline
from horae.report.tables import MEASURES, ReportFigure, Row, comparison_rows, run_labels

#: What a page reads of one run: what happened, and the numbers made from it.
RunRecord = tuple[History, Report]

#: Pixels that the timelines of one page may use together, so that the page stays below 3 MB.
_TIMELINE_PIXELS = 1_400_000

#: Numbers of a comparison that are drawn as bars, each with a title and a note.
_BARS = {
    "avg_jct_s": ("Average completion time", "from submission to the end of a job"),
    "p95_jct_s": ("Slowest jobs", "95 of 100 jobs were done within"),
    "queueing_delay_s.avg": ("Wait for the first start", "on average, from submission"),
    "rho.avg": ("Slowdown versus fair share", "average of all apps; 1× is exactly the fair share"),
    "rho.max": ("Worst slowdown", "the app that fared worst against its fair share"),
    "app_isolated_rho.avg": (
        "Slowdown versus isolated run",
        "average of all apps, against an ideal equal division that is the same for all policies",
    ),
    "app_isolated_rho.max": ("Worst slowdown versus isolated run", "the app that fared worst against that division"),
    "utilization": ("GPUs in use", "share of all GPU-time that jobs held"),
}

_WORDS = {
    "JCT": "Job completion time: from submission to the end of a job that finished, waiting included.",
    "Slowdown versus fair share (rho)": "Time an app took, over the time it would have taken alone on 1/N of the GPUs "
    "(at most as many as it can use), N being the average number of apps present during its life. "
    "At most 1× means that sharing cost it nothing. N is that of the run itself: where apps end sooner it is lower.",
    "Slowdown versus isolated run": "Time an app took, over the time in an ideal run that gives each app present there "
    "an equal part of every GPU type at every instant (app_isolated_rho; for single jobs, isolated_rho). "
    "The ideal run is the same for all policies, so this is what to compare them by.",
    "Jain's index": "1 when everybody is slowed down alike; 1/n when one of n bears it all.",
    "GPUs in use": "GPU-time that jobs held, over all GPU-time between the first submission and the last end. "
    "A GPU that two jobs share is in use once, and half of its time is counted for each.",
    "Preemption": "A running job that loses its GPUs, wholly or to move elsewhere.",
    "GPU-time lost to restarts": "GPU-time held while loading or saving a checkpoint, or by a launch that failed.",
    "Fragmentation": "Share of the idle GPU-time that lay on nodes where another GPU was in use.",
}


class Headline(NamedTuple):
    """One number in large print."""

    title: str
    value: str
    unit: str
    note: str

    @staticmethod
    def of(title: str, text: str, note: str) -> Headline:
        """From a text such as `3.4 h`, whose unit is set in smaller print."""
        value, _, unit = text.partition(" ")
        return Headline(title, value, unit, note)


class Bar(NamedTuple):
    """One run in a bar chart."""

    name: str
    width_percent: float
    colour: str
    text: str
    is_best: bool


class BarChart(NamedTuple):
    """One number of all runs as bars from 0."""

    title: str
    note: str
    bars: list[Bar]


class FigureGroup(NamedTuple):
    """Figures under one heading."""

    title: str
    figures: list[PageFigure]


class TimelineFigure(NamedTuple):
    """The GPU timeline of one run."""

    name: str
    note: str
    legend: tuple[tuple[str, str], ...]
    svg: Markup
    is_open: bool


class Breakdown(NamedTuple):
    """A table of one run by queue or by GPU type."""

    title: str
    heads: list[str]
    rows: list[Row]


def write_page(
    path: str | Path, runs: Sequence[RunRecord], labels: Sequence[str] | None = None, verdicts: Sequence[Verdict] = ()
) -> None:
    """Write the page: everything it needs is inside the one file. The same runs give the same bytes.

    `labels` replaces the policies' names; `verdicts` are those of an audit of the first run.
    """
    Path(path).write_text(render_page(runs, labels, verdicts), encoding="utf-8")


def render_page(
    runs: Sequence[RunRecord], labels: Sequence[str] | None = None, verdicts: Sequence[Verdict] = ()
) -> str:
    """The page as text."""
    if not runs:
        raise UserError("A page needs at least one run; simulate one first.")
    reports = [report for _, report in runs]
    names = list(labels) if labels else run_labels(reports)
    is_single = len(runs) == 1
    return render(
        "runs.html",
        title=f"How {names[0]} shared the cluster" if is_single else f"{len(runs)} policies compared",
        lead=_lead(*runs[0]),
        names=names,
        headlines=list(_headlines(reports[0])) if is_single else [],
        bar_charts=[] if is_single else list(_bar_charts(reports, names)),
        comparison=[] if is_single else comparison_rows(reports),
        verdicts=render_verdicts(verdicts) if verdicts else "",
        figure_groups=list(_figure_groups(runs)),
        timelines=list(_timelines(runs, names)),
        breakdowns=list(_breakdowns(reports[0])) if is_single else [],
        footer=_footer(reports, names),
    )


def _lead(history: History, report: Report) -> str:
    """How many jobs ran on which cluster."""
    cluster = history.cluster
    types = [f"{number(gpus)} {name}" for name, gpus in zip(cluster.gpu_types, history.gpus_by_type, strict=True)]
    machines = f"{counted(report.gpus, 'GPU')} on {counted(len(cluster.nodes), 'node')} ({', '.join(types)})"
    jobs = counted(report.jobs, "job") + (f" of {counted(report.apps, 'app')}" if report.apps != report.jobs else "")
    window = report.window
    if window.end_job - window.first_job < len(history.jobs):
        jobs += f" (numbers {window.first_job:,} to {window.end_job - 1:,} of {len(history.jobs):,})"
    return f"{jobs}, {machines}"


def _headlines(report: Report) -> Iterator[Headline]:
    """The main numbers of one run, in plain words."""
    yield from _time_headlines(report)
    unfair = f"{percent(report.rho.over_1)} of apps would have fared better on a fair share of their own"
    yield Headline.of("Slowdown versus fair share", f"{number(report.rho.avg)} ×", f"average; {unfair}")
    worst = "the app that fared worst against its fair share"
    yield Headline.of("Worst slowdown", f"{number(report.rho.max)} ×", worst)
    ideal = f"average of all apps, worst {number(report.app_isolated_rho.max)} ×; compare policies by this"
    yield Headline.of("Slowdown versus isolated run", f"{number(report.app_isolated_rho.avg)} ×", ideal)
    idle = f"{percent(report.fragmentation)} of the idle GPU-time lay in pieces, on nodes partly in use"
    shared = f"{percent(report.shared_gpu_share)} of the time in use by two jobs at once; "
    yield Headline.of("GPUs in use", percent(report.utilization), shared * (report.shared_gpu_share > 0) + idle)
    deadlines = report.deadlines
    if deadlines.jobs:
        late = f"{number(deadlines.missed)} missed, {number(deadlines.relaxed)} relaxed before they passed"
        yield Headline.of("Deadlines met", f"{number(deadlines.met)} of {number(deadlines.jobs)}", late)
    auctions = report.auctions
    if auctions.held:
        held = counted(auctions.held, "auction")
        won = f"of {number(auctions.gpus_won)} GPUs won in {held}, which others could then have"
        yield Headline.of("Paid with in auctions", percent(auctions.paid_share), won)
    restarts = f"restarts cost {percent(report.restart_overhead.share)} of the GPU-time"
    if report.lost_work.gpu_seconds:
        restarts += f", and work lost by starting over {percent(report.lost_work.share)}"
    yield Headline.of("Preemptions", number(report.preemptions), f"{restarts}; {_job_ends(report)}")


def _time_headlines(report: Report) -> Iterator[Headline]:
    """How long jobs took and waited."""
    half = f"half of the jobs took at most {duration(report.median_jct_s)}"
    yield Headline.of("Average completion time", duration(report.avg_jct_s), half)
    slow = f"5 of 100 jobs took longer; 1 of 100 over {duration(report.p99_jct_s)}"
    yield Headline.of("Slowest jobs", duration(report.p95_jct_s), slow)
    median_s = report.queueing_delay_s.median
    started = f"within {duration(median_s)}" if median_s >= 1 else "at once"
    wait = f"on average; half of the jobs started {started}"
    yield Headline.of("Wait for the first start", duration(report.queueing_delay_s.avg), wait)
    held = f"{number(report.gpu_hours)} GPU-hours were held"
    yield Headline.of("From first submission to last end", duration(report.makespan_s), held)


def _job_ends(report: Report) -> str:
    """How many jobs finished, failed, were cancelled or given up."""
    ends = [f"{number(report.finished)} of {counted(report.jobs, 'job')} finished"]
    ends += [f"{number(report.failed)} failed"] if report.failed else []
    ends += [f"{number(report.cancelled)} were cancelled"] if report.cancelled else []
    ends += [f"{number(report.timeout)} reached their time limit"] if report.timeout else []
    ends += [f"{number(report.given_up)} were given up by their apps"] if report.given_up else []
    return ", ".join(ends)


def _bar_charts(reports: Sequence[Report], names: Sequence[str]) -> Iterator[BarChart]:
    """Bars for the numbers that people ask for first."""
    by_path = {figure.path: figure for figure in MEASURES}
    for path, (title, note) in _BARS.items():
        yield BarChart(title, note, _bars(replace(by_path[path], if_any=""), reports, names))


def _bars(figure: ReportFigure, reports: Sequence[Report], names: Sequence[str]) -> list[Bar]:
    values = [figure.of(report) for report in reports]
    row = comparison_rows(reports, [figure])[0]
    is_time = figure.path.endswith("_s") or "_s." in figure.path
    unit = row.label.rpartition("(")[2].rstrip(")") if is_time else ""
    suffix = f" {unit}" if unit else "×" if "rho" in figure.path else ""
    longest = 1.0 if figure.path == "utilization" else max([v for v in values if math.isfinite(v)], default=0.0)
    return [
        Bar(
            name=name,
            width_percent=100 * value / longest if math.isfinite(value) and longest > 0 else 0.0,
            colour=line_colour(k),
            text=text + suffix * (text != NOTHING),
            is_best=k in row.best,
        )
        for k, (name, value, text) in enumerate(zip(names, values, row.cells, strict=True))
    ]


def _figure_groups(runs: Sequence[RunRecord]) -> Iterator[FigureGroup]:
    """How long jobs took, how fair it was, and how it went over time."""
    from horae.report.pages.plots import draw_delays, draw_jct, draw_slowdowns, draw_usage, draw_waiting

    done = "The further left, the sooner jobs were done."
    started = "How soon jobs got their first GPUs; within a second counts as one second."
    yield FigureGroup(
        "How long jobs took",
        [
            _figure("Completion times", done, draw_jct(runs)),
            _figure("Wait for the first start", started, draw_delays(runs)),
        ],
    )
    fair = "Left of the dashed line, sharing the cluster cost the app nothing."
    ideal = "The same against an ideal run that divides every GPU type equally at every instant."
    slowdowns = [
        _figure("Slowdown versus fair share", fair, draw_slowdowns(runs, "rho")),
        _figure("Slowdown versus isolated run", ideal, draw_slowdowns(runs, "isolated_rho")),
    ]
    if any(report.jobs_in_company for _, report in runs):
        among_apps = "The same against an ideal run that divides every GPU type equally among apps."
        by_app = draw_slowdowns(runs, "app_isolated_rho")
        slowdowns.insert(1, _figure("Slowdown of apps versus isolated run", among_apps, by_app))
    yield FigureGroup("Whether it was fair", slowdowns)
    waiting = "Jobs submitted that hold no GPU, preempted ones included."
    yield FigureGroup(
        "Over time",
        [
            _figure("GPUs in use", "Share of all GPUs that jobs held.", draw_usage(runs)),
            _figure("Jobs waiting", waiting, draw_waiting(runs)),
        ],
    )


def _figure(title: str, note: str, svg: str) -> PageFigure:
    return PageFigure(title, note, Markup(svg))


def _timelines(runs: Sequence[RunRecord], names: Sequence[str]) -> Iterator[TimelineFigure]:
    """One drawing a run, all on the same axis. With more than three runs only the first is unfolded."""
    from horae.report.pages.plots import life_s

    begin_s, end_s = life_s(runs)
    for k, ((history, report), name) in enumerate(zip(runs, names, strict=True)):
        colours = choose_colours(history)
        drawing = draw_timeline(history, colours, begin_s, end_s, _TIMELINE_PIXELS // len(runs))
        halves = " While two jobs share a GPU, each has half of its row." if report.shared_gpu_share else ""
        note = f"One row a GPU. {colours.meaning}; grey is idle.{halves}"
        yield TimelineFigure(name, note, colours.legend, Markup(drawing), k == 0 or len(runs) <= 3)


def _breakdowns(report: Report) -> Iterator[Breakdown]:
    """Queues and GPU types of one run, where there are several."""
    if len(report.by_queue) > 1:
        heads = ["jobs", "finished", "JCT, average", "wait, average", "GPU-hours", "preemptions", "slowdown", "worst"]
        heads += ["vs isolated run", "worst"]
        queues = [
            _plain_row(
                name,
                number(queue.jobs),
                number(queue.finished),
                duration(queue.avg_jct_s),
                duration(queue.avg_queueing_delay_s),
                number(queue.gpu_hours),
                number(queue.preemptions),
                f"{number(queue.rho.avg)}×",
                f"{number(queue.rho.max)}×",
                f"{number(queue.app_isolated_rho.avg)}×",
                f"{number(queue.app_isolated_rho.max)}×",
            )
            for name, queue in report.by_queue.items()
        ]
        yield Breakdown("By queue", heads, queues)
    if len(report.by_gpu_type) > 1:
        heads = ["GPUs", "in use", "GPU-hours", "jobs that ran there"]
        types = [
            _plain_row(name, number(t.gpus), percent(t.utilization), number(t.gpu_hours), number(t.jobs))
            for name, t in report.by_gpu_type.items()
        ]
        yield Breakdown("By GPU type", heads, types)


def _plain_row(label: str, *cells: str) -> Row:
    return Row(label, cells, frozenset())


def _footer(reports: Sequence[Report], names: Sequence[str]) -> list[tuple[str, Mapping[str, str]]]:
    """Under which settings the numbers came about, and what the words mean. Empty sections are left out."""
    by_name = dict(zip(names, reports, strict=True))
    relaxed = {name: r.deadlines.relaxed_jobs for name, r in by_name.items() if r.deadlines.relaxed}
    sections: list[tuple[str, Mapping[str, str]]] = [
        ("Deadlines relaxed, by job", {name: listed_jobs(jobs) for name, jobs in relaxed.items()}),
        ("Settings", {name: _assignments(r.settings) for name, r in by_name.items() if r.settings}),
        ("Counted on the way", {name: _assignments(r.counters) for name, r in by_name.items() if r.counters}),
        ("What the words mean", _WORDS),
    ]
    return [(title, entries) for title, entries in sections if entries]


def _assignments(values: Mapping[str, object]) -> str:
    """Settings or counters as text: `quantum = 300, patience = 3,600`."""
    return ", ".join(
        f"{key} = {value:,}" if isinstance(value, int) else f"{key} = {value}" for key, value in values.items()
    )
