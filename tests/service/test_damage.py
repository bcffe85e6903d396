"""Whatever befalls the files of a journal: the start refuses in a sentence, or nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from horae.core.errors import UserError
from horae.service.initial_settings import InitialSettings
from horae.service.recovery import check_tasks, recover
from horae.service.store.opening import open_store
from horae.service.store.store import Store
from horae.service.store.stored_records import TokenRecord
from horae.service.tokens import digest_of
from tests.service.stepped_service import SteppedService
from tests.simulation.trouble import same

#: Random damages in the default run, and in the long one.
FEW, MANY = 40, int(os.environ.get("HORAE_DAMAGES", "1000"))
#: Bytes of the header of SQLite's log, and of the header of each of its frames.
_LOG_HEADER, _FRAME_HEADER = 32, 24


@dataclass(frozen=True)
class Written:
    """A state folder as a killed service left it, and what had been acknowledged."""

    folder: Path
    contents: dict[str, Any]
    tasks: dict[str, Any]
    tokens: list[TokenRecord]
    records: int


@pytest.fixture(scope="module", params=["log", "file"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A journal whose newest records are in SQLite's log, and one whose records are all in the file."""
    folder, kept = tmp_path_factory.mktemp("run") / "state", tmp_path_factory.mktemp("kept") / "state"
    cell = SteppedService(folder, "max-min", marked=True)
    for number in range(12):
        cell.submit(name=f"job-{number}")
        cell.to(cell.now_s + 1.0)
        if number in (4, 8):
            cell.daemon._save_checkpoint()
    cell.store.add_token(TokenRecord("t", digest_of("secret"), "ada", "viewer", 1.0))
    if request.param == "log":
        shutil.copytree(folder, kept)
    found = Written(
        kept, cell.daemon.engine.contents(), dict(cell.daemon.tasks), cell.store.tokens(), cell.store.last_seq()
    )
    cell.store.ensure_initial_settings(cell.daemon.initial_settings.as_dict())
    cell.crash()
    if request.param == "file":
        shutil.copytree(folder, kept)
    return found


def check(written: Written, folder: Path) -> str:
    """Open what is left. Returns the refusal, or nothing if all is there; anything else is a defect."""
    try:
        with closing(open_store(f"sqlite:///{folder}/journal.db", folder).store) as store:
            engine, seq = recover(store, _settings(store))
            check_tasks(engine, store.tasks())
            found = (seq, store.tasks(), store.tokens())
    except UserError as refusal:
        return str(refusal)
    assert found == (written.records, written.tasks, written.tokens)
    assert same(engine.contents(), written.contents)
    return ""


def _settings(store: Store) -> InitialSettings:
    stored = store.initial_settings()
    if stored is not None:
        return InitialSettings.from_dict(stored)
    from horae.core.cluster import Node

    return InitialSettings((Node("v100", "v100", 2),), "max-min", {}, "best-effort", ())


def damaged(written: Written, tmp_path: Path, change: Callable[[Path], None]) -> str:
    """What a start says after this change of the files."""
    folder = tmp_path / "state"
    shutil.copytree(written.folder, folder)
    try:
        change(folder)
        return check(written, folder)
    finally:
        shutil.rmtree(folder)


def test_what_was_left_whole_is_whole(written: Written, tmp_path: Path) -> None:
    assert damaged(written, tmp_path, lambda folder: None) == ""


def test_a_log_cut_after_any_frame_is_refused(written: Written, tmp_path: Path) -> None:
    log = written.folder / "journal.db-wal"
    if not log.exists():
        pytest.skip("all is in the file")
    frame = 4096 + _FRAME_HEADER
    ends = range(_LOG_HEADER, log.stat().st_size, frame)
    # The first frames, the last ones, and some between.
    some = sorted({*ends[:8], *ends[-25:], *ends[:: max(1, len(ends) // 10)]})
    for end in some:
        assert damaged(written, tmp_path, lambda folder, end=end: os.truncate(folder / "journal.db-wal", end)), end


@pytest.mark.long
def test_a_log_cut_anywhere_is_refused(written: Written, tmp_path: Path) -> None:
    log = written.folder / "journal.db-wal"
    if not log.exists():
        pytest.skip("all is in the file")
    for end in range(0, log.stat().st_size, (4096 + _FRAME_HEADER) // 2):
        assert damaged(written, tmp_path, lambda folder, end=end: os.truncate(folder / "journal.db-wal", end)), end


@pytest.mark.parametrize("file", ["journal.db", "journal.db-wal"])
def test_a_file_that_is_gone_is_refused(written: Written, tmp_path: Path, file: str) -> None:
    if not (written.folder / file).exists():
        pytest.skip("there is no such file")
    assert damaged(written, tmp_path, lambda folder: (folder / file).unlink())


def test_a_file_cut_at_any_page_is_refused(written: Written, tmp_path: Path) -> None:
    size = (written.folder / "journal.db").stat().st_size
    for end in range(0, size, max(4096, size // 4096 // 12 * 4096)):
        said = damaged(written, tmp_path, lambda folder, end=end: os.truncate(folder / "journal.db", end))
        assert said or (written.folder / "journal.db-wal").exists(), end


def flip(chance: random.Random, folder: Path) -> None:
    """Flip a few bits, zero or swap a piece, or cut the end: of the database or its log."""
    file = folder / chance.choice([path.name for path in sorted(folder.glob("journal.db*")) if path.stat().st_size])
    content = bytearray(file.read_bytes())
    at, length = chance.randrange(len(content)), chance.choice([1, 16, 512, 4096])
    match chance.randrange(4):
        case 0 | 1:
            for _ in range(chance.choice([1, 1, 4])):
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        case 2:
            content[at : at + length] = bytes(len(content[at : at + length]))
        case 3:
            other = chance.randrange(len(content))
            piece = content[other : other + length]
            content[at : at + len(piece)] = piece
            del content[len(content) :]
    file.write_bytes(content)


def check_random_damages(written: Written, tmp_path: Path, seeds: range) -> int:
    refused = 0
    for seed in seeds:
        try:
            refused += bool(damaged(written, tmp_path, lambda folder, seed=seed: flip(random.Random(seed), folder)))
        except Exception as why:
            raise AssertionError(f"damage {seed} is neither refused nor harmless") from why
    return refused


def test_random_damage_is_refused_or_harmless(written: Written, tmp_path: Path) -> None:
    assert check_random_damages(written, tmp_path, range(FEW)) > FEW // 10


@pytest.mark.long
def test_much_random_damage_is_refused_or_harmless(written: Written, tmp_path: Path) -> None:
    assert check_random_damages(written, tmp_path, range(MANY)) > MANY // 10
