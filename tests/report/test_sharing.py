"""Reports on runs in which two jobs held the same GPUs: no GPU counts for more than itself."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horae.core.cluster import Cluster, Span
from horae.core.history import Attempts, History
from horae.core.states import State
from horae.core.throughputs import Setting, Throughputs
from horae.report.metrics.gpu_holdings import Holdings
from horae.report.metrics.measure import Report, job_rows, measure
from horae.report.pages.page import render_page
from horae.report.pages.plots import draw_usage
from horae.report.pages.timeline import LEFT, RIGHT, TOP, WIDTH, choose_colours, draw_timeline, sample
from horae.report.tables import comparison_rows
from tests.builders import cluster, job, run
from tests.report.sample import Attempt, columns

GPU, NODE = cluster("1x1"), cluster("1x4")


def held(job: int, begin_s: float, end_s: float, *gpus: int, loads_s: float = 0.0) -> Attempt:
    return Attempt(job, list(gpus) or [0], begin_s, begin_s + loads_s, end_s, end_s)


def history(machines: Cluster, *attempts: Attempt, queues: Sequence[str] = ()) -> History:
    """Jobs a, b, c ... that are submitted at 0 and finish with their last attempt."""
    names = "abcdefgh"[: 1 + max(a.job for a in attempts)]
    sizes = {a.job: len(a.gpus) for a in attempts}
    jobs = tuple(
        job(name, gpus=sizes[k], work=100.0, queue=queues[k] if queues else "default") for k, name in enumerate(names)
    )
    start_s = np.array([min(a.begin_s for a in attempts if a.job == k) for k in range(len(jobs))])
    end_s = np.array([max(a.end_s for a in attempts if a.job == k) for k in range(len(jobs))])
    state = np.full(len(jobs), State.FINISHED, dtype=np.uint8)
    in_order = sorted(attempts, key=lambda a: a.begin_s)
    return History(
        machines, jobs, state, start_s, end_s, np.ones((len(jobs), 1)), columns(in_order, math.nan), "by-hand"
    )


def gpu_seconds(report: Report) -> list[float]:
    return report.outcomes.gpu_seconds.tolist()


# -------------------------------------------------------------- by hand


def test_two_jobs_on_one_gpu_use_it_once_and_have_half_of_it_each():
    report = measure(history(GPU, held(0, 0, 100), held(1, 0, 100)))
    assert report.utilization == 1.0
    assert gpu_seconds(report) == [50.0, 50.0]
    assert report.gpu_hours == 100 / 3600
    assert report.shared_gpu_share == 1.0
    assert report.by_gpu_type["gpu"].utilization == 1.0
    assert report.by_gpu_type["gpu"].gpu_hours == 100 / 3600
    assert report.by_gpu_type["gpu"].jobs == 2
    assert report.waiting_s.avg == 0.0, "who shares does not wait"


def test_alone_then_shared_then_alone():
    run_ = history(GPU, held(0, 0, 100), held(1, 40, 160))
    report = measure(run_)
    assert gpu_seconds(report) == [40 + 60 / 2, 60 / 2 + 60]
    assert report.utilization == 1.0
    assert report.shared_gpu_share == 60 / 160
    assert report.waiting_s.avg == 40 / 2, "b waited before it came"
    assert [row[6] for row in job_rows(run_)] == ["70", "90"]


def test_gangs_of_two_share_both_of_their_gpus():
    report = measure(history(NODE, held(0, 0, 100, 1, 2), held(1, 0, 50, 1, 2), queues=("org/x", "org/y")))
    assert gpu_seconds(report) == [2 * (50 / 2 + 50), 2 * 50 / 2]
    assert report.utilization == 200 / 400
    assert report.shared_gpu_share == 0.5
    assert report.fragmentation == 1.0, "the other two GPUs of the node were idle beside them"
    assert {name: queue.gpu_hours * 3600 for name, queue in report.by_queue.items()} == {"org/x": 150, "org/y": 50}


def test_idle_gpus_are_no_fewer_because_others_are_shared():
    two_nodes = cluster("2x2")
    report = measure(history(two_nodes, held(0, 0, 100, 0), held(1, 0, 100, 0), held(2, 0, 50, 2, 3)))
    assert report.utilization == pytest.approx((100 + 100) / 400)
    # Idle: GPU 1 for 100 s beside the shared one, and the second node, whole, for 2 x 50 s.
    assert report.fragmentation == pytest.approx(100 / 200)


def test_of_a_gpu_on_which_one_works_and_the_other_loads_half_is_overhead():
    report = measure(history(GPU, held(0, 0, 100), held(1, 0, 100, loads_s=20)))
    assert report.restart_overhead.gpu_seconds == 20 / 2
    assert report.restart_overhead.share == 10 / 100


def test_loading_alone_costs_the_whole_gpu_until_somebody_comes():
    report = measure(history(GPU, held(0, 0, 100, loads_s=30), held(1, 10, 100)))
    assert report.restart_overhead.gpu_seconds == 10 + 20 / 2


def test_a_window_counts_its_own_half_and_the_cluster_as_a_whole():
    run_ = history(GPU, held(0, 0, 100), held(1, 50, 200))
    first = measure(run_, 0, 1)
    assert (first.gpu_hours * 3600, first.utilization, first.shared_gpu_share) == (75.0, 1.0, 0.5)
    assert first.by_gpu_type["gpu"].gpu_hours * 3600 == 75.0


def test_nobody_shares_where_one_leaves_as_the_other_comes():
    report = measure(history(GPU, held(0, 0, 100), held(1, 100, 200)))
    assert (report.shared_gpu_share, report.utilization, gpu_seconds(report)) == (0.0, 1.0, [100.0, 100.0])


def test_an_attempt_that_came_and_went_at_once_takes_nothing():
    report = measure(history(GPU, held(0, 0, 100), held(1, 50, 50), held(1, 100, 150)))
    assert (report.shared_gpu_share, gpu_seconds(report)) == (0.0, [100.0, 50.0])


def test_a_holding_is_not_cut_where_one_companion_takes_anothers_place():
    holdings = Holdings.of(history(GPU, held(0, 0, 100), held(1, 0, 50), held(2, 50, 120)).attempts)
    rows = zip(
        holdings.attempt.tolist(), holdings.begin_s.tolist(), holdings.end_s.tolist(), holdings.holders, strict=True
    )
    assert sorted(rows) == [(0, 0, 100, 2), (1, 0, 50, 2), (2, 50, 100, 2), (2, 100, 120, 1)]


# --------------------------------------------------- against slow loops


@st.composite
def attempts(draw: st.DrawFn) -> Attempts:
    """Attempts on up to three GPUs at whole seconds, which overlap as they like."""
    found = []
    for number in range(draw(st.integers(1, 8))):
        begin = draw(st.integers(0, 20))
        gpus = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
        found.append(held(number, begin, begin + draw(st.integers(0, 12)), *gpus))
    return columns(found, math.nan)


def holders_by_second(of: Attempts, gpu: int, second: int) -> list[int]:
    there = (of.begin_s <= second) & (of.end_s > second)
    return [int(k) for k in np.flatnonzero(there) if gpu in of.gpu_ids[of.first[k] : of.first[k + 1]]]


@settings(max_examples=200, deadline=None)
@given(attempts())
def test_every_second_of_a_gpu_is_divided_equally_among_those_that_hold_it(of):
    wanted, shared_s, used_s = np.zeros(len(of.job)), 0, 0
    for gpu in range(3):
        for second in range(40):
            there = holders_by_second(of, gpu, second)
            wanted[there] += 1 / max(len(there), 1)
            used_s += bool(there)
            shared_s += len(there) > 1
    holdings = Holdings.of(of)
    found = np.bincount(holdings.attempt, holdings.gpu_s, minlength=len(of.job))
    assert found == pytest.approx(wanted)
    assert found.sum() == pytest.approx(used_s)
    assert holdings.shared_share == pytest.approx(shared_s / used_s if used_s else 0.0)
    cut = holdings.inside(5, 15)
    in_use = sum(bool(holders_by_second(of, gpu, second)) for gpu in range(3) for second in range(5, 15))
    assert cut.gpu_s.sum() == pytest.approx(in_use)


TABLE = Throughputs()
for name, speed in (("m", 1.0), ("n", 2.0)):
    for gpus, span in ((1, Span.GPU), (2, Span.NODE)):
        TABLE.put(Setting(name, "gpu", gpus, span), gpus * speed)
        TABLE.put(Setting(name, "gpu", gpus, span, "m"), gpus * speed * 0.75)
TABLE.put(Setting("m", "gpu", 1, Span.GPU, "n"), 0.6)

sharing_jobs = st.lists(
    st.builds(
        dict,
        gpus=st.sampled_from([1, 1, 2]),
        work=st.integers(1, 40).map(lambda n: 100.0 * n),
        submit_s=st.integers(0, 20).map(lambda n: 60.0 * n),
        job_class=st.sampled_from(["m", "n"]),
        queue=st.sampled_from(["org/x", "org/y"]),
    ),
    min_size=1,
    max_size=8,
)


def shared_run(drawn: list[dict], spec: str = "gpu:1x2", **more: object) -> History:
    jobs = [job(f"j{k}", unit="steps", **one) for k, one in enumerate(drawn)]
    return run(jobs, spec, "max-min", throughputs=TABLE, settings={"space-sharing": "true"}, **more)


TWO = [{"gpus": 1, "work": 3600.0, "submit_s": 0.0, "job_class": "m"}] * 2


@settings(max_examples=40, deadline=None)
@given(sharing_jobs, st.sampled_from([0.0, 45.0]))
@example(TWO * 2, 45.0)
def test_simulated_runs_never_use_more_than_they_have_and_attribute_all_they_use(drawn, restart_cost_s):
    run_ = shared_run(drawn, restart_cost_s=restart_cost_s)
    report, of = measure(run_), run_.attempts
    union_s = shared_s = 0.0
    for gpu in range(run_.cluster.gpus):
        own = [k for k in range(len(of.job)) if gpu in of.gpu_ids[of.first[k] : of.first[k + 1]]]
        moments = sorted({*of.begin_s[own], *of.end_s[own]})
        for now, then in pairwise(moments):
            there = sum(of.begin_s[k] <= now and then <= of.end_s[k] for k in own)
            assert there <= 2
            union_s += (then - now) * (there > 0)
            shared_s += (then - now) * (there > 1)
    assert report.utilization <= 1 + 1e-12
    assert report.utilization == pytest.approx(union_s / (run_.cluster.gpus * report.makespan_s))
    assert sum(gpu_seconds(report)) == pytest.approx(union_s)
    assert sum(queue.gpu_hours for queue in report.by_queue.values()) == pytest.approx(union_s / 3600)
    assert report.shared_gpu_share == pytest.approx(shared_s / union_s)
    assert 0 <= report.restart_overhead.share <= 1


def test_a_simulated_pair_shares_to_the_end():
    report = measure(shared_run(TWO, "gpu:1x1"))
    assert (report.utilization, report.shared_gpu_share, gpu_seconds(report)) == (1.0, 1.0, [2400.0, 2400.0])
    assert report.makespan_s == 4800.0


# --------------------------------------------------------- what is shown

Rect = tuple[float, float, float, float]


def bars(run_: History, end_s: float) -> dict[str, list[Rect]]:
    """Begin, end, top and bottom of every box of a job, in seconds and rows."""
    drawing = draw_timeline(run_, choose_colours(run_), 0.0, end_s)
    height = float(re.search(r'<rect x="\d+" y="\d+" width="\d+" height="(\d+)"', drawing)[1])
    found: dict[str, list[Rect]] = {}
    for name, body in re.findall(r"<title>(\w+): .*?</title>(.*?)</g>", drawing):
        for shape in re.findall(r'class="b" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', body):
            x, y, wide, high = map(float, shape)
            to_s, to_rows = end_s / (WIDTH - LEFT - RIGHT), run_.cluster.gpus / height
            box = ((x - LEFT) * to_s, (x - LEFT + wide) * to_s, (y - TOP) * to_rows, (y - TOP + high) * to_rows)
            found.setdefault(name, []).append(tuple(round(value, 1) for value in box))
    return found


def test_a_row_is_split_while_two_share_the_gpu():
    found = bars(history(GPU, held(0, 0, 100), held(1, 40, 160)), 160.0)
    assert found == {
        "a": [(0, 40, 0, 1), (40, 100, 0, 0.5)],
        "b": [(40, 100, 0.5, 1), (100, 160, 0, 1)],
    }


def test_every_gpu_of_a_gang_is_split():
    found = bars(history(NODE, held(0, 0, 100, 1, 2), held(1, 0, 50, 1, 2)), 100.0)
    assert found == {
        "a": [(0, 50, 1, 1.5), (0, 50, 2, 2.5), (50, 100, 1, 3)],
        "b": [(0, 50, 1.5, 2), (0, 50, 2.5, 3)],
    }


def test_a_job_keeps_its_half_while_companions_come_and_go():
    found = bars(history(GPU, held(0, 0, 60), held(1, 20, 200), held(2, 60, 120), held(3, 140, 200)), 200.0)
    assert found["b"] == [(20, 120, 0.5, 1), (120, 140, 0, 1), (140, 200, 0.5, 1)]
    assert found["c"] == [(60, 120, 0, 0.5)]
    assert found["d"] == [(140, 200, 0, 0.5)]


def test_loading_is_pale_in_the_half_in_which_it_happens():
    run_ = history(GPU, held(0, 0, 100), held(1, 40, 160, loads_s=90))
    drawing = draw_timeline(run_, choose_colours(run_), 0.0, 160.0)
    pale = re.findall(r'class="o" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', drawing)
    # From 40 to 100 in the lower half, from 100 to 130 in the whole row.
    assert [tuple(map(float, shape)) for shape in pale] == [(359.0, 18.0, 394.5, 12.0), (753.5, 6.0, 197.2, 24.0)]


def test_the_drawing_says_for_how_long_a_job_shared():
    run_ = history(NODE, held(0, 0, 100, 1, 2), held(1, 0, 50, 1, 2), held(2, 0, 30, 3))
    titles = re.findall(r"<title>(.*?)</title>", draw_timeline(run_, choose_colours(run_), 0.0, 100.0))
    assert titles == [
        "a: 2 GPUs from 0 s for 100 s, shared for 50 s",
        "b: 2 GPUs from 0 s for 50 s, shared for 50 s",
        "c: 1 GPU from 0 s for 30 s",
    ]


@settings(max_examples=25, deadline=None)
@given(sharing_jobs, st.integers(3, 40))
@example(TWO * 2, 25)
def test_a_sampled_timeline_shows_both_who_share_a_gpu(drawn, moments):
    run_ = shared_run(drawn)
    of, holdings, end_s = run_.attempts, Holdings.of(run_.attempts), float(run_.attempts.end_s.max()) + 10
    colour = np.arange(len(run_.jobs))
    cells = sample(run_, holdings, colour, 0.0, end_s, run_.cluster.gpus, moments)
    lines = 2 if holdings.shared.any() else 1
    assert len(cells) == lines * run_.cluster.gpus
    for column in range(moments):
        now = (column + 0.5) * end_s / moments
        for gpu in range(run_.cluster.gpus):
            there = (of.begin_s <= now) & (now < of.end_s)
            who = [k for k in np.flatnonzero(there) if gpu in of.gpu_ids[of.first[k] : of.first[k + 1]]]
            wanted = {1 + int(colour[of.job[k]]) for k in who} or {0}
            assert set(cells[lines * gpu : lines * (gpu + 1), column].tolist()) == wanted


def test_gpus_in_use_over_time_stay_within_all_there_are():
    run_ = history(GPU, held(0, 0, 100), held(1, 0, 100))
    alone = history(GPU, held(0, 0, 100))
    assert draw_usage([(run_, measure(run_))]) == draw_usage([(alone, measure(alone))])


def test_sharing_has_a_row_only_where_somebody_shared_and_nobody_is_best_at_it():
    shared, alone = measure(history(GPU, held(0, 0, 100), held(1, 40, 160))), measure(history(GPU, held(0, 0, 100)))
    label = "GPU-time held by two jobs at once"
    assert label not in {row.label for row in comparison_rows([alone, alone])}
    row = next(row for row in comparison_rows([shared, alone]) if row.label == label)
    assert (row.cells, row.best) == (("37.5%", "0%"), frozenset())


def test_a_page_speaks_of_sharing_only_where_there_was_any():
    shared, alone = history(GPU, held(0, 0, 100), held(1, 40, 160)), history(GPU, held(0, 0, 100))
    text = render_page([(shared, measure(shared))])
    assert "37.5% of the time in use by two jobs at once" in text
    assert "While two jobs share a GPU, each has half of its row." in text
    text = render_page([(alone, measure(alone))])
    assert "two jobs at once" not in text
    assert "half of its row" not in text
