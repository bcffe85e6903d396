"""A file system in memory, mounted at a path that no machine has, with a clock, faults and a power cut of its own.

While it is mounted, `os`, `io.open` and `open` lead paths below `ROOT` here, and all others to the real file system:
the code under test makes its own calls, none of them replaced by a stand-in. As file systems with a journal do, a sync
of any file makes all earlier changes of names durable; content that was not synced may be lost in a power cut.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from unittest import mock

ROOT = "/horae-world"
#: Numbers of open files; no process has as many.
_FIRST_HANDLE = 1 << 30


class _File:
    """A file: its content, when it was last changed, and whether the content would survive a power cut."""

    __slots__ = ("data", "links", "mtime_s", "number", "synced")

    def __init__(self, number: int, mtime_s: float) -> None:
        self.number, self.mtime_s = number, mtime_s
        self.data, self.links, self.synced = b"", 1, True


class _Folder(dict[str, "_File | _Folder"]):
    """A folder: what is in it, by name."""

    __slots__ = ()


@dataclass(slots=True)
class _Handle:
    file: _File | _Folder
    position: int = 0


class _Entry:
    """What `os.scandir` yields."""

    def __init__(self, files: MemoryFiles, folder: str, name: str) -> None:
        self._files, self.name, self.path = files, name, f"{folder}/{name}"

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._files.stat(self.path)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._files.find(self.path), _Folder)

    def is_symlink(self) -> bool:
        return False


class _Scan(list[_Entry]):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


class _Reader(io.BytesIO):
    """A file that is read."""

    def __init__(self, files: MemoryFiles, handle: int) -> None:
        super().__init__(files.content(handle).data)
        self._files, self._handle = files, handle

    def fileno(self) -> int:
        return self._handle

    def close(self) -> None:
        if not self.closed:
            self._files.handles.pop(self._handle, None)
        super().close()


class _Writer:
    """A file that is written, as text or bytes."""

    def __init__(self, files: MemoryFiles, handle: int) -> None:
        self._files, self._handle, self._parts = files, handle, []

    def write(self, what: str | bytes) -> int:
        self._parts.append(what.encode() if isinstance(what, str) else what)
        return len(what)

    def flush(self) -> None:
        if self._parts:
            data, self._parts = b"".join(self._parts), []
            self._files.write(self._handle, data)

    def fileno(self) -> int:
        return self._handle

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._files.handles.pop(self._handle, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryFiles:
    """The file system. `call` surrounds every operation: it may raise before, or after it was done."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.top = _Folder()
        self.handles: dict[int, _Handle] = {}
        self._next = _FIRST_HANDLE
        #: Called with the name of an operation and the path, before and after it.
        self.before: Callable[[str, str], None] = lambda name, path: None
        self.after: Callable[[str, str], None] = lambda name, path: None
        #: Folders by path, as they were found before.
        self._folders: dict[str, _Folder] = {}
        #: What undoes the changes of names since the last sync, oldest first.
        self._undo: list[Callable[[], None]] = []
        #: Files whose content is not synced.
        self._unsynced: list[_File] = []

    # --- paths

    def find(self, path: str) -> _File | _Folder:
        """What is at a path; FileNotFoundError or NotADirectoryError if nothing is."""
        folder, _, last = path.rpartition("/")
        if (known := self._folders.get(folder)) is not None and (inner := known.get(last)) is not None:
            return inner
        found: _File | _Folder = self.top
        for name in path[len(ROOT) :].split("/"):
            if not name:
                continue
            if not isinstance(found, _Folder):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            inner = found.get(name)
            if inner is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            found = inner
        return found

    def _parent(self, path: str) -> tuple[_Folder, str]:
        folder, _, name = path.rpartition("/")
        found: _File | _Folder | None = self._folders.get(folder)
        if found is None:
            found = self.find(folder)
            if not isinstance(found, _Folder):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            self._folders[folder] = found
        assert isinstance(found, _Folder)
        return found, name

    def _put(self, folder: _Folder, name: str, what: _File | _Folder | None) -> None:
        """Change what a name leads to, in a way that a power cut can undo."""
        old = folder.get(name)
        if isinstance(old, _Folder):
            self._folders.clear()

        def undo() -> None:
            if old is None:
                folder.pop(name, None)
            else:
                folder[name] = old

        self._undo.append(undo)
        if what is None:
            del folder[name]
        else:
            folder[name] = what

    def cut_power(self, choose: Callable[[int], int]) -> None:
        """Lose changes that were not synced: `choose(n)` of the n changes of names stay, and no content."""
        kept = choose(len(self._undo))
        for undo in reversed(self._undo[kept:]):
            undo()
        for file in self._unsynced:
            if not file.synced:
                file.data = b""
        self._undo, self._unsynced = [], []
        self._folders.clear()

    def _sync(self) -> None:
        self._undo = []

    # --- operations

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = "file.create" if flags & os.O_CREAT else "file.read"
        self.before(name, path)
        folder, last = self._parent(path)
        found = folder.get(last)
        if found is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            found = _File(self._new_number(), self.clock())
            self._put(folder, last, found)
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        elif isinstance(found, _Folder):
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        elif flags & os.O_DIRECTORY:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        if flags & os.O_TRUNC and isinstance(found, _File):
            found.data, found.mtime_s = b"", self.clock()
        handle = self._new_number()
        self.handles[handle] = _Handle(found)
        self.after(name, path)
        return handle

    def _new_number(self) -> int:
        self._next += 1
        return self._next

    def open_file(self, where: str | int, mode: str = "r", *_: Any, **named: Any) -> Any:
        if isinstance(where, int):
            handle = where
        else:
            if isinstance(self._there(where), _Folder):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", where)
            handle = self.open(where, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if "w" in mode else os.O_RDONLY)
        if "w" in mode or "a" in mode:
            return _Writer(self, handle)
        reader = _Reader(self, handle)
        return reader if "b" in mode else io.TextIOWrapper(reader, encoding="utf-8")

    def _there(self, path: str) -> _File | _Folder | None:
        try:
            return self.find(path)
        except OSError:
            return None

    def write(self, handle: int, data: bytes) -> int:
        self.before("file.write", "")
        file = self.content(handle)
        file.data, file.mtime_s, file.synced = file.data + data, self.clock(), False
        self._unsynced.append(file)
        self.after("file.write", "")
        return len(data)

    def pwrite(self, handle: int, data: bytes, start: int) -> int:
        """Write in place. A block is written whole or not at all, and here it survives a power cut at once."""
        self.before("file.write", "")
        file = self.content(handle)
        file.data = file.data[:start].ljust(start, b"\0") + data + file.data[start + len(data) :]
        self.after("file.write", "")
        return len(data)

    def read(self, handle: int, count: int) -> bytes:
        self.before("file.read", "")
        opened, file = self.handles[handle], self.content(handle)
        data = file.data[opened.position : opened.position + count]
        opened.position += len(data)
        self.after("file.read", "")
        return data

    def content(self, handle: int) -> _File:
        """The file that is open."""
        file = self.handles[handle].file
        if isinstance(file, _Folder):
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        return file

    def close(self, handle: int) -> None:
        self.handles.pop(handle, None)

    def fsync(self, handle: int) -> None:
        self.before("file.sync", "")
        file = self.handles[handle].file
        if isinstance(file, _File):
            file.synced = True
        self._sync()
        self.after("file.sync", "")

    def stat(self, where: str | int, **_: Any) -> os.stat_result:
        if isinstance(where, int):
            return _stat(self.handles[where].file)
        self.before("file.stat", where)
        found = self.find(where)
        self.after("file.stat", where)
        return _stat(found)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self.before("file.mkdir", path)
        folder, name = self._parent(path)
        if name in folder:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self._put(folder, name, _Folder())
        self.after("file.mkdir", path)

    def link(self, source: str, path: str) -> None:
        self.before("file.link", path)
        file, (folder, name) = self.find(source), self._parent(path)
        if name in folder:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        assert isinstance(file, _File)
        file.links += 1
        self._put(folder, name, file)
        self.after("file.link", path)

    def rename(self, source: str, path: str) -> None:
        self.before("file.rename", path)
        found, (folder, name), (old, old_name) = self.find(source), self._parent(path), self._parent(source)
        if isinstance(replaced := folder.get(name), _Folder) and isinstance(found, _File):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if isinstance(found, _Folder):
            if replaced:
                raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
            self._folders.clear()
        self._put(folder, name, found)
        self._put(old, old_name, None)
        self.after("file.rename", path)

    def unlink(self, path: str) -> None:
        self.before("file.unlink", path)
        folder, name = self._parent(path)
        file = folder.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(file, _Folder):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        file.links -= 1
        self._put(folder, name, None)
        self.after("file.unlink", path)

    def utime(self, where: str | int, times: tuple[float, float] | None = None, **_: Any) -> None:
        path = "" if isinstance(where, int) else where
        self.before("file.touch", path)
        file = self.handles[where].file if isinstance(where, int) else self.find(where)
        if isinstance(file, _File):
            file.mtime_s = self.clock()
        self.after("file.touch", path)

    def scandir(self, path: str) -> _Scan:
        self.before("file.list", path)
        folder = self.find(path)
        if not isinstance(folder, _Folder):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        self.after("file.list", path)
        return _Scan(_Entry(self, path, name) for name in sorted(folder))

    def listdir(self, path: str) -> list[str]:
        return [entry.name for entry in self.scandir(path)]

    def chmod(self, path: str, mode: int, **_: Any) -> None:
        self.find(path)


