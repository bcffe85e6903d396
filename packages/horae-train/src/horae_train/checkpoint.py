"""The checkpoints of a job: a folder with the newest checkpoint, and saved.json, which describes it.

    saved.json             {"step": 400, "total": 1000, "loss": 0.31, "job": "night-1@18f2", "attempt": 3}
    horae-400-3/           the checkpoint of step 400 by attempt 3: a single file or folder, written by the script
    horae-saving-3/        the next checkpoint, while the script writes it
    horae-attempt-3-night-1@18f2    attempt 3 has begun: no earlier attempt of the job may save any more

Outside Horae there are no attempts: the folders are called horae-400 and horae-saving.

A checkpoint is valid once saved.json names it. saved.json is replaced atomically, after the
checkpoint is on disk. Whenever a process dies, the last valid checkpoint is complete.

A machine that was cut off may wake up after the job has gone on elsewhere. Its process looks for marks
of newer attempts before it saves, before it replaces saved.json, and before it removes anything.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Only names of this form are ever removed. Other libraries may save in the same folder.
_PREFIX = "horae-"
_CHECKPOINT = re.compile(r"horae-\d+(-\d+)?")
_SCRATCH = re.compile(r"horae-saving(-\d+)?(\.json)?")
#: The mark of an attempt: its number, and its job.
_MARK = re.compile(r"horae-attempt-(\d+)-(.+)", re.DOTALL)


class Superseded(Exception):
    """A newer attempt of the same job has begun: this one must save nothing more."""


class JobAttempt(NamedTuple):
    """An attempt of a job. Jobs of different services have different names."""

    job: str
    number: int

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> JobAttempt | None:
        """The attempt that Horae has started; None outside Horae."""
        job, number = env.get("HORAE_JOB_ID", ""), env.get("HORAE_ATTEMPT", "")
        service = env.get("HORAE_SERVICE", "")
        return cls(f"{job}@{service}" if service else job, int(number)) if job and number.isdecimal() else None


class SavedCheckpoint(NamedTuple):
    """The contents of saved.json: the checkpoint holds the state after `step` of `total` steps."""

    step: int
    total: int | None
    loss: float | None
    #: The job and the number of its attempt that saved; None outside Horae and in files of older versions.
    job: str | None = None
    attempt: int | None = None


class Checkpoints:
    """The checkpoints in one folder; other files in it are left alone."""

    def __init__(self, folder: Path, attempt: JobAttempt | None = None) -> None:
        self.folder = folder
        self._attempt = attempt

    def take_over(self) -> None:
        """From now on, earlier attempts of the job save nothing. Raises `Superseded` if a later one has begun."""
        self.check_attempt()
        if not self._attempt:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{_PREFIX}attempt-{self._attempt.number}-{self._attempt.job}").touch()
        except OSError as trouble:
            self._note_unwritable(trouble)
            raise

    def check_attempt(self) -> None:
        """Raise `Superseded` if a later attempt of the job has begun or saved."""
        mine = self._attempt
        newest = max(self._attempts_begun(), default=0) if mine else 0
        if mine and newest > mine.number:
            job = mine.job.partition("@")[0]
            raise Superseded(
                f"attempt {newest} of {job} saves in {self.folder} now, so attempt {mine.number} saves nothing more"
            )

    def _attempts_begun(self) -> list[int]:
        """Numbers of the attempts of this job that have begun, or saved."""
        assert self._attempt
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        marks = [mark for mark in (_MARK.fullmatch(path.name) for path in paths) if mark]
        found = [int(mark[1]) for mark in marks if mark[2] == self._attempt.job]
        with suppress(ValueError):  # a broken saved.json is told of when it is loaded
            saved = self.newest()
            if saved and saved.attempt and saved.job == self._attempt.job:
                found.append(saved.attempt)
        return found

    def newest(self) -> SavedCheckpoint | None:
        """The newest valid checkpoint; None before the first."""
        try:
            text = (self.folder / "saved.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(text)
            known = {name: fields.get(name) for name in SavedCheckpoint._fields}
            return SavedCheckpoint(**{**known, "step": int(fields["step"]), "attempt": _whole(known["attempt"])})
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

    def write(self, save: Callable[[Path], object], saved: SavedCheckpoint) -> SavedCheckpoint:
        """Let the script write a checkpoint, and remove the previous checkpoint only after that.

        Returns what saved.json says. Raises `Superseded` if a later attempt of the job has begun.
        """
        self.check_attempt()
        if self._attempt:
            saved = saved._replace(job=self._attempt.job, attempt=self._attempt.number)
        scratch = self._new_scratch()
        try:
            save(scratch / "checkpoint")
            _only_entry(scratch)
            _sync_tree(scratch)
        except BaseException as trouble:
            _remove(scratch)
            # A later attempt tidies up, while this one may be saving.
            self.check_attempt()
            _add_note(
                trouble,
                f"horae: the checkpoint of step {saved.step} could not be saved in {self.folder}, where "
                f"{_free_mb(self.folder)} MB are free; the previous checkpoint, if there was one, is complete",
            )
            raise
        self._make_valid(scratch, saved)
        self.tidy(saved)
        return saved

    def _make_valid(self, scratch: Path, saved: SavedCheckpoint) -> None:
        """Let saved.json name a checkpoint that is complete."""
        folder = self._folder_of(saved)
        try:
            # A folder of this name was never valid: its process died before saved.json was replaced.
            _remove(folder)
            scratch.rename(folder)
            _sync(self.folder)
        except FileNotFoundError:
            self.check_attempt()
            raise
        # After the rename: a file server then shows what others have written.
        try:
            self.check_attempt()
        except Superseded:
            _remove(folder)
            raise
        fields = {name: value for name, value in saved._asdict().items() if name not in ("job", "attempt") or value}
        _write_atomically(self.folder / "saved.json", json.dumps(fields), self._scratch().with_suffix(".json"))

    def tidy(self, saved: SavedCheckpoint | None) -> None:
        """Remove older checkpoints, what was left half written, and marks of earlier attempts."""
        self.check_attempt()
        keep = self._folder_of(saved) if saved else None
        for path in list(self.folder.iterdir()) if self.folder.is_dir() else []:
            if path != keep and (_CHECKPOINT.fullmatch(path.name) or _SCRATCH.fullmatch(path.name)):
                _remove(path)
            mark = _MARK.fullmatch(path.name)
            if mark and self._attempt and mark[2] == self._attempt.job and int(mark[1]) < self._attempt.number:
                _remove(path)

    def _new_scratch(self) -> Path:
        """An empty folder for the next checkpoint."""
        scratch = self._scratch()
        try:
            _remove(scratch)
            scratch.mkdir(parents=True)
        except OSError as trouble:
            self._note_unwritable(trouble)
            raise
        return scratch

    def _note_unwritable(self, trouble: OSError) -> None:
        _add_note(trouble, f"horae: nothing can be saved in {self.folder}; choose another folder for checkpoints")

    def _scratch(self) -> Path:
        return self.folder / f"{_PREFIX}saving{_suffix(self._attempt.number if self._attempt else None)}"

    def _folder_of(self, saved: SavedCheckpoint) -> Path:
        return self.folder / f"{_PREFIX}{saved.step}{_suffix(saved.attempt)}"


def _suffix(attempt: int | None) -> str:
    return f"-{attempt}" if attempt else ""


def _whole(number: object) -> int | None:
    """The number of an attempt; anything else counts as none."""
    return number if isinstance(number, int) and number > 0 else None


def _only_entry(folder: Path) -> Path:
    """The only entry of a checkpoint's folder. Its name may differ from the path given: some libraries add a suffix."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if len(found) != 1:
        raise FileNotFoundError(
            f"{folder} should hold one file or folder, and holds {len(found)}: save(path) must write at `path`"
        )
    return found[0]


def _write_atomically(path: Path, text: str, scratch: Path) -> None:
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
