"""The pouring down the queue tree against explicit rounds of plain linear programs, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from horae.core.queues import Queue, QueueTree
from horae.solve.allocation.hierarchy import hierarchical
from horae.solve.allocation.problem import AllocationProblem, Sharing
from horae.solve.allocation.programs import NoAllocation, max_min
from tests.solve.plain import Shares, problem


def queued(p: AllocationProblem, queues: list[Queue], of_job: list[str]) -> AllocationProblem:
    """The same problem with its jobs in queues."""
    tree = QueueTree(queues)
    return replace(p, queue=np.array([tree.number(path) for path in of_job], np.int64), queues=tree)


def solve(p: AllocationProblem) -> np.ndarray:
    """Throughputs, after a check that the shares could be given."""
    solution = hierarchical(p)
    share, pairs, pair_share = solution.share, solution.pairs, solution.pair_share
    time, used = share.sum(axis=1), p.gpus @ share
    for (a, b), shared in zip(pairs.tolist(), pair_share, strict=True):
        assert a != b
        time[[a, b]] += shared.sum()
        used += p.gpus[a] * shared
    assert (share >= 0).all()
    assert (time <= 1 + 1e-7).all()
    assert (used <= p.capacity * (1 + 1e-7)).all()
    assert (share[p.speed == 0] == 0).all()
    assert p.sharing or solution.certificate["gap"] <= 1e-7
    return solution.throughput(p)


@st.composite
def problems(draw: st.DrawFn) -> AllocationProblem:
    """Small problems with jobs all over a tree of up to three levels, scarce and plenty, equal jobs and gangs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    jobs, types = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    speed = rng.integers(0, 6, (jobs, types)).astype(float)
    speed[speed.max(axis=1) == 0, 0] = 1.0
    if draw(st.booleans()):
        speed[:] = speed[0]
    p = problem(
        speed,
        rng.integers(1, draw(st.sampled_from([1, 3, 8])) + 1, types),
        gpus=rng.choice([1, 1, 2], jobs),
        weight=rng.choice([1, 1, 2, 5], jobs),
    )
    paths = [f"{a}{b}{c}" for a in ("x", "y") for b in ("", "/u", "/v") for c in ("", "/i", "/j") if b or not c]
    rules = rng.choice(["fairness", "fifo"], len(paths))
    queues = [Queue(path, float(rng.choice([1, 2, 3])), str(rule)) for path, rule in zip(paths, rules, strict=True)]
    return queued(p, queues, rng.choice(paths, jobs).tolist())


@st.composite
def sharing_problems(draw: st.DrawFn) -> AllocationProblem:
    """The same with jobs of a few kinds, most of which can share GPUs."""
    p, rng = draw(problems()), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = rng.integers(0, 3, len(p))
    speed = p.speed[np.arange(3) % len(p)]
    beside = speed[:, None, :] * rng.choice([0.0, 0.3, 0.6, 0.8], (3, 3, len(p.capacity)))
    sharing = Sharing(np.where(rng.random(len(p)) < 0.2, -1, kind), beside)
    return replace(p, speed=speed[kind], sharing=sharing)


def in_plain_rounds(p: AllocationProblem) -> np.ndarray:
    """Water filling as the paper has it: weights from the tree, one program to rise, one for each job to see who can.

    A round raises each job with a weight in proportion to it; those that then cannot rise
    while all others keep what they have are frozen.
    """
    unit, plain = p.normaliser / p.gpus, Shares(p)
    throughput, frozen = np.zeros(len(p)), np.zeros(len(p), bool)
    while not frozen.all():
        weight = np.zeros(len(p))
        _hand_down(p, 0, 1.0, frozen, weight)
        throughput += unit * weight * _highest_rise(plain, throughput, unit * weight)
        # What a solver finds possible to the last digit it may not find possible again.
        throughput *= 1 - 2e-9
        stuck = [m for m in np.flatnonzero(weight) if _cannot_rise(plain, m, throughput)]
        assert stuck, "a round without a bottleneck"
        frozen[stuck] = True
    return throughput


def _hand_down(p: AllocationProblem, queue: int, weight: float, frozen: np.ndarray, out: np.ndarray) -> None:
    """Weights of the jobs below a queue, by the rules of the tree."""
    children = [(_first_below(p, n), n, None) for n in _queues_in(p, queue) if not frozen[_below(p, n)].all()]
    children += [(m, None, m) for m in np.flatnonzero((p.queue == queue) & ~frozen)]
    children.sort(key=lambda child: child[0])
    if p.queues[queue].rule == "fifo":
        children = children[:1]
    own = [p.queues[n].weight if m is None else p.weight[m] for _, n, m in children]
    for (_, n, m), part in zip(children, own, strict=True):
        if m is None:
            _hand_down(p, n, weight * part / sum(own), frozen, out)
        else:
            out[m] = weight * part / sum(own)


def _queues_in(p: AllocationProblem, queue: int) -> list[int]:
    parents = p.queues.parents()
    return [n for n in range(1, len(parents)) if parents[n] == queue and len(_below(p, n))]


