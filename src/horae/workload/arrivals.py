"""When jobs arrive: at a constant rate, or with the rhythm of the day that a trace has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from horae.core.errors import UserError
from horae.core.job import JobSpec

HOUR_S = 3600.0
HOURS_A_DAY = 24


def arrival_times(
    rng: np.random.Generator, arrivals: int, per_hour: float, hourly: Sequence[float] = ()
) -> NDArray[np.float64]:
    """Draw the times of a Poisson process, the first of them 0; an infinite rate puts all of them there.

    `hourly` are 24 relative rates by hour of the day (hour 0 begins at time 0);
    `per_hour` stays the average over the day. Time is stretched where the rate is
    low: a constant process, mapped through the inverse of the rate's integral.
    """
    if np.isinf(per_hour):
        return np.zeros(arrivals)
    hours = np.cumsum(rng.exponential(1.0 / per_hour, arrivals))
    hours -= hours[0]
    return HOUR_S * (_stretch(hours, hourly) if len(hourly) else hours)


def hourly_shape(jobs: Sequence[JobSpec]) -> tuple[float, ...]:
    """The 24 relative arrival rates by hour of the day of a trace, with its first job at hour 0."""
    hours = np.array([job.submit_s for job in jobs]) / HOUR_S
    since_first = (hours - hours.min()).astype(np.int64)
    whole_days = int(since_first.max() + 1) // HOURS_A_DAY
    if whole_days < 1:
        raise UserError("The trace spans less than a day, which shows no rhythm; take a longer one or a constant rate.")
    # A last day that was not seen to its end would count for some hours and not for others.
    counted = since_first[since_first < whole_days * HOURS_A_DAY]
    return tuple(float(share) for share in np.bincount(counted % HOURS_A_DAY, minlength=HOURS_A_DAY) / counted.size)


def _stretch(hours: NDArray[np.float64], hourly: Sequence[float]) -> NDArray[np.float64]:
    """Move points of a constant rate so that they follow the rates of the day; their average rate stays."""
    rates = np.array(hourly, dtype=np.float64)
    integral = np.concatenate(([0.0], np.cumsum(rates * HOURS_A_DAY / rates.sum())))
    days, within = np.divmod(hours, float(HOURS_A_DAY))
    return np.asarray(days * HOURS_A_DAY + np.interp(within, integral, np.arange(HOURS_A_DAY + 1.0)))
