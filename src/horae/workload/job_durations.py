"""How long jobs run alone on the GPUs they ask for: the distributions of the papers, and a plain one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from horae.core.errors import UserError


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UserError(f"Durations: {otherwise}.")


class Durations(Protocol):
    """A distribution of durations in seconds."""

    def draw(self, rng: np.random.Generator, app: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw a duration for each job, given the number of its app."""


@dataclass(frozen=True)
class LogUniform:
    """Gavel's: mostly short, some long, each uniform in the logarithm of the minutes (OSDI '20, section 7.1)."""

    short_exponents: tuple[float, float] = (1.5, 3.0)
    long_exponents: tuple[float, float] = (3.0, 4.0)
    short_share: float = 0.8
    unit_s: float = 60.0

    def __post_init__(self) -> None:
        _require(0 <= self.short_share <= 1, f"short_share is {self.short_share}; choose a share from 0 to 1")
        for low, high in (self.short_exponents, self.long_exponents):
            _require(low <= high < 12, f"exponents {low}, {high} must rise and stay below 12")
        _require(0 < self.unit_s < math.inf, f"unit_s is {self.unit_s}; it must be above 0")

    def draw(self, rng: np.random.Generator, app: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw each job's class, then its exponent."""
        short = rng.random(app.size) < self.short_share
        exponents = np.where(
            short, rng.uniform(*self.short_exponents, app.size), rng.uniform(*self.long_exponents, app.size)
        )
        return np.asarray(self.unit_s * 10.0**exponents)


@dataclass(frozen=True)
class TwoClasses:
    """Themis': apps of short and apps of long jobs, log-normal around a median each (NSDI '20, section 8.1).

    The medians are the paper's; the spread and the share of long apps are ours.
    """

    short_median_s: float = 59 * 60.0
    long_median_s: float = 123 * 60.0
    long_share: float = 0.5
    sigma: float = 0.5

    def __post_init__(self) -> None:
        _require(0 <= self.long_share <= 1, f"long_share is {self.long_share}; choose a share from 0 to 1")
        _require(0 < self.short_median_s < math.inf, f"short_median_s is {self.short_median_s}; it must be above 0")
        _require(0 < self.long_median_s < math.inf, f"long_median_s is {self.long_median_s}; it must be above 0")
        _require(0 <= self.sigma < 10, f"sigma is {self.sigma}; choose a spread from 0 to 10")

    def draw(self, rng: np.random.Generator, app: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw each app's class, then each job's duration."""
        long = (rng.random(int(app.max()) + 1) < self.long_share)[app]
        medians = np.where(long, self.long_median_s, self.short_median_s)
        return np.asarray(medians * rng.lognormal(0.0, self.sigma, app.size))


@dataclass(frozen=True)
class Exponential:
    """Exponential durations: one number describes them, and nothing is remembered."""

    mean_s: float = 3600.0

    def __post_init__(self) -> None:
        _require(0 < self.mean_s < math.inf, f"mean_s is {self.mean_s}; it must be above 0")

    def draw(self, rng: np.random.Generator, app: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw each job's duration."""
        return rng.exponential(self.mean_s, app.size)


#: The distributions by name, with the papers' numbers.
DURATIONS: dict[str, Durations] = {"gavel": LogUniform(), "themis": TwoClasses(), "exponential": Exponential()}
