"""Crash reports: a file with the traceback of a bug, without secrets."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from horae import __version__

HIDDEN = "[hidden]"
_SECRET = re.compile(r"(?i)(token|secret|passw|credential|api[-_]?key|auth)")
_URL_LOGIN = re.compile(r"(\w+://)[^/\s@]+@")


def write_report(error: BaseException, words: Sequence[str]) -> Path:
    """Write a crash report with the error and the command line; returns its path."""
    text = "\n".join(
        [
            f"horae {__version__}",
            f"python {sys.version.split()[0]} on {platform.platform()}",
            f"command: horae {' '.join(redact(words))}",
            "",
            "".join(traceback.format_exception(error)),
        ]
    )
    with _new_report() as file:
        file.write(text)
    return Path(file.name)


def redact(words: Sequence[str]) -> Iterator[str]:
    """The words of a command line with secrets replaced by `HIDDEN`."""
    hide_next = False
    for word in words:
        name = _secret_name(word)
        if hide_next:
            yield HIDDEN
        elif name:
            yield f"{name}={HIDDEN}"
        else:
            yield _URL_LOGIN.sub(rf"\1{HIDDEN}@", word)
        hide_next = not hide_next and "=" not in word and word.startswith("-") and bool(_SECRET.search(word))


def _secret_name(word: str) -> str:
    """The part before the value in API_KEY=x or --env=API_KEY=x; empty if the name is not that of a secret."""
    parts = word.split("=")
    return next(("=".join(parts[: k + 1]) for k in range(len(parts) - 1) if _SECRET.search(parts[k])), "")


def _new_report() -> tempfile._TemporaryFileWrapper[str]:
    """A new file that only its owner can read, in the state folder, or else in the temporary folder."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "horae"
    try:
        state.mkdir(parents=True, exist_ok=True)
        return _report_in(state)
    except OSError:
        return _report_in(Path(tempfile.gettempdir()))


def _report_in(folder: Path) -> tempfile._TemporaryFileWrapper[str]:
    return tempfile.NamedTemporaryFile("w", dir=folder, prefix="crash-", suffix=".txt", delete=False, encoding="utf-8")
