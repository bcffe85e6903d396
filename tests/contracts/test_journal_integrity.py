"""A journal knows itself: chain, high-water mark and verification, in both databases.

Tests service/store/chain.py, service/store/chain_migration.py, service/store/facts.py, service/store/opening.py,
service/store/high_water_mark.py, service/store/policy_memory.py, service/store/record_rows.py, service/store/rows.py
and service/store/verification.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from horae.core.cluster import Span
from horae.core.commands import Decided, Launch
from horae.core.events import JobHeld, JobProgressed, JobSubmitted
from horae.service.store import opening
from horae.service.store.chain import JournalDamaged, JournalLost
from horae.service.store.connection import StoreTrouble
from horae.service.store.high_water_mark import MARK_FILE, HighWaterMark, Mark
from horae.service.store.opening import open_store
from horae.service.store.store import Store
from tests.backends.real import until
from tests.builders import job
from tests.contracts.filled_store import decided, fill, opened, task


@contextmanager
def changing(store: Store) -> Iterator[Connection]:
    """The tables, to damage them."""
    with store._engine.execution_options(writes=True).begin() as connection:
        yield connection


DAMAGES = {
    "body": "UPDATE journal SET body = replace(body, 'a-2', 'a-9') WHERE seq = 2",
    "time": "UPDATE journal SET at_s = at_s + 1 WHERE seq = 3",
    "kind": "UPDATE journal SET kind = 'JobHeld' WHERE seq = 3",
    "no JSON": "UPDATE journal SET body = '{' WHERE seq = 6",
    "record gone": "DELETE FROM journal WHERE seq = 6",
    "digest": "UPDATE digests SET digest = head WHERE seq = 2",
    "head": "UPDATE digests SET head = digest WHERE seq = 2",
    "digest gone": "DELETE FROM digests WHERE seq = 2",
    "last digest gone": "DELETE FROM digests WHERE seq = 6",
    "task": "UPDATE tasks SET body = replace(body, 'train', 'erase') WHERE job = 'a-4'",
    "epoch": "UPDATE facts SET value = '1.0' WHERE name = 'epoch'",
    "identity": "UPDATE facts SET value = 'another' WHERE name = 'identity'",
    "identity gone": "DELETE FROM facts WHERE name IN ('identity', 'identity.sha256')",
    "token": "UPDATE tokens SET role = 'admin'",
    "scope": "UPDATE tokens SET scope = 'queue=others'",
    "version": "UPDATE facts SET value = 'x' WHERE name = 'schema'",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_in_a_sentence_that_says_what_to_do(tmp_path: Path, damage: str) -> None:
    check_that_damage_is_refused(f"sqlite:///{tmp_path}/journal.db", tmp_path, damage)


@pytest.mark.parametrize("damage", ["body", "task", "head"])
def test_damage_in_either_database_is_refused(url: str, tmp_path: Path, damage: str) -> None:
    check_that_damage_is_refused(url, tmp_path, damage)


def check_that_damage_is_refused(url: str, tmp_path: Path, damage: str) -> None:
    with opened(url, tmp_path / "state") as store:
        fill(store)
        with changing(store) as connection:
            connection.exec_driver_sql(DAMAGES[damage])
    with pytest.raises(JournalDamaged, match=r"`horae restore`.*--accept-loss"), opened(url, tmp_path / "state"):
        pass


def test_policy_memory_is_kept_apart_and_read_by_recovery_alone(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "state") as store:
        store.append([decided(1.0), JobHeld(2.0, "a")])
        assert repr(dict(store.tail(whole=True))[1]) == repr(decided(1.0))
        read = dict(store.tail())[1]
        assert isinstance(read, Decided)
        assert read.memory == ()
        with changing(store) as connection:
            connection.exec_driver_sql("DELETE FROM memories")
        with pytest.raises(JournalDamaged, match="policy memory of record 1"):
            list(store.tail(whole=True))


def test_policy_memory_goes_when_two_checkpoints_cover_it(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "state") as store:
        left = []
        for number in range(1, 4):
            store.append([decided(float(number))])
            store.save_checkpoint(number, b"engine")
            with changing(store) as connection:
                left.append(connection.exec_driver_sql("SELECT count(*) FROM memories").scalar())
        assert left == [1, 1, 1]
        assert [len(record.memory) for _, record in store.tail(whole=True) if isinstance(record, Decided)] == [0, 0, 2]


def test_the_chain_outlives_compaction(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "state") as store:
        store.append([JobProgressed(float(k), "a", 1, float(k)) for k in range(20)])
        for seq in (18, 19):
            store.save_checkpoint(seq, b"engine")
        assert store.compact(19, keep_since_s=0.0) > 10
    with opened(url, tmp_path / "state") as store:
        assert store.append([JobHeld(30.0, "a")]) == 21
    with opened(url, tmp_path / "state"):
        pass


def test_a_damaged_checkpoint_is_told_by_an_empty_body(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "state") as store:
        store.append([JobHeld(1.0, "a"), JobHeld(2.0, "a")])
        store.save_checkpoint(1, b"older")
        store.save_checkpoint(2, b"newer")
        with changing(store) as connection:
            connection.exec_driver_sql("UPDATE checkpoints SET digest = NULL WHERE seq = 2")
        assert store.newest_checkpoint() == (2, b"")
        assert store.newest_checkpoint(before=2) == (1, b"older")


def test_a_journal_that_lost_its_last_records_is_refused(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "state") as store:
        fill(store)
        with changing(store) as connection:
            for table in ("journal", "digests", "journal_jobs"):
                connection.exec_driver_sql(f"DELETE FROM {table} WHERE seq > 4")
    with pytest.raises(JournalLost, match="ends at record 4, and record 6 had been written"):
        open_store(url, tmp_path / "state")


def test_another_journal_is_refused(url: str, tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/other.db", tmp_path / "state"):
        pass
    Store(url).close()
    with pytest.raises(JournalLost, match="another journal"):
        open_store(url, tmp_path / "state")


def test_a_journal_that_went_another_way_is_refused(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "state") as store:
        store.append([JobHeld(1.0, "a")])
    copy = (tmp_path / "state" / MARK_FILE).read_bytes()
    with opened(url, tmp_path / "state") as store:
        store.append([JobHeld(2.0, "a")])
    mark = HighWaterMark(tmp_path / "state" / MARK_FILE)
    assert mark.mark is not None
    (tmp_path / "state" / MARK_FILE).write_bytes(copy)
    with closing(HighWaterMark(tmp_path / "state" / MARK_FILE)) as older:
        older.write(Mark(mark.mark.identity, 2, "0" * 64))
    with pytest.raises(JournalLost, match="differs before record 2"):
        open_store(url, tmp_path / "state")


def test_a_mark_behind_the_journal_is_fine(url: str, tmp_path: Path) -> None:
    """A crash comes between the commit and the mark."""
    with opened(url, tmp_path / "state") as store:
        store.append([JobHeld(1.0, "a")])
    with closing(Store(url, own=True)) as store:
        store.append([JobHeld(2.0, "a")])
    with opened(url, tmp_path / "state") as store:
        assert store.last_seq() == 2
    mark = HighWaterMark(tmp_path / "state" / MARK_FILE).mark
    assert mark is not None
    assert mark.seq == 2


def test_numbers_of_a_commit_that_the_mark_does_not_cover_are_in_the_next_mark(url: str, tmp_path: Path) -> None:
    """Otherwise a journal that is restored later would give them again."""
    launch = Launch("a-7", 3, (0,), Span.GPU, 0.0)
    with opened(url, tmp_path / "state") as store:
        store.append([JobSubmitted(1.0, job("a-5"))], [task("a-5")])
    with closing(Store(url, own=True)) as store:
        store.append([JobSubmitted(2.0, job("a-7")), Decided(2.0, True, launches=(launch,))], [task("a-7")])
    with opened(url, tmp_path / "state"):
        pass
    mark = HighWaterMark(tmp_path / "state" / MARK_FILE).mark
    assert mark is not None
    assert (mark.seq, mark.job_number, mark.attempt) == (3, 7, 3)


def test_a_journal_without_a_mark_is_taken_and_told(url: str, tmp_path: Path) -> None:
    with closing(Store(url, own=True)) as store:
        fill(store)
    (tmp_path / "state").mkdir(exist_ok=True)
    for notes in (1, 0):
        found = open_store(url, tmp_path / "state")
        found.store.close()
        assert len(found.notes) == notes
    mark = HighWaterMark(tmp_path / "state" / MARK_FILE).mark
    assert mark is not None
    assert (mark.seq, mark.job_number) == (6, 5)


def test_a_deleted_journal_is_refused_and_none_is_made(tmp_path: Path) -> None:
    journal, state = tmp_path / "state" / "journal.db", tmp_path / "state"
    with opened(f"sqlite:///{journal}", state) as store:
        fill(store)
    for file in state.glob("journal.db*"):
        file.unlink()
    with pytest.raises(JournalLost, match="is gone"):
        open_store(f"sqlite:///{journal}", state)
    assert not journal.exists()
    journal.touch()
    with pytest.raises(JournalLost, match="is empty"):
        open_store(f"sqlite:///{journal}", state)


def test_older_records_of_a_long_journal_are_verified_beside_the_service(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "FEW_RECORDS", 3)
    with opened(url, tmp_path / "state") as store:
        fill(store)
        with changing(store) as connection:
            connection.exec_driver_sql(DAMAGES["body"])
    with opened(url, tmp_path / "state") as store:
        assert until(lambda: store.damage) == "The journal is damaged: record 2 is not what was written."


def test_a_mark_survives_a_torn_slot_and_its_numbers_never_fall(tmp_path: Path) -> None:
    path = tmp_path / MARK_FILE
    with closing(HighWaterMark(path)) as mark:
        for seq in range(1, 4):
            mark.write(Mark("x", seq, "00", job_number=10 - seq))
    assert path.stat().st_mode & 0o777 == 0o600
    assert HighWaterMark(path).mark == Mark("x", 3, "00", job_number=9)
    content = path.read_bytes()
    size = len(content) // 2
    slots = [content[:size], content[size:]]
    cut = [slot[:70].ljust(size, b"\0") for slot in slots]
    torn = [cut[0] + slots[1], slots[0] + cut[1]]
    found = []
    for text in torn:
        path.write_bytes(text)
        kept = HighWaterMark(path).mark
        assert kept is not None
        found.append(kept.seq)
    assert sorted(found) == [2, 3]
    path.write_bytes(os.urandom(len(content)))
    with pytest.raises(JournalDamaged, match=r"mark .* is damaged"):
        HighWaterMark(path)


def test_a_mark_that_cannot_be_written_is_trouble_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is in the journal, and nothing is answered; the next test write brings the mark up to it."""
    with opened(f"sqlite:///{tmp_path}/state/journal.db", tmp_path / "state") as store:
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", _broken)
            with pytest.raises(StoreTrouble, match=MARK_FILE):
                store.append([JobHeld(1.0, "a")])
        assert store.try_writing() == 1
    mark = HighWaterMark(tmp_path / "state" / MARK_FILE).mark
    assert mark is not None
    assert mark.seq == 1


def _broken(_file: int) -> None:
    raise OSError(5, "Input/output error")
