"""The checkpoint of a job: a folder that holds the newest one, and saved.json, which says what it is.

    saved.json        {"step": 400, "total": 1000, "loss": 0.31}
    horae-400/        one file or folder, written by the script
    horae-saving/     the next one, while it is being written

A checkpoint counts once saved.json names it, and saved.json is replaced in one piece after the
checkpoint is safely on disk. Whenever a process dies, the last one that counted is still whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: No name that other libraries give to what they save in the same folder: what is old is removed.
_PREFIX = "horae-"
_SCRATCH = f"{_PREFIX}saving"


class Saved(NamedTuple):
    """What a checkpoint holds: the state after `step` steps of `total`, and the loss then, if known."""

    step: int
    total: int | None
    loss: float | None


class Checkpoints:
    """The checkpoints in one folder; other files in it are left alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self) -> Saved | None:
        """What the newest checkpoint holds; None before the first."""
        try:
            text = (self.folder / "saved.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            told = json.loads(text)
            return Saved(int(told["step"]), told.get("total"), told.get("loss"))
        except (ValueError, KeyError, TypeError, AttributeError) as trouble:
            raise ValueError(f"{self.folder / 'saved.json'} cannot be read; remove it to start anew") from trouble

    def check(self) -> None:
        """Better to fail now than after hours, when there is something to save."""
        scratch = self._scratch()
        scratch.rmdir()

    def read(self, load: Callable[[Path], object], saved: Saved) -> None:
        """Let the script load a checkpoint."""
        path = self._path(saved)
        try:
            load(path)
        except Exception as trouble:
            trouble.add_note(
                f"horae: {path}, the checkpoint of step {saved.step}, could not be loaded. It is kept: use the "
                f"script and the settings that saved it, or remove {self.folder / 'saved.json'} to start anew"
            )
            raise

    def _path(self, saved: Saved) -> Path:
        """The file or folder that the script wrote for this checkpoint."""
        place = self._place(saved)
        if not place.is_dir():
            raise FileNotFoundError(
                f"{place} is gone, and {self.folder / 'saved.json'} says that it is the newest checkpoint: put it "
                "back, or remove saved.json to start anew; every process must see the same folder"
            )
        return _what_is_in(place)

    def write(self, save: Callable[[Path], object], saved: Saved) -> None:
        """Let the script write a checkpoint, and only then let go of the one before."""
        scratch = self._scratch()
        try:
            save(scratch / "checkpoint")
            _what_is_in(scratch)
            _sync_tree(scratch)
        except BaseException as trouble:
            trouble.add_note(
                f"horae: the checkpoint of step {saved.step} could not be saved in {self.folder}, where "
                f"{_free_mb(self.folder)} MB are free; the one before it, if there was one, is whole"
            )
            _remove(scratch)
            raise
        # One may be there that never counted: its process died before saved.json was replaced.
        _remove(self._place(saved))
        scratch.rename(self._place(saved))
        _sync(self.folder)
        _write_atomically(self.folder / "saved.json", json.dumps(saved._asdict()))
        self.tidy(saved)

    def tidy(self, saved: Saved | None) -> None:
        """Remove what does not count: older checkpoints, and what was left half written."""
        keep = self._place(saved) if saved else None
        _remove(self.folder / _SCRATCH)
        for path in self.folder.glob(f"{_PREFIX}*"):
            if path != keep and path.name.removeprefix(_PREFIX).isdecimal():
                _remove(path)

    def _scratch(self) -> Path:
        """An empty folder for the next checkpoint."""
        scratch = self.folder / _SCRATCH
        try:
            _remove(scratch)
            scratch.mkdir(parents=True)
        except OSError as trouble:
            trouble.add_note(f"horae: nothing can be saved in {self.folder}; choose another folder for checkpoints")
            raise
        return scratch

    def _place(self, saved: Saved) -> Path:
        return self.folder / f"{_PREFIX}{saved.step}"


def _what_is_in(folder: Path) -> Path:
    """The one entry of a checkpoint's folder. Its name is the script's: some libraries append to a path."""
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
    """Have everything in a folder on disk, names included."""
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
    # Imported late: it brings compression along.
    import shutil

    with suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
