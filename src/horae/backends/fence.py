"""The site's fence: a command that makes sure that nothing runs on a node any more, for example by cutting its power.

CMD HOST      exit code 0: nothing of this machine runs now, whatever happens; any other code: not sure
"""

from __future__ import annotations

import logging
import shlex
import subprocess
import threading
import time
from collections.abc import Callable

#: Seconds that the command may take, and until it is tried again on a node after it failed.
_LIMIT_S, _AGAIN_S = 120.0, 30.0
_LOG = logging.getLogger(__name__)


class Fence:
    """Runs the command in threads, one for each node at a time. Without a command it does nothing."""

    def __init__(self, command: str, gone: Callable[[str], None], again_s: float = _AGAIN_S) -> None:
        """`gone` is called with each node that the command has made sure of, from any thread."""
        self._command, self._gone, self._again_s = tuple(shlex.split(command)), gone, again_s
        #: When the command may be used on a node again; monotonic.
        self._due_s: dict[str, float] = {}

    def use_on(self, node: str) -> None:
        """Use the fence on a node, unless that was just tried. Does not wait."""
        now_s = time.monotonic()
        if self._command and now_s >= self._due_s.get(node, 0.0):
            self._due_s[node] = now_s + _LIMIT_S + self._again_s
            threading.Thread(target=self._run, args=(node,), name="horae-fence", daemon=True).start()

    def _run(self, node: str) -> None:
        try:
            done = subprocess.run(
                (*self._command, node), stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
            )
            why = f"it ended with {done.returncode}" if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"it failed with {type(error).__name__}"
        self._due_s[node] = time.monotonic() + self._again_s
        if why:
            _LOG.warning("The fence is not sure of node %s: %s.", node, why)
        else:
            self._gone(node)
