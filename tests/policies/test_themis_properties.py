"""What is claimed of Themis, on random apps and in random runs. The auction by itself is in tests/solve."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.policies.themis.bidding_agent import Agent, ErringAgent, TruthfulAgent
from horae.policies.themis.themis import Themis
from horae.report.metrics.measure import measure
from tests.builders import job, run
from tests.policies.themis_apps import LEASE_S, offer, random_job, view

# --------------------------------------------------------- sharing incentive


@dataclass(frozen=True)
class Equals:
    """Apps that are all alike, there from the beginning, and could each use the whole cluster."""

    apps: int
    gpus: int
    #: Jobs of one GPU in each app, for each GPU of the cluster.
    jobs: int
    work: float
    restart_s: float
    f: float
    seed: int

    def worst_rho(self) -> float:
        jobs = [
            job(f"{app}-{k}", app=f"app-{app}", work=self.work)
            for app in range(self.apps)
            for k in range(self.jobs * self.gpus)
        ]
        settings_ = {"lease": f"{LEASE_S:g}", "f": f"{self.f:g}", "seed": str(self.seed)}
        history = run(jobs, f"1x{self.gpus}", "themis", settings=settings_, restart_cost_s=self.restart_s)
        return measure(history).rho.max

    def bound(self) -> float:
        """See docs/design/themis.md: a lease has its restart within it, and the last jobs need a lease more."""
        useful = 1 - self.restart_s / LEASE_S
        return (1 + 2 * LEASE_S / (self.jobs * self.work)) / useful + 1 / self.gpus


def equals(apps: st.SearchStrategy[int]) -> st.SearchStrategy[Equals]:
    return st.builds(
        Equals,
        apps=apps,
        gpus=st.integers(1, 8),
        jobs=st.integers(1, 2),
        work=st.integers(5, 600).map(float),
        restart_s=st.sampled_from([0.0, 5.0, 20.0, 50.0]),
        f=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
        seed=st.integers(0, 1000),
    )


@settings(max_examples=40, deadline=None)
@given(equals(st.integers(2, 4)))
# One lease would not do here.
@example(Equals(apps=3, gpus=12, jobs=1, work=492.0, restart_s=0.0, f=0.0, seed=107))
def test_equal_apps_fare_little_worse_than_each_on_its_part(case: Equals) -> None:
    assert case.worst_rho() <= case.bound()


@settings(max_examples=15, deadline=None)
@given(equals(st.just(1)))
def test_an_app_alone_has_a_rho_of_exactly_1(case: Equals) -> None:
    assert case.worst_rho() == 1.0


# ---------------------------------------------------------------- visibility


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(0, 100))
def test_offers_go_to_the_worst_of_all_apps(elapsed_s: list[int], percent: int) -> None:
    shown = {app: view(elapsed_s=float(late)) for app, late in enumerate(elapsed_s)}
    seen = Themis(f=percent / 100)._bidders(TruthfulAgent(), shown, np.zeros(len(shown)))
    assert len(seen) == len(set(seen)) == max(1, math.ceil((100 - percent) * len(shown) / 100))
    unseen = [elapsed_s[app] for app in shown if app not in seen]
    assert min(elapsed_s[app] for app in seen) >= max(unseen, default=0)


def test_with_f_of_0_all_bid_and_with_f_of_1_exactly_the_worst() -> None:
    shown = {app: view(elapsed_s=float(app % 7)) for app in range(10)}
    assert sorted(Themis(f=0)._bidders(TruthfulAgent(), shown, np.zeros(10))) == list(range(10))
    assert Themis(f=1)._bidders(TruthfulAgent(), shown, np.zeros(10)) == [6]


# ------------------------------------------------------------------ monotone

SLOWDOWNS = st.lists(st.integers(4, 12).map(lambda quarters: quarters / 4), min_size=4, max_size=4)


@settings(max_examples=100, deadline=None)
@given(SLOWDOWNS)
def test_a_job_is_never_faster_when_it_is_spread_wider(slowdown: list[float]) -> None:
    if slowdown == sorted(slowdown):
        app = view(gpus=4, slowdown=np.array([slowdown] * 2))
        speeds = [app.speed_of(0, 4, span) for span in range(4)]
        assert speeds == sorted(speeds, reverse=True)
        assert JobSpec("a", 0.0, 4, 1.0, slowdown=tuple(slowdown))
    else:
        with pytest.raises(UserError, match="must not fall"):
            JobSpec("a", 0.0, 4, 1.0, slowdown=tuple(slowdown))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=6),
    st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=6),
    st.integers(0, 10_000).map(float),
    SLOWDOWNS.map(sorted),
)
def test_an_offer_of_more_gpus_is_never_worse(
    machines: list[tuple[int, int]], gangs: list[int], elapsed_s: float, slowdown: list[float]
) -> None:
    """The best that an app could make of it, parts of it included, as its bid says."""
    app = view(jobs=len(gangs), elapsed_s=elapsed_s, slowdown=np.array([slowdown] * 2))
    app = replace(app, gpus=np.array(gangs))

    def best_rho(free: list[int]) -> float:
        bid = TruthfulAgent().bid(app, *offer(*free)) if any(free) else None
        return float(min([app.rho_of_nothing, *(bid.bundles.rho.tolist() if bid else [])]))

    assert best_rho([few + more for few, more in machines]) <= best_rho([few for few, _ in machines]) * (1 + 1e-12)


# ----------------------------------------------------------------- bid error


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.4]))
def test_errors_are_factors_as_large_as_said(jobs: int, seed: int, error: float) -> None:
    offered, machines = offer(4, 4, 4)
    app, agent = view(jobs=jobs), ErringAgent(TruthfulAgent(), error, (seed, 0))
    true, said = TruthfulAgent().bid(app, offered, machines), agent.bid(app, offered, machines)
    factors = np.append(said.bundles.rho / true.bundles.rho, agent.rho(app) / app.rho_now)
    assert (np.abs(factors - 1) <= error * (1 + 1e-12)).all()
    assert (factors != 1).any() == (error > 0)


def test_worst_rho_grows_smoothly_with_the_error_of_bids() -> None:
    """On average over runs by no more than twice the error: measured are 1.12, 1.24 and 1.46 times."""
    errors = (0.0, 0.1, 0.2, 0.4)
    worst = np.array([[_worst_rho(seed, error) for error in errors] for seed in range(4)]).mean(axis=0)
    assert (worst <= worst[0] * (1 + 2 * np.array(errors))).all()
    assert worst[3] > 1.05 * worst[0]


def test_an_error_of_0_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    truthful = _worst_rho(0, 0.0)

    def erring(policy: Themis, auction: int) -> Agent:
        return ErringAgent(TruthfulAgent(), 0.0, (policy.seed, auction))

    monkeypatch.setattr(Themis, "_agent", erring)
    assert _worst_rho(0, 0.0) == truthful


def _worst_rho(seed: int, error: float) -> float:
    rng = np.random.default_rng(seed)
    specs = [replace(random_job(rng, number), submit_s=float(30 * number)) for number in range(30)]
    settings_ = {"lease": "120", "bid-error": f"{error:g}", "seed": str(seed)}
    return measure(run(specs, "3x4", "themis", settings=settings_)).rho.max
