"""What is profiled, what stays hidden, and how good the estimates of the rest are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.cluster import Span
from horae.core.throughputs import Origin, Setting, Throughputs
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.workload.generator import SIZES, Workload, generate
from horae.workload.model_mixes import Models
from horae.workload.speed_files import load_throughputs
from horae.workload.throughput_estimates import BadProfile, estimate_missing, hide
from tests.builders import cluster

CLASSES = tuple(f"net-{k}" for k in range(8))
TYPES = {"v100": 4.0, "p100": 2.0, "k80": 1.0}
#: Span of the GPUs, by their number, and the speed relative to one GPU.
PLACES = {(1, Span.GPU): 1.0, (4, Span.NODE): 3.0, (4, Span.RACK): 2.0}
#: The largest net does not fit the oldest type, in gangs; nor beside anybody of the larger half there.
LARGEST = CLASSES[-1]


def alone(name: str, gpu_type: str = "v100", gpus: int = 1, span: Span = Span.GPU) -> Setting:
    return Setting(name, gpu_type, gpus, span)


def beside(name: str, neighbour: str, gpu_type: str = "v100") -> Setting:
    return Setting(name, gpu_type, 1, Span.GPU, neighbour)


def fits(setting: Setting) -> bool:
    pair = {setting.job_class, setting.neighbour}
    if setting.gpu_type != "k80" or LARGEST not in pair:
        return True
    return not pair & set(CLASSES[4:-1]) and pair != {LARGEST} if setting.neighbour else setting.gpus == 1


def world() -> Throughputs:
    """A world of products: level of the class, of the type, of the place; a neighbour takes its share."""
    table = Throughputs()
    for (k, name), gpu_type, (place, scale) in product(enumerate(CLASSES), TYPES, PLACES.items()):
        own = alone(name, gpu_type, *place)
        speed = (1 + k) ** 2 * TYPES[gpu_type] * scale
        table.put(own, speed * fits(own))
        for j, other in enumerate(CLASSES if place[0] == 1 else ()):
            pair = own._replace(neighbour=other)
            table.put(pair, speed * (0.9 - 0.05 * j) * fits(pair))
    return table


def without(table: Throughputs, hidden: Callable[[Setting], bool]) -> Throughputs:
    kept = Throughputs()
    for setting, known in table.settings():
        if not hidden(setting):
            kept.put(setting, known.steps_per_s, known.origin)
    return kept


def speed(table: Throughputs, setting: Setting) -> float:
    found = table.get(setting)
    assert found is not None, setting
    return found.steps_per_s


def speeds(table: Throughputs) -> dict[Setting, float]:
    return {setting: known.steps_per_s for setting, known in table.settings()}


def of_origin(table: Throughputs, origin: Origin) -> set[Setting]:
    return {setting for setting, known in table.settings() if known.origin is origin}


def errors(truth: Throughputs, believed: Throughputs, pairs: bool) -> np.ndarray:
    """Relative errors of the estimates, alone or in pairs."""
    hidden = [one for one in of_origin(believed, Origin.ESTIMATED) if bool(one.neighbour) == pairs]
    return np.array([abs(speed(believed, one) / speed(truth, one) - 1) for one in hidden])


TRUTH = world()
RUNNING = {setting for setting, value in speeds(TRUTH).items() if value > 0}
SOLO = {setting for setting in RUNNING if not setting.neighbour}
seeds = st.integers(0, 2**32)
shares = st.floats(0.001, 1)


def test_a_whole_profile_without_noise_is_the_truth() -> None:
    believed = hide(TRUTH, share=1.0, noise=0.0, seed=0)
    assert speeds(believed) == speeds(TRUTH)
    assert of_origin(believed, Origin.MEASURED) == RUNNING


@given(shares, st.floats(0, 3), seeds)
@settings(max_examples=20, deadline=None)
def test_a_job_is_believed_to_run_exactly_where_it_does(share: float, noise: float, seed: int) -> None:
    believed = speeds(hide(TRUTH, share, noise, seed))
    assert believed.keys() == speeds(TRUTH).keys()
    assert {setting for setting, value in believed.items() if value > 0} == RUNNING
    assert np.isfinite(list(believed.values())).all()


@given(shares, seeds)
@settings(max_examples=20, deadline=None)
def test_every_class_and_size_keeps_one_speed_of_its_own(share: float, seed: int) -> None:
    known = of_origin(hide(TRUTH, share, 0.0, seed), Origin.MEASURED)
    assert {(s.job_class, s.gpus) for s in known if not s.neighbour} == {(s.job_class, s.gpus) for s in SOLO}


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_the_share_is_met_alone_and_in_pairs_and_both_of_a_pair_are_profiled(seed: int) -> None:
    known = of_origin(hide(TRUTH, 0.5, 0.0, seed), Origin.MEASURED)
    pairs = {setting for setting in known if setting.neighbour}
    assert len(known) - len(pairs) == round(0.5 * len(SOLO))
    assert 0.35 < len(pairs) / len(RUNNING - SOLO) < 0.65
    assert {one._replace(job_class=one.neighbour, neighbour=one.job_class) for one in pairs} == pairs


def test_a_larger_share_profiles_the_same_and_more() -> None:
    some, more = hide(TRUTH, 0.3, 0.2, seed=5), hide(TRUTH, 0.6, 0.2, seed=5)
    few = of_origin(some, Origin.MEASURED)
    assert few < of_origin(more, Origin.MEASURED)
    assert [speed(some, one) for one in sorted(few)] == [speed(more, one) for one in sorted(few)]


def test_the_seed_alone_decides_not_the_order_of_the_table() -> None:
    backwards = Throughputs()
    for setting, known in reversed(list(TRUTH.settings())):
        backwards.put(setting, known.steps_per_s, known.origin)
    first = list(hide(TRUTH, 0.3, 0.1, seed=1).settings())
    assert first == list(hide(backwards, 0.3, 0.1, seed=1).settings())
    assert first != list(hide(TRUTH, 0.3, 0.1, seed=2).settings())


def test_noise_is_the_relative_error_of_a_profile() -> None:
    noisy = hide(TRUTH, 1.0, 0.1, seed=3)
    off = np.array([speed(noisy, one) / speed(TRUTH, one) - 1 for one in sorted(RUNNING)])
    assert abs(off.mean()) < 0.02
    assert off.std() == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize(("share", "noise"), [(0, 0), (-0.1, 0), (1.1, 0), (np.nan, 0), (0.5, -1), (0.5, np.inf)])
def test_a_profile_that_cannot_be_is_refused(share: float, noise: float) -> None:
    with pytest.raises(BadProfile, match="give"):
        hide(TRUTH, share, noise, seed=0)


def test_a_world_of_products_is_seen_through() -> None:
    believed = hide(TRUTH, 0.4, 0.0, seed=4)
    for pairs in (False, True):
        wrong = errors(TRUTH, believed, pairs)
        assert len(wrong) > 20
        assert np.median(wrong) < 0.1


def test_sharing_is_never_believed_to_help() -> None:
    believed = hide(TRUTH, 0.2, 0.5, seed=6)
    pairs = [setting for setting in of_origin(believed, Origin.ESTIMATED) if setting.neighbour]
    assert all(speed(believed, pair) <= speed(believed, pair._replace(neighbour="")) for pair in pairs)


def test_estimates_on_the_published_table_are_as_good_as_measured(shared_data: Path) -> None:
    truth = load_throughputs(shared_data / "gavel" / "simulation_throughputs.json")
    profiles = [hide(truth, 0.3, 0.0, seed) for seed in range(3)]
    for pairs, median, tail in ((False, 0.19, 0.60), (True, 0.10, 0.34)):
        wrong = np.concatenate([errors(truth, believed, pairs) for believed in profiles])
        assert np.median(wrong) < median
        assert np.quantile(wrong, 0.9) < tail


# Holes in a table


def test_a_table_without_holes_stays_as_it_is() -> None:
    assert list(estimate_missing(TRUTH).settings()) == list(TRUTH.settings())


def test_a_new_class_with_one_speed_gets_the_others_and_partners() -> None:
    new = CLASSES[3]
    partial = without(TRUTH, lambda one: new in (one.job_class, one.neighbour) and one != alone(new, "p100"))
    filled = estimate_missing(partial)
    assert of_origin(filled, Origin.GIVEN) == set(speeds(partial))
    for setting in (alone(new, "v100"), alone(new, "k80"), beside(new, CLASSES[0]), beside(CLASSES[0], new)):
        assert setting in of_origin(filled, Origin.ESTIMATED)
        assert speed(filled, setting) == pytest.approx(speed(TRUTH, setting), rel=0.3)
    assert filled.get(alone(new, "v100", 4, Span.NODE)) is None, "a size it was never run with"


def test_a_missing_span_is_estimated() -> None:
    hidden = alone(CLASSES[2], "v100", 4, Span.RACK)
    filled = estimate_missing(without(TRUTH, lambda one: one == hidden))
    assert speed(filled, hidden) == pytest.approx(speed(TRUTH, hidden), rel=0.2)


def test_a_class_that_does_not_fit_a_type_is_not_guessed_to_fit_it_on_another_span() -> None:
    wide = alone(LARGEST, "k80", 4, Span.RACK)
    assert speed(TRUTH, wide) == 0
    assert estimate_missing(without(TRUTH, lambda one: one == wide)).get(wide) is None


def test_a_class_that_seldom_fits_beside_others_is_not_put_beside_a_new_one() -> None:
    new = CLASSES[3]
    partial = without(TRUTH, lambda one: new in (one.job_class, one.neighbour) and bool(one.neighbour))
    filled = estimate_missing(partial)
    assert speed(filled, beside(LARGEST, new, "k80")) == speed(filled, beside(new, LARGEST, "k80")) == 0
    assert speed(filled, beside(LARGEST, new, "v100")) > 0


def test_where_no_pair_was_ever_measured_none_is_guessed() -> None:
    lonely = estimate_missing(without(TRUTH, lambda one: bool(one.neighbour) or one == alone(CLASSES[1])))
    assert speed(lonely, alone(CLASSES[1])) == pytest.approx(speed(TRUTH, alone(CLASSES[1])), rel=0.2)
    assert not any(setting.neighbour for setting in speeds(lonely))


def test_estimates_are_made_anew_and_count_for_nothing() -> None:
    hidden = alone(CLASSES[2], "k80")
    table = without(TRUTH, lambda one: one == hidden)
    fresh = speed(estimate_missing(table), hidden)
    table.put(hidden, 1e6, Origin.ESTIMATED)
    assert speed(estimate_missing(table), hidden) == fresh == pytest.approx(speed(TRUTH, hidden), rel=0.2)


# The cost of wrong estimates


def test_jobs_run_at_true_speed_whatever_the_policy_believes() -> None:
    machines = cluster("v100:1x4,p100:1x4,k80:1x4")
    workload = Workload(jobs=60, load=0.8, sizes=SIZES["single"], mix=Models(distributed=(), single=CLASSES))
    jobs = generate(workload, machines, TRUTH, seed=0)
    known = simulate(Scenario(jobs, machines, policy="max-min", throughputs=TRUTH))
    believed = hide(TRUTH, 0.3, 0.3, seed=0)
    guessed = simulate(Scenario(jobs, machines, policy="max-min", throughputs=believed, truth=TRUTH))
    submitted = np.array([one.submit_s for one in jobs])
    fastest = np.array([one.work / speed(TRUTH, alone(one.job_class)) for one in jobs])
    assert np.isfinite(guessed.end_s).all()
    assert (guessed.end_s - submitted >= fastest * (1 - 1e-9)).all(), "nobody is faster than alone on the fastest type"
    assert 0.8 < (guessed.end_s - submitted).mean() / (known.end_s - submitted).mean() < 2
