"""The GPU timeline: who held which GPU when, as one SVG.

A small run is drawn bar by bar, with the job's name and what it held on hover.
A large one is sampled into an image, one pixel a GPU and moment, so that a page
stays small however many jobs there were. While two jobs share a GPU, its row is
split into halves; a job keeps to the same half as long as it stays.
"""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from horae.core.arrays import Ints
from horae.core.counted import counted
from horae.core.gpu_ledger import SEATS
from horae.core.history import Attempts, History
from horae.report.formatting import duration, time_ticks
from horae.report.metrics.gpu_holdings import Holdings, seats
from horae.report.metrics.step_functions import counting
from horae.report.pages.palette import BLOCKS, IDLE, OTHERS

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1160, 96, 12, 6, 40
#: Up to here a run is drawn bar by bar.
MOST_BARS, MOST_ROWS = 2500, 128
#: Queues with a colour of their own; smaller queues share one colour.
MOST_QUEUES = 11


@dataclass(frozen=True)
class Colours:
    """A colour for each job, what the colours mean, and a legend if they are named."""

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
        legend.append((counted(others, "smaller queue"), OTHERS))
    return Colours(of_job, (*BLOCKS[: len(own)], OTHERS), "Every queue has a colour", tuple(legend))


def draw_timeline(history: History, colours: Colours, begin_s: float, end_s: float, pixels: int = 500_000) -> str:
    """The run between two times as an SVG element; `pixels` is what an image may use."""
    rows, holdings = history.cluster.gpus, Holdings.of(history.attempts)
    lines = _lines(holdings)
    # Every attempt has at least one box, so a run of very many attempts need not be cut into boxes to count them.
    few = rows <= MOST_ROWS and len(history.attempts.job) <= MOST_BARS
    boxes = _boxes(history, holdings) if few else []
    if few and len(boxes) <= MOST_BARS:
        frame = _Frame(begin_s, end_s, rows, rows * min(max(320 * lines // rows, 5), 24))
        body = "".join(_bar_shapes(history, colours, boxes, frame))
    else:
        frame = _Frame(begin_s, end_s, rows, lines * min(max(rows, 220), 460))
        body = _image(history, holdings, colours, frame, pixels)
    total = TOP + frame.height + BOTTOM
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {total}" role="img" aria-label="GPU timeline">'
        f'<rect x="{LEFT}" y="{TOP}" width="{frame.width}" height="{frame.height}" fill="{IDLE}"/>'
        f"{body}{''.join(_node_labels(history, frame))}{''.join(_time_axis(frame))}</svg>"
    )


def _lines(holdings: Holdings) -> int:
    """Lines of a GPU's row: two if any GPU was ever shared."""
    return SEATS if holdings.shared.any() else 1


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


class _Box(NamedTuple):
    """A rectangle: neighbouring GPUs of a node that an attempt held alone for a while, or its half of a shared GPU."""

    attempt: int
    node: int
    #: Where it begins and how high it is, in rows of GPUs.
    top: float
    rows: float
    begin_s: float
    end_s: float

    def place(self, frame: _Frame) -> tuple[float, float, float, float]:
        """Left, top, width and height in the drawing."""
        x, y = frame.x(self.begin_s), frame.y(self.top)
        return x, y, frame.x(self.end_s) - x, frame.y(self.top + self.rows) - y


def _boxes(history: History, holdings: Holdings) -> list[_Box]:
    """All boxes, attempt by attempt. Shared GPUs are not joined into one box: each has its own halves."""
    order = np.lexsort((holdings.gpu, holdings.begin_s, holdings.attempt))
    attempt, gpu, shared = holdings.attempt[order], holdings.gpu[order], holdings.shared[order]
    begin_s, end_s, node = holdings.begin_s[order], holdings.end_s[order], history.cluster.gpu_node[gpu]
    new = np.ones(len(gpu), dtype=bool)
    new[1:] = (np.diff(attempt) != 0) | (np.diff(begin_s) != 0) | (np.diff(end_s) != 0)
    new[1:] |= (np.diff(gpu) != 1) | (np.diff(node) != 0) | shared[1:] | shared[:-1]
    first = np.flatnonzero(new)
    half = seats(history.attempts)[attempt[first]] / SEATS
    top = gpu[first] + np.where(shared[first], half, 0.0)
    rows = np.where(shared[first], 1 / SEATS, np.diff(np.append(first, len(gpu))))
    columns = (attempt[first], node[first], top, rows, begin_s[first], end_s[first])
    return [_Box(*box) for box in zip(*(column.tolist() for column in columns), strict=True)]


def _bar_shapes(history: History, colours: Colours, boxes: Iterable[_Box], frame: _Frame) -> Iterator[str]:
    """The boxes of each attempt, paler where the job loaded or saved, with its name where there is room."""
    attempts = history.attempts
    for attempt, group in groupby(boxes, key=lambda box: box.attempt):
        attempt_boxes, job = list(group), int(attempts.job[attempt])
        name, fill = history.jobs[job].id, colours.palette[colours.of_job[job]]
        yield f"<g><title>{escape(_bar_title(attempts, attempt, name, attempt_boxes, frame))}</title>"
        yield from (_rect(*box.place(frame), fill, "b") for box in attempt_boxes)
        for box in attempt_boxes:
            yield from (_rect(*idle.place(frame), "#fff", "o") for idle in _without_work(attempts, box))
        yield from _bar_names(name, attempt_boxes, frame)
        yield "</g>"


def _without_work(attempts: Attempts, box: _Box) -> Iterator[_Box]:
    """The parts of a box in which its attempt loaded or saved; the whole box if the attempt never worked."""
    work, stop = float(attempts.work_s[box.attempt]), float(attempts.stop_s[box.attempt])
    works_s = box.end_s if math.isnan(work) else min(work, box.end_s)
    if works_s > box.begin_s:
        yield box._replace(end_s=works_s)
    if max(stop, works_s) < box.end_s:
        yield box._replace(begin_s=max(stop, works_s, box.begin_s))


def _bar_title(attempts: Attempts, attempt: int, name: str, boxes: Iterable[_Box], frame: _Frame) -> str:
    """What an attempt held, as the text that appears on hover."""
    begin, gpus = float(attempts.begin_s[attempt]), int(attempts.gpus[attempt])
    shared_s = sum(box.end_s - box.begin_s for box in boxes if box.rows < 1) / gpus
    shared = f", shared for {duration(shared_s)}" if shared_s else ""
    preempted = ", then preempted" if attempts.preempted[attempt] else ""
    return (
        f"{name}: {counted(gpus, 'GPU')} from {duration(begin - frame.begin_s)} "
        f"for {duration(float(attempts.end_s[attempt]) - begin)}{shared}{preempted}"
    )


def _bar_names(name: str, boxes: Iterable[_Box], frame: _Frame) -> Iterator[str]:
    """A job's name in the longest of its boxes on each node that are high enough for it."""
    longest: dict[int, tuple[float, float, float, float]] = {}
    for box in boxes:
        x, y, width, height = box.place(frame)
        if height >= 9 and width > max(6.2 * len(name) + 6, longest.get(box.node, (0, 0, 0, 0))[2]):
            longest[box.node] = (x, y, width, height)
    for x, y, _, height in longest.values():
        yield f'<text x="{x + 4:.1f}" y="{y + height / 2 + 3.5:.1f}" class="n">{escape(name)}</text>'


def _rect(x: float, y: float, width: float, height: float, fill: str, css_class: str) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.3):.1f}" height="{height:.1f}"'
    return f'<rect class="{css_class}" {shape} fill="{fill}"/>'


