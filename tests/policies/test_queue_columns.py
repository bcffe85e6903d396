"""Tiresias' queues in one pass: the same numbers as formulas over whole columns give, for any jobs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.arrays import Floats
from horae.core.states import State
from horae.policies.tiresias.queue_columns import (
    INSTANT_S,
    LEAST_BOUND,
    QueueColumns,
    Rule,
    ServiceColumns,
    add_queues,
    fill_queues,
    key_by_start,
    next_change,
)

NOW_S = 5000.0
RULES = st.builds(
    Rule,
    st.sampled_from([0.5, 8.0, np.inf]),
    st.sampled_from([0.0, 700.0, np.inf]),
    st.booleans(),
    st.sampled_from([(100.0, np.inf), (50.0, 400.0, np.inf, np.inf)]).map(np.array),
)


def some_jobs(seed: int, count: int) -> ServiceColumns:
    """Jobs that wait, start or work, some promoted before; many values are equal to others or on a bound."""
    rng = np.random.default_rng(seed)

    def pick(*values: float) -> Floats:
        return rng.choice(np.array(values), count)

    state = rng.choice([State.WAITING, State.PLACED, State.LAUNCHING, State.RUNNING], count).astype(np.uint8)
    works = (state == int(State.RUNNING)) & (rng.random(count) < 0.8)
    gpus = rng.choice([1, 2, 8], count)
    began = rng.random(count) < 0.8
    return ServiceColumns(
        state=state,
        gpus_max=gpus,
        submit_s=pick(0.0, 4000.0, 4300.0, 4999.0),
        first_started_s=np.where(began | works, pick(10.0, 4400.0, 4990.0), np.inf),
        service=np.where(began, pick(0.0, 50.0, 99.9999999, 100.0, 390.0, 5000.0), 0.0),
        service_rate=np.where(works, gpus, 0.0),
        executed_s=np.where(began, pick(0.0, 30.0, 100.0, 500.0), 0.0),
        executing=works.astype(np.float64),
        since_s=pick(4900.0, 4999.0, 5000.0),
        working_gpus=np.where(works, gpus, 0.0),
        promoted_s=np.where(began, pick(0.0, 0.0, 4500.0), 0.0),
        promoted_service=np.where(began, pick(0.0, 0.0, 40.0), 0.0),
        promoted_ran_s=np.where(began, pick(0.0, 0.0, 20.0), 0.0),
    )


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 12), rule=RULES)
@settings(max_examples=200, deadline=None)
def test_queues_and_moments_are_those_of_the_formulas(seed: int, count: int, rule: Rule) -> None:
    jobs, rows = some_jobs(seed, count), np.arange(count)
    found = QueueColumns.empty(count)
    first_waiting = fill_queues(NOW_S, rows, rule, jobs, found)

    elapsed_s = NOW_S - jobs.since_s
    waits = ~np.isin(jobs.state, [int(State.LAUNCHING), int(State.RUNNING)])
    rate = np.where(jobs.working_gpus > 0, jobs.service_rate, jobs.gpus_max)
    service = jobs.service + jobs.service_rate * elapsed_s - jobs.promoted_service
    queue = np.searchsorted(rule.bounds, service + rate * INSTANT_S, side="right")
    executed_s = jobs.executed_s + jobs.executing * elapsed_s
    due_s = np.full(count, np.inf)
    if rule.knob < np.inf:
        since_s = np.maximum(jobs.first_started_s, jobs.promoted_s)
        due_s = since_s + (1 + rule.knob) * (executed_s - jobs.promoted_ran_s)
    promotable = (queue > 0) | (rule.inside & (service >= LEAST_BOUND))
    due = promotable & (due_s <= NOW_S + INSTANT_S)
    queue[due & waits] = 0
    expected_first = int(np.min(queue, where=waits, initial=len(rule.bounds)))
    # A job loses its GPUs to earlier queues, or to its own where jobs preempt one another inside it.
    safe_up_to = expected_first - 1 if rule.inside else expected_first
    promoted = due & (waits | ((queue > 0) & (queue > safe_up_to)))
    queue[promoted], service[promoted], promotable[promoted] = 0, 0.0, False
    promoted_s = np.where(promoted, NOW_S, jobs.promoted_s)
    late_s = jobs.submit_s + rule.patience_s
    if rule.inside:
        owed_s = np.where(promoted_s > 0, promoted_s, np.where(late_s < jobs.first_started_s, late_s, np.inf))
    else:
        owed_s = np.where(promoted_s > 0, promoted_s + rule.patience_s, late_s)
    owed_s = np.where(queue == 0, owed_s, np.inf)
    promotion_s = np.where(promotable, np.maximum(due_s, NOW_S + INSTANT_S), np.inf)

    assert first_waiting == expected_first
    for name, column in {
        "queue": queue,
        "service": service,
        "service_rate": rate,
        "promoted_s": promoted_s,
        "due_s": due_s,
        "owed_s": owed_s,
        "has_gpus": np.isin(jobs.state, [int(State.PLACED), int(State.LAUNCHING), int(State.RUNNING)]),
        "promotion_s": promotion_s,
        "waits": waits,
        "promoted": promoted,
    }.items():
        assert getattr(found, name).tolist() == column.tolist(), name

    change = next_change(NOW_S, rows, first_waiting, rule, jobs, found)
    if first_waiting == len(rule.bounds):
        assert change == (np.inf, np.inf), "nobody waits"
        return
    demotion_s = NOW_S + (rule.bounds[np.maximum(queue, safe_up_to)] - service) / rate
    works, later = jobs.working_gpus > 0, waits & (owed_s > NOW_S + INSTANT_S)
    moments = (*promotion_s[waits], *demotion_s[works], *owed_s[later])
    assert change.change_s == min(moments, default=np.inf)
    assert change.idle_demotion_s == min(demotion_s[~works].tolist(), default=np.inf)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 12), rule=RULES)
@settings(deadline=None)
def test_keys_order_by_queue_then_by_what_is_owed_then_by_who_has_gpus_and_then_by_first_start(
    seed: int, count: int, rule: Rule
) -> None:
    jobs, rows = some_jobs(seed, count), np.arange(count)
    found, key = QueueColumns.empty(count), np.empty(count)
    fill_queues(NOW_S, rows, rule, jobs, found)
    key_by_start(NOW_S, rows, jobs, found, key)
    add_queues(found.queue, key)

    def place(i: int) -> tuple[float, ...]:
        if found.owed_s[i] <= NOW_S + INSTANT_S:
            return (found.queue[i], 0, found.owed_s[i], i)
        return (found.queue[i], 1 if found.has_gpus[i] else 2, jobs.first_started_s[i], i)

    assert np.argsort(key, kind="stable").tolist() == sorted(range(count), key=place)
