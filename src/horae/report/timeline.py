"""The GPU timeline: who held which GPU when, as one SVG.

A small run is drawn bar by bar, with the job's name and what it held on hover.
A large one is sampled into an image, one pixel a GPU and moment, so that a page
stays small however many jobs there were.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from horae.core.history import History
from horae.report.palette import BLOCKS, IDLE, OTHERS
from horae.report.quantities import duration, number, time_ticks
from horae.report.series import Ints

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1160, 96, 12, 6, 40
#: Up to here a run is drawn bar by bar.
MOST_BARS, MOST_ROWS = 2500, 128
#: Queues with a colour of their own; the smaller ones share one.
MOST_QUEUES = 11


@dataclass(frozen=True)
class Colours:
    """A colour for each job, what it stands for, and a legend where colours have names."""

    of_job: Ints
    palette: tuple[str, ...]
    meaning: str
    legend: tuple[tuple[str, str], ...] = ()


def choose_colours(history: History) -> Colours:
    """By queue if there are several, else by app, so that neighbours differ."""
    queues = Counter(job.queue for job in history.jobs)
    if len(queues) > 1:
        return _by_queue(history, queues)
    apps: dict[str, int] = {}
    number_of = [apps.setdefault(job.app_id, len(apps)) for job in history.jobs]
    meaning = "Every app has a colour" if len(apps) < len(history.jobs) else "Every job has a colour"
    again = "; the colours repeat" if len(apps) > len(BLOCKS) else ""
    return Colours(np.array(number_of, dtype=np.int64) % len(BLOCKS), BLOCKS, meaning + again)


def _by_queue(history: History, queues: Counter[str]) -> Colours:
    largest = [name for name, _ in sorted(queues.items(), key=lambda item: (-item[1], item[0]))[:MOST_QUEUES]]
    own = {name: k for k, name in enumerate(sorted(largest))}
    of_job = np.array([own.get(job.queue, len(own)) for job in history.jobs], dtype=np.int64)
    legend = [(name, BLOCKS[k]) for name, k in own.items()]
    others = len(queues) - len(own)
    if others:
        legend.append((f"{others} smaller queue{'' if others == 1 else 's'}", OTHERS))
    return Colours(of_job, (*BLOCKS[: len(own)], OTHERS), "Every queue has a colour", tuple(legend))


def draw_timeline(history: History, colours: Colours, begin_s: float, end_s: float, pixels: int = 500_000) -> str:
    """The run between two times as an SVG element; `pixels` is what an image may use."""
    rows = history.cluster.gpus
    bars = _bars(history) if rows <= MOST_ROWS else None
    if bars is not None and len(bars) <= MOST_BARS:
        height = rows * min(max(320 // rows, 5), 24)
        body = "".join(_bar_shapes(history, colours, bars, _Frame(begin_s, end_s, rows, height)))
    else:
        height = min(max(rows, 220), 460)
        body = _image(history, colours, begin_s, end_s, pixels, height)
    frame = _Frame(begin_s, end_s, rows, height)
    total = TOP + height + BOTTOM
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {total}" role="img" aria-label="GPU timeline">'
        f'<rect x="{LEFT}" y="{TOP}" width="{frame.width}" height="{height}" fill="{IDLE}"/>'
        f"{body}{''.join(_node_labels(history, frame))}{''.join(_time_axis(frame))}</svg>"
    )


@dataclass(frozen=True)
class _Frame:
    """Where times and GPUs lie in the drawing."""

    begin_s: float
    end_s: float
    rows: int
    height: int

    @property
    def width(self) -> int:
        return WIDTH - LEFT - RIGHT

    def x(self, time_s: float) -> float:
        return LEFT + (time_s - self.begin_s) / max(self.end_s - self.begin_s, 1e-9) * self.width

    def y(self, gpu: float) -> float:
        return TOP + gpu / self.rows * self.height


def _bars(history: History) -> NDArray[np.int64]:
    """Attempt, first GPU and number of GPUs of every stretch of neighbours that one attempt held on a node."""
    attempts = history.attempts
    attempt = np.repeat(np.arange(len(attempts.job)), attempts.gpus)
    order = np.lexsort((attempts.gpu_ids, attempt))
    gpu = attempts.gpu_ids[order]
    node = history.cluster.gpu_node[gpu]
    new = np.ones(len(gpu), dtype=bool)
    new[1:] = (np.diff(gpu) != 1) | (np.diff(attempt) != 0) | (np.diff(node) != 0)
    first = np.flatnonzero(new)
    return np.stack([attempt[first], gpu[first], np.diff(np.append(first, len(gpu)))], axis=1)


def _bar_shapes(history: History, colours: Colours, bars: NDArray[np.int64], frame: _Frame) -> Iterator[str]:
    """A rectangle for each bar, paler where the job loaded or saved, with its name where there is room."""
    attempts = history.attempts
    for attempt, gpu, count in bars.tolist():
        job = int(attempts.job[attempt])
        begin, end = float(attempts.begin_s[attempt]), float(attempts.end_s[attempt])
        work, stop = float(attempts.work_s[attempt]), float(attempts.stop_s[attempt])
        x, y, width, height = frame.x(begin), frame.y(gpu), frame.x(end) - frame.x(begin), frame.y(count) - TOP
        name = history.jobs[job].id
        title = (
            f"{name}: {number(attempts.gpus[attempt])} GPUs from {duration(begin - frame.begin_s)} "
            f"for {duration(end - begin)}{', then preempted' if attempts.preempted[attempt] else ''}"
        )
        fill = colours.palette[colours.of_job[job]]
        yield f"<g><title>{escape(title)}</title>{_rect(x, y, width, height, fill, 'b')}"
        for since, until in ((begin, end if work != work else work), (stop, end)):
            if until > since:
                yield _rect(frame.x(since), y, frame.x(until) - frame.x(since), height, "#fff", "o")
        if height >= 9 and width > 6.2 * len(name) + 6:
            yield f'<text x="{x + 4:.1f}" y="{y + height / 2 + 3.5:.1f}" class="n">{escape(name)}</text>'
        yield "</g>"


def _rect(x: float, y: float, width: float, height: float, fill: str, kind: str) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.3):.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {shape} fill="{fill}"/>'


def _image(history: History, colours: Colours, begin_s: float, end_s: float, pixels: int, height: int) -> str:
    """The run sampled at the middle of every column, as an image inside the drawing."""
    rows = min(history.cluster.gpus, 512)
    columns = int(min(max(pixels // rows, 200), 1052))
    cells = sample(history, colours.of_job, begin_s, end_s, rows, columns)
    data = base64.b64encode(palette_png(cells, (IDLE, *colours.palette))).decode()
    return (
        f'<image x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{height}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'
    )


def sample(history: History, colour: Ints, begin_s: float, end_s: float, rows: int, columns: int) -> NDArray[np.uint8]:
    """What some GPUs, evenly chosen, did in the middle of each column of time: 0 is idle, else 1 + colour."""
    attempts, gpus = history.attempts, history.cluster.gpus
    row_of_gpu = np.full(gpus, -1, dtype=np.int64)
    row_of_gpu[(np.arange(rows) * gpus) // rows] = np.arange(rows)
    # 1. The columns whose middle lies inside each attempt.
    scale = columns / max(end_s - begin_s, 1e-9)
    first = np.clip(np.ceil((attempts.begin_s - begin_s) * scale - 0.5), 0, columns).astype(np.int64)
    after = np.clip(np.ceil((attempts.end_s - begin_s) * scale - 0.5), 0, columns).astype(np.int64)
    # 2. One stretch for each GPU that is drawn; most attempts of a long run fall between two columns.
    attempt = np.repeat(np.arange(len(attempts.job)), attempts.gpus)
    row = row_of_gpu[attempts.gpu_ids]
    drawn = (row >= 0) & (after > first)[attempt]
    attempt, row = attempt[drawn], row[drawn]
    length = (after - first)[attempt]
    start = row * columns + first[attempt]
    # 3. All stretches at once, as positions in the flat image.
    within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    cells = np.zeros(rows * columns, dtype=np.uint8)
    cells[np.repeat(start, length) + within] = np.repeat(1 + colour[attempts.job[attempt]], length)
    return cells.reshape(rows, columns)


def palette_png(cells: NDArray[np.uint8], palette: tuple[str, ...]) -> bytes:
    """Encode an image of palette numbers: 8 bits a pixel, no filter, the same bytes every time."""
    rows, columns = cells.shape
    lines = np.zeros((rows, columns + 1), dtype=np.uint8)
    lines[:, 1:] = cells
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", b"".join(bytes.fromhex(colour.lstrip("#")) for colour in palette)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _node_labels(history: History, frame: _Frame) -> Iterator[str]:
    """A line between nodes, and as many of their names as there is room for."""
    cluster, labelled_y = history.cluster, -100.0
    apart = frame.height / len(cluster.nodes) >= 10
    for k, node in enumerate(cluster.nodes):
        top, bottom = frame.y(int(cluster.first_gpu[k])), frame.y(int(cluster.first_gpu[k + 1]))
        if k and apart:
            yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top:.1f}" y2="{top:.1f}" class="node"/>'
        middle = (top + bottom) / 2
        if middle - labelled_y >= 14:
            labelled_y = middle
            name = node.name if len(node.name) <= 14 else node.name[:13] + "…"
            yield f'<text x="{LEFT - 6}" y="{middle + 4:.1f}" text-anchor="end" class="l">{escape(name)}</text>'


def _time_axis(frame: _Frame) -> Iterator[str]:
    """Marks at round times, counted from the first submission."""
    ticks, unit = time_ticks(frame.begin_s, frame.end_s)
    bottom = TOP + frame.height
    for tick in ticks:
        x = frame.x(tick)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}" class="tick"/>'
        label = f"{(tick - frame.begin_s) / unit.seconds:g}"
        yield f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle" class="l">{label}</text>'
    middle = LEFT + frame.width / 2
    words = f"{unit.plural} since the first submission"
    yield f'<text x="{middle}" y="{bottom + 35}" text-anchor="middle" class="l">{words}</text>'
