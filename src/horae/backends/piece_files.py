"""The files of a piece on the shared folder: who began it, its signs of life, its last word.

The runner writes `claim`, `runner.json`, `beat`, `exit.json` and `log.txt`, the service `order.json` and `stop`. Who
links `claim` may run the piece or write its end, so that a piece runs once, or never. Times are those of the file
server, which are the same for all machines. Stored: change by addition.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horae.backends.local import runner
from horae.backends.local.attempt_folders import read_json, remove_drafts
from horae.backends.protocol import KILLED, RUN_AGAIN

#: Who claims a piece that must not run any more.
_SERVICE = "horae"
#: Exit code of a piece that could not be started, and of one whose last word cannot be understood; as in shells.
CANNOT_RUN, _UNREADABLE = 126, 1
#: No runner waits for so long without a beat, in seconds: an order that says so was not written by the service.
LONGEST_BEAT_LIMIT_S = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class LastWord:
    """How a piece ended."""

    code: int
    #: Whether it ended because it was asked to, or through no fault of its own.
    stopped: bool
    #: Seconds that its processes were up; None if they never were.
    up_s: float | None = None
    #: Why it could not be started; empty if it could.
    why: str = ""
    #: Whether its runner ended without a word, on a node that was not lost.
    silent: bool = False

    @staticmethod
    def of(content: Mapping[str, Any]) -> LastWord:
        """The last word in a file. A runner wrote it, on the account of the job, so that anything may be in it."""
        try:
            up_s, code = content.get("up_s"), int(content["code"])
            if not 0 <= code <= 255 or not math.isfinite(up_s or 0.0):
                return LastWord(_UNREADABLE, stopped=False)
            return LastWord(
                code,
                bool(content["stopped"]),
                None if up_s is None else float(up_s),
                str(content.get("why", "")),
                bool(content.get("silent", False)),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return LastWord(_UNREADABLE, stopped=False)


class PieceFiles:
    """The folder of one piece."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        """What the piece printed."""
        return self.path / runner.LOG

    @property
    def begun(self) -> bool:
        """Whether the piece was begun, or was cancelled before."""
        return is_there(self.path / runner.CLAIM)

    def last_word(self) -> LastWord | None:
        """How the piece ended; None if it has not said so."""
        path = self.path / runner.EXIT
        return LastWord.of(read_json(path, sure=True) or {}) if is_there(path) else None

    def ended_s(self) -> float:
        """When the piece said its last word."""
        return _changed_s(self.path / runner.EXIT)

    def up_since_s(self) -> float:
        """When the processes of the piece came up; 0 if they have not."""
        identity = read_json(self.path / runner.RUNNER, sure=True)
        return _changed_s(self.path / runner.RUNNER) if identity and identity.get("up_at") is not None else 0.0

    def last_sign_s(self) -> float:
        """When the piece last gave a sign of life; 0 if it was never begun.

        That is its last beat, even if that is older than its beginning: the file server's clock may have been set back.
        """
        claimed_s = _changed_s(self.path / runner.CLAIM)
        return (_changed_s(self.path / runner.BEAT) or claimed_s) if claimed_s else 0.0

    def beat_limit_s(self) -> float:
        """After how many seconds without a beat the runner kills its job; 0 if there is no order."""
        limit_s = (read_json(self.path / runner.ORDER, runner.LARGEST_ORDER, sure=True) or {}).get("beat_limit_s")
        return float(limit_s) if isinstance(limit_s, int | float) and 0.0 <= limit_s < LONGEST_BEAT_LIMIT_S else 0.0

    def write_order(self, order: Mapping[str, Any]) -> None:
        """Write what the runner has to know. An existing order is kept."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        runner.write_atomically(str(self.path), runner.ORDER, order, once=True, durable=False)

    @property
    def ordered(self) -> bool:
        """Whether the order is written."""
        return os.path.lexists(self.path / runner.ORDER)

    def remove_environment(self) -> None:
        """Remove the environment, with token and secrets, from the order."""
        remove_drafts(self.path)
        if order := read_json(self.path / runner.ORDER, runner.LARGEST_ORDER, sure=True):
            runner.write_atomically(str(self.path), runner.ORDER, {**order, "env": {}}, durable=False)

    def ask_to_stop(self, how: str) -> None:
        """Ask the runner to end the piece; `how` is one of the runner's `STOP_...`. An earlier request is kept."""
        if (self.path / runner.STOP).is_file():
            return
        draft = self.path / f".stop.{os.getpid()}"
        with os.fdopen(runner.create(str(draft)), "w", encoding="utf-8") as file:
            file.write(how)
        runner.put_in_place(str(draft), str(self.path / runner.STOP))

    def cancel(self, code: int = RUN_AGAIN, why: str = "") -> bool:
        """Write the end of a piece that never began, and now never can; False if it did begin.

        Without a reason it counts as stopped, with one as failed.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not runner.claim(str(self.path), _SERVICE) and self._claimed_by() != _SERVICE:
            return False
        self._write_end({"code": code, "signal": 0, "stopped": not why, "up_s": None, "why": why})
        return True

    def _claimed_by(self) -> str:
        return str((read_json(self.path / runner.CLAIM) or {}).get("by", ""))

    def end_as_killed(self, faulty: bool = False, silent: bool = False) -> None:
        """Write the end of a piece that is surely gone and has left no last word.

        It counts as stopped, unless it is `faulty`: it broke a limit of its own, says the cluster manager.
        """
        end = {"code": KILLED, "signal": KILLED - 128, "stopped": not faulty, "up_s": None, "silent": silent}
        self._write_end(end)

    def _write_end(self, end: Mapping[str, Any]) -> None:
        runner.write_atomically(str(self.path), runner.EXIT, end, once=True)


def is_there(path: Path) -> bool:
    """Whether a file, or anything else, has this name. Raises OSError if nobody can tell."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _changed_s(path: Path) -> float:
    """When a file was last changed; 0 if there is none. Opened, since network file systems keep old times.

    Of anything that is not a plain file the time of its name is taken: a job has put it there.
    """
    try:
        handle = runner.open_plain(str(path))
    except (FileNotFoundError, NotADirectoryError):
        return 0.0
    except OSError:
        return path.lstat().st_mtime
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
