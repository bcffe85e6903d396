"""Settings that all cluster managers share (`horae serve --with KEY=VALUE`), and the reconciler made with them."""

from __future__ import annotations

import sys
from pathlib import Path

from horae.backends import BackendOptions
from horae.backends.attempt_round import FENCE_MARGIN, ReconcilerSettings
from horae.backends.driver import ClusterDriver
from horae.backends.reconcile import Reconciler
from horae.core.durations import seconds_of
from horae.core.errors import UserError

#: Names of the settings: see `reconciler`.
CLUSTER_SETTINGS = ("fence", "storage-away")
#: The least time for which the shared folder may be away, in seconds; runners beat once a second.
_SHORTEST_S = 10.0


def reconciler(
    driver: ClusterDriver, shared: Path, options: BackendOptions, python: str = sys.executable
) -> Reconciler:
    """The reconciler around a driver; `python` runs the runners on the nodes.

    `fence` is a command that makes sure that nothing runs on a node. `storage-away` is how long the shared folder may
    be away before jobs are killed; a job of a node that is cut off runs elsewhere after half as long again.
    """
    settings, limit = ReconcilerSettings(), options.settings.get("storage-away")
    if limit is not None:
        limit_s = _span_s(limit)
        settings = ReconcilerSettings(beat_limit_s=limit_s, fence_s=FENCE_MARGIN * limit_s)
    return Reconciler(driver, shared, options.secrets, settings, python, options.settings.get("fence", ""))


def _span_s(text: str) -> float:
    """Seconds of `storage-away`."""
    try:
        limit_s = seconds_of(text)
    except ValueError as error:
        raise UserError(f"--with storage-away: {error}.") from None
    if not _SHORTEST_S <= limit_s < float("inf"):
        raise UserError(f"--with storage-away must be at least {_SHORTEST_S:.0f} seconds: write it like 10m.")
    return limit_s
