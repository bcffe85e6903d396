"""Hierarchical fairness: throughput poured down a tree of queues until nobody can take more.

Gavel's hierarchical policies (OSDI '20, section 4.3), for trees of any depth.

The service of a job is (gpus / c) * throughput, as in max-min fairness, and the service of a
queue is that of all jobs below it. A fairness queue pours what it is given over its children,
queues or jobs, in proportion to their weights, and passes over those that can take no more; a
fifo queue gives all to the first that can. So long as nobody stands in anybody's way, all that
there is to know of a subtree is its need: the service after which it takes no more. A child is
then full at its queue's virtual time need / weight, as in fair queueing, and what everybody has
at a level follows in one walk from the root.

Capacity stops some jobs short of their fastest, and prices name them. A job that is stopped is
one that needs no more than it has: nothing below that level changes, and above it the weight
goes to its siblings, by the same walk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.jit import FLOAT, FLOATS, INTS, compiled
from horae.solve.allocation.equal_jobs import Classes, find_classes
from horae.solve.allocation.lexicographic import Alone, fill
from horae.solve.allocation.packing import Packing, Reached, pack
from horae.solve.allocation.price_search import Jobs
from horae.solve.allocation.problem import AllocationProblem, Solution

#: So close to what a job needs that it is what it needs.
_ALMOST = 1.0 - 1e-12


def hierarchical(problem: AllocationProblem) -> Solution:
    """Every queue shares what it is given among its children by weight, or serves them first come, first served.

    The objective is the least service / weight among those that share at the top: the children
    of the root or, while that is a single fairness queue, the children of that. If all jobs are
    in one fairness queue these are the jobs, and all is as in `max_min`.
    """
    _require_speed(problem)
    branches = _branches(problem)
    return _alone(problem, branches) if problem.sharing is None else _in_pairs(problem, branches)


def _alone(problem: AllocationProblem, branches: Branches) -> Solution:
    classes = find_classes(np.column_stack((problem.speed, problem.gpus, branches.tell_apart)))
    tree = branches.tree(problem, classes)
    jobs = Jobs(np.ascontiguousarray(problem.speed[classes.first]), problem.gpus[classes.first], classes.count)
    first, last = fill(Alone(jobs, problem.capacity), tree.pouring)
    certificate: dict[str, object] = {
        "prices": first.price.tolist(),
        "gap": max(first.gap, last.gap),
        "classes": len(classes.count),
    }
    return Solution(last.share[classes.of_job], tree.least_served(last.throughput), certificate)


def _in_pairs(problem: AllocationProblem, branches: Branches) -> Solution:
    """The same where jobs may share GPUs."""

    def answer(packing: Packing) -> Reached:
        return packing.fill(branches.tree(problem, packing.classes).pouring)

    packed = pack(problem, branches.tell_apart, answer)
    tree = branches.tree(problem, packed.packing.classes)
    return packed.solution(tree.least_served(packed.reached.throughput))


@dataclass(frozen=True)
class Tree:
    """The queues that have jobs, parents first, and then the leaves, which are classes of equal jobs.

    An item is a queue or a leaf; item 0 is the root. `order[start[n]:start[n + 1]]` are the
    children of queue n in order of submission, a queue by the first job below it.
    """

    #: Throughput of one job for each unit of its leaf's service.
    steps: Floats
    #: What each item counts among its siblings.
    weight: Floats
    #: 1 for a fifo queue, 0 for a fairness queue.
    fifo: Ints
    start: Ints
    order: Ints

    def service(self, throughput: Floats) -> Floats:
        """Service of each item, 0 for queues, if a job of each leaf has this throughput."""
        return np.concatenate((np.zeros(len(self.fifo)), throughput / self.steps))

    def pouring(self, least: Floats, most: Floats, lowest: float) -> Pouring:
        """How levels rise from a possible one if no job of each leaf takes more than this throughput.

        Nobody is promised anything: whoever comes to rest has its most.
        """
        need, order = self.service(most), self.order.copy()
        full, time, pours = np.zeros(len(order)), np.zeros(len(order)), np.ones(len(order))
        for queue in reversed(range(len(self.fifo))):
            here = slice(self.start[queue], self.start[queue + 1])
            if self.fifo[queue]:
                full[here] = np.cumsum(need[order[here]])
            else:
                times = need[order[here]] / self.weight[order[here]]
                soonest = np.argsort(times, kind="stable")
                order[here], time[here] = order[here][soonest], times[soonest]
                # The level is the root's virtual time itself, so that what some have does not blur what others get.
                if queue > 0:
                    pours[here] = np.cumsum(self.weight[order[here]][::-1])[::-1]
                full[here] = np.cumsum(np.diff(time[here], prepend=0.0) * pours[here])
            need[queue] = full[here][-1]
        return Pouring(self, most, lowest, need, order, full, time, pours)

    def least_served(self, throughput: Floats) -> float:
        """The least service / weight at the top, where somebody shares with somebody."""
        service = self.service(throughput)
        for queue in reversed(range(len(self.fifo))):
            service[queue] = service[self._children(queue)].sum()
        sharers = self._children(0)
        while len(sharers) == 1 and self._is_fairness_queue(sharers[0]):
            sharers = self._children(sharers[0])
        return float((service[sharers] / self.weight[sharers]).min())

    def _children(self, queue: int) -> Ints:
        return self.order[self.start[queue] : self.start[queue + 1]]

    def _is_fairness_queue(self, item: int) -> bool:
        return item < len(self.fifo) and not self.fifo[item]


@dataclass(frozen=True)
class Pouring:
    """A demand: what jobs have when the root's virtual time is at a level, if capacity stops nobody.

    Position k of the last four columns is a child of some queue; the children of a queue stand
    together, those that are full sooner before those that are full later.
    """

    tree: Tree
    #: Throughput at which a job of each leaf takes no more.
    most: Floats
    lowest: float
    #: Service after which each item takes no more; of the root, the level.
    need: Floats
    order: Ints
    #: What the queue has been given, and its virtual time, when this child is full.
    full: Floats
    time: Floats
    #: What the queue is given for each unit of its virtual time until then.
    pours: Floats

    @property
    def highest(self) -> float:
        """The level at which everybody is full."""
        return float(self.need[0])

    def at(self, level: float) -> tuple[Floats, Floats]:
        """Throughputs, and how they grow."""
        tree, service, growth = self.tree, np.empty_like(self.need), np.empty_like(self.need)
        columns = (tree.start, self.order, tree.fifo, tree.weight, self.need, self.full, self.time, self.pours)
        pour(level, *columns, service, growth)
        leaf = slice(len(tree.fifo), None)
        full = service[leaf] >= self.need[leaf] * _ALMOST
        return np.where(full, self.most, service[leaf] * tree.steps), np.where(full, 0.0, growth[leaf] * tree.steps)


@compiled("void", FLOAT, INTS, INTS, INTS, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS)
def pour(
    level: float,
    start: Ints,
    order: Ints,
    fifo: Ints,
    weight: Floats,
    need: Floats,
    full: Floats,
    time: Floats,
    pours: Floats,
    service: Floats,
    growth: Floats,
) -> None:
    """The service of every item at a level, and how it grows, from the root down; for the columns see `Pouring`."""
    service[0], growth[0] = level, 1.0
    for queue in range(len(fifo)):
        given, grows = service[queue], growth[queue]
        k, end = start[queue], start[queue + 1]
        # 1. Children that take no more.
        full_before, time_before = 0.0, 0.0
        while k < end and given >= full[k]:
            service[order[k]], growth[order[k]] = need[order[k]], 0.0
            full_before, time_before = full[k], time[k]
            k += 1
        if k == end:
            continue
        # 2. The others. In a fifo queue the first of them has the rest ...
        if fifo[queue] == 1:
            service[order[k]], growth[order[k]] = given - full_before, grows
            for later in range(k + 1, end):
                service[order[later]], growth[order[later]] = 0.0, 0.0
            continue
        # ... and in a fairness queue each has what its weight has brought it by now.
        now = time_before + (given - full_before) / pours[k]
        for later in range(k, end):
            item = order[later]
            service[item], growth[item] = weight[item] * now, weight[item] * grows / pours[k]


@dataclass(frozen=True)
class Branches:
    """The queues that have jobs at or below them, parents first; where each has its parent, and each job its queue."""

    weight: Floats
    fifo: Ints
    parent: Ints
    of_job: Ints
    #: Columns in which jobs differ that are not interchangeable: queue, weight, and their turn in a fifo queue.
    tell_apart: Floats

    def tree(self, problem: AllocationProblem, classes: Classes) -> Tree:
        """The tree with classes of equal jobs as its leaves."""
        first, count = classes.first, classes.count
        parent = np.concatenate((self.parent, self.of_job[first]))
        # The root, whose parent is -1, is nobody's child.
        order = np.lexsort((_first_below(parent, first), parent))[1:]
        return Tree(
            steps=problem.normaliser[first] / (problem.gpus[first] * count),
            weight=np.concatenate((self.weight, problem.weight[first] * count)),
            fifo=self.fifo,
            start=np.searchsorted(parent[order], np.arange(len(self.fifo) + 1)),
            order=order,
        )


def _branches(problem: AllocationProblem) -> Branches:
    queue = problem.queue if len(problem.queue) else np.zeros(len(problem), np.int64)
    parents = problem.queues.columns()[0]
    numbers = _with_parents(queue, parents)
    queues = [problem.queues[number] for number in numbers.tolist()]
    fifo = np.array([queue.rule == "fifo" for queue in queues], np.int64)
    of_job = np.searchsorted(numbers, queue)
    turn = np.where(fifo[of_job] == 1, 1 + np.arange(len(problem)), 0)
    return Branches(
        weight=np.array([queue.weight for queue in queues]),
        fifo=fifo,
        parent=np.append(-1, np.searchsorted(numbers, parents[numbers[1:]])),
        of_job=of_job,
        tell_apart=np.column_stack((of_job, problem.weight, turn)),
    )


def _with_parents(queue: Ints, parents: Ints) -> Ints:
    """Numbers of queues and of all above them, parents first; the root is always one."""
    found = {0}
    for number in np.unique(queue).tolist():
        while number not in found:
            found.add(number)
            number = int(parents[number])
    return np.array(sorted(found), np.int64)


def _first_below(parent: Ints, first: Ints) -> Ints:
    """The first job at or below each item."""
    queues = len(parent) - len(first)
    below = np.concatenate((np.full(queues, first.max()), first))
    np.minimum.at(below, parent[queues:], first)
    for queue in reversed(range(1, queues)):
        below[parent[queue]] = min(below[parent[queue]], below[queue])
    return below


def _require_speed(problem: AllocationProblem) -> None:
    from horae.solve.allocation.programs import NoAllocation  # which lists this program, so it cannot come first

    if not (problem.normaliser > 0).all():
        stuck = problem.ids[int(np.argmin(problem.normaliser))]
        raise NoAllocation(f"Job {stuck!r} has no throughput on any GPU type; give it one, or leave it out.")
