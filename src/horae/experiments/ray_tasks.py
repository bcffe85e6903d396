"""Performs runs of a batch as tasks of a Ray cluster. Uploaded as the driver of a Ray job; needs `ray` alone.

    python3 ray_tasks.py '{"numbers": [0, 1], "at_once": null, "fingerprint": "...", "batch": "batch.bin"}'

The nodes need Horae. What became of each run is a line of the driver's log, which the client reads:

    HORAE-RUN <number> done|refused|broken|unlike|lost <base64>
"""

from __future__ import annotations

import base64
import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What a line about a run begins with, and what may have become of it: an outcome, a sentence for the user, a
#: traceback, another Horae on the node, or the loss of its process again and again.
RUN = "HORAE-RUN"
DONE, REFUSED, BROKEN, UNLIKE, LOST = "done", "refused", "broken", "unlike", "lost"
#: How often Ray begins a run again whose process or node was lost.
RETRIES = 3


def perform(number: int, fingerprint: str, batch: str) -> tuple[str, bytes]:
    """Perform one run on a node, if it has the same Horae as the client."""
    import platform
    import traceback

    try:
        from horae.core.errors import UserError
        from horae.experiments import study_node
    except ImportError as why:
        return UNLIKE, f"node {platform.node()} has none that can be used ({why})".encode()
    if study_node.fingerprint() != fingerprint:
        return UNLIKE, f"node {platform.node()} has {study_node.fingerprint()}".encode()
    try:
        return DONE, study_node.perform_packed(batch, number)
    except UserError as why:
        return REFUSED, str(why).encode()
    except Exception:
        return BROKEN, traceback.format_exc().encode()


def drive(study: dict[str, Any]) -> None:
    """Perform the runs, as many at once as the cluster has CPUs for, or fewer; tell of each as soon as it ended."""
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(perform)
    waiting = list(study["numbers"])[::-1]
    at_once = study["at_once"] or len(waiting)
    running: dict[Any, int] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            number = waiting.pop()
            running[task.remote(number, study["fingerprint"], study["batch"])] = number
        ended, _ = ray.wait(list(running))
        for call in ended:
            _tell(running.pop(call), call)


def _tell(number: int, call: Any) -> None:
    """Write what became of a run, in one line."""
    import ray

    try:
        what, content = ray.get(call)
    except ray.exceptions.RayError as why:
        what, content = LOST, type(why).__name__.encode()
    sys.stdout.write(f"\n{RUN} {number} {what} {base64.b64encode(content).decode()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    drive(json.loads(sys.argv[1]))
