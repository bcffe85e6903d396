"""What apps need, as columns: how long each would take on a share of each GPU type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from horae.core.arrays import Floats, Ints


@dataclass(frozen=True)
class AppDemand:
    """What the jobs of each app (rows) need on each GPU type (columns); infinite where a gang does not fit."""

    #: GPU-seconds of all jobs of the app together.
    serial_gpu_s: Floats
    #: Seconds of the app's longest job on as many GPUs as that job can use.
    longest_s: Floats
    #: GPUs that the app's jobs could use at once.
    max_parallelism: Floats
    #: Whether no single type can run all jobs of the app, so that each job is counted on its own fastest type.
    split: NDArray[np.bool_]

    @staticmethod
    def of(
        app: Ints, apps: int, work: Floats, gpus: Ints, gpus_min: Ints, gpus_max: Ints, rates: Floats, capacity: Ints
    ) -> AppDemand:
        """Add up jobs by app. `app`: number of each job's app; `rates`: work per second on `gpus` GPUs of each type."""
        fits = (rates > 0) & (gpus_min[:, None] <= capacity)
        serial = np.where(fits, (work * gpus)[:, None] / np.where(fits, rates, 1.0), np.inf)

        # An app that no single type can run is split: each job on the type that runs it fastest.
        split: NDArray[np.bool_] = np.all(np.isinf(_sums(serial, app, apps)), axis=1)
        elsewhere = split[app][:, None] & (np.arange(len(capacity)) != serial.argmin(axis=1)[:, None])
        serial = np.where(elsewhere, 0.0, serial)
        most = gpus_max.astype(np.float64)[:, None]
        longest = np.zeros((apps, len(capacity)))
        np.maximum.at(longest, app, serial / np.minimum(most, np.maximum(capacity, 1)))
        return AppDemand(
            _sums(serial, app, apps),
            longest,
            _sums(np.where(elsewhere, 0.0, most) * np.ones(len(capacity)), app, apps),
            split,
        )

    def time_on(self, share: Floats) -> Floats:
        """Seconds each app needs on its share of each type: on the fastest type, or on all types if it is split."""
        width = np.minimum(share, self.max_parallelism)
        busy = np.divide(self.serial_gpu_s, width, out=np.zeros_like(width), where=width > 0)
        times = np.maximum(busy, self.longest_s)
        needed: Floats = np.where(self.split, times.max(axis=1), times.min(axis=1))
        return np.where(np.isfinite(needed), needed, np.nan)


def _sums(values: Floats, app: Ints, apps: int) -> Floats:
    """Column sums by app."""
    return np.stack([np.bincount(app, column, minlength=apps) for column in values.T], axis=1).astype(np.float64)
