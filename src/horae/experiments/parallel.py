"""Many simulations: one after the other, or in a pool of processes."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from ctypes import c_double
from dataclasses import dataclass
from typing import Any

from horae.core.errors import UserError
from horae.core.history import History
from horae.policies import POLICIES
from horae.policies.outside import is_built_in
from horae.policies.type_awareness import IgnoredSpeeds
from horae.report.metrics.measure import Report, measure
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario

#: How often the bar moves while processes work.
TICK_S = 0.2

#: Told how much of the whole is done.
Advance = Callable[[float, float], None]


@dataclass(frozen=True)
class MeasuredJobs:
    """Which jobs a report measures, by position in order of submission; without an end, up to the last."""

    first: int = 0
    end: int | None = None


ALL_JOBS = MeasuredJobs()


@dataclass(frozen=True)
class Outcome:
    """What a run came to; the history only where it was asked for."""

    report: Report
    history: History | None
    #: Why each job that did not end was waiting, by job id.
    waiting: Mapping[str, str]
    #: What the simulation alone has cost: no imports, no generating of jobs, no measuring.
    cpu_s: float = 0.0
    #: Speeds by GPU type that the policy does not go by, if jobs are not equally fast on all types.
    ignored_speeds: IgnoredSpeeds | None = None


@dataclass(frozen=True)
class Batch:
    """Scenarios to run, and what is wanted of each."""

    scenarios: Sequence[Scenario]
    measured: MeasuredJobs = ALL_JOBS
    #: Positions of the scenarios whose histories are wanted.
    histories: frozenset[int] = frozenset()


#: Performs the runs of a batch somewhere, and returns their outcomes in the same order.
Executor = Callable[[Batch, Advance], list[Outcome]]


def run_in_turn(batch: Batch, advance: Advance) -> list[Outcome]:
    """Perform the runs in this process, one after the other."""
    count = len(batch.scenarios)
    return [
        perform(batch, number, lambda share, done=number: advance(done + share, count))  # type: ignore[misc]
        for number in range(count)
    ]


def run_all(batch: Batch, workers: int, advance: Advance) -> list[Outcome]:
    """Perform the runs in processes of their own, and return their outcomes in the same order.

    Processes are spawned, not forked: the libraries that read traces keep
    threads, and a fork would copy their locks but not the threads.
    """
    count = len(batch.scenarios)
    context = multiprocessing.get_context("spawn")
    done = context.RawArray(c_double, count)
    pool = ProcessPoolExecutor(min(workers, count), context, _enter, (packed(batch), done))
    try:
        with _without_interrupts(), _without_main_module():
            futures = [pool.submit(_perform_here, number) for number in range(count)]
        _watch(futures, lambda: advance(sum(done), count))
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


def packed(batch: Batch) -> bytes:
    """A batch for other processes, with the policies from outside that it names.

    Classes of a script or a notebook, which no other process can import, travel by value. What scenarios share,
    such as the jobs of a trace, is packed once.
    """
    import cloudpickle

    named = {scenario.policy for scenario in batch.scenarios if isinstance(scenario.policy, str)}
    outside = {name: POLICIES[name] for name in named if name in POLICIES and not is_built_in(POLICIES[name])}
    try:
        content: bytes = cloudpickle.dumps((batch, outside))
    except Exception as error:
        raise UserError(
            f"A policy cannot be sent to worker processes ({type(error).__name__}: {error}): use workers=1."
        ) from error
    return content


def unpacked(content: bytes) -> Batch:
    """The batch that `packed` made, with its policies from outside registered."""
    batch: Batch
    batch, outside = pickle.loads(content)
    POLICIES.update(outside)
    return batch


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes begun in here leave Ctrl-C to their parent, who hears of it a moment later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_MAIN_LOCK = threading.Lock()


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Processes begun in here do not run the main script again: it need not be guarded by `if __name__ == ...`."""
    main = sys.modules["__main__"]
    with _MAIN_LOCK:
        hidden: dict[str, Any] = {name: vars(main)[name] for name in ("__spec__", "__file__") if name in vars(main)}
        vars(main).update(__spec__=None)
        vars(main).pop("__file__", None)
        try:
            yield
        finally:
            vars(main).update(hidden)


def _watch(futures: Sequence[Future[Outcome]], tick: Callable[[], None]) -> None:
    """Wait for all, or for the first that fails."""
    waiting = set(futures)
    while waiting:
        finished, waiting = wait(waiting, timeout=TICK_S, return_when=FIRST_EXCEPTION)
        tick()
        for future in finished:
            future.result()


# What a worker process was given when it began; one for each process, never written again.
_batch: Batch
_done: Any


def _enter(content: bytes, done: Any) -> None:
    """Begin a worker process."""
    global _batch, _done
    _batch, _done = unpacked(content), done


def _perform_here(number: int) -> Outcome:
    """Perform one run in a worker process."""

    def advance(share: float) -> None:
        _done[number] = share

    try:
        return perform(_batch, number, advance)
    except UserError as error:
        # Errors with arguments of their own do not survive the way between processes; their sentence does.
        raise UserError(str(error)) from None


def perform(batch: Batch, number: int, advance: Callable[[float], None]) -> Outcome:
    """Simulate and measure one run."""
    scenario = batch.scenarios[number]

    def progress(ended: int, jobs: int) -> None:
        advance(min(ended / max(scenario.until or jobs, 1), 1.0))

    _ = scenario.jobs
    began_s = time.process_time()
    history = simulate(scenario, progress)
    cpu_s = time.process_time() - began_s
    report = measure(history, batch.measured.first, batch.measured.end)
    advance(1.0)
    return Outcome(
        report, history if number in batch.histories else None, history.waiting, cpu_s, scenario.ignored_speeds
    )
