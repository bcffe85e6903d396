"""Policies from outside: what they may leave out, and what becomes of their mistakes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from horae.core.memory import Memory, MemorySpec
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies import POLICIES, describe, make_policy, policy
from horae.policies.ordering.least_attained import LeastAttainedService
from horae.policies.outside import BadPolicy
from horae.policies.settings import BadSetting, settings_of, text_of
from horae.simulator.scenario import PolicyChoice
from horae.testing import job, run, times


class Largest:
    """Large gangs first."""

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        return Wishes(now.rows, -now.gpus.astype(float))


@dataclass(frozen=True)
class Tunable:
    quantum: float = 60.0
    largest: bool = True
    cap: float = math.inf
    secret: object = None

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        return Wishes(now.rows, now.gpus * (-1.0 if self.largest else 1.0), wake_s=now.now_s + self.quantum)


@pytest.fixture
def registry() -> Iterator[dict[str, Any]]:
    before = dict(POLICIES)
    yield POLICIES
    POLICIES.clear()
    POLICIES.update(before)


JOBS = [job("small", 1, submit_s=1), job("large", 4, submit_s=2), job("first", 4, work=10)]


@pytest.mark.parametrize("chosen", [Largest, Largest(), Tunable, Tunable(quantum=5.0)])
def test_a_class_and_an_object_run_as_they_are(chosen: Any) -> None:
    ran = run(JOBS, "1x4", chosen)
    assert times(ran)["large"][0] < times(ran)["small"][0]
    assert ran.policy == (chosen if isinstance(chosen, type) else type(chosen)).__name__


def test_a_registered_class_is_a_name_like_others(registry: dict[str, Any]) -> None:
    assert policy("largest")(Largest) is Largest
    assert run(JOBS, "1x4", "largest").policy == "largest"
    assert run(JOBS, "1x4", Largest()).policy == "largest", "an object has the name of its class"
    info = describe("largest")
    assert (info.summary, info.objective, info.unit, info.paper, info.parameters) == (
        "Large gangs first.",
        "-",
        "-",
        "",
        (),
    )

    @policy("largest")
    class Again(Largest):
        """A cell of a notebook that is run again."""

    assert POLICIES["largest"] is Again


def test_names_of_our_own_policies_are_taken(registry: dict[str, Any]) -> None:
    with pytest.raises(BadPolicy, match="choose another name"):
        policy("las")(Largest)
    with pytest.raises(BadPolicy, match="no method plan"):
        policy("nothing")(object)


def test_fields_of_a_plain_dataclass_are_settings() -> None:
    chosen = PolicyChoice(Tunable, {"quantum": "5", "largest": "no", "cap": "off"})
    assert chosen.make().inner == Tunable(5.0, False)  # type: ignore[attr-defined]
    assert [one.name for one in chosen.parameters] == ["quantum", "largest", "cap"]
    with pytest.raises(BadSetting, match="quantum=soon is not a value for policy 'Tunable': quantum is of type float"):
        PolicyChoice(Tunable, {"quantum": "soon"}).make()
    with pytest.raises(BadSetting, match="has no settings"):
        PolicyChoice(Largest, {"quantum": "5"}).make()
    with pytest.raises(BadPolicy, match="made already"):
        PolicyChoice(Tunable(), {"quantum": "5"}).make()


def test_values_are_written_as_on_the_command_line() -> None:
    values = [True, False, 300, 0.1, math.inf, "auto", (3250, 7200.5), np.float64(0.25), np.bool_(True)]
    assert [text_of(value) for value in values] == "true false 300 0.1 off auto 3250,7200.5 0.25 true".split()
    assert settings_of(Tunable(5.0, False)) == {"quantum": "5.0", "largest": "false"}
    assert settings_of(Largest()) == {}


def test_settings_of_an_object_stand_in_its_report() -> None:
    assert run(JOBS, "1x4", Tunable(quantum=5.0)).settings["quantum"] == "5.0"


def test_our_own_policies_are_not_slowed_down_by_checks() -> None:
    assert isinstance(make_policy("las", {}), LeastAttainedService)
    assert isinstance(PolicyChoice(LeastAttainedService()).make(), LeastAttainedService)
    assert PolicyChoice(LeastAttainedService()).name == "las"


def planning(wishes: Any) -> type:
    class Planned:
        def plan(self, now: Snapshot, memory: Memory) -> Any:
            return wishes(now)

    return Planned


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        (lambda now: None, "returned NoneType: plan must return horae.Wishes"),
        (lambda now: 1 / 0, r"failed: ZeroDivisionError: division by zero \(line \d+ of test_outside.py\)"),
        (lambda now: Wishes(now.rows, np.zeros(99)), "returned wishes with a column of 99 for 1 wishes"),
        (lambda now: Wishes(now.rows + 1000), "rows that no waiting or running job has"),
        (lambda now: Wishes(now.rows - 1000), "rows that no waiting or running job has"),
        (lambda now: Wishes(now.rows, np.full(len(now), np.nan)), "not a number"),
        (lambda now: Wishes(now.rows, gpu_type=np.full(len(now), 7)), "none of the cluster's 1"),
        (lambda now: Wishes(now.rows, gpu_type=np.full(len(now), -1)), "none of the cluster's 1"),
        (lambda now: Wishes(now.rows, gpus_min=np.zeros(len(now), int)), "at least 1"),
        (lambda now: Wishes(now.rows, gpus_min=now.gpus + 1, gpus_max=now.gpus), "gpus_min above gpus_max"),
        (lambda now: Wishes(now.rows, partner=now.rows + 1000), "partners that no waiting or running job is"),
        (lambda now: Wishes(now.rows, wake_s=now.now_s), "name a later moment"),
        (lambda now: Wishes(np.array(["a"] * len(now))), "no columns of numbers"),
        (lambda now: Wishes(now.rows.astype(float) + 0.5), "no columns of numbers"),
        (lambda now: Wishes(now.rows, now.gpus[:, None] * np.ones(3)), "more than one dimension"),
        (lambda now: Wishes(now.rows, pins=({0: 1},) * (len(now) + 1)), "returned wishes with 2 pins for 1 wishes"),
        (lambda now: Wishes(now.rows, pins=(7,) * len(now)), "give a mapping"),
    ],
)
def test_nonsense_is_told_in_one_sentence(wishes: Any, told: str) -> None:
    with pytest.raises(BadPolicy, match=told) as error:
        run([job("a")], "1x4", planning(wishes))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("Policy 'Planned'")


def test_pins_of_a_machine_that_is_not_there_are_refused() -> None:
    def pinned(now: Snapshot) -> Wishes:
        return Wishes(now.rows, pins=({99: 1},) * len(now))

    with pytest.raises(BadPolicy, match="machine that does not exist"):
        run([job("a")], "1x4", planning(pinned))


def test_lists_and_small_integers_will_do() -> None:
    ran = run([job("a")], "1x4", planning(lambda now: Wishes(now.rows.astype(np.int32), now.gpus.astype(np.int16))))
    assert times(ran)["a"] == (0.0, 100.0)


def test_a_constructor_that_fails_and_a_memory_that_is_none_are_told() -> None:
    class Broken(Largest):
        def __init__(self) -> None:
            raise RuntimeError("no luck")

    with pytest.raises(BadPolicy, match="'Broken' cannot be made: RuntimeError: no luck"):
        run([job("a")], "1x4", Broken)

    class Odd(Largest):
        memory = {"served": 0.0}  # noqa: RUF012, the mistake that is tested

    with pytest.raises(BadPolicy, match="no MemorySpec"):
        run([job("a")], "1x4", Odd)
    for nothing in (object(), 7):
        with pytest.raises(BadPolicy, match="is no policy"):
            run([job("a")], "1x4", nothing)  # type: ignore[arg-type]


def test_memory_and_what_a_policy_offers_beside_its_plan_are_used() -> None:
    class Counted(Largest):
        memory = MemorySpec(scalars={"asked": 0.0})

        def plan(self, now: Snapshot, memory: Memory) -> Wishes:
            memory.put_scalar("asked", memory.scalar("asked") + 1)
            return super().plan(now, memory)

        def counters(self, memory: Memory) -> dict[str, int]:
            return {"asked": int(memory.scalar("asked"))}

        def check(self, gpu_types: tuple[str, ...], pairs_known: bool) -> None:
            if gpu_types != ("gpu",):
                raise BadPolicy("not here")

    assert run(JOBS, "1x4", Counted()).counters["asked"] >= 3
    with pytest.raises(BadPolicy, match="not here"):
        run(JOBS, "v100:1x4", Counted())
