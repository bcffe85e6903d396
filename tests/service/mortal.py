"""`horae serve` that kills itself at a chosen point, writes checkpoints often, and waits long for jobs to be ready.

    python mortal.py POINT:CALL:before|after serve ...
    python mortal.py POINT:CALL:freezes-before|freezes-after serve ...

The points are those between which something is half done: written and not performed, performed and not noted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

#: Records between two checkpoints: few, so that deaths meet recovery from one, and compaction.
CHECKPOINT_EVERY = 150

#: A job that says nothing counts as launching for so long, even on a slow machine: until after the next restart, which
#: then orders once more what has begun long ago.
READY_S = 15.0

#: Class, or module, and function, by the name of the point: of all services, with local jobs, with any cluster,
#: and with Kubernetes.
_ALL_POINTS = {
    "append": ("horae.service.store.store.Store", "append"),
    "checkpoint": ("horae.service.store.store.Store", "save_checkpoint"),
    "compact": ("horae.service.store.store.Store", "compact"),
    "token": ("horae.service.tokens", "write_private"),
}
LOCAL_POINTS = {
    **_ALL_POINTS,
    "launch": ("horae.backends.local.backend.LocalBackend", "start"),
    "stop": ("horae.backends.local.backend.LocalBackend", "stop"),
    "watch": ("horae.backends.local.backend.LocalBackend", "watch"),
    "forget": ("horae.backends.local.backend.LocalBackend", "forget"),
    "remember": ("horae.backends.local.attempt_folders.AttemptFolders", "remember"),
    "order": ("horae.backends.local.attempt_folders.AttemptFolder", "write_order"),
    "spawn": ("horae.backends.local.backend", "_spawn"),
}
CLUSTER_POINTS = {
    **_ALL_POINTS,
    "noted": ("horae.backends.reconcile.Reconciler", "start"),
    "told": ("horae.backends.reconcile.Reconciler", "watch"),
    "ordered": ("horae.backends.shared_folder.SharedFolder", "order"),
    "stopped": ("horae.backends.shared_folder.SharedFolder", "request_stop"),
    "forgotten": ("horae.backends.shared_folder.SharedFolder", "forget"),
    "pieces": ("horae.backends.shared_folder.SharedFolder", "write_piece_orders"),
    "submitted": ("horae.backends.reconcile.Reconciler", "submit"),
    "concluded": ("horae.backends.reconcile.Reconciler", "conclude"),
}
KUBERNETES_POINTS = {
    **CLUSTER_POINTS,
    "pod made": ("horae.backends.kubernetes.driver.KubernetesDriver", "_create"),
    "pod bound": ("horae.backends.kubernetes.driver.KubernetesDriver", "_bind"),
    "pod deleted": ("horae.backends.kubernetes.driver.KubernetesDriver", "_delete"),
    "pod dropped": ("horae.backends.kubernetes.driver.KubernetesDriver", "_drop"),
}
POINTS = LOCAL_POINTS | KUBERNETES_POINTS


def mortal(function: Callable[..., Any], call: int, when: str) -> Callable[..., Any]:
    """The same function, but for the call at which the process dies, or is frozen."""
    calls = 0

    number = signal.SIGSTOP if when.startswith("freezes") else signal.SIGKILL

    def last(*words: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and when.endswith("before"):
            os.kill(os.getpid(), number)
        answer = function(*words, **named)
        if calls == call and when.endswith("after"):
            os.kill(os.getpid(), number)
        return answer

    return last


def owner(place: str) -> Any:
    """The class or module of this name."""
    from importlib import import_module

    module, _, inner = place.rpartition(".")
    return getattr(import_module(module), inner) if inner[0].isupper() else import_module(place)


def main() -> None:
    from horae.backends import BACKENDS, BackendOptions
    from horae.backends.local.backend import LocalBackend
    from horae.cli.main import main as horae
    from horae.service import daemon

    daemon.CHECKPOINT_EVERY = CHECKPOINT_EVERY

    def local(options: BackendOptions) -> LocalBackend:
        return LocalBackend(options.state, options.nodes, options.secrets, options.devices, ready_s=READY_S)

    BACKENDS["local"] = local
    point, call, when = sys.argv.pop(1).split(":")
    if point:
        place, name = POINTS[point]
        setattr(owner(place), name, mortal(getattr(owner(place), name), int(call), when))
    sys.exit(horae())


if __name__ == "__main__":
    main()
