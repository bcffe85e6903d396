"""What reasons rest on: the same whenever it is derived, and derived only for somebody who wants to know.

Tests core/evidence.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from horae.core import state
from horae.core.codec import decode, encode
from horae.core.commands import Decided, Evidence
from horae.core.compared_by import ComparedBy
from horae.core.engine import Engine
from horae.core.events import Event, JobFinished, JobHeld, JobSubmitted, NodeDraining
from horae.core.explain import explain
from horae.core.queues import Queue
from tests.builders import Cell, Script, job, run
from tests.service.stepped_service import SteppedService
from tests.simulation.trouble import same


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[Evidence]:
    """Everything that is derived, in order."""
    made: list[Evidence] = []
    original = state.derive_evidence

    def count(*facts: Any) -> Evidence:
        made.append(original(*facts))
        return made[-1]

    monkeypatch.setattr(state, "derive_evidence", count)
    return made


def submitted(name: str) -> JobSubmitted:
    return JobSubmitted(0.0, job(name))


def equal(one: Evidence | None, other: Evidence | None) -> bool:
    assert one is not None
    assert other is not None
    return same(asdict(one), asdict(other))


def crowd() -> list[Any]:
    """More jobs than fit, in two queues, with service of their own."""
    return [
        job(f"j{k}", gpus=1 + k % 3, work=50 + 40 * k, submit_s=7.0 * k, queue="a/x" if k % 2 else "b")
        for k in range(12)
    ]


@pytest.mark.parametrize("policy", ["fifo-backfill", "srtf", "las", "max-min", "themis"])
def test_evidence_derived_late_is_that_derived_at_once(policy: str) -> None:
    checked = 0

    def look(engine: Engine, what: Event | Decided) -> None:
        nonlocal checked
        if isinstance(what, Decided) and what.planned:
            late, later_still = engine.fork(), engine.fork()
            later_still.advance(engine.now_s + 1e4)
            at_once = engine.evidence
            assert equal(late.evidence, at_once)
            assert equal(later_still.evidence, at_once), "it speaks of the moment of the decision"
            checked += 1

    Script(crowd(), "a:1x2,b:1x3", policy, queues=[Queue("a", gpus_max=3)], look=look)
    assert checked > 10


def test_a_simulation_derives_none_at_its_decisions(derived: list[Evidence]) -> None:
    history = run(crowd(), "1x4")
    assert len(history.attempts.job) >= 12
    assert len(derived) <= 1, "only the status at the end may be asked for it"


def test_evidence_is_derived_once_for_all_who_ask(derived: list[Evidence]) -> None:
    cell = Cell("1x1")
    cell.engine.apply(submitted("a"))
    cell.engine.apply(submitted("b"))
    cell.engine.decide(0.0)
    assert derived == []
    for _ in range(3):
        explain(cell.engine.status(), "b")
    assert len(derived) == 1
    cell.engine.decide(1.0)
    explain(cell.engine.status(), "b")
    assert len(derived) == 1, "nothing was planned: what was said still holds"


def test_an_engine_that_reads_the_record_explains_as_the_engine_that_made_it() -> None:
    cell, reader = Cell("1x2", "las"), Cell("1x2", "las")
    for event in (submitted("a"), submitted("b"), submitted("c")):
        cell.engine.apply(event)
        reader.engine.apply(event)
    record = cell.engine.with_evidence(cell.engine.decide(0.0))
    reader.engine.apply(decode(json.loads(json.dumps(encode(record)))))
    assert equal(reader.engine.evidence, cell.engine.evidence)
    assert explain(reader.engine.status(), "c") == explain(cell.engine.status(), "c")


def test_a_decision_that_planned_nothing_carries_no_evidence() -> None:
    cell = Cell("1x1", slow_stops=True)
    cell.submit(0, job("a"))
    record = Decided(1.0, planned=False)
    assert cell.engine.with_evidence(record) is record


def test_the_numbers_by_hand() -> None:
    cell = Cell("fast:1x2,slow:2x2", "las", queues=[Queue("team", gpus_max=2)])
    cell.submit(0, job("a", gpus=2, gpu_types=("fast",), queue="team/ann"), job("b", gpu_types=("slow",)))
    cell.submit(10, job("c", gpus=2, gpu_types=("fast",), queue="team/bob"))
    cell.at(30, NodeDraining(30, cell.engine.gpus.cluster.nodes[2].name))
    seen = cell.engine.evidence
    assert seen is not None
    assert seen.at_s == 30
    assert seen.node_free.tolist() == [0, 1, 0], "the last node takes no jobs, so that nothing is free there"
    assert (seen.jobs_by_type, seen.gpus_by_type) == ((1, 1), (2, 1))
    assert seen.measure is ComparedBy.SERVICE
    served = {name: float(cell.engine.jobs.gpu_seconds_at(30, np.array([cell.row(name)]))[0]) for name in "abc"}
    holds = [name for name in "ac" if cell.gpus(name)]
    assert seen.measured_by_type == (sum(served[name] for name in holds), served["b"])
    paths = cell.engine.queues.paths
    used = dict(zip(paths, seen.queue_used, strict=True))
    assert (used["team"], used[""]) == (2, 3)
    assert used["team/ann"] + used["team/bob"] == 2


def test_where_nobody_waits_only_free_gpus_are_told() -> None:
    cell = Cell("1x4", "las")
    cell.submit(0, job("a", gpus=3))
    seen = cell.engine.evidence
    assert seen is not None
    assert (seen.node_free.tolist(), seen.jobs_by_type, seen.measured_by_type) == ([1], (), ())
    cell.submit(1, job("b", gpus=3))
    assert cell.engine.evidence is not None
    assert cell.engine.evidence.jobs_by_type == (1,)


def test_the_journal_of_a_service_holds_it_and_the_sentence_survives_a_restart(tmp_path: Path) -> None:
    service = SteppedService(tmp_path, gpus=2)
    service.submit(resources={"gpus": 2})
    waiting = service.submit(resources={"gpus": 2})
    service.to(1.0)
    before = explain(service.daemon.status, waiting)
    planned = [record for _, record in service.store.tail() if isinstance(record, Decided) and record.planned]
    assert planned
    assert all(record.evidence is not None for record in planned)
    assert planned[-1].evidence is not None
    assert planned[-1].evidence.jobs_by_type == (1,)
    service.crash()
    service.reopen()
    assert explain(service.daemon.status, waiting) == before
    service.crash()


def test_a_finish_that_frees_gpus_does_not_change_what_the_last_decision_saw() -> None:
    cell = Cell("1x2")
    cell.submit(0, job("a", gpus=2), job("b", gpus=2))
    seen = cell.engine.evidence
    cell.tell(JobFinished(5, "a", 1))
    assert cell.engine.evidence is seen


def test_gpus_that_are_promised_are_not_free_and_those_that_are_given_up_are() -> None:
    """Free is what a plan may use: who still sits on a GPU does not matter."""
    cell = Cell("1x4", slow_stops=True)
    cell.submit(0, job("a", gpus=2), job("b", gpus=3))
    cell.at(1, JobHeld(1, "a"))
    seen = cell.engine.evidence
    assert seen is not None
    assert (cell.gpus("a"), len(cell.gpus("b"))) == ((), 3)
    assert seen.node_free.tolist() == [1], "of the three GPUs that b is promised a still sits on some"


def test_jobs_are_compared_by_what_they_had_left_when_it_was_decided() -> None:
    cell = Cell("1x1", "srtf")
    cell.submit(0, job("a", work=100))
    cell.submit(30, job("b", work=90))
    seen = cell.engine.evidence
    assert seen is not None
    assert (seen.measure, seen.measured_by_type) == (ComparedBy.TIME_LEFT, (70.0,))