def _stat(found: _File | _Folder) -> os.stat_result:
    if isinstance(found, _Folder):
        return os.stat_result((stat.S_IFDIR | 0o700, id(found), 1, 1, 0, 0, 0, 0, 0, 0))
    mode, size, mtime_s = stat.S_IFREG | 0o600, len(found.data), found.mtime_s
    # The tenth to thirteenth are times with fractions.
    whole = int(mtime_s)
    return os.stat_result(
        (mode, found.number, 1, found.links, 0, 0, size, whole, whole, whole, mtime_s, mtime_s, mtime_s)
    )


#: Functions of `os` that name one path or handle first, and the method for each.
_ONE = {
    "open": "open",
    "write": "write",
    "read": "read",
    "pwrite": "pwrite",
    "close": "close",
    "fsync": "fsync",
    "fdatasync": "fsync",
    "stat": "stat",
    "lstat": "stat",
    "fstat": "stat",
    "mkdir": "mkdir",
    "unlink": "unlink",
    "remove": "unlink",
    "utime": "utime",
    "scandir": "scandir",
    "listdir": "listdir",
    "chmod": "chmod",
}
_TWO = {"link": "link", "rename": "rename", "replace": "rename"}


def _here(where: Any) -> str | int | None:
    """The path or handle, if it is one of a file system in memory."""
    kind = type(where)
    if kind is int:
        return where if where > _FIRST_HANDLE else None
    if kind is not str:
        if not hasattr(where, "__fspath__"):
            return None
        where = where.__fspath__()
    return where if type(where) is str and where.startswith(ROOT) else None


@contextmanager
def mounted(files: MemoryFiles) -> Iterator[None]:
    """Lead paths below `ROOT` to a file system in memory."""

    def one(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        model = getattr(files, name)

        def call(where: Any = ".", *more: Any, **named: Any) -> Any:
            here = _here(where)
            return real(where, *more, **named) if here is None else model(here, *more, **named)

        return call

    def two(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        model = getattr(files, name)

        def call(source: Any, path: Any, **named: Any) -> Any:
            here = _here(source)
            return real(source, path, **named) if here is None else model(here, _here(path))

        return call

    changes = {name: one(getattr(os, name), method) for name, method in _ONE.items()}
    changes |= {name: two(getattr(os, name), method) for name, method in _TWO.items()}
    opened = one(io.open, "open_file")
    with (
        mock.patch.multiple(os, **changes),
        mock.patch.object(io, "open", opened),
        mock.patch.object(builtins, "open", opened),
    ):
        yield