def _below(p: AllocationProblem, queue: int) -> list[int]:
    """Jobs in a queue and in the queues below it."""
    path = p.queues.paths[queue]
    return [m for m in range(len(p)) if f"{p.queues.paths[p.queue[m]]}/".startswith(f"{path}/")]


def _first_below(p: AllocationProblem, queue: int) -> int:
    return min(_below(p, queue))


def _cannot_rise(plain: Shares, m: int, throughput: np.ndarray) -> bool:
    alone = np.where(np.arange(len(throughput)) == m, plain.speed[m].max(), 0.0)
    return _highest_rise(plain, throughput, alone) <= 1e-5


def _highest_rise(plain: Shares, least: np.ndarray, rate: np.ndarray) -> float:
    """The most of delta with throughputs of at least `least + rate * delta`."""
    rows, most = plain.limits()
    wanted = np.column_stack((-plain.speed, rate))
    answer = linprog(
        np.append(np.zeros(rows.shape[1]), -1.0),
        A_ub=np.vstack((np.column_stack((rows, np.zeros(len(rows)))), wanted)),
        b_ub=np.append(most, -least),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.status == 0, answer.message
    return float(answer.x[-1])


@settings(max_examples=60, deadline=None)
@given(problems())
def test_throughputs_are_those_of_explicit_rounds(p: AllocationProblem) -> None:
    assert solve(p) == pytest.approx(in_plain_rounds(p), rel=1e-5, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(sharing_problems())
def test_with_pairs_throughputs_are_those_of_explicit_rounds(p: AllocationProblem) -> None:
    assert solve(p) == pytest.approx(in_plain_rounds(p), rel=1e-5, abs=1e-5)


def test_a_fixed_job_whose_demand_rises_by_a_rounding_error_stops_nobody() -> None:
    """Jobs of queue x rest, then the second job of y/v; the first of y/u must still rise to 4."""
    slow, fast, third = [2.0, 5.0, 4.0], [3.0, 5.0, 2.0], [4.0, 3.0, 1.0]
    p = problem([slow, third, fast, fast, slow, slow], [3, 4, 1], gpus=[2, 1, 1, 1, 1, 1], weight=[1, 5, 5, 1, 1, 1])
    beside = np.zeros((2, 2, 3))
    beside[0] = [[0.9, 4.0, 0.0], [0.0, 4.0, 0.6]]
    beside[1] = [[1.6, 4.0, 2.4], [1.6, 4.0, 2.4]]
    p = replace(p, sharing=Sharing(np.array([1, -1, 0, -1, 1, 1]), beside))
    lines = [Queue(path, rule="fifo") for path in ("x", "x/v/j", "y/u", "y/v/i")]
    queues = [*lines, Queue("y", 3, "fifo"), Queue("y/v", 3)]
    throughput = solve(queued(p, queues, "y/v y/u x/v/j y/v x/v y/v/i".split()))
    assert throughput == pytest.approx([4.904092, 4, 3.383632, 5, 3.616368, 5])


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(["", "a", "a/b"]))
def test_one_fairness_queue_is_max_min_fairness(p: AllocationProblem, path: str) -> None:
    flat = queued(p, [], [path] * len(p))
    assert solve(flat) == pytest.approx(max_min(p).throughput(p), rel=1e-6, abs=1e-6)
    assert hierarchical(flat).objective == pytest.approx(max_min(p).objective, rel=1e-6)


def test_without_queues_all_jobs_share_at_the_root() -> None:
    p = problem([[40, 10], [12, 4], [100, 50]], [1, 1])
    assert solve(p) == pytest.approx([18.1818, 5.8182, 54.5455], abs=1e-4)
    assert hierarchical(p).objective == pytest.approx(0.72727, abs=1e-5)


def on_equal_gpus(capacity: int, queues: list[Queue], of_job: str, **columns: list[float]) -> np.ndarray:
    """Shares of time on GPUs of one type: the queue of each job is a word of `of_job`, jobs in order of submission."""
    paths = of_job.split()
    return solve(queued(problem([[1.0]] * len(paths), [capacity], **columns), queues, paths))


def test_a_queue_of_weight_two_gets_twice_as_much() -> None:
    shares = on_equal_gpus(3, [Queue("one", 1), Queue("two", 2)], "one two one two one two")
    assert shares == pytest.approx([1 / 3, 2 / 3] * 3)


def test_what_a_queue_gets_does_not_depend_on_how_many_jobs_it_has() -> None:
    assert on_equal_gpus(2, [], "few many few many many many") == pytest.approx([0.5, 0.25, 0.5, 0.25, 0.25, 0.25])


def test_a_job_of_weight_two_gets_twice_what_its_sibling_gets() -> None:
    shares = on_equal_gpus(1, [Queue("a", 3), Queue("b", 1)], "a a b", weight=[1, 2, 7])
    assert shares == pytest.approx([0.25, 0.5, 0.25])


def test_a_fifo_queue_gives_all_to_its_first_job_until_that_has_its_fastest() -> None:
    shares = on_equal_gpus(3, [Queue("line", rule="fifo")], "line fair line fair line fair")
    assert shares == pytest.approx([1, 0.5, 0.5, 0.5, 0, 0.5], abs=1e-7)


def test_a_queue_that_can_take_no_more_passes_its_weight_to_its_siblings_first() -> None:
    """Queue x has 2 of 4 GPUs; x/u takes 1, and x/v what that leaves of the 2."""
    shares = on_equal_gpus(4, [Queue("x/u", 9)], "x/u x/v x/v x/v y y y y")
    assert shares == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3, 0.5, 0.5, 0.5, 0.5])
    assert on_equal_gpus(3, [Queue("a", 5)], "a b b b b") == pytest.approx([1, 0.5, 0.5, 0.5, 0.5])


