"""Isolation without root: every process of a job is started through bubblewrap (`bwrap`).

The job sees the machine's file system read-only, without the service's folders but for its own. It has its own process
ids, /dev, /run and /tmp, so that it sees no other process and no socket of the machine. It keeps the service's user id:
what lies outside the service's folders can be read as far as that account can read it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import horae
from horae.backends.local.isolation.modes import SANDBOX, CannotIsolate, DeviceFiles, NoIsolation, nvidia_devices
from horae.backends.protocol import Start

#: What of /run jobs are shown: the machine's name servers, and the driver's daemon.
_SHOWN = ("/run/systemd/resolve", "/run/nvidia-persistenced", "/run/nscd")
#: What nobody but the owner of the service's account may see in its home.
_HIDDEN_IN_HOME = (".config/horae", ".local/state/horae", ".ssh", ".gnupg", ".aws", ".kube", ".netrc", ".pgpass")
#: Seconds that a first try of bubblewrap may take.
_TRY_S = 20.0


class SandboxIsolation(NoIsolation):
    """Jobs run under the service's account, and see neither its files nor other processes."""

    mode = SANDBOX

    def __init__(self, hidden: Sequence[Path | None], devices: DeviceFiles = nvidia_devices) -> None:
        """Try bubblewrap; refused if it does not work on this machine. `hidden`: files and folders of the service."""
        self._program, self._devices = find_bubblewrap(), devices
        self._home = Path.home().resolve()
        secret = [*(path for path in hidden if path), *(self._home / name for name in _HIDDEN_IN_HOME)]
        self._hidden = list(dict.fromkeys(str(path.resolve()) for path in secret))
        # Jobs must not change the programs that the service runs.
        kept = (Path(sys.prefix), Path(sys.base_prefix), Path(horae.__file__).parent)
        self._kept = list(dict.fromkeys(str(path.resolve()) for path in kept))

    def adapt(self, order: dict[str, Any], start: Start, gpus: Sequence[int]) -> dict[str, Any]:
        """The order with what bubblewrap shows to the job."""
        folder = Path(order["env"]["HORAE_ATTEMPT_DIR"])
        rules = {
            "program": self._program,
            "own": [str(folder / "work"), str(folder.parent / "checkpoint")],
            "hide": self._hidden,
            "keep": self._kept,
            "home": str(self._home),
            "show": list(_SHOWN),
            "devices": self._devices(gpus),
        }
        return {**order, "sandbox": rules}


def find_bubblewrap(program: str = "bwrap") -> str:
    """The path of bubblewrap; refused if it is missing, or cannot make namespaces here."""
    path = shutil.which(program)
    if not path:
        raise CannotIsolate(
            "--isolation sandbox needs bubblewrap, which was not found: install it (`apt-get install bubblewrap`), or "
            "choose --isolation account or none."
        )
    words = "--unshare-user --unshare-pid --unshare-ipc --cap-drop ALL --ro-bind / / --dev /dev --proc /proc"
    words += " -- env --default-signal true"
    try:
        tried = subprocess.run([path, *words.split()], capture_output=True, text=True, timeout=_TRY_S, check=False)
        why = "" if tried.returncode == 0 else tried.stderr.strip() or f"exit code {tried.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        raise CannotIsolate(
            f"bubblewrap does not work on this machine ({why}): allow user namespaces to the service's account "
            "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, or AppArmor's rule for bwrap), or "
            "choose --isolation account or none."
        )
    return path
