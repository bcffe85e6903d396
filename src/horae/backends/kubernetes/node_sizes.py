"""How many GPUs nodes have. A node whose device plugin restarts shows none for a while."""

from __future__ import annotations

import time

from horae.backends.kubernetes.objects import KubeNode

#: Seconds for which a node must show another number of GPUs before that is believed.
NEW_SIZE_S = 30.0


class NodeSizes:
    """How many GPUs each node has. A node whose device plugin restarts shows none, and then all of them again."""

    def __init__(self) -> None:
        self._believed: dict[str, int] = {}
        #: Another number, and since when it is shown; monotonic.
        self._shown: dict[str, tuple[int, float]] = {}

    def believe(self, node: KubeNode, now_s: float | None = None) -> tuple[int, str]:
        """The number of GPUs to plan with, and why the node is closed meanwhile; empty if it is not."""
        now_s = time.monotonic() if now_s is None else now_s
        believed = self._believed.setdefault(node.name, node.gpus or node.gpus_claimed)
        if node.gpus == believed:
            self._shown.pop(node.name, None)
            return believed, ""
        if not node.gpus:
            return believed, "shows no GPUs"
        shown, since_s = self._shown.get(node.name, (0, 0.0))
        if shown != node.gpus:
            self._shown[node.name] = (node.gpus, now_s)
        elif now_s - since_s >= NEW_SIZE_S:
            self._believed[node.name] = node.gpus
            return node.gpus, ""
        return believed, f"shows {node.gpus} GPUs instead of {believed}"
