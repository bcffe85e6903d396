"""The page: one file, safe with any name, the same bytes for the same runs."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from horae.core.cluster import Cluster, Node
from horae.core.errors import UserError
from horae.core.events import NodeJoined, NodeLost
from horae.core.history import History
from horae.core.job import JobSpec
from horae.report.metrics.gpu_holdings import Holdings
from horae.report.metrics.measure import measure
from horae.report.pages.page import render_page, write_page
from horae.report.pages.plots import share_of_gpus
from horae.report.pages.timeline import choose_colours, draw_timeline, palette_png, sample
from tests.builders import Script, job
from tests.report.markup import EVIL, Outline
from tests.report.sample import Loop, columns, history_of, random_jobs

SMALL = Cluster.of([("v100", 2, 4)])
LARGE = Cluster.of([("v100", 20, 8)])


def run(seed: int = 1, count: int = 20, cluster: Cluster = SMALL, policy: str = "fifo", **options):
    history = Loop(random_jobs(seed, count, cluster.gpu_types, **options), cluster, 30, 10, 4).run(policy)
    return history, measure(history)


PAGES = {
    "one small run": lambda: [run()],
    "one large run": lambda: [run(count=400, cluster=LARGE, most_gpus=8, queues=20, spacing_s=5)],
    "several runs": lambda: [run(policy=f"p{k}", queues=3) for k in range(10)],
    "a single job": lambda: [run(count=1)],
}


@pytest.mark.parametrize("runs", PAGES.values(), ids=PAGES)
def test_a_page_is_whole_and_needs_nothing_from_outside(runs):
    text = render_page(runs())
    outline = Outline(text)
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in outline.addresses)
    assert not re.search(r"url\((?!#)|@import|https?://", text)
    assert not outline.tags & {"script", "link", "iframe", "object", "img"}
    assert outline.tags >= {"svg", "path", "style"}


def test_every_reference_inside_the_page_has_its_target():
    text = render_page(PAGES["several runs"]())
    wanted = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    assert wanted
    assert wanted <= set(Outline(text).ids)


def test_the_same_runs_give_the_same_bytes(tmp_path):
    for name in ("a.html", "b.html"):
        write_page(tmp_path / name, [run(), run(policy="las")])
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_names_given_by_users_are_escaped_everywhere():
    cluster = Cluster((Node(EVIL, EVIL, 2), Node("ok", "k80", 2)))
    jobs = [JobSpec(f"{EVIL}{k}", 0.0, 1, 5000.0, queue=f"{EVIL}/{k}".replace("/s", "s")) for k in range(2)]
    history = history_of(jobs, cluster, start_s=[0.0, 0.0], end_s=[5000.0, 4000.0], policy=EVIL)
    history = replace(history, settings={EVIL: EVIL}, counters={EVIL: 3})
    for runs in ([(history, measure(history))], [(history, measure(history))] * 2):
        text = render_page(runs)
        assert "<script" not in text
        assert "&lt;script&gt;" in text
        assert Outline(text).open == []


def test_one_run_tells_its_headlines_in_plain_words():
    text = render_page([run()])
    assert "How fifo shared the cluster" in text
    assert "Slowdown versus fair share" in text
    assert "compare policies by this" in text
    assert "20 jobs, 8 GPUs on 2 nodes" in text


def test_several_runs_stand_side_by_side_with_the_best_marked():
    fast, slow = (
        history_of([JobSpec("a", 0.0, 1, 100.0)], SMALL, start_s=[at], end_s=[at + 100], policy=f"at-{at:g}")
        for at in (0.0, 500.0)
    )
    text = render_page([(slow, measure(slow)), (fast, measure(fast))])
    assert "2 policies compared" in text
    line = re.search(r"<tr><th>JCT, average.*?</tr>", text)
    assert line
    assert re.findall(r"<td( class=best)?>", line[0]) == ["", " class=best"]


def test_a_window_is_named_on_the_page():
    history, _ = run()
    assert "10 jobs (numbers 5 to 14 of 20)" in render_page([(history, measure(history, 5, 15))])


def test_runs_without_an_end_or_without_jobs_still_make_a_page():
    jobs = random_jobs(3, 10, SMALL.gpu_types)
    cut_off = Loop(jobs, SMALL).run(until_s=300.0)
    empty = History(
        SMALL, (), np.zeros(0, np.uint8), np.zeros(0), np.zeros(0), np.zeros((0, 1)), columns([], 0.0), "fifo"
    )
    for history in (cut_off, empty):
        assert Outline(render_page([(history, measure(history))])).open == []


def test_the_usage_plot_counts_the_gpus_that_were_there():
    """Of two nodes one is lost at 10 s and comes back larger at 40 s, while a job holds the other until 60 s."""
    happens = [NodeLost(10, "v100-1"), NodeJoined(40, Node("v100-1~2", "v100", 3))]
    history = Script([job("a", gpus=2, work=60)], "v100:2x2", events=happens).history
    edges, held = np.array([0.0, 10.0, 40.0, 60.0, 70.0]), np.array([2.0, 2.0, 2.0, 0.0])
    assert share_of_gpus(history, held, edges) == pytest.approx([0.5, 1.0, 0.4, 0.0])
    assert measure(history).utilization == pytest.approx((2 * 60) / (4 * 10 + 2 * 30 + 5 * 20))
    assert measure(history).fragmentation == 0
    everywhere = replace(history, presence=None)
    assert share_of_gpus(everywhere, held, edges) == pytest.approx([2 / 7, 2 / 7, 2 / 7, 0.0])


def test_a_page_of_nothing_is_refused():
    with pytest.raises(UserError, match="at least one run"):
        render_page([])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 25), st.integers(3, 40))
def test_a_sampled_timeline_shows_who_held_each_gpu(seed, count, moments):
    history, _ = run(seed, count)
    colour = np.arange(count) % 5
    end_s = float(history.attempts.end_s.max()) + 10
    cells = sample(history, Holdings.of(history.attempts), colour, 0.0, end_s, rows=SMALL.gpus, columns=moments)
    attempts = history.attempts
    for column in range(moments):
        now = (column + 0.5) * end_s / moments
        wanted = np.zeros(SMALL.gpus)
        for i in np.flatnonzero((attempts.begin_s <= now) & (now < attempts.end_s)):
            wanted[attempts.gpu_ids[attempts.first[i] : attempts.first[i + 1]]] = 1 + colour[attempts.job[i]]
        assert cells[:, column].tolist() == wanted.tolist()


def test_more_gpus_than_rows_are_sampled_evenly():
    jobs = [JobSpec("a", 0.0, 160, 10.0)]
    history = history_of(jobs, LARGE, start_s=[0.0], end_s=[10.0])
    cells = sample(history, Holdings.of(history.attempts), np.array([3]), 0.0, 20.0, rows=7, columns=4)
    assert (cells == [[4, 4, 0, 0]] * 7).all()


def test_the_image_holds_the_pixels():
    cells = np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8)
    palette = [(0, 0, 0), (255, 0, 0), (0, 255, 0)]
    png = palette_png(cells, ("#000000", "#ff0000", "#00ff00"))
    with Image.open(io.BytesIO(png)) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.tolist() == [[list(palette[cell]) for cell in row] for row in cells]


def test_few_jobs_are_drawn_bar_by_bar_and_many_as_an_image():
    few, _ = run(count=10)
    many, _ = run(count=400, cluster=LARGE, most_gpus=8)
    assert "job-3: " in draw_timeline(few, choose_colours(few), 0.0, 1e5)
    drawing = draw_timeline(many, choose_colours(many), 0.0, 1e5, pixels=50_000)
    image = re.search(r'href="data:image/png;base64,([^"]+)"', drawing)
    assert image
    assert base64.b64decode(image[1]).startswith(b"\x89PNG")
    assert "<title>" not in drawing


def test_colours_follow_queues_and_small_queues_share_one():
    queues = choose_colours(run(count=40, queues=3)[0])
    assert [name for name, _ in queues.legend] == ["org/team-0", "org/team-1", "org/team-2"]
    history, _ = run(count=200, queues=30)
    names = {job.queue for job in history.jobs}
    assert choose_colours(history).legend[-1][0] == f"{len(names) - 11} smaller queues"


def test_jobs_of_one_app_share_a_colour_and_apps_side_by_side_do_not():
    history, _ = run(count=10, apps=3)
    colours = choose_colours(history)
    pairs = {(job.app, int(colour)) for job, colour in zip(history.jobs, colours.of_job, strict=True)}
    assert len(pairs) == len({app for app, _ in pairs}) == len({colour for _, colour in pairs}) == 3
    assert colours.legend == ()
