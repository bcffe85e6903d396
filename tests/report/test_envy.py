"""Envy against a plain walk through time, second by second of change."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from horae.core.cluster import Cluster
from horae.core.history import History
from horae.core.throughputs import Speeds, Throughputs
from horae.report.audit import envy
from horae.report.audit.envy import HoldingsLedger, find_envy
from tests.builders import job, run
from tests.report.sample import Loop, random_jobs

CLUSTER = Cluster.of([("v100", 1, 4), ("k80", 2, 2)])


def ledger_of(history: History) -> HoldingsLedger:
    return HoldingsLedger(history, Speeds(Throughputs()))


def plain_value(history: History, app: str, other: str, holder: str, spare: int = 0) -> float:
    """What the GPU time of `holder` is worth to `app`, while it and `other` are there, by the definition."""
    mine, theirs, held = (
        [k for k, spec in enumerate(history.jobs) if spec.app_id == name] for name in (app, other, holder)
    )
    begin = max(min(history.submit_s[rows]) for rows in (mine, theirs))
    end = min(max(history.end_s[rows]) for rows in (mine, theirs))
    attempts = history.attempts
    times = {*attempts.begin_s, *attempts.end_s, *history.submit_s, *history.end_s, begin, end}
    cuts = sorted(t for t in times if begin <= t <= end)
    return sum((t1 - t0) * plain_speed(history, mine, held, (t0 + t1) / 2, spare) for t0, t1 in pairwise(cuts))


def plain_speed(history: History, mine: list[int], theirs: list[int], at_s: float, spare: int) -> float:
    attempts = history.attempts
    worths = []
    for k in np.flatnonzero((attempts.begin_s <= at_s) & (at_s < attempts.end_s)).tolist():
        if attempts.job[k] in theirs:
            gpu_type = int(history.cluster.gpu_type[attempts.gpu_ids[attempts.first[k]]])
            worths += [worth(history, mine, gpu_type)] * int(attempts.gpus[k])
    usable = sum(history.jobs[k].gpus for k in mine if history.submit_s[k] <= at_s < history.end_s[k])
    return sum(sorted(worths, reverse=True)[spare : spare + usable])


def worth(history: History, mine: list[int], gpu_type: int) -> float:
    """One GPU of a type, in GPUs of the best one, over all of an app's work."""
    best = sum(history.jobs[k].work * history.jobs[k].gpus / history.rates[k].max() for k in mine)
    there = sum(history.jobs[k].work * history.jobs[k].gpus / history.rates[k, gpu_type] for k in mine)
    return best / there


@pytest.mark.parametrize("seed", range(8))
def test_values_are_those_of_a_plain_walk_through_time(seed: int) -> None:
    jobs = random_jobs(seed, 14, CLUSTER.gpu_types, apps=5, spacing_s=400)
    history = Loop(jobs, CLUSTER, load_s=30, save_s=10, preempt_every=3).run()
    ledger = ledger_of(history)
    names = [history.jobs[k].app_id for k in ledger.lives.first_job.tolist()]
    for app, name in enumerate(names):
        others = ledger.beside(app)
        own = ledger.own_value(app, others)
        for k, other in enumerate(others.tolist()):
            there = names[other]
            assert own[k] == pytest.approx(plain_value(history, name, there, name))
            for spare in (0, 2):
                value = ledger.values(app, spare)[other]
                assert value == pytest.approx(plain_value(history, name, there, there, spare))


def test_own_value_is_that_of_the_common_time_alone() -> None:
    # a has the GPU from 0 to 100; b comes at 60 and waits for it.
    history = run([job("a", work=100.0), job("b", work=50.0, submit_s=60.0)], "1x1", "fifo")
    ledger = ledger_of(history)
    assert ledger.own_value(0, np.array([1])).tolist() == [40.0]
    assert ledger.own_value(1, np.array([0])).tolist() == [0.0]
    assert ledger.values(1)[0] == 40.0
    assert ledger.common_s(1, np.array([0])).tolist() == [40.0]
    found = find_envy(ledger, 0)
    assert [(pair.app, pair.other, pair.own, pair.others) for pair in found.exact] == [(1, 0, 0.0, 40.0)]
    assert found.but_one_gang == [], "one gang cannot be divided"


def test_nobody_envies_gpus_that_it_could_not_use() -> None:
    history = run([job("small", 1, 100.0), job("large", 3, 100.0)], "1x4", "fifo")
    assert find_envy(ledger_of(history), 0).exact == []


def test_who_has_twice_the_weight_may_have_twice_as_much() -> None:
    history = run([job("a", 1, 100.0, gpus_max=2), job("b", 2, 100.0)], "1x3", "fifo")
    assert [(pair.app, pair.envy) for pair in find_envy(ledger_of(history), 0).exact] == [(0, 100.0)]
    history = run([job("a", 1, 100.0, gpus_max=2), job("b", 2, 100.0, weight=2.0)], "1x3", "fifo")
    assert find_envy(ledger_of(history), 0).exact == []


def test_of_many_apps_some_are_asked_by_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envy, "MOST_ASKED", 3)
    history = run([job(f"job-{k}", 1, 100.0) for k in range(6)], "1x1", "fifo")
    found = find_envy(ledger_of(history), 0)
    assert (found.asked, found.pairs) == (3, 15)
    assert find_envy(ledger_of(history), 0) == found
