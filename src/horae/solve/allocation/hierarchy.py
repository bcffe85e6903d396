"""Hierarchical fairness: service flows down a tree of queues until no job can take more.

Gavel's hierarchical policies (OSDI '20, section 4.3), for trees of any depth.

The service of a job is (gpus / c) * throughput, as in max-min fairness; the service of a queue is that of all jobs
below it. A fairness queue gives its service to its children, queues or jobs, in proportion to their weights, and
passes over children that can take no more. A fifo queue gives all to the first child that can take it. Without
capacity limits a subtree is described by its need: the service after which it takes no more. A child is then full at
its queue's virtual time need / weight, as in fair queueing, and the service of all jobs at a level follows in one
walk from the root.

Capacity stops some jobs before their fastest, and prices tell which. A stopped job needs no more than it has: nothing
below that level changes, and above it the job's weight goes to its siblings, by the same walk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horae.core.arrays import Floats, Ints
from horae.core.jit import FLOAT, FLOATS, INTS, compiled
from horae.solve.allocation.equal_jobs import Classes, find_classes
from horae.solve.allocation.lexicographic import UnsharedSearch, fill
from horae.solve.allocation.packing import Packing, Reached, pack
from horae.solve.allocation.price_search import Jobs
from horae.solve.allocation.problem import AllocationProblem, Solution

#: Service this close to the need counts as the need.
_ALMOST = 1.0 - 1e-12


def hierarchical(problem: AllocationProblem) -> Solution:
    """Every queue shares its service among its children by weight, or serves them first come, first served.

    The objective is the least service / weight at the top: among the children of the root or, while that is a
    single fairness queue, the children of that queue. If all jobs are in one fairness queue, this is `max_min`.
    """
    _require_speed(problem)
    queues_in_use = _queues_in_use(problem)
    return _unshared(problem, queues_in_use) if problem.sharing is None else _shared(problem, queues_in_use)


def _unshared(problem: AllocationProblem, queues_in_use: QueuesInUse) -> Solution:
    classes = find_classes(np.column_stack((problem.speed, problem.gpus, queues_in_use.identity)))
    tree = queues_in_use.tree(problem, classes)
    jobs = Jobs(np.ascontiguousarray(problem.speed[classes.first]), problem.gpus[classes.first], classes.count)
    first, last = fill(UnsharedSearch(jobs, problem.capacity), tree.demand)
    certificate: dict[str, object] = {
        "prices": first.price.tolist(),
        "gap": max(first.gap, last.gap),
        "classes": len(classes.count),
    }
    return Solution(last.share[classes.of_job], tree.least_served(last.throughput), certificate)


def _shared(problem: AllocationProblem, queues_in_use: QueuesInUse) -> Solution:
    """The solution where jobs may share GPUs."""

    def answer(packing: Packing) -> Reached:
        return packing.fill(queues_in_use.tree(problem, packing.classes).demand)

    packed = pack(problem, queues_in_use.identity, answer)
    tree = queues_in_use.tree(problem, packed.packing.classes)
    return packed.solution(tree.least_served(packed.reached.throughput))


@dataclass(frozen=True)
class Tree:
    """The queues that have jobs, parents first, and then the leaves, which are classes of equal jobs.

    An item is a queue or a leaf; item 0 is the root. `order[start[n]:start[n + 1]]` are the
    children of queue n in order of submission, a queue by the first job below it.
    """

    #: Throughput of one job for one unit of its leaf's service.
    steps: Floats
    #: Weight of each item among its siblings.
    weight: Floats
    #: 1 for a fifo queue, 0 for a fairness queue.
    fifo: Ints
    start: Ints
    order: Ints

    def service(self, throughput: Floats) -> Floats:
        """Service of each leaf, if a job of it has this throughput; 0 for queues."""
        return np.concatenate((np.zeros(len(self.fifo)), throughput / self.steps))

    def demand(self, least: Floats, most: Floats, lowest: float) -> TreeDemand:
        """The demand of the tree, if a job of each leaf takes at most the throughput `most`.

        `least` is not used: a class that is fixed has its `most`.
        """
        need, order = self.service(most), self.order.copy()
        full, time, service_rate = np.zeros(len(order)), np.zeros(len(order)), np.ones(len(order))
        for queue in reversed(range(len(self.fifo))):
            here = slice(self.start[queue], self.start[queue + 1])
            if self.fifo[queue]:
                full[here] = np.cumsum(need[order[here]])
            else:
                times = need[order[here]] / self.weight[order[here]]
                soonest = np.argsort(times, kind="stable")
                order[here], time[here] = order[here][soonest], times[soonest]
                # The level is the root's virtual time itself, so children cause no rounding errors in each other.
                if queue > 0:
                    service_rate[here] = np.cumsum(self.weight[order[here]][::-1])[::-1]
                full[here] = np.cumsum(np.diff(time[here], prepend=0.0) * service_rate[here])
            need[queue] = full[here][-1]
        return TreeDemand(self, most, lowest, need, order, full, time, service_rate)

    def least_served(self, throughput: Floats) -> float:
        """The least service / weight at the top level that has several items."""
        service = self.service(throughput)
        for queue in reversed(range(len(self.fifo))):
            service[queue] = service[self._children(queue)].sum()
        items = self._children(0)
        while len(items) == 1 and self._is_fairness_queue(items[0]):
            items = self._children(items[0])
        return float((service[items] / self.weight[items]).min())

    def _children(self, queue: int) -> Ints:
        return self.order[self.start[queue] : self.start[queue + 1]]

    def _is_fairness_queue(self, item: int) -> bool:
        return item < len(self.fifo) and not self.fifo[item]


@dataclass(frozen=True)
class TreeDemand:
    """A demand: the throughput of jobs when the root's virtual time is at a level, without capacity limits.

    Position k of the last four columns is a child of a queue; the children of a queue are neighbours, in the
    order in which they are full.
    """

    tree: Tree
    #: Throughput at which a job of each leaf takes no more.
    most: Floats
    lowest: float
    #: Service after which each item takes no more; of the root, the level.
    need: Floats
    order: Ints
    #: Service of the queue, and its virtual time, when this child is full.
    full: Floats
    time: Floats
    #: Service of the queue for each unit of its virtual time until then.
    service_rate: Floats

    @property
    def highest(self) -> float:
        """The level at which all items are full."""
        return float(self.need[0])

    def throughputs(self, level: float) -> tuple[Floats, Floats]:
        """Steps/s of a job of each leaf at a level, and their derivative by the level."""
        tree, service, growth = self.tree, np.empty_like(self.need), np.empty_like(self.need)
        columns = (tree.start, self.order, tree.fifo, tree.weight, self.need, self.full, self.time, self.service_rate)
        serve(level, *columns, service, growth)
        leaf = slice(len(tree.fifo), None)
        full = service[leaf] >= self.need[leaf] * _ALMOST
        return np.where(full, self.most, service[leaf] * tree.steps), np.where(full, 0.0, growth[leaf] * tree.steps)


@compiled("void", FLOAT, INTS, INTS, INTS, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS)
def serve(
    level: float,
    start: Ints,
    order: Ints,
    fifo: Ints,
    weight: Floats,
    need: Floats,
    full: Floats,
    time: Floats,
    service_rate: Floats,
    service: Floats,
    growth: Floats,
) -> None:
    """The service of every item at a level, and its derivative, from the root down; columns as in `TreeDemand`."""
    service[0], growth[0] = level, 1.0
    for queue in range(len(fifo)):
        given, grows = service[queue], growth[queue]
        k, end = start[queue], start[queue + 1]
        # 1. Children that are full.
        full_before, time_before = 0.0, 0.0
        while k < end and given >= full[k]:
            service[order[k]], growth[order[k]] = need[order[k]], 0.0
            full_before, time_before = full[k], time[k]
            k += 1
        if k == end:
            continue
        # 2. The others. In a fifo queue the first of them has all the service that is left ...
        if fifo[queue] == 1:
            service[order[k]], growth[order[k]] = given - full_before, grows
            for later in range(k + 1, end):
                service[order[later]], growth[order[later]] = 0.0, 0.0
            continue
        # ... and in a fairness queue each has its weight times the virtual time.
        virtual_time = time_before + (given - full_before) / service_rate[k]
        for later in range(k, end):
            item = order[later]
            service[item], growth[item] = weight[item] * virtual_time, weight[item] * grows / service_rate[k]


@dataclass(frozen=True)
class QueuesInUse:
    """The queues that have jobs at or below them, parents first; the parent of each, and the queue of each job."""

    weight: Floats
    fifo: Ints
    parent: Ints
    of_job: Ints
    #: Columns that are equal for interchangeable jobs: queue, weight, position in a fifo queue.
    identity: Floats

    def tree(self, problem: AllocationProblem, classes: Classes) -> Tree:
        """The tree with classes of equal jobs as its leaves."""
        first, count = classes.first, classes.count
        parent = np.concatenate((self.parent, self.of_job[first]))
        # The root, whose parent is -1, is no child.
        order = np.lexsort((_first_below(parent, first), parent))[1:]
        return Tree(
            steps=problem.normaliser[first] / (problem.gpus[first] * count),
            weight=np.concatenate((self.weight, problem.weight[first] * count)),
            fifo=self.fifo,
            start=np.searchsorted(parent[order], np.arange(len(self.fifo) + 1)),
            order=order,
        )


def _queues_in_use(problem: AllocationProblem) -> QueuesInUse:
    queue = problem.queue if len(problem.queue) else np.zeros(len(problem), np.int64)
    parents = problem.queues.parents()
    numbers = _with_parents(queue, parents)
    queues = [problem.queues[number] for number in numbers.tolist()]
    fifo = np.array([queue.rule == "fifo" for queue in queues], np.int64)
    of_job = np.searchsorted(numbers, queue)
    turn = np.where(fifo[of_job] == 1, 1 + np.arange(len(problem)), 0)
    return QueuesInUse(
        weight=np.array([queue.weight for queue in queues]),
        fifo=fifo,
        parent=np.append(-1, np.searchsorted(numbers, parents[numbers[1:]])),
        of_job=of_job,
        identity=np.column_stack((of_job, problem.weight, turn)),
    )


def _with_parents(queue: Ints, parents: Ints) -> Ints:
    """Numbers of these queues and of all queues above them, parents first; always with the root."""
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
