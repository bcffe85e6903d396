"""How the commands read what the user wrote: pairs, faults, traces and tables of speeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from horae.cli.output import note
from horae.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from horae.core.cluster import Cluster
    from horae.core.job import JobSpec
    from horae.core.queues import Queue
    from horae.core.throughputs import Throughputs
    from horae.simulator.faults import Faults
    from horae.simulator.scenario import PolicyChoice
    from horae.workload.traces import Trace


def read_pairs(example: str, words: Sequence[str]) -> dict[str, str]:
    """Turn `key=value` words into a dict; the last of two equal keys is an error, not a winner.

    `example` shows how they are written, such as `--set quantum=600`; it begins with the option.
    """
    option = example.split()[0]
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals and value):
            raise UserError(f"{option} {word!r} is not of the form key=value; write it like {example}.")
        if key in pairs:
            raise UserError(f"{option} names {key!r} twice; give it once.")
        pairs[key] = value
    return pairs


def read_policy(name: str, words: Sequence[str]) -> PolicyChoice:
    """A policy by its name or its place, with settings from `key=value` words, checked."""
    from horae.plugins.policies import load_policy
    from horae.simulator.scenario import PolicyChoice

    chosen = PolicyChoice(load_policy(name), read_pairs("--set quantum=600", words))
    chosen.make()
    return chosen


def read_faults(words: Sequence[str]) -> Faults | None:
    """Build the faults of the simulated world from `key=value` words; none at all without words."""
    if not words:
        return None
    from dataclasses import fields

    from horae.simulator.faults import Faults

    known = [field.name for field in fields(Faults)]
    numbers: dict[str, float] = {}
    for key, value in read_pairs("--faults stragglers=0.1", words).items():
        if key not in known:
            raise UserError(f"No fault is called {key!r}.{did_you_mean(key, known)} Known are {', '.join(known)}.")
        numbers[key] = read_number(f"--faults {key}", value)
    return Faults(**numbers)


def read_trace(path: Path, format_name: str | None, skip_bad: bool, throughputs: Throughputs | None) -> Trace:
    """Load a trace; say on stderr which rows were left out."""
    from horae.workload.traces import load_trace

    trace = load_trace(path, format_name, skip_bad, throughputs)
    if trace.skipped:
        first = trace.skipped[0]
        note(f"skipped {len(trace.skipped)} bad rows of {path}; the first: {first}")
    for kind, many in trace.left_out.items():
        note(f"left out: {kind} ({many:,})")
    return trace


def read_throughputs(path: Path | None) -> Throughputs | None:
    """Load a table of measured speeds, if one was named."""
    if path is None:
        return None
    from horae.workload.speed_files import load_throughputs

    return load_throughputs(path)


def read_profile(speeds: Throughputs | None, share: float, noise: float, seed: int) -> Throughputs | None:
    """What the policy believes of the speeds: all of it, unless only a profile was asked for."""
    if share == 1 and noise == 0:
        return speeds
    if speeds is None:
        raise UserError("--profile-share and --profile-noise hide measured speeds: name those with --throughputs FILE.")
    from horae.workload.throughput_estimates import hide

    return hide(speeds, share, noise, seed)


def with_estimates(measured: Throughputs | None, jobs: Sequence[JobSpec], cluster: Cluster) -> Throughputs | None:
    """The table with estimates from the catalogue for job classes that it does not know at all; says how many."""
    from horae.workload.roofline import with_estimates

    filled = with_estimates(measured, jobs, cluster.gpu_types)
    if filled is not None and (new := len(filled) - len(measured or ())):
        note(f"{new} speeds are estimates from the catalogue; give measured ones with --throughputs.")
    return filled


def read_queues(path: Path | None, cluster: str) -> tuple[Queue, ...]:
    """Load the queues of a file; without one, those that the cluster's own YAML file holds."""
    from horae.workload.clusters import cluster_queues

    return cluster_queues(cluster) if path is None else read_queue_file(path)


def read_queue_file(path: Path, named_by_jobs: bool = False) -> tuple[Queue, ...]:
    """Load the queues of a file that --queues names; with `named_by_jobs`, refuse paths that no job file could name."""
    from horae.workload.clusters import load_queues

    queues = load_queues(path)
    if not queues:
        raise UserError(f"{path} names no queues; add a section `queues:`, or leave --queues out.")
    if named_by_jobs:
        from horae.service.job_file import queue_path

        try:
            for queue in queues:
                queue_path(queue.path)
        except ValueError as error:
            raise UserError(f"{path}: {error}.") from None
    return queues


def read_number(what: str, text: str) -> float:
    """A finite number, or a sentence that names the option it was meant for."""
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{what}={text} is not a number.") from None
    if not math.isfinite(value):
        raise UserError(f"{what}={text} is not a finite number.")
    return value
