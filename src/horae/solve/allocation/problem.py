"""An allocation problem: jobs, GPU types, and how fast each job runs on each (Gavel, OSDI '20, section 3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from horae.core.arrays import Bools, Floats, Ints
from horae.core.queues import QueueTree


def _nothing() -> Floats:
    return np.empty(0)


def _nobody() -> Ints:
    return np.empty(0, np.int64)


def _no_pairs() -> Ints:
    return np.empty((0, 2), np.int64)


def isolated_share(gpus_by_type: Floats | Ints, gangs: Floats | Ints, usable: Bools) -> Floats:
    """Share of time of each of N jobs (rows) on each GPU type (columns), alone on 1/N of the cluster.

    That is (GPUs of the type / N) / GPUs of the job, scaled down where the sum over the types exceeds 1
    (Gavel, section 4.2); 0 where the job cannot use the type.
    """
    if len(gangs) == 0:
        return np.zeros(usable.shape)
    share = gpus_by_type[None, :] / len(gangs) / gangs[:, None]
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    return np.where(usable, share, 0.0)


@dataclass(frozen=True)
class Sharing:
    """How fast jobs run when two of them share their GPUs, by kind of job.

    Two jobs of equal size can share a type where both have a speed there.
    """

    #: Kind of each job; -1 for one that never shares.
    kind: Ints
    #: Steps/s of a job of one kind (first axis) beside one of another (second) on each type (third).
    beside: Floats

    def only(self, chosen: Bools) -> Sharing:
        """The same for some of the jobs."""
        return Sharing(self.kind[chosen], self.beside)


@dataclass(frozen=True)
class AllocationProblem:
    """Everything a policy may need; position m of every column is the same job."""

    gpu_types: tuple[str, ...]
    #: GPUs of each type.
    capacity: Floats
    ids: tuple[str, ...]
    #: GPUs of each job.
    gpus: Floats
    #: Steps/s of the whole job (rows) on its GPUs of each type (columns); 0 where it cannot run.
    speed: Floats
    weight: Floats
    steps_left: Floats
    elapsed_s: Floats
    #: Seconds each job would have taken, alone on its share, for what it has done.
    isolated_s: Floats
    #: Seconds from now, infinite where there is none; empty if nobody has one.
    deadline_s: Floats = field(default_factory=_nothing)
    #: Price of an hour of one GPU of each type; empty if nobody asks.
    price: Floats = field(default_factory=_nothing)
    #: Queue of each job, a number in `queues`; empty if nobody asks.
    queue: Ints = field(default_factory=_nobody)
    queues: QueueTree = field(default_factory=QueueTree)
    #: Which jobs may share GPUs, and how fast; None if none may.
    sharing: Sharing | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def normaliser(self) -> Floats:
        """c: the throughput of each job if its time were spread over the cluster's GPUs as they are."""
        mean: Floats = self.speed @ self.capacity / self.capacity.sum()
        return mean

    @cached_property
    def isolated_share(self) -> Floats:
        """Share of its time that each job would have on each type of its 1/M of the cluster."""
        return isolated_share(self.capacity, self.gpus, self.speed > 0)

    @cached_property
    def isolated_throughput(self) -> Floats:
        """tau: the throughput of each job on its isolated share."""
        return np.asarray((self.speed * self.isolated_share).sum(axis=1))

    def only(self, chosen: Bools) -> AllocationProblem:
        """The problem of some of the jobs, on the same GPUs."""
        if chosen.all():
            return self
        columns = ("gpus", "speed", "weight", "steps_left", "elapsed_s", "isolated_s", "deadline_s", "queue")
        kept = {name: getattr(self, name)[chosen] for name in columns if len(getattr(self, name))}
        ids = tuple(name for name, keep in zip(self.ids, chosen, strict=True) if keep)
        sharing = self.sharing.only(chosen) if self.sharing else None
        return replace(self, ids=ids, sharing=sharing, **kept)

    @property
    def fingerprint(self) -> bytes:
        """Everything but time: equal for problems that policies which do not look at time cannot tell apart."""
        columns = [self.capacity, self.gpus, self.speed, self.weight, self.price, self.queue]
        if self.sharing:
            columns += [self.sharing.kind, self.sharing.beside]
        weights = repr(self.queues.configured).encode()
        return b"|".join([*(np.ascontiguousarray(column).tobytes() for column in columns), weights])

    def agnostic(self) -> AllocationProblem:
        """The same problem for a policy that takes all GPU types for one: a job is as fast on each as on average.

        It knows of no pairs, either.
        """
        return replace(self, speed=np.where(self.speed > 0, self.normaliser[:, None], 0.0), sharing=None)


@dataclass(frozen=True)
class Solution:
    """Shares of time by job and GPU type, what they come to, and the proof."""

    #: Time of each job on each type with the GPUs to itself.
    share: Floats
    objective: float
    #: Prices of GPU types, the gap, and whatever else shows that the answer is right.
    certificate: dict[str, object]
    #: Positions of jobs that share GPUs, two in a row, and the time of each pair on each type.
    pairs: Ints = field(default_factory=_no_pairs)
    pair_share: Floats = field(default_factory=_nothing)
    #: Positions of jobs whose deadline cannot be met, by deadline.
    relaxed: Ints = field(default_factory=_nobody)

    def throughput(self, problem: AllocationProblem) -> Floats:
        """Steps/s that the shares come to for each job of a problem."""
        throughput: Floats = (problem.speed * self.share).sum(axis=1)
        if len(self.pairs):
            assert problem.sharing is not None, "pairs without speeds of pairs"
            one, other = self.pairs.T
            kind, beside = problem.sharing.kind, problem.sharing.beside
            np.add.at(throughput, one, (beside[kind[one], kind[other]] * self.pair_share).sum(axis=1))
            np.add.at(throughput, other, (beside[kind[other], kind[one]] * self.pair_share).sum(axis=1))
        return throughput
