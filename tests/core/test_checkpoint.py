"""A checkpoint is the engine: what comes out stands where the other stood, and goes on as it does."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core import checkpoint
from horae.core.checkpoint import VERSION, Leaf, UnreadableCheckpoint, load, save
from horae.core.codec import encode
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event
from horae.core.explain import explain
from horae.core.invariants import check
from horae.core.throughputs import Origin
from horae.simulator.driver import Driver
from horae.simulator.world import World
from tests.simulation.trouble import FAULTS, Trouble, difference, same


@dataclass
class Cut:
    """Trouble that is cut, every so many records: a copy is loaded and has to keep up until the next cut."""

    trouble: Trouble
    every: int
    first: int
    copy: Engine | None = None
    seen: int = 0
    #: The state at the last cut, to be encoded at the next, and its bytes by then.
    late: tuple[list[Leaf], bytes] | None = None

    def watch(self, live: Engine, record: Event | Decided) -> None:
        if self.copy:
            self.follow(self.copy, live, record)
        if self.seen % self.every == self.first % self.every:
            self.check_late()
            self.late = (checkpoint.copied(live), save(live))
            # Every other one is a copy of a copy.
            original = self.copy if self.copy and self.seen // self.every % 2 else live
            self.copy = self.trouble.engine()
            load(self.copy, save(original))
            check(self.copy)
            self.agree(self.copy, live)
        self.seen += 1

    def follow(self, copy: Engine, live: Engine, record: Event | Decided) -> None:
        """Hear what the original hears, and decide what it decided."""
        if isinstance(record, Decided):
            again = copy.with_evidence(copy.decide(record.at_s))
            assert encode(again) == encode(record), f"seed {self.trouble.seed}: decided {again}, was {record}"
        else:
            copy.apply(record)
        mine, other = live.contents(), copy.contents()
        assert same(mine, other), f"seed {self.trouble.seed}: {difference(mine, other)}"

    def check_late(self) -> None:
        """What was copied at the last cut has not changed, though the engine went on."""
        if self.late:
            state, then = self.late
            assert checkpoint.encode(state) == then, f"seed {self.trouble.seed}"

    def agree(self, copy: Engine, live: Engine) -> None:
        mine, other = live.contents(), copy.contents()
        assert same(mine, other), f"seed {self.trouble.seed}: {difference(mine, other)}"
        assert copy.outstanding() == live.outstanding()
        for spec in live.jobs.specs:
            assert explain(copy.status(), spec.id) == explain(live.status(), spec.id)

    def run(self) -> Engine:
        trouble, engine = self.trouble, self.trouble.engine()
        truth = trouble._speeds(Origin.GIVEN, 1.0)
        world = World(engine.jobs, trouble.cluster, trouble.restart_cost_s, FAULTS, trouble.seed, truth)
        Driver(engine, world, trouble.script(), self.watch).run()
        return engine


def cut(seed: int, every: int, first: int = 0, policy: str = "", **chosen: str) -> tuple[Cut, Engine]:
    trouble = Trouble(seed)
    if policy:
        trouble.policy, trouble.settings = policy, chosen
    run = Cut(trouble, every, first)
    return run, run.run()


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), every=st.integers(20, 90), first=st.integers(0, 89))
def test_wherever_a_run_is_cut_the_rest_is_the_same(seed: int, every: int, first: int) -> None:
    run, engine = cut(seed, every, first)
    assert run.copy
    assert len(engine.jobs) == run.trouble.jobs


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("tiresias", {"thresholds": "100,1500", "promote-knob": "8"}),
        ("tiresias-gittins", {"thresholds": "40"}),
        ("themis", {"lease": "300"}),
        ("max-min", {"round": "300", "space-sharing": "true", "aware": "true"}),
        ("finish-time", {"round": "300"}),
        ("fifo", {}),
    ],
)
def test_policies_that_remember_go_on_as_if_nothing_had_been(policy: str, chosen: dict[str, str]) -> None:
    cut(3, every=40, policy=policy, **chosen)


def test_apps_keep_what_their_trials_reported_and_gave_up() -> None:
    _, engine = cut(1, every=30)
    assert engine.apps.given_up
    assert engine.apps.contents()["losses"]
    copy = Trouble(1).engine()
    load(copy, save(engine))
    assert copy.apps.contents() == engine.apps.contents()


def test_what_was_learnt_of_speeds_comes_back() -> None:
    run, engine = next(one for one in (cut(seed, every=500) for seed in range(20)) if one[1].learnt)
    copy = run.trouble.engine()
    load(copy, save(engine))
    assert copy.learnt == engine.learnt
    assert list(copy._speeds.throughputs.settings()) == list(engine._speeds.throughputs.settings())


def test_an_engine_to_which_nothing_happened_can_be_saved() -> None:
    engine, copy = Trouble(5).engine(), Trouble(5).engine()
    load(copy, save(engine))
    assert same(engine.contents(), copy.contents())


def test_the_same_engine_gives_the_same_bytes() -> None:
    _, engine = cut(2, every=500)
    assert save(engine) == save(engine)


def header_changed(body: bytes, **changes: object) -> bytes:
    line, _, rest = zlib.decompress(body).partition(b"\n")
    return zlib.compress(json.dumps({**json.loads(line), **changes}).encode() + b"\n" + rest)


def test_a_version_nobody_knows_is_refused() -> None:
    body = header_changed(save(Trouble(5).engine()), v=VERSION + 1)
    with pytest.raises(UnreadableCheckpoint, match=f"of version {VERSION + 1} .* reads version {VERSION}"):
        load(Trouble(5).engine(), body)


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[: len(body) // 2],
        lambda body: b"",
        lambda body: body[:-4] + bytes(4),
        lambda body: zlib.compress(b"[]\n"),
        lambda body: header_changed(body, format="something else"),
        lambda body: header_changed(body, columns=[[["active"], "<i8", [10**6]]]),
    ],
)
def test_a_damaged_one_is_refused_and_changes_nothing(damage) -> None:
    _, engine = cut(2, every=500)
    fresh = Trouble(2).engine()
    with pytest.raises(UnreadableCheckpoint, match="damaged"):
        load(fresh, damage(save(engine)))
    assert same(fresh.contents(), Trouble(2).engine().contents())


def test_parts_and_columns_that_a_later_release_added_are_passed_over() -> None:
    _, engine = cut(2, every=500)
    line, _, rest = zlib.decompress(save(engine)).partition(b"\n")
    header = json.loads(line)
    header["parts"].insert(0, [["later"], 2])
    header["columns"].append([["jobs", "later"], "<i8", [3]])
    body = zlib.compress(json.dumps(header).encode() + b"\n{}" + rest + np.arange(3).tobytes())
    copy = Trouble(2).engine()
    load(copy, body)
    assert same(copy.contents(), engine.contents())
