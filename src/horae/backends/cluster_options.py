"""Settings that all cluster managers share (`horae serve --with KEY=VALUE`), and the reconciler made with them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from horae.backends import BackendOptions
from horae.backends.attempt_round import FENCE_MARGIN, ReconcilerSettings
from horae.backends.driver import ClusterDriver
from horae.backends.reconcile import Reconciler
from horae.core.durations import seconds_of
from horae.core.errors import UserError

#: Names of the settings: see `reconciler`.
CLUSTER_SETTINGS = ("fence", "launch-limit", "storage-away")
#: The least of these times, in seconds; runners beat once a second, and cluster managers take seconds to start a job.
_SHORTEST_S = 10.0


def reconciler(
    driver: ClusterDriver, shared: Path, options: BackendOptions, python: str = sys.executable
) -> Reconciler:
    """The reconciler around a driver; `python` runs the runners on the nodes.

    `fence` is a command that makes sure that nothing runs on a node. `storage-away` is how long the shared folder may
    be away before jobs are killed; a job of a node that is cut off runs elsewhere after half as long again.
    `launch-limit` is how long the cluster manager may take to start a job that it has accepted; drivers know one.
    """
    settings = ReconcilerSettings(launch_limit_s=driver.launch_limit_s)
    if "storage-away" in options.settings:
        limit_s = span_s("storage-away", options.settings)
        settings = replace(settings, beat_limit_s=limit_s, fence_s=FENCE_MARGIN * limit_s)
    if "launch-limit" in options.settings:
        settings = replace(settings, launch_limit_s=span_s("launch-limit", options.settings))
    fence = options.settings.get("fence", "")
    return Reconciler(driver, shared, options.secrets, settings, python, fence, options.max_log_bytes)


def span_s(name: str, settings: Mapping[str, str]) -> float:
    """Seconds of a setting."""
    try:
        limit_s = seconds_of(settings[name])
    except ValueError as error:
        raise UserError(f"--with {name}: {error}.") from None
    if not _SHORTEST_S <= limit_s < float("inf"):
        raise UserError(f"--with {name} must be at least {_SHORTEST_S:.0f} seconds: write it like 10m.")
    return limit_s


def is_on(name: str, settings: Mapping[str, str]) -> bool:
    """Whether a setting says yes; by default it does not."""
    value = settings.get(name, "no").lower()
    if value not in ("yes", "no"):
        raise UserError(f"--with {name} must be yes or no, and is {value!r}.")
    return value == "yes"
