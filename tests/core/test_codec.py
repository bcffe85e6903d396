"""Records of other releases: what comes by addition is read, what is not understood is told."""

from __future__ import annotations

from typing import Any

import pytest

from horae.core.codec import VERSION, UnreadableRecord, decode, encode
from horae.core.commands import Decided, Stop, StopWhy
from horae.core.events import JobHeld, JobProgressed, JobSubmitted
from horae.core.job import JobSpec


def test_a_field_that_an_older_record_lacks_takes_its_default() -> None:
    assert decode({"v": 1, "kind": "JobHeld", "at_s": 1.0, "job": "a"}) == JobHeld(1.0, "a", by="")
    submitted = encode(JobSubmitted(0.0, JobSpec("a", 0.0, 1, 10.0)))
    del submitted["spec"]["finish_s"]
    assert decode(submitted) == JobSubmitted(0.0, JobSpec("a", 0.0, 1, 10.0))


def test_a_field_that_a_newer_record_adds_is_passed_over() -> None:
    event, decision = JobProgressed(1.0, "a", 1, 5.0, 0.5), Decided(2.0, False, stops=(Stop("a", 1, StopWhy.MOVED),))
    assert decode({**encode(event), "colour": "red"}) == event
    newer = {**encode(decision), "colour": "red"}
    newer["stops"][0]["colour"] = "red"
    again = decode(newer)
    assert isinstance(again, Decided)
    assert again.stops == decision.stops


HELD, STOP = encode(JobHeld(1.0, "a")), encode(Decided(2.0, False, stops=(Stop("a", 1, StopWhy.MOVED),)))


@pytest.mark.parametrize(
    "record",
    [
        {**HELD, "v": VERSION + 1},
        {**HELD, "kind": "JobPainted"},
        {"kind": "JobHeld"},
        {},
        {**HELD, "at_s": "soon"},
        {name: value for name, value in STOP.items() if name != "stops"},
        {**STOP, "stops": [{"job": "a", "attempt": 1, "why": "painted"}]},
        {**STOP, "evidence": {"at_s": 2.0}},
    ],
)
def test_what_is_not_understood_is_told_with_what_to_do(record: dict[str, Any]) -> None:
    with pytest.raises(UnreadableRecord, match="use the release that wrote"):
        decode(record)
