"""The model of the store answers as the real store does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from horae.backends.task import Task
from horae.core.cluster import Node, Span
from horae.core.commands import Decided, Launch, Stop, StopWhy
from horae.core.events import (
    JobHeld,
    JobProgressed,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NumbersRaised,
    SettingsChanged,
)
from horae.service.store.chain import JournalDamaged, JournalLost
from horae.service.store.connection import StoreInUse, StoreTrouble
from horae.service.store.high_water_mark import HighWaterMark
from horae.service.store.store import Store
from horae.service.store.stored_records import Act, TokenRecord
from horae.service.tokens import digest_of
from tests.builders import job
from tests.world.model_store import Disk, ModelStore


class Calls:
    """Random calls of a store, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random, self._now_s, self._jobs = random.Random(seed), 0.0, 0

    def __iter__(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        for _ in range(120):
            yield self._call()

    def _call(self) -> tuple[str, tuple[Any, ...]]:
        draw, some = self._random.random(), self._random.randint
        if draw < 0.5:
            records = [self._record() for _ in range(some(0, 4))]
            self._jobs += 1
            task = Task(f"t-{self._jobs}", "ann", "t", ("true",), 1.0)
            after = self._random.choice((None, None, some(0, 40)))
            return "append", (records, [task], [Act(self._now_s, "ann", "submit", task.job)], after)
        calls = (
            ("tail", (some(0, 60),)),
            ("tail", (some(0, 30), some(0, 90))),
            ("tail", (some(0, 60), None, True)),
            ("tail", (some(0, 30), some(0, 90), True)),
            ("covered_seq", ()),
            ("highest_numbers", (some(0, 90),)),
            ("fact", ("standby",)),
            ("save_fact", ("standby", {"url": str(some(1, 9))})),
            ("job_records", (f"j-{some(1, 4)}",)),
            ("last_seq", ()),
            ("try_writing", ()),
            ("is_complete", ()),
            ("save_checkpoint", (some(1, 80), b"engine")),
            ("newest_checkpoint", (self._random.choice((None, some(0, 60))),)),
            ("compact", (some(1, 90), self._now_s - some(0, 30), (f"j-{some(1, 4)}",))),
            ("tasks", ()),
            ("tasks", ([f"t-{some(1, 50)}", "t-1"],)),
            ("drop_tasks", ([f"t-{some(1, 50)}"],)),
            ("acts", (some(1, 9),)),
            ("ensure_initial_settings", ({"policy": f"p{some(1, 9)}"},)),
            ("initial_settings", ()),
            ("serve_options", ()),
            ("save_serve_options", ({"port": some(1, 9)},)),
            ("add_token", (TokenRecord(f"k-{self._now_s}", digest_of(f"{self._now_s}"), "ann", "user", self._now_s),)),
            ("revoke", (f"k-{float(some(0, 40))}",)),
            ("tokens", ()),
        )
        self._now_s += 1.0
        return self._random.choice(calls)

    def _record(self) -> Any:
        self._now_s += self._random.choice((0.0, 1.0))
        now_s, name = self._now_s, f"j-{self._random.randint(1, 4)}"
        return self._random.choice(
            (
                JobSubmitted(now_s, job(name)),
                JobHeld(now_s, name),
                JobProgressed(now_s, name, 1, now_s),
                JobProgressed(now_s, name, 1, now_s),
                NodeJoined(now_s, Node("v", "v100", 2)),
                NodeLost(now_s, "v"),
                SettingsChanged(now_s, "fifo"),
                NumbersRaised(now_s, self._random.randint(0, 9), self._random.randint(0, 9)),
                Decided(now_s, False, stops=(Stop(name, 1, StopWhy.PREEMPTED, "j-1"),)),
                Decided(now_s, True, launches=(Launch(name, self._random.randint(1, 9), (0,), Span.GPU, 0.0),)),
                Decided(now_s, True, memory=(("served", np.array([0, 3]), np.array([now_s, 1.0])),)),
            )
        )


def answer(store: Any, name: str, words: tuple[Any, ...]) -> object:
    try:
        said = getattr(store, name)(*words)
        return [(seq, repr(record)) for seq, record in said] if isinstance(said, Iterator) else said
    except (StoreTrouble, JournalDamaged) as why:
        return type(why)


@pytest.mark.parametrize("seed", range(4))
def test_the_model_answers_as_the_store_does(tmp_path: Path, seed: int) -> None:
    real, model = Store(f"sqlite:///{tmp_path}/journal.db", own=True), ModelStore(Disk(), own=True)
    for name, words in Calls(seed):
        assert answer(model, name, words) == answer(real, name, words), (name, words)
    real.close()


def test_the_model_has_every_public_method_of_the_store() -> None:
    public = {name for name in vars(Store) if not name.startswith("_")}
    assert public <= set(dir(ModelStore(Disk())))


def test_both_stores_keep_the_same_mark(tmp_path: Path) -> None:
    real, model = Store(f"sqlite:///{tmp_path}/journal.db", own=True), ModelStore(Disk(), own=True)
    marks = [HighWaterMark(tmp_path / name) for name in ("real", "model")]
    records = [record for _, words in Calls(0) for record in (words[0] if _ == "append" else ())]
    for store, mark in zip((real, model), marks, strict=True):
        store.append(records[:9])
        store.keep_mark(mark)
        store.append(records[9:12], (), [Act(1.0, "ann", "hold", "a")])
        store.add_token(TokenRecord("k", digest_of("k"), "ann", "user", 1.0))
        store.close()
    counted = [replace(mark.mark, identity="", head="") for mark in marks if mark.mark]
    assert counted[0] == counted[1]
    assert counted[0].seq == 12


def test_a_second_model_store_is_refused_and_a_replaced_one_may_not_write() -> None:
    disk = Disk()
    first = ModelStore(disk, own=True)
    with pytest.raises(StoreInUse):
        ModelStore(disk, own=True)
    disk.owner = None
    second = ModelStore(disk, own=True)
    assert second.term > first.term
    for write in (lambda: first.append([JobHeld(1.0, "a")]), first.try_writing, lambda: first.save_checkpoint(1, b"")):
        with pytest.raises(StoreInUse):
            write()
    assert second.append([JobHeld(1.0, "a")]) == 1
    second.close()
    with pytest.raises(StoreInUse):
        first.append([JobHeld(1.0, "a")])


def test_a_model_store_that_was_set_back_is_refused(tmp_path: Path) -> None:
    disk, mark = Disk(), HighWaterMark(tmp_path / "mark")
    store = ModelStore(disk, own=True)
    store.keep_mark(mark)
    store.append([JobHeld(1.0, "a")])
    copy = disk.backup()
    store.append([JobHeld(2.0, "a")])
    ModelStore(disk).verify(mark.mark)
    disk.restore(copy)
    with pytest.raises(JournalLost):
        ModelStore(disk).verify(mark.mark)
    ModelStore(disk).append([JobHeld(3.0, "a"), JobHeld(3.0, "a")])
    with pytest.raises(JournalLost):
        ModelStore(disk).verify(mark.mark)
