"""What a job may put in the place of a file of its attempt, for tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

#: Names that records have, so that some of what is made up is nearly right.
_KEYS = st.sampled_from(
    "pid start_time boot_id up_at code stopped why silent step total nodes task env saved by seats up_s x".split()
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(
        [0, 1, -1, 2**31, 10**400, -(10**400), 1e308, float("nan"), float("inf"), None, True, "", "../../x"]
    )
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=8,
)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 2**30)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def _full_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("x")


#: Things that are not just content, by what they are.
SPECIAL: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to("/no/such/file"),
    "a link to a folder": lambda path: path.symlink_to("/"),
    "an empty folder": Path.mkdir,
    "a full folder": _full_folder,
    "a device": _device,
    "10 GiB of nothing": _sparse,
    "deep JSON": lambda path: path.write_text("[" * 30_000 + "]" * 30_000),
    "deep and large JSON": lambda path: path.write_text('{"a":' * 200_000),
    "digits": lambda path: path.write_text('{"step": ' + "9" * 5000 + "}"),
    "no rights": lambda path: path.touch(mode=0),
}

#: Anything: bytes, JSON of any kind, or the name of something special.
THINGS = (
    st.sampled_from(sorted(SPECIAL)) | st.binary(max_size=100) | _VALUES.map(lambda value: json.dumps(value).encode())
)


def put(thing: str | bytes, path: Path) -> None:
    """Put a thing in the place of a file."""
    if path.is_symlink() or path.exists():
        path.unlink()
    if isinstance(thing, bytes):
        path.write_bytes(thing)
    else:
        SPECIAL[thing](path)