def _image(history: History, holdings: Holdings, colours: Colours, frame: _Frame, pixels: int) -> str:
    """The run sampled at the middle of every column, as an image inside the drawing."""
    rows = min(history.cluster.gpus, 512)
    columns = int(min(max(pixels // (rows * _lines(holdings)), 200), 1052))
    cells = sample(history, holdings, colours.of_job, frame.begin_s, frame.end_s, rows, columns)
    data = base64.b64encode(palette_png(cells, (IDLE, *colours.palette))).decode()
    return (
        f'<image x="{LEFT}" y="{TOP}" width="{frame.width}" height="{frame.height}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'
    )


def sample(
    history: History, holdings: Holdings, colour: Ints, begin_s: float, end_s: float, rows: int, columns: int
) -> NDArray[np.uint8]:
    """What some GPUs, evenly chosen, did in the middle of each column of time: 0 is idle, else 1 + colour.

    One line a GPU; if any was ever shared, two for each.
    """
    attempts, gpus = history.attempts, history.cluster.gpus
    lines = _lines(holdings)
    row_of_gpu = np.full(gpus, -1, dtype=np.int64)
    row_of_gpu[(np.arange(rows) * gpus) // rows] = np.arange(rows)
    # 1. The columns whose middle lies inside each holding; most of a long run fall between two columns.
    scale = columns / max(end_s - begin_s, 1e-9)
    first = np.clip(np.ceil((holdings.begin_s - begin_s) * scale - 0.5), 0, columns).astype(np.int64)
    after = np.clip(np.ceil((holdings.end_s - begin_s) * scale - 0.5), 0, columns).astype(np.int64)
    drawn = np.flatnonzero((row_of_gpu[holdings.gpu] >= 0) & (after > first))
    attempt, shared = holdings.attempt[drawn], holdings.shared[drawn]
    # 2. The lines that each fills: its half, or all that the GPU has.
    half = seats(attempts)[attempt] if lines > 1 else np.zeros(len(drawn), dtype=np.int64)
    height = np.where(shared, 1, lines)
    line = counting(row_of_gpu[holdings.gpu[drawn]] * lines + np.where(shared, half, 0), height)
    which = np.repeat(drawn, height)
    # 3. All stretches at once, as positions in the flat image.
    length = (after - first)[which]
    cells = np.zeros(rows * lines * columns, dtype=np.uint8)
    cells[counting(line * columns + first[which], length)] = np.repeat(
        1 + colour[attempts.job[holdings.attempt[which]]], length
    )
    return cells.reshape(rows * lines, columns)


def palette_png(cells: NDArray[np.uint8], palette: tuple[str, ...]) -> bytes:
    """A PNG image from palette numbers, one byte a pixel. The same cells give the same bytes."""
    image = Image.fromarray(cells)
    image.putpalette(b"".join(bytes.fromhex(colour.lstrip("#")) for colour in palette))
    png = io.BytesIO()
    image.save(png, "PNG", compress_level=9)
    return png.getvalue()


def _node_labels(history: History, frame: _Frame) -> Iterator[str]:
    """Lines between nodes, and the names of nodes where there is room."""
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
