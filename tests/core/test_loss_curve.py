"""Loss curves of simulated jobs, and curves that cannot be."""

from __future__ import annotations

import math

import pytest

from horae.core.loss_curve import LossCurve


def test_the_distance_to_the_last_loss_halves_by_the_work_it_says() -> None:
    curve = LossCurve(first=9.0, last=1.0, halves_at=50.0)
    assert [curve.at(work) for work in (0, 50, 150)] == [9.0, 5.0, 3.0]
    assert curve.at(1e12) > 1.0
    assert curve.problem == ""


@pytest.mark.parametrize(
    ("curve", "complaint"),
    [
        (LossCurve(1.0, 2.0, 5.0), "would rise from 1.0 to 2.0"),
        (LossCurve(2.0, 1.0, 0.0), "above 0"),
        (LossCurve(math.nan, 1.0, 5.0), "finite"),
        (LossCurve(math.inf, 1.0, 5.0), "finite"),
    ],
)
def test_a_curve_that_cannot_be_says_what_is_wrong(curve: LossCurve, complaint: str) -> None:
    assert complaint in curve.problem
