"""The access log: one line for each request, refused ones too, never with a token, a query or a body."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from pathlib import Path

from starlette.types import Scope

#: Most lines that wait to be written, and longest path in a line.
_WAITING, _LONGEST_PATH = 10_000, 500


class AccessLog:
    """A file with one JSON object a line. A thread of its own writes it, so that a slow disk delays no request.

    Lines that the disk cannot take are dropped, and counted in the next line as `dropped`. The file may be moved away
    at any time: each batch of lines opens it anew.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be written."""
        self._path = path
        self._append(b"")
        self._lines: queue.Queue[dict[str, object] | None] = queue.Queue(_WAITING)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_all, name="horae-access-log", daemon=True)
        self._thread.start()

    def note(self, peer: str, user: str, scope: Scope, status: int, took_s: float) -> None:
        """Note a request, who sent it, and the HTTP status of the answer (0: none was sent)."""
        try:
            self._lines.put_nowait(
                {
                    "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "peer": peer,
                    "user": user,
                    "method": scope["method"],
                    "path": scope["path"][:_LONGEST_PATH],
                    "status": status,
                    "ms": round(took_s * 1000),
                }
            )
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what is left."""
        self._lines.put(None)
        self._thread.join(1.0)

    def _write_all(self) -> None:
        while True:
            batch = [self._lines.get()]
            while batch[-1] is not None and not self._lines.empty():
                batch.append(self._lines.get())
            lines = [line for line in batch if line is not None]
            if lines and self._dropped:
                lines[0]["dropped"], self._dropped = self._dropped, 0
            try:
                self._append(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            except OSError:
                self._dropped += len(lines)
            if batch[-1] is None:
                return

    def _append(self, text: bytes) -> None:
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(text)
