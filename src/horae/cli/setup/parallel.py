"""Many simulations at once: what to run, and the pool of processes that runs it."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from ctypes import c_double
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from horae.core.errors import UserError

if TYPE_CHECKING:
    from horae.cli.progress import Advance
    from horae.core.cluster import Cluster
    from horae.core.history import History
    from horae.core.job import JobSpec
    from horae.core.queues import Queue
    from horae.core.throughputs import Throughputs
    from horae.report.metrics.measure import Report
    from horae.simulator.faults import Faults

#: How often the bar moves while processes work.
TICK_S = 0.2


class Source(Protocol):
    """Where the jobs of a seed come from."""

    def jobs(self, seed: int) -> Sequence[JobSpec]:
        """The jobs to run; the same seed gives the same jobs."""


@dataclass(frozen=True)
class World:
    """Everything that all runs of a comparison share."""

    source: Source
    cluster: Cluster
    placement: str
    restart_cost_s: float
    throughputs: Throughputs | None = None
    queues: tuple[Queue, ...] = ()
    faults: Faults | None = None
    measure_from: int = 0
    measure_to: int | None = None
    #: Stop once the first so many jobs have ended, others being there or not; without, when all have.
    until: int | None = None


@dataclass(frozen=True)
class Run:
    """One policy on the jobs of one seed."""

    policy: str
    seed: int
    settings: Mapping[str, str] = field(default_factory=dict)
    keep_history: bool = False
    #: Jobs of its own; by default those of the world.
    source: Source | None = None
    #: A cluster of its own, likewise.
    cluster: Cluster | None = None


@dataclass(frozen=True)
class Outcome:
    """What a run came to; the history only where it was asked for."""

    run: Run
    report: Report
    history: History | None
    #: Why each job that did not end was waiting, by job id.
    waiting: Mapping[str, str]
    #: What the simulation alone has cost: no imports, no generating of jobs, no measuring.
    cpu_s: float = 0.0


def run_all(world: World, runs: Sequence[Run], workers: int, advance: Advance) -> list[Outcome]:
    """Perform the runs in processes of their own, and return their outcomes in the same order.

    Processes are spawned, not forked: the libraries that read traces keep
    threads, and a fork would copy their locks but not the threads.
    """
    context = multiprocessing.get_context("spawn")
    done = context.RawArray(c_double, len(runs))
    pool = ProcessPoolExecutor(min(workers, len(runs)), context, _enter, (world, done))
    try:
        with _without_interrupts():
            futures = [pool.submit(_perform, number, run) for number, run in enumerate(runs)]
        _watch(futures, lambda: advance(sum(done), len(runs)))
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise UserError("A worker process was killed, most likely for want of memory; try fewer --workers.") from error
    except BaseException:
        # Nobody waits for the rest any more.
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes begun in here leave Ctrl-C to their parent, who hears of it a moment later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(futures: Sequence[Future[Outcome]], tick: Callable[[], None]) -> None:
    """Wait for all, or for the first that fails."""
    waiting = set(futures)
    while waiting:
        finished, waiting = wait(waiting, timeout=TICK_S, return_when=FIRST_EXCEPTION)
        tick()
        for future in finished:
            future.result()


# What a worker process was given when it began; one for each process, never written again.
_world: World
_done: Any


def _enter(world: World, done: Any) -> None:
    """Begin a worker process."""
    global _world, _done
    _world, _done = world, done


def _perform(number: int, run: Run) -> Outcome:
    """Simulate and measure one run, in a worker process."""
    from horae.report.metrics.measure import measure
    from horae.simulator.run import simulate

    def progress(ended: int, jobs: int) -> None:
        _done[number] = min(ended / max(_world.until or jobs, 1), 1.0)

    try:
        jobs = (run.source or _world.source).jobs(run.seed)
        began_s = time.process_time()
        history = simulate(
            jobs,
            run.cluster or _world.cluster,
            policy=run.policy,
            settings=run.settings,
            placement=_world.placement,
            restart_cost_s=_world.restart_cost_s,
            throughputs=_world.throughputs,
            queues=_world.queues,
            seed=run.seed,
            faults=_world.faults,
            progress=progress,
            until=_world.until,
        )
        cpu_s = time.process_time() - began_s
        report = measure(history, _world.measure_from, _world.measure_to)
    except UserError as error:
        # Errors with arguments of their own do not survive the way between processes; their sentence does.
        raise UserError(str(error)) from None
    _done[number] = 1.0
    return Outcome(run, report, history if run.keep_history else None, history.waiting, cpu_s)
