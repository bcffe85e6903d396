"""Which policies go by the speeds of jobs on GPU types, and what is told of the others."""

from __future__ import annotations

from typing import Any

import pytest

from horae.core.job import JobSpec
from horae.core.memory import Memory
from horae.core.snapshot import Snapshot
from horae.core.throughputs import Origin, Setting, Span, Throughputs
from horae.core.wishes import Wishes
from horae.policies import POLICIES, describe
from horae.policies.type_awareness import IgnoredSpeeds, ignored_speeds_in_words, is_type_aware
from horae.simulator.scenario import PolicyChoice, Scenario
from horae.testing import cluster, job, run, times

#: Under a policy that goes by speeds, the job that could be ten times as fast ends before this, else after it.
_SOON_S = 6000.0


def steps(name: str, work: float, speeds: dict[str, float], **more: Any) -> JobSpec:
    return job(name, work=work, unit="steps", throughput=speeds, **more)


def end_of_the_job_on_the_slow_type(name: str, settings: dict[str, str]) -> float:
    """When a job ends that had to start on its slow type and whose fast type is free after 100 s.

    The worst of both orders of the types: a policy that ignores speeds may be lucky in one.
    """
    jobs = [
        steps("blocker", 100, {"fast": 1.0}),
        steps("slow", 40_000, {"fast": 10.0, "slow": 1.0}, submit_s=1),
    ]
    specs = ("fast:1x1,slow:1x1", "slow:1x1,fast:1x1")
    return max(times(run(jobs, spec, name, settings=settings))["slow"][1] for spec in specs)


def prices(name: str) -> dict[str, str]:
    return {"prices": "fast:1,slow:1"} if name.startswith("cost") else {}


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_policy_says_truly_whether_it_goes_by_speeds(name: str) -> None:
    declared = describe(name).type_aware
    assert declared is not None
    assert (end_of_the_job_on_the_slow_type(name, prices(name)) < _SOON_S) == declared


@pytest.mark.parametrize("name", [name for name, chosen in POLICIES.items() if hasattr(chosen, "aware")])
def test_with_aware_false_a_policy_does_not_go_by_speeds(name: str) -> None:
    settings = {**prices(name), "aware": "false"}
    assert end_of_the_job_on_the_slow_type(name, settings) > _SOON_S
    assert not is_type_aware(PolicyChoice(name, settings).make())
    assert is_type_aware(PolicyChoice(name, prices(name)).make())


def scenario(jobs: list[JobSpec], policy: Any = "srsf", spec: str = "fast:1x2,slow:1x4", **more: Any) -> Scenario:
    return Scenario(jobs, cluster(spec), policy, **more)


UNLIKE = steps("unlike", 100, {"fast": 4.0, "slow": 1.0})


def test_a_job_with_unlike_speeds_is_named() -> None:
    found = scenario([job("alike"), UNLIKE]).ignored_speeds
    assert found == IgnoredSpeeds("unlike", "fast", "slow", 4.0, by_setting=False)
    assert ignored_speeds_in_words([("srsf", found)]) == (
        "srsf treats GPU types as alike, and jobs are not equally fast on them (job unlike is 4 times as fast on fast "
        "as on slow): policies that go by these speeds, such as sjf-aware, fifo-aware or max-min, may do better; "
        "`horae policies` lists them."
    )


def test_the_policies_that_are_suggested_go_by_speeds() -> None:
    assert all(describe(name).type_aware for name in ("sjf-aware", "fifo-aware", "max-min"))


def test_speeds_of_a_table_count_and_true_speeds_before_those_that_the_scheduler_believes_in() -> None:
    table = Throughputs()
    for gpu_type, speed in (("fast", 3.0), ("slow", 2.0)):
        table.put(Setting("model", gpu_type, 1, Span.GPU), speed, Origin.GIVEN)
    jobs = [job("a", unit="steps", job_class="model")]
    assert scenario(jobs, throughputs=table).ignored_speeds == IgnoredSpeeds("a", "fast", "slow", 1.5, False)
    even = Throughputs()
    for gpu_type in ("fast", "slow"):
        even.put(Setting("model", gpu_type, 1, Span.GPU), 2.0, Origin.GIVEN)
    assert scenario(jobs, throughputs=table, truth=even).ignored_speeds is None


@pytest.mark.parametrize(
    "quiet",
    [
        scenario([UNLIKE], "sjf-aware"),
        scenario([UNLIKE], spec="fast:2x4"),
        scenario([job("alike")]),
        scenario([steps("alike", 100, {"fast": 2.0, "slow": 2.0})]),
        scenario([steps("one-type", 100, {"fast": 2.0})]),
        scenario([steps("chooser", 100, {"fast": 4.0, "slow": 1.0}, gpu_types=("slow",))]),
        scenario([steps("too-large", 100, {"fast": 4.0, "slow": 1.0}, gpus=4)]),
    ],
    ids=["aware", "one type", "seconds", "equal speeds", "one speed", "accepts one type", "fits one type"],
)
def test_nothing_is_told_where_speeds_do_not_matter(quiet: Scenario) -> None:
    assert quiet.ignored_speeds is None
    assert ignored_speeds_in_words([("policy", quiet.ignored_speeds)]) == ""


def test_many_policies_are_told_in_one_sentence() -> None:
    blind, by_setting = scenario([UNLIKE]), scenario([UNLIKE], "max-min", settings={"aware": "false"})
    found = [("srsf", blind.ignored_speeds), ("sjf-aware", None), ("las", blind.ignored_speeds)]
    assert ignored_speeds_in_words(found).startswith("srsf and las treat GPU types as alike")
    one = ignored_speeds_in_words([("max-min", by_setting.ignored_speeds)] * 2)
    assert one.startswith("max-min treats GPU types")
    assert one.endswith("leave aware=false out to go by these speeds.")


class Own:
    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        return Wishes(now.rows)


class Blind(Own):
    type_aware = False


class WithASettingOfTheSameName(Own):
    aware = False


def test_a_policy_from_outside_may_say_so_and_is_else_left_in_peace() -> None:
    assert scenario([UNLIKE], Own).ignored_speeds is None
    assert scenario([UNLIKE], WithASettingOfTheSameName).ignored_speeds is None
    assert scenario([UNLIKE], Blind()).ignored_speeds is not None
    assert scenario([UNLIKE], Blind).ignored_speeds is not None
