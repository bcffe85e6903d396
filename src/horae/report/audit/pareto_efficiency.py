"""Pareto efficiency: no GPU idles that a job waits for, and no job could be faster without another being slower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horae.core.audit_observations import Idleness, IdleStretch, Observations, ObservedMoment
from horae.core.cluster import Cluster
from horae.core.counted import counted
from horae.core.history import History
from horae.core.throughputs import Speeds
from horae.report.audit.pareto_exchanges import Exchange, better_places
from horae.report.audit.verdict import Verdict, held
from horae.report.formatting import duration, number, percent

#: GPUs that a sentence names; the others are counted.
_NAMED = 4


def judge_idleness(history: History, observed: Observations) -> Verdict:
    """Whether a GPU idled while a waiting job could have used it where it was, after any decision of the run."""
    idle, end_s = observed.idleness, float(history.attempts.end_s.max(initial=0.0))
    begin_s = float(history.submit_s.min(initial=0.0))
    capacity = int(history.gpus_by_type.sum()) * max(end_s - begin_s, 1e-9)
    numbers: dict[str, Any] = {
        "decisions": observed.decisions,
        "stretches": idle.stretches,
        "gpu_seconds": idle.gpu_seconds,
        "share_of_capacity": idle.gpu_seconds / capacity,
        "gpu_seconds_by_reason": dict(sorted(idle.by_reason.items(), key=lambda entry: -entry[1])),
    }
    if idle.worst is not None:
        numbers["worst"] = _idle_record(history, idle.worst)
    return Verdict(
        "no_idle_gpus",
        "no GPU idles while a waiting job could use it where it is",
        held(observed.decisions, idle.worst is not None),
        _idle_summary(idle, numbers),
        numbers,
        _idle_sentence(history, idle.worst) if idle.worst else "",
    )


def _idle_summary(idle: Idleness, numbers: dict[str, Any]) -> str:
    if not numbers["decisions"]:
        return "nothing to judge: no decision was made"
    if not idle.stretches:
        return f"never, in {counted(numbers['decisions'], 'decision')}"
    wasted = f"{number(idle.gpu_seconds / 3600)} GPU-hours, {percent(numbers['share_of_capacity'])} of all"
    return f"{wasted}, in {counted(idle.stretches, 'stretch', 'stretches')}"


def _idle_record(history: History, idle: IdleStretch) -> dict[str, Any]:
    return {
        "begin_s": idle.begin_s,
        "end_s": idle.end_s,
        "gpus": idle.gpus,
        "job": history.jobs[idle.job].id,
        "reason": idle.reason.code,
        "job_gpus": gpu_names(history.cluster, idle.gpu_ids),
    }


def _idle_sentence(history: History, idle: IdleStretch) -> str:
    job, lasted = history.jobs[idle.job], duration(idle.end_s - idle.begin_s)
    where = shortened_list(gpu_names(history.cluster, idle.gpu_ids))
    return (
        f"At {idle.begin_s:,.0f} s, for {lasted}, {counted(idle.gpus, 'GPU')} idled that waiting jobs could have used: "
        f"job {job.id} ({counted(job.gpus_min, 'GPU')}, {idle.reason.code}) could have had {where}."
    )


def judge_exchanges(history: History, observed: Observations, speeds: Speeds) -> Verdict:
    """Whether a job could have been faster on idle GPUs, or by an exchange with a job that is then not slower."""
    by_moment = [better_places(moment, history.jobs, history.cluster, speeds) for moment in observed.moments]
    all_exchanges = [
        (moment, exchange)
        for moment, exchanges in zip(observed.moments, by_moment, strict=True)
        for exchange in exchanges
    ]
    jobs_looked_at = sum(len(moment.places) for moment in observed.moments)
    numbers: dict[str, Any] = {
        "moments": len(by_moment),
        "moments_with_an_exchange": sum(bool(exchanges) for exchanges in by_moment),
        "jobs": jobs_looked_at,
        "jobs_that_could_be_faster": len(all_exchanges),
        "of_these_on_idle_gpus": sum(exchange.other is None for _, exchange in all_exchanges),
    }
    sentence = ""
    if all_exchanges:
        moment, best = max(all_exchanges, key=lambda pair: pair[1].gain)
        numbers |= {"largest_gain": best.gain, "best": _exchange_record(history, moment, best)}
        sentence = _exchange_sentence(history, moment, best)
    return Verdict(
        "no_better_exchange",
        "no exchange of places makes one faster and none slower",
        held(jobs_looked_at, len(all_exchanges)),
        _exchange_summary(numbers),
        numbers,
        sentence,
    )


def _exchange_summary(numbers: dict[str, Any]) -> str:
    moments = counted(numbers["moments"], "moment")
    if not numbers["jobs"]:
        return f"nothing to judge: no job ran at the {moments} looked at"
    if not numbers["jobs_that_could_be_faster"]:
        return f"none, at {moments}"
    jobs = f"{numbers['jobs_that_could_be_faster']:,} of {counted(numbers['jobs'], 'job')} at {moments}"
    return f"{jobs} could be faster, one {speed_gain(numbers['largest_gain'])}"


def _exchange_record(history: History, moment: ObservedMoment, best: Exchange) -> dict[str, Any]:
    return {
        "at_s": moment.at_s,
        "job": history.jobs[best.job].id,
        "with": None if best.other is None else history.jobs[best.other].id,
        "from": gpu_names(history.cluster, best.has),
        "to": gpu_names(history.cluster, best.takes),
        "gain": best.gain,
        "gain_of_other": best.gain_of_other,
    }


def _exchange_sentence(history: History, moment: ObservedMoment, best: Exchange) -> str:
    here, there = (shortened_list(gpu_names(history.cluster, gpus)) for gpus in (best.has, best.takes))
    faster = f"At {moment.at_s:,.0f} s job {history.jobs[best.job].id} on {here} would be {speed_gain(best.gain)}"
    if best.other is None:
        return f"{faster} on {there}; nobody else had these."
    other = "not slower" if best.gain_of_other <= 0 else speed_gain(best.gain_of_other)
    return f"{faster} on {there}, in exchange with job {history.jobs[best.other].id}, which would be {other}."


def speed_gain(gain: float) -> str:
    """A gain of speed as text."""
    return f"{percent(gain)} faster" if gain < 1 else f"{number(1 + gain)} times as fast"


def gpu_names(cluster: Cluster, gpu_ids: Sequence[int]) -> list[str]:
    """GPUs as people find them: node/number."""
    nodes = cluster.gpu_node[list(gpu_ids)].tolist()
    first = cluster.first_gpu
    return [f"{cluster.nodes[n].name}/{gpu - int(first[n])}" for n, gpu in zip(nodes, gpu_ids, strict=True)]


def shortened_list(names: list[str]) -> str:
    """A few names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:_NAMED])} and {more} more"
