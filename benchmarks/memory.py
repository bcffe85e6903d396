"""How much memory a piece of work adds to a process, whoever asks for it: Python, numpy, or compiled code.

`tracemalloc` sees only what Python and numpy ask for, so the system is asked instead.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from benchmarks.process import CommandFailed

P = ParamSpec("P")
R = TypeVar("R")


def in_new_process(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do it in a process without a past: memory that was used and given back before would hide what is used now."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *args, **kwargs).result()


def peak_mb(work: Callable[[], object]) -> float:
    """By how much the work raises the resident memory at its highest.

    It is done in a fork, whose peak begins here. A fork reads pages of libraries anew as it
    needs them, so that even nothing costs some MB.
    """
    gc.collect()
    _give_back()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _tell_peak(work, writing)
    os.close(writing)
    with os.fdopen(reading) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    if not told:
        raise CommandFailed("The fork that was to measure memory ended without an answer.")
    return float(told)


def _tell_peak(work: Callable[[], object], writing: int) -> None:
    """Never comes back: a fork must not go on with what its parent does."""
    try:
        before = _peak_kb()
        work()
        os.write(writing, f"{(_peak_kb() - before) / 1e3}".encode())
    finally:
        os._exit(0)


def _peak_kb() -> float:
    """The most resident memory since the process began or was forked."""
    status = Path("/proc/self/status").read_text()
    return next(float(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def _give_back() -> None:
    """Hand free memory back to the system, so that taking it again is seen."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
