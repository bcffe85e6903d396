"""Files the commands write: checked before the work begins, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from horae.cli.output import note
from horae.core.errors import UserError

if TYPE_CHECKING:
    from horae.core.history import History


class CannotWrite(UserError):
    """An output file that could not be written."""


def check_outputs(outputs: Sequence[Path | None], inputs: Sequence[Path | None] = ()) -> None:
    """Make sure, before a long run, that every output can be written and none destroys another file of the run."""
    taken = {path.resolve() for path in inputs if path is not None}
    for path in outputs:
        if path is None:
            continue
        if path.resolve() in taken:
            raise CannotWrite(f"{path} is named twice; give every output a file of its own.")
        taken.add(path.resolve())
        _check_writable(path)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` and move it there at the end; on an error nothing is left behind."""
    temporary = _temporary_beside(path)
    try:
        yield temporary
        temporary.replace(path.resolve())
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _check_writable(path: Path) -> None:
    """Try it out: permissions alone do not tell for every user and file system."""
    if path.exists() and not path.is_file():
        raise CannotWrite(f"Cannot write {path}: it is not a regular file; name a file.")
    if _is_own_stream(path):
        raise CannotWrite(f"Cannot write {path}: the answer or the notes go there already; name another file.")
    if not path.resolve().parent.is_dir():
        raise CannotWrite(f"Cannot write {path}: there is no folder {path.parent}; create it first.")
    _temporary_beside(path).unlink()


def _is_own_stream(path: Path) -> bool:
    """Whether stdout or stderr goes to this very file, by whatever name: /dev/stdout is one."""
    for stream in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(stream), path.stat()):
                return True
    return False


def _temporary_beside(path: Path) -> Path:
    """A new empty file in the same folder, with the same ending and the permissions of any new file."""
    folder = path.resolve().parent
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.stem}-", suffix=path.suffix)
    except OSError as error:
        raise _cannot_write(path, error) from error
    os.fchmod(handle, 0o666 & ~_umask())
    os.close(handle)
    return Path(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot_write(path: Path, error: OSError) -> CannotWrite:
    return CannotWrite(f"Cannot write {path}: {error.strerror or error}; choose another file or make room.")


def write_viewer_file(path: Path | None, history: History) -> None:
    """Write the run for a trace viewer, if a file was named."""
    if path is None:
        return
    from horae.report.perfetto import write_perfetto

    with written_whole(path) as temporary:
        write_perfetto(temporary, history)
    note(f"for ui.perfetto.dev: {path}")
