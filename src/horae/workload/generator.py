"""Generated workloads: jobs drawn from a seed and a handful of numbers.

Every aspect has a stream of randomness of its own, so that changing one, such as
the deadlines, leaves all others as they were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from horae.core.app_schedulers import BadAppScheduler, make_app_scheduler
from horae.core.cluster import Cluster
from horae.core.errors import UserError, did_you_mean
from horae.core.job import DEFAULT_QUEUE, MAX_REPORTS, JobSpec
from horae.core.throughputs import Throughputs
from horae.workload.arrivals import HOUR_S, HOURS_A_DAY, arrival_times
from horae.workload.job_durations import DURATIONS, Durations, Exponential, LogUniform, TwoClasses
from horae.workload.model_mixes import MIXES, Catalogued, ComputeOrNetworkBound, JobKind, Mix, Models, Plain
from horae.workload.trial_losses import REPORTS, draw_curves

#: GPUs a job asks for, each with its chance.
Sizes = tuple[tuple[int, float], ...]

#: Distributions of sizes by name. Gavel's are its continuous traces'; Philly's follow the published trace.
SIZES: dict[str, Sizes] = {
    "single": ((1, 1.0),),
    "gavel": ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.05)),
    "themis": ((2, 0.2), (4, 0.8)),
    "tiresias": ((1, 0.5), (2, 0.2), (4, 0.15), (8, 0.1), (16, 0.05)),
    "philly": ((1, 0.932), (2, 0.022), (4, 0.023), (8, 0.020), (16, 0.003)),
}

#: Times are given to the millisecond: finer ones say nothing and make files hard to read.
DECIMALS = 3

#: Draws that do not depend on each other. Append only, or old seeds give new jobs.
STREAMS = ("trials", "sizes", "kinds", "durations", "arrivals", "weights", "deadlines", "queues", "losses")


class BadWorkload(UserError):
    """Settings from which no workload can be drawn."""


def _are_weights(values: Sequence[float], length: int) -> bool:
    return len(values) == length and all(0 <= value < math.inf for value in values) and sum(values) > 0


@dataclass(frozen=True)
class Workload:
    """What to generate. An arrival brings one app: one job, or several trials that have all but duration in common.

    Exactly one of `load` and `arrivals_per_hour` sets the rate. `load` is the
    GPU-time that arrives in a second over the GPUs of the cluster, with durations
    as drawn (on Gavel's reference type, where there is one).
    """

    jobs: int = 100
    load: float | None = 0.8
    arrivals_per_hour: float | None = None
    #: 24 relative rates by hour of the day, such as `hourly_shape` finds in a trace; empty is a constant rate.
    hourly: tuple[float, ...] = ()
    durations: Durations = field(default_factory=Exponential)
    sizes: Sizes = SIZES["single"]
    mix: Mix = field(default_factory=Plain)
    #: Jobs an app: log-normal around the median, from 1 to the maximum. A maximum of 1 makes no apps.
    trials_median: float = 1.0
    trials_max: int = 1
    trials_sigma: float = 1.0
    #: Share of apps that weigh `heavy_weight`; the others weigh 1.
    heavy_share: float = 0.0
    heavy_weight: float = 5.0
    #: Deadlines as multiples of the duration, each equally likely; empty is no deadlines.
    deadline_multiples: tuple[float, ...] = ()
    #: Apps are spread over queues org/team-0, org/team-1, ...; 0 leaves them in the default queue.
    teams: int = 0
    #: Which trials of an app go on, such as `halving:eta=3`; empty runs them all.
    app_scheduler: str = ""
    #: Reports of its loss that a job makes, evenly spread; 0 is none, or 20 where there is an app scheduler.
    reports: int = 0

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise BadWorkload(f"Cannot generate this workload: {problem}.")

    def _problem(self) -> str:
        """The first thing wrong with the settings, or an empty string."""
        if self.jobs < 1:
            return f"it has {self.jobs} jobs; ask for at least 1"
        if (self.load is None) == (self.arrivals_per_hour is None):
            return "give either a load or arrivals per hour"
        if self.load is not None and not 0 < self.load < math.inf:
            return f"the load is {self.load}; give a number above 0, such as 0.8"
        if self.arrivals_per_hour is not None and not self.arrivals_per_hour > 0:
            return f"{self.arrivals_per_hour} arrivals per hour are no rate; give a number above 0"
        if self.hourly and not _are_weights(self.hourly, HOURS_A_DAY):
            return f"the hourly rates must be {HOURS_A_DAY} numbers from 0 up that are not all 0"
        if not _are_weights([chance for _, chance in self.sizes], len(self.sizes)):
            return "the chances of the sizes must be numbers from 0 up that are not all 0"
        if any(size < 1 for size, _ in self.sizes):
            return "every size must be at least 1 GPU"
        return self._problem_of_extras()

    def _problem_of_extras(self) -> str:
        if not 1 <= self.trials_median <= self.trials_max:
            return f"trials need 1 <= median <= maximum, not {self.trials_median} and {self.trials_max}"
        if not 0 <= self.trials_sigma < math.inf:
            return f"the spread of trials is {self.trials_sigma}; give a number from 0 up"
        if not 0 <= self.heavy_share <= 1:
            return f"the share of heavy jobs is {self.heavy_share}; give a number from 0 to 1"
        if not 0 < self.heavy_weight < math.inf:
            return f"the weight of heavy jobs is {self.heavy_weight}; give a number above 0"
        if any(not 0 < multiple < math.inf for multiple in self.deadline_multiples):
            return "deadlines must be multiples above 0 of the duration, such as 1.2"
        if self.teams < 0:
            return f"it has {self.teams} teams; give a number from 0 up"
        if not 0 <= self.reports <= MAX_REPORTS:
            return f"a job makes {self.reports} reports; give a number from 0 to {MAX_REPORTS}"
        return self._problem_of_apps()

    def _problem_of_apps(self) -> str:
        if not self.app_scheduler:
            return ""
        if self.trials_max == 1:
            return "an app scheduler needs apps of several trials; set trials_max, or take the preset themis"
        try:
            make_app_scheduler(self.app_scheduler)
        except BadAppScheduler as why:
            return str(why)
        return ""


#: Ready-made workloads. They set a load, so that they suit any cluster; the papers' rates are in the reference.
PRESETS: dict[str, Workload] = {
    "gavel": Workload(jobs=500, durations=LogUniform(), sizes=SIZES["gavel"], mix=Models()),
    "gavel-single": Workload(jobs=500, durations=LogUniform(), sizes=SIZES["single"], mix=Models()),
    "themis": Workload(
        jobs=1000,
        durations=TwoClasses(),
        sizes=SIZES["themis"],
        mix=ComputeOrNetworkBound(),
        trials_median=23.0,
        trials_max=98,
    ),
    "tiresias": Workload(jobs=480, durations=LogUniform(), sizes=SIZES["tiresias"], mix=Catalogued()),
    "plain": Workload(jobs=100, durations=Exponential(), sizes=SIZES["gavel"], mix=Plain()),
}

_Choice = TypeVar("_Choice")


def preset(name: str, **changes: Any) -> Workload:
    """A ready-made workload with some settings changed.

    Durations, sizes and mix may be given by name. A new rate of either sort
    replaces the one of the preset.
    """
    base = _chosen("preset", name, PRESETS)
    names = [workload_field.name for workload_field in fields(Workload)]
    for setting in changes:
        if setting not in names:
            raise BadWorkload(f"A workload has no setting {setting!r}.{did_you_mean(setting, names)}")
    for setting, choices in (("durations", DURATIONS), ("sizes", SIZES), ("mix", MIXES)):
        if isinstance(changes.get(setting), str):
            changes[setting] = _chosen(setting, changes[setting], choices)
    if changes.get("load") is not None:
        changes.setdefault("arrivals_per_hour", None)
    elif changes.get("arrivals_per_hour") is not None:
        changes.setdefault("load", None)
    return replace(base, **changes)


def generate(settings: Workload, cluster: Cluster, throughputs: Throughputs | None, seed: int) -> tuple[JobSpec, ...]:
    """Draw the jobs of a workload; the same settings, cluster, table and seed give the same jobs.

    1. Draw how many trials each app has, until there are enough jobs.
    2. Draw what the jobs of each app share: size, kind, weight, queue.
    3. Draw each job's duration and deadline.
    4. Draw the apps' arrivals, at a rate that the work drawn so far may set.
    5. Draw the loss curves of trials, if the workload has reports.
    """
    _check_sizes(settings.sizes, cluster)
    streams = dict(zip(STREAMS, np.random.SeedSequence(seed).spawn(len(STREAMS)), strict=True))
    rng = {name: np.random.default_rng(stream) for name, stream in streams.items()}

    app = _apps(settings, rng["trials"])
    apps = int(app[-1]) + 1

    gpus = _sizes(settings.sizes, rng["sizes"], apps)
    kinds = settings.mix.draw(rng["kinds"], gpus, throughputs)
    weights = np.where(rng["weights"].random(apps) < settings.heavy_share, settings.heavy_weight, 1.0)
    queues = _queues(settings.teams, rng["queues"], apps)

    # At least a millisecond: rounding must not leave a job without work.
    duration_s = np.maximum(np.round(settings.durations.draw(rng["durations"], app), DECIMALS), 10.0**-DECIMALS)
    deadline_s = _deadlines(settings.deadline_multiples, rng["deadlines"], duration_s)

    per_hour = _rate_per_hour(settings, cluster, float(duration_s @ gpus[app]), apps)
    arrival_s = np.round(arrival_times(rng["arrivals"], apps, per_hour, settings.hourly), DECIMALS)

    work = [_work(kinds[a], float(duration_s[number])) for number, a in enumerate(app.tolist())]
    trials = _trials(settings, rng["losses"], app, np.array([job_work["work"] for job_work in work]))

    several = settings.trials_max > 1
    return tuple(
        JobSpec(
            id=_name("job", number, app.size),
            submit_s=float(arrival_s[a]),
            gpus=int(gpus[a]),
            slowdown=kinds[a].slowdown,
            skew=kinds[a].skew,
            job_class=kinds[a].job_class,
            weight=float(weights[a]),
            app=_name("app", a, apps) if several else "",
            queue=queues[a],
            deadline_s=None if deadline_s is None else float(deadline_s[number]),
            **work[number],
            **trials[number],
        )
        for number, a in enumerate(app.tolist())
    )


def _apps(settings: Workload, rng: np.random.Generator) -> NDArray[np.int64]:
    """The app of each job. The last app is cut where the jobs are enough."""
    # No app is empty, so as many apps as jobs are always enough.
    drawn = settings.trials_median * rng.lognormal(0.0, settings.trials_sigma, settings.jobs)
    trials = np.clip(np.round(drawn), 1, settings.trials_max).astype(np.int64)
    apps = int(np.searchsorted(np.cumsum(trials), settings.jobs)) + 1
    return np.repeat(np.arange(apps), trials[:apps])[: settings.jobs]


def _sizes(sizes: Sizes, rng: np.random.Generator, apps: int) -> NDArray[np.int64]:
    """The GPUs that each app's jobs ask for."""
    chances = np.array([chance for _, chance in sizes])
    return rng.choice(np.array([size for size, _ in sizes], dtype=np.int64), apps, p=chances / chances.sum())


def _queues(teams: int, rng: np.random.Generator, apps: int) -> list[str]:
    """The queue of each app."""
    if not teams:
        return [DEFAULT_QUEUE] * apps
    return [f"org/team-{team}" for team in rng.integers(teams, size=apps)]


def _deadlines(
    multiples: tuple[float, ...], rng: np.random.Generator, duration_s: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Each job's deadline, in seconds after its submission."""
    if not multiples:
        return None
    return np.asarray(np.round(rng.choice(np.array(multiples), duration_s.size) * duration_s, DECIMALS))


def _rate_per_hour(settings: Workload, cluster: Cluster, gpu_seconds: float, apps: int) -> float:
    """Arrivals an hour: as set, or so that this much work loads the cluster as wished."""
    if settings.arrivals_per_hour is not None:
        return settings.arrivals_per_hour
    assert settings.load is not None, "checked when the settings were made"
    return apps * settings.load * cluster.gpus / gpu_seconds * HOUR_S


def _work(job_kind: JobKind, duration_s: float) -> dict[str, Any]:
    """A duration as work: whole steps where the speed is known, seconds otherwise."""
    if job_kind.steps_per_s is None:
        return {"work": duration_s, "unit": "seconds"}
    return {"work": float(max(1, round(duration_s * job_kind.steps_per_s))), "unit": "steps"}


def _trials(
    settings: Workload, rng: np.random.Generator, app: NDArray[np.int64], work: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """The fields that make each job a trial: loss curve, report interval and app scheduler."""
    reports = settings.reports or (REPORTS if settings.app_scheduler else 0)
    if not reports:
        return [{}] * app.size
    return [
        {"loss": curve, "report_every": float(job_work / reports), "app_scheduler": settings.app_scheduler}
        for curve, job_work in zip(draw_curves(rng, app, work), work, strict=True)
    ]


def _name(prefix: str, number: int, count: int) -> str:
    """A name with leading zeros, so that names sort as numbers do."""
    return f"{prefix}-{number:0{len(str(count - 1))}}"


def _check_sizes(sizes: Sizes, cluster: Cluster) -> None:
    """Refuse gangs that no GPU type of the cluster could hold."""
    largest = max(size for size, chance in sizes if chance > 0)
    room = int(cluster.gpus_by_type.max())
    if largest > room:
        raise BadWorkload(
            f"The workload has gangs of {largest} GPUs, but no GPU type of the cluster has more than {room}; "
            "choose smaller sizes or a larger cluster."
        )


def _chosen(what: str, name: str, choices: Mapping[str, _Choice]) -> _Choice:
    if name not in choices:
        raise BadWorkload(
            f"No {what} is called {name!r}.{did_you_mean(name, choices)} Choose one of {', '.join(choices)}."
        )
    return choices[name]