def test_a_job_whose_gpus_are_used_up_passes_its_weight_to_its_siblings_first() -> None:
    """Three jobs want the one fast GPU only; what the one in queue a cannot have goes to its sibling, not to b."""
    speed = [[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]]
    p = problem(speed, [1, 1])
    throughput = solve(queued(p, [], "a a b b b".split()))
    # All rise until the fast GPU is full: a's jobs at 3/2 the pace of b's. Then the siblings share the slow one 1 : 1.
    pace = np.array([3, 3, 2, 2, 2]) / 7
    left = 1 - pace[[1, 3]].sum()
    assert throughput == pytest.approx([pace[0], pace[1] + left / 2, pace[2], pace[3] + left / 2, pace[4]])


def test_queues_in_a_fifo_queue_are_served_in_the_order_of_their_first_jobs() -> None:
    queues = [Queue("line", rule="fifo"), Queue("line/early"), Queue("line/late")]
    assert on_equal_gpus(1, queues, "line/late line/early line/late") == pytest.approx([0.5, 0, 0.5], abs=1e-7)
    assert on_equal_gpus(2, queues, "line/late line/early line line/late") == pytest.approx([1, 0, 0, 1], abs=1e-7)


def test_a_tree_may_be_deep() -> None:
    """Five queues inside each other, each with one job beside the next: every level halves what is left."""
    shares = on_equal_gpus(1, [], "z a a/b a/b/c a/b/c/d a/b/c/d/e")
    assert shares == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 32])


def test_gangs_get_their_due_in_gpus() -> None:
    assert on_equal_gpus(4, [], "a b b", gpus=[4, 1, 1]) == pytest.approx([0.5, 1, 1])


def test_the_objective_is_that_of_the_least_served_at_the_top() -> None:
    p = queued(problem([[1.0]] * 4, [3]), [Queue("a", 2), Queue("b", 1)], ["a", "a", "b", "b"])
    assert hierarchical(p).objective == pytest.approx(1)
    below = queued(p, [Queue("top/a", 2), Queue("top/b", 1)], ["top/a", "top/a", "top/b", "top/b"])
    assert hierarchical(below).objective == pytest.approx(1)
    line = queued(p, [Queue("line", 2, "fifo")], ["line"] * 4)
    assert hierarchical(line).objective == pytest.approx(1.5)


def test_equal_jobs_are_one_class_unless_they_stand_in_a_line() -> None:
    p = problem([[1.0]] * 1000, [10])
    fair = queued(p, [], ["a", "b"] * 500)
    assert hierarchical(fair).certificate["classes"] == 2
    assert solve(fair) == pytest.approx([0.01] * 1000)
    line = queued(p, [Queue("a", rule="fifo")], ["a", "b"] * 500)
    assert hierarchical(line).certificate["classes"] == 501
    assert solve(line)[:12:2] == pytest.approx([1, 1, 1, 1, 1, 0], abs=1e-7)


def test_jobs_that_come_to_rest_one_by_one_lose_nothing_on_the_way() -> None:
    """The fast GPU goes to the heavy queue; each of the others rests at a level of its own, as fast as a slow GPU."""
    slow = np.linspace(1, 2, 300)
    p = problem(np.column_stack((np.append(np.full(3, 9.0), slow + 3), np.append(np.zeros(3), slow))), [1, 400])
    queues = [Queue("heavy", 1e6), *(Queue(f"light{k}", rule=("fairness", "fifo")[k % 2]) for k in range(6))]
    throughput = solve(queued(p, queues, ["heavy"] * 3 + [f"light{k % 6}" for k in range(300)]))
    assert throughput[:3].sum() == pytest.approx(9, rel=1e-4)
    assert throughput[3:].sum() == pytest.approx(slow.sum(), rel=1e-4)
    assert (throughput[3:] >= slow * (1 - 1e-7)).all()


def test_a_job_that_no_gpu_can_run_is_refused_by_name() -> None:
    with pytest.raises(NoAllocation, match="Job '1' has no throughput"):
        hierarchical(problem([[1.0], [0.0]], [1]))
