"""The checkpoints of a job: a folder with the newest checkpoint, and saved.json, which describes it.

    saved.json        {"step": 400, "total": 1000, "loss": 0.31}
    horae-400/        the checkpoint: a single file or folder, written by the script
    horae-saving/     the next checkpoint, while the script writes it

A checkpoint is valid once saved.json names it. saved.json is replaced atomically, after the
checkpoint is on disk. Whenever a process dies, the last valid checkpoint is complete.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Only names with this prefix are ever removed. Other libraries may save in the same folder.
_PREFIX = "horae-"
_SCRATCH = f"{_PREFIX}saving"


class SavedCheckpoint(NamedTuple):
    """The contents of saved.json: the checkpoint holds the state after `step` of `total` steps."""

    step: int
    total: int | None
    loss: float | None


class Checkpoints:
    """The checkpoints in one folder; other files in it are left alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self) -> SavedCheckpoint | None:
        """The newest valid checkpoint; None before the first."""
        try:
            text = (self.folder / "saved.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(text)
            return SavedCheckpoint(int(fields["step"]), fields.get("total"), fields.get("loss"))
        except (ValueError, KeyError, TypeError, AttributeError) as trouble:
            raise ValueError(f"{self.folder / 'saved.json'} cannot be read; remove it to start anew") from trouble

    def check(self) -> None:
        """Fail now if the folder cannot be written, instead of hours later at the first save."""
        self._new_scratch().rmdir()

    def read(self, load: Callable[[Path], object], saved: SavedCheckpoint) -> None:
        """Let the script load a checkpoint."""
        path = self._path(saved)
        try:
            load(path)
        except Exception as trouble:
            _add_note(
                trouble,
                f"horae: {path}, the checkpoint of step {saved.step}, could not be loaded. It is kept: use the "
                f"script and the settings that saved it, or remove {self.folder / 'saved.json'} to start anew",
            )
            raise

    def _path(self, saved: SavedCheckpoint) -> Path:
        """The file or folder that the script wrote for this checkpoint."""
        folder = self._folder_of(saved)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{folder} is gone, and {self.folder / 'saved.json'} says that it is the newest checkpoint: put it "
                "back, or remove saved.json to start anew; every process must see the same folder"
            )
        return _only_entry(folder)

    def write(self, save: Callable[[Path], object], saved: SavedCheckpoint) -> None:
        """Let the script write a checkpoint, and remove the previous checkpoint only after that."""
        scratch = self._new_scratch()
        try:
            save(scratch / "checkpoint")
            _only_entry(scratch)
            _sync_tree(scratch)
        except BaseException as trouble:
            _add_note(
                trouble,
                f"horae: the checkpoint of step {saved.step} could not be saved in {self.folder}, where "
                f"{_free_mb(self.folder)} MB are free; the previous checkpoint, if there was one, is complete",
            )
            _remove(scratch)
            raise
        # A folder of this name was never valid: its process died before saved.json was replaced.
        _remove(self._folder_of(saved))
        scratch.rename(self._folder_of(saved))
        _sync(self.folder)
        _write_atomically(self.folder / "saved.json", json.dumps(saved._asdict()))
        self.tidy(saved)

    def tidy(self, saved: SavedCheckpoint | None) -> None:
        """Remove older checkpoints, and a checkpoint that was left half written."""
        keep = self._folder_of(saved) if saved else None
        _remove(self.folder / _SCRATCH)
        for path in self.folder.glob(f"{_PREFIX}*"):
            if path != keep and path.name.removeprefix(_PREFIX).isdecimal():
                _remove(path)

    def _new_scratch(self) -> Path:
        """An empty folder for the next checkpoint."""
        scratch = self.folder / _SCRATCH
        try:
            _remove(scratch)
            scratch.mkdir(parents=True)
        except OSError as trouble:
            _add_note(trouble, f"horae: nothing can be saved in {self.folder}; choose another folder for checkpoints")
            raise
        return scratch

    def _folder_of(self, saved: SavedCheckpoint) -> Path:
        return self.folder / f"{_PREFIX}{saved.step}"


def _only_entry(folder: Path) -> Path:
    """The only entry of a checkpoint's folder. Its name may differ from the path given: some libraries add a suffix."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if len(found) != 1:
        raise FileNotFoundError(
            f"{folder} should hold one file or folder, and holds {len(found)}: save(path) must write at `path`"
        )
    return found[0]


def _write_atomically(path: Path, text: str) -> None:
    scratch = path.with_name(path.name + ".new")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    _sync(path.parent)


def _sync_tree(folder: Path) -> None:
    """Flush every file and folder below this folder to disk."""
    for parent, _, names in os.walk(folder):
        for name in names:
            _sync(Path(parent) / name)
        _sync(Path(parent))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _free_mb(folder: Path) -> int:
    import shutil

    return shutil.disk_usage(folder).free // 1_000_000


def _remove(path: Path) -> None:
    # Imported here: shutil imports the compression modules.
    import shutil

    with suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _add_note(trouble: BaseException, note: str) -> None:
    if sys.version_info >= (3, 11):
        trouble.add_note(note)
    else:
        # Tracebacks of Python 3.9 and 3.10 show no notes.
        sys.stderr.write(f"{note}\n")
