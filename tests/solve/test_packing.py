"""Programs in which jobs share GPUs, against a plain one with a variable for every two jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from scipy.optimize import linprog

from horae.core.cluster import Span
from horae.core.throughputs import Setting
from horae.solve.allocation.problem import AllocationProblem, Sharing
from horae.workload.speed_files import load_throughputs
from tests.solve.pairs import problems, solve
from tests.solve.plain import Shares, problem


def check_levels(plain: Shares, throughput: np.ndarray, level: np.ndarray) -> None:
    """Lexicographic: no job can rise if all that are no better off than it keep what they have."""
    for m in range(len(throughput)):
        no_better_off = level <= level[m] * (1 + 1e-6)
        least = np.where(no_better_off, throughput * (1 - 1e-9), 0.0)
        tolerance = 1e-4 * throughput[m] + 1e-5 * plain.speed[m].max()
        assert plain.most_of_one(m, least) <= throughput[m] + tolerance, f"job {m} of {plain.problem} could rise"


def alike(jobs: int, beside: float, gpus: int, **columns: object) -> AllocationProblem:
    """Jobs of one kind, each one step/s alone and `beside` in company, on GPUs of one type."""
    p = problem([[1.0]] * jobs, [gpus], **columns)
    return replace(p, sharing=Sharing(np.zeros(jobs, np.int64), np.full((1, 1, 1), beside)))


def test_two_jobs_share_a_gpu_if_that_is_faster_than_taking_turns() -> None:
    answer, throughput = solve("max-min", alike(2, 0.75, gpus=1))
    assert answer.pairs.tolist() == [[0, 1]]
    assert throughput == pytest.approx([0.75, 0.75])
    answer, throughput = solve("max-min", alike(2, 0.5, gpus=1))
    assert len(answer.pairs) == 0
    assert throughput == pytest.approx([0.5, 0.5])


def test_three_equal_jobs_are_each_as_often_beside_the_others() -> None:
    answer, throughput = solve("max-min", alike(3, 0.75, gpus=1))
    assert answer.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert answer.pair_share.ravel() == pytest.approx([1 / 3] * 3)
    assert throughput == pytest.approx([0.5] * 3)


def test_equal_jobs_get_the_same_in_few_pairs() -> None:
    """Two kinds of 30 and 20 jobs that run best beside the other: as many pairs as jobs, less one."""
    speed = np.repeat([[2.0], [1.0]], [30, 20], axis=0)
    beside = np.array([[[0.0], [1.8]], [[0.9], [0.0]]])
    p = replace(problem(speed, [12]), sharing=Sharing(np.repeat([0, 1], [30, 20]), beside))
    answer, throughput = solve("max-min", p)
    assert 30 <= len(answer.pairs) <= 49
    assert np.ptp(throughput[:30]) <= 1e-9
    assert np.ptp(throughput[30:]) <= 1e-9
    assert answer.certificate["classes"] == 2


def test_a_job_is_not_its_own_neighbour() -> None:
    """Jobs of one kind that want unlike throughputs: the program over kinds would put the longest beside itself."""
    p = problem([[2.0, 1.0]] * 3, [1, 1], steps_left=[300, 200, 100])
    p = replace(p, sharing=Sharing(np.zeros(3, np.int64), np.array([[[1.4, 0.8]]])))
    answer, throughput = solve("makespan", p)
    assert answer.certificate["kinds"] > 1
    plain = Shares(p)
    assert plain.possible(p.steps_left / (answer.objective * (1 + 1e-6)))
    assert not plain.possible(p.steps_left / (answer.objective * (1 - 1e-6)))
    check_levels(plain, throughput, throughput / p.steps_left)


def test_gangs_and_single_gpus_mix_but_do_not_share_with_each_other() -> None:
    p = problem([[4.0], [4.0], [1.0], [1.0]], [3], gpus=[2, 2, 1, 1])
    p = replace(p, sharing=Sharing(np.zeros(4, np.int64), np.full((1, 1, 1), 0.9)))
    answer, _ = solve("total-throughput", p)
    assert {tuple(pair) for pair in answer.pairs.tolist()} <= {(0, 1), (2, 3)}


def test_where_all_jobs_are_of_their_own_kind_most_pairs_never_enter_the_program() -> None:
    rng = np.random.default_rng(5)
    jobs = 40
    speed = rng.uniform(1, 5, (jobs, 2))
    beside = speed[:, None, :] * rng.uniform(0.4, 0.8, (jobs, jobs, 2))
    p = replace(problem(speed, [6, 6], steps_left=rng.uniform(50, 500, jobs)), sharing=Sharing(np.arange(jobs), beside))
    plain = Shares(p)
    for name, rate in (("max-min", p.normaliser), ("makespan", p.steps_left)):
        answer, throughput = solve(name, p)
        level = (throughput / rate).min()
        assert answer.objective == pytest.approx(level if name == "max-min" else 1 / level, rel=1e-6)
        assert not plain.possible(rate * level * (1 + 1e-6))
        assert answer.certificate["pairs"] > 500


@pytest.fixture(scope="module")
def published(shared_data: Path) -> AllocationProblem:
    """2,048 jobs of the published table, gangs among them, on 512 GPUs of each type."""
    table = load_throughputs(shared_data / "gavel" / "simulation_throughputs.json")
    types = ("v100", "p100", "k80")
    classes = sorted({(setting.job_class, setting.gpus) for setting in table._table})
    span = {size: Span.GPU if size == 1 else Span.NODE for _, size in classes}

    def speed(job_class: str, size: int, gpu_type: str, neighbour: str = "") -> float:
        found = table.get(Setting(job_class, gpu_type, size, span[size], neighbour))
        return found.steps_per_s if found else 0.0

    alone = np.array([[speed(*one, gpu_type) for gpu_type in types] for one in classes])
    beside = np.array(
        [
            [
                [speed(*one, gpu_type, other[0]) if one[1] == other[1] else 0.0 for gpu_type in types]
                for other in classes
            ]
            for one in classes
        ]
    )
    kind = np.random.default_rng(0).integers(0, len(classes), 2048)
    gpus = np.array([size for _, size in classes])
    return replace(problem(alone[kind], [512, 512, 512], gpus=gpus[kind]), sharing=Sharing(kind, beside))


def test_the_published_table_equals_a_plain_program_over_its_classes(published: AllocationProblem) -> None:
    p = published
    answer, throughput = solve("max-min", p)
    rate = p.normaliser / p.gpus
    assert answer.objective == pytest.approx((throughput / rate).min(), rel=1e-6)
    first, count = np.unique(p.sharing.pair_row, return_index=True, return_counts=True)[1:]
    assert answer.objective == pytest.approx(by_class(p, first, count, rate[first]), rel=1e-6)


def by_class(p: AllocationProblem, first: np.ndarray, count: np.ndarray, rate: np.ndarray) -> float:
    """The largest least of throughput / rate: time of each class, and each two, on each type."""
    classes, types = len(first), len(p.capacity)
    kind, gpus = p.sharing.pair_row[first], p.gpus[first]
    columns = []
    for k in range(types):
        for a in range(classes):
            if p.speed[first[a], k] > 0:
                columns.append((k, gpus[a], {a: 1}, {a: p.speed[first[a], k]}))
            for b in range(a, classes):
                own, others = p.sharing.pair_speed[kind[a], kind[b], k], p.sharing.pair_speed[kind[b], kind[a], k]
                if own > 0 and others > 0 and (a != b or count[a] > 1):
                    both = ({a: 2}, {a: 2 * own}) if a == b else ({a: 1, b: 1}, {a: own, b: others})
                    columns.append((k, gpus[a], *both))
    rows = np.zeros((2 * classes + types, len(columns) + 1))
    for at, (k, size, time, steps) in enumerate(columns):
        rows[classes + k, at] = size
        for c in time:
            rows[c, at], rows[classes + types + c, at] = time[c], -steps[c] / rate[c] / count[c]
    rows[classes + types :, -1] = 1.0
    most = np.concatenate((count, p.capacity, np.zeros(classes)))
    answer = linprog(-np.eye(len(columns) + 1)[-1], A_ub=rows, b_ub=most, method="highs")
    return -float(answer.fun)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_max_min_with_pairs_raises_the_worst_off_as_far_as_a_plain_program_can(p: AllocationProblem) -> None:
    answer, throughput = solve("max-min", p)
    rate, plain = p.weight * p.normaliser / p.gpus, Shares(p)
    assert answer.objective == pytest.approx((throughput / rate).min(), rel=1e-6)
    assert plain.possible(rate * answer.objective * (1 - 1e-6))
    assert not plain.possible(rate * answer.objective * (1 + 1e-6))
    check_levels(plain, throughput, throughput / rate)


#: Jobs 0 and 1 can rise on until they reach a speed over which their kind has no more time.
UP_TO_A_FLOOR = replace(
    problem([[5, 4, 3]] * 5, [1, 2, 1], steps_left=[100, 100, 200, 100, 200], isolated_s=[145, 190, 45, 131, 90]),
    sharing=Sharing(
        np.array([1, -1, 1, 1, -1]),
        np.array([[[0.9, 3.0, 1.2], [3.0, 1.5, 1.2]], [[4.0, 4.0, 0.9], [1.5, 4.0, 0.0]]]),
    ),
)


@settings(max_examples=40, deadline=None)
@given(problems())
@example(UP_TO_A_FLOOR)
def test_finish_time_with_pairs_lowers_the_largest_rho_as_far_as_a_plain_program_can(p: AllocationProblem) -> None:
    answer, throughput = solve("finish-time", p)
    alone_s, plain = p.isolated_s + p.steps_left / p.isolated_throughput, Shares(p)
    rho = (p.elapsed_s + p.steps_left / throughput) / alone_s
    assert answer.objective == pytest.approx(rho.max(), rel=1e-6)
    left_s = answer.objective * (1 - 1e-6) * alone_s - p.elapsed_s
    assert (left_s <= 0).any() or not plain.possible(p.steps_left / left_s)
    check_levels(plain, throughput, 1 / rho)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_makespan_with_pairs_is_the_shortest_and_short_jobs_do_not_starve(p: AllocationProblem) -> None:
    answer, throughput = solve("makespan", p)
    plain = Shares(p)
    assert answer.objective == pytest.approx((p.steps_left / throughput).max(), rel=1e-6)
    assert not plain.possible(p.steps_left / (answer.objective * (1 - 1e-6)))
    check_levels(plain, throughput, throughput / p.steps_left)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_total_throughput_and_cost_with_pairs_equal_the_plain_program(p: AllocationProblem) -> None:
    plain, nothing = Shares(p), np.zeros(len(p))
    answer, throughput = solve("total-throughput", p)
    assert answer.objective == pytest.approx(plain.best((1 / p.normaliser) @ plain.speed, nothing), rel=1e-6)
    assert answer.objective == pytest.approx((throughput / p.normaliser).sum(), rel=1e-6)
    answer, _ = solve("cost", p)
    assert answer.objective == pytest.approx(plain.best(_per_price(plain), nothing), rel=1e-6)


def _per_price(plain: Shares) -> np.ndarray:
    return plain.speed.sum(axis=0) / np.array([plain.problem.price[k] for _, k in plain.who])


@settings(max_examples=40, deadline=None)
@given(problems())
def test_with_pairs_only_deadlines_that_cannot_be_met_are_relaxed_and_by_name(p: AllocationProblem) -> None:
    answer, throughput = solve("cost-deadline", p)
    plain, least, expected = Shares(p), np.zeros(len(p)), []
    dated = [m for m in range(len(p)) if np.isfinite(p.deadline_s[m])]
    for m in sorted(dated, key=lambda m: (p.deadline_s[m], p.ids[m])):
        trial = least.copy()
        trial[m] = p.steps_left[m] / p.deadline_s[m] if p.deadline_s[m] > 0 else 1e9
        least, expected = (trial, expected) if plain.possible(trial) else (least, [*expected, p.ids[m]])
    assert answer.certificate["relaxed_deadlines"] == expected
    assert (throughput >= least * (1 - 1e-6)).all()
    assert answer.objective == pytest.approx(plain.best(_per_price(plain), least), rel=1e-6)
