"""Whom consolidation helps, what spreading costs, and the limit that observations teach."""

import math
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from horae.core.cluster import Span
from horae.core.errors import UserError
from horae.core.job import NO_SLOWDOWN, PACK_LIMIT, JobSpec
from horae.workload.catalogue import MODELS, model
from horae.workload.skew import (
    SpeedObservation,
    consolidates,
    declared_skew,
    fit_limit,
    known_skew,
    profiled,
    slowdown_when_spread,
)
from horae.workload.speed_files import load_throughputs
from horae.workload.speed_observations import observations_of
from tests.builders import job

skews = st.integers(1, 100).map(lambda percent: percent / 100)


def seen(skew: float, spread: float, together: float = 1.0, kind: str = "") -> list[SpeedObservation]:
    """A kind of job seen once together and once spread."""
    return [SpeedObservation(kind, skew, False, together), SpeedObservation(kind, skew, True, spread)]


def test_the_skew_from_a_list_and_from_the_catalogue() -> None:
    assert declared_skew([6, 2, 2]) == 0.6
    assert known_skew("VGG16 (batch size 32)") == model("vgg-16").skew
    assert known_skew("what nobody knows") is None
    assert declared_skew(list(model("resnet-50").sizes.values())) == known_skew("resnet50")


def test_a_list_that_has_no_skew() -> None:
    with pytest.raises(UserError, match="list them anew"):
        declared_skew([0, 0])


def test_vgg_and_alexnet_are_consolidated_and_resnets_are_not() -> None:
    consolidated = {name for name in MODELS if consolidates(model(name).skew)}
    assert consolidated >= {"vgg-11", "vgg-16", "vgg-19", "alexnet"}
    assert not consolidated & {"resnet-50", "resnet-152", "inception-v3", "inception-v4", "googlenet", "bert-base"}
    assert not consolidates(PACK_LIMIT)


# What spreading costs


def test_spreading_costs_skewed_models_only() -> None:
    assert slowdown_when_spread(0.09) == (1, 1, 1, 1)
    assert slowdown_when_spread(PACK_LIMIT) == (1, 1, 1, 1)
    assert slowdown_when_spread(0.6) == (1, 1, 2, 2)
    assert slowdown_when_spread(0.6, limit=0.2, oversubscription=1.5) == pytest.approx((1, 1, 3, 4.5))


@given(skews, st.floats(0.05, 1), st.floats(1, 10))
def test_a_slowdown_is_one_a_job_may_have(skew: float, limit: float, oversubscription: float) -> None:
    slowdown = slowdown_when_spread(skew, limit, oversubscription)
    JobSpec("job", 0.0, 8, 100.0, slowdown=slowdown)
    assert (slowdown[Span.RACK] > 1) == consolidates(skew, limit)


@pytest.mark.parametrize("numbers", [(0, 0.3, 1), (1.1, 0.3, 1), (math.nan, 0.3, 1), (0.5, 0, 1), (0.5, 0.3, 0.9)])
def test_a_slowdown_of_nothing(numbers: tuple[float, float, float]) -> None:
    with pytest.raises(UserError, match="give a skew above 0"):
        slowdown_when_spread(*numbers)


# The limit that observations teach


def test_the_limit_lies_between_those_that_suffer_and_those_that_do_not() -> None:
    observations = seen(0.1, 0.99) + seen(0.2, 0.95) + seen(0.25, 0.5) + seen(0.7, 0.4)
    assert fit_limit(observations) == pytest.approx(0.225)


def test_the_default_stays_where_it_is_as_good_as_any() -> None:
    assert fit_limit(seen(0.1, 1.0) + seen(0.7, 0.4)) == PACK_LIMIT
    assert fit_limit(seen(0.1, 1.0) + seen(0.7, 0.4), default=0.5) == 0.5


@pytest.mark.parametrize(
    "observations",
    [
        [],
        seen(0.1, 1.0) + seen(0.7, 1.0),
        seen(0.1, 0.2) + seen(0.7, 0.2),
        [SpeedObservation("a", 0.1, True, 1.0), SpeedObservation("b", 0.7, False, 9.0)],
    ],
    ids=["nothing seen", "nobody suffers", "everybody suffers", "nobody seen both ways"],
)
def test_one_sided_observations_teach_nothing(observations: list[SpeedObservation]) -> None:
    assert fit_limit(observations) == PACK_LIMIT


def test_kinds_are_compared_with_themselves_by_their_medians() -> None:
    fast = [SpeedObservation("fast", 0.5, False, speed) for speed in (100, 101, 1)]
    fast += [SpeedObservation("fast", 0.5, True, 50)]
    slow = [SpeedObservation("slow", 0.4, False, 2.0), SpeedObservation("slow", 0.4, True, 2.0)]
    assert fit_limit(fast + slow) == 0.45


def test_the_tolerance_decides_who_suffers() -> None:
    observations = seen(0.1, 1.0) + seen(0.2, 0.85) + seen(0.7, 0.5)
    assert fit_limit(observations, tolerance=0.1) == pytest.approx(0.15)
    assert fit_limit(observations, tolerance=0.2) == PACK_LIMIT


def test_an_observation_that_cannot_be() -> None:
    with pytest.raises(UserError, match="cannot be"):
        fit_limit(seen(1.5, 1.0))
    with pytest.raises(UserError, match="cannot be"):
        fit_limit(seen(0.5, 0.0))


@given(st.lists(st.tuples(skews, st.booleans()), max_size=12), st.randoms(use_true_random=False))
def test_no_limit_makes_fewer_mistakes(kinds: list[tuple[float, bool]], random: object) -> None:
    """Against trying every limit there is, between and beyond all skews."""
    observations = [
        one
        for number, (skew, suffers) in enumerate(kinds)
        for one in seen(skew, 0.5 if suffers else 1.0, kind=str(number))
    ]
    limit = fit_limit(observations)

    def mistakes(limit: float) -> int:
        return sum((skew > limit) != suffers for skew, suffers in kinds)

    if len({suffers for _, suffers in kinds}) == 2:
        assert mistakes(limit) == min(mistakes(per_mille / 1000) for per_mille in range(1001))
    else:
        assert limit == PACK_LIMIT
    random.shuffle(observations)  # type: ignore[attr-defined]
    assert fit_limit(observations) == limit


def test_the_published_speeds_teach_a_limit(shared_data: Path) -> None:
    """On the slow network of the published table models of .2 suffer, too, and the more the larger the skew."""
    table = load_throughputs(shared_data / "gavel" / "simulation_throughputs.json")
    assert fit_limit(observations_of(table)) == pytest.approx(0.147, abs=0.01)


# What jobs get of it


def test_a_skew_that_a_job_declares_costs_what_the_same_skew_of_the_catalogue_does() -> None:
    declared, known, even, plain = profiled(
        [
            job("a", skew=0.9, job_class="mine"),
            job("b", job_class="vgg16"),
            job("c", skew=0.0, job_class="vgg16"),
            job("d", job_class="mine"),
        ]
    )
    assert declared.slowdown == slowdown_when_spread(0.9)
    assert known.skew is not None
    assert known.slowdown == slowdown_when_spread(known.skew)
    assert (even.skew, even.slowdown) == (0.0, NO_SLOWDOWN), "what a job says goes before the catalogue"
    assert (plain.skew, plain.slowdown) == (None, NO_SLOWDOWN)


def test_a_slowdown_that_a_job_declares_stays() -> None:
    own = (1.0, 1.0, 1.1, 1.2)
    assert [one.slowdown for one in profiled([job("a", skew=0.9, slowdown=own)])] == [own]
