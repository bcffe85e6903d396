"""An allocation problem: jobs, GPU types, and how fast each job runs on each (Gavel, OSDI '20, section 3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from horae.core.arrays import Bools, Floats, Ints
from horae.core.queues import QueueTree


def _nothing() -> Floats:
    return np.empty(0)


def _no_jobs() -> Ints:
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
    """Speeds of jobs that share GPUs in pairs.

    Two jobs of equal GPU count can share a GPU type where both have a speed there.
    """

    #: Row of each job in `pair_speed`; -1 for a job that never shares.
    pair_row: Ints
    #: Steps/s of a job (first axis: its row) beside another job (second axis: its row) on each GPU type (third axis).
    pair_speed: Floats

    def only(self, chosen: Bools) -> Sharing:
        """The same for the chosen jobs."""
        return Sharing(self.pair_row[chosen], self.pair_speed)


@dataclass(frozen=True)
class AllocationProblem:
    """Jobs, GPU types and speeds, as columns: position m of every column is the same job."""

    gpu_types: tuple[str, ...]
    #: GPU count of each type.
    capacity: Floats
    ids: tuple[str, ...]
    #: GPU count of each job.
    gpus: Floats
    #: Steps/s of each job (rows) on GPUs of each type (columns); 0 where the job cannot run.
    speed: Floats
    weight: Floats
    steps_left: Floats
    elapsed_s: Floats
    #: Seconds that the work done so far would have taken on the isolated share.
    isolated_s: Floats
    #: Seconds from now; infinite for a job without a deadline. Empty: no job has one.
    deadline_s: Floats = field(default_factory=_nothing)
    #: Price of an hour of one GPU of each type; empty if not used.
    price: Floats = field(default_factory=_nothing)
    #: Number of each job's queue in `queues`; empty if not used.
    queue: Ints = field(default_factory=_no_jobs)
    queues: QueueTree = field(default_factory=QueueTree)
    #: Speeds of pairs; None: jobs do not share GPUs.
    sharing: Sharing | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def normaliser(self) -> Floats:
        """c: throughput of each job if its time were spread over all GPUs of the cluster equally."""
        mean: Floats = self.speed @ self.capacity / self.capacity.sum()
        return mean

    @cached_property
    def isolated_share(self) -> Floats:
        """Share of time of each job on each type, alone on 1/M of the cluster."""
        return isolated_share(self.capacity, self.gpus, self.speed > 0)

    @cached_property
    def isolated_throughput(self) -> Floats:
        """tau: throughput of each job on its isolated share."""
        return np.asarray((self.speed * self.isolated_share).sum(axis=1))

    def only(self, chosen: Bools) -> AllocationProblem:
        """The problem of the chosen jobs, on the same GPUs."""
        if chosen.all():
            return self
        columns = ("gpus", "speed", "weight", "steps_left", "elapsed_s", "isolated_s", "deadline_s", "queue")
        kept = {name: getattr(self, name)[chosen] for name in columns if len(getattr(self, name))}
        ids = tuple(name for name, keep in zip(self.ids, chosen, strict=True) if keep)
        sharing = self.sharing.only(chosen) if self.sharing else None
        return replace(self, ids=ids, sharing=sharing, **kept)

    @property
    def fingerprint(self) -> bytes:
        """Equal for problems that differ in times alone; shares that do not depend on time are equal, too."""
        columns = [self.capacity, self.gpus, self.speed, self.weight, self.price, self.queue]
        if self.sharing:
            columns += [self.sharing.pair_row, self.sharing.pair_speed]
        weights = repr(self.queues.configured).encode()
        return b"|".join([*(np.ascontiguousarray(column).tobytes() for column in columns), weights])

    def agnostic(self) -> AllocationProblem:
        """The problem with one average speed for all GPU types, and without pairs: for policies that ignore types."""
        return replace(self, speed=np.where(self.speed > 0, self.normaliser[:, None], 0.0), sharing=None)


@dataclass(frozen=True)
class Solution:
    """Shares of time by job and GPU type, the objective that they reach, and the proof."""

    #: Share of time of each job on each type, alone on its GPUs.
    share: Floats
    objective: float
    #: Proof of the solution (printed by `horae solve`): prices of GPU types, the gap, and more by program.
    certificate: dict[str, object]
    #: Positions of the two jobs of each pair, and the share of time of each pair on each type.
    pairs: Ints = field(default_factory=_no_pairs)
    pair_share: Floats = field(default_factory=_nothing)
    #: Positions of jobs whose deadline cannot be met, by deadline.
    relaxed: Ints = field(default_factory=_no_jobs)

    def throughput(self, problem: AllocationProblem) -> Floats:
        """Steps/s of each job of the problem with these shares."""
        throughput: Floats = (problem.speed * self.share).sum(axis=1)
        if len(self.pairs):
            assert problem.sharing is not None, "pairs without speeds of pairs"
            first, second = self.pairs.T
            row, speed = problem.sharing.pair_row, problem.sharing.pair_speed
            np.add.at(throughput, first, (speed[row[first], row[second]] * self.pair_share).sum(axis=1))
            np.add.at(throughput, second, (speed[row[second], row[first]] * self.pair_share).sum(axis=1))
        return throughput
