"""Means and confidence intervals over seeds."""

import math

import pytest

from horae.report.confidence import half_width_95, interval_record, mean_record, t_95


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.7062), (2, 4.3027), (9, 2.2622), (30, 2.0423), (31, 2.0395), (40, 2.0211), (60, 2.0003), (120, 1.9799)],
)
def test_the_t_distribution_as_printed_in_tables(freedom: int, value: float) -> None:
    assert t_95(freedom) == pytest.approx(value, abs=5e-5)


def test_the_half_width_of_a_small_sample() -> None:
    # Mean 4, standard deviation 2, three values: 4.3027 * 2 / sqrt(3).
    assert half_width_95([2, 4, 6]) == pytest.approx(4.9683, abs=1e-3)
    assert math.isnan(half_width_95([5.0]))
    assert math.isnan(half_width_95([5.0, math.nan]))


def test_records_are_averaged_all_the_way_down() -> None:
    records = [
        {"policy": "las", "jobs": 10, "avg_jct_s": 2.0, "rho": {"max": 1.0}},
        {"policy": "las", "jobs": 10, "avg_jct_s": 4.0, "rho": {"max": 3.0}},
    ]
    assert mean_record(records) == {"policy": "las", "jobs": 10, "avg_jct_s": 3.0, "rho": {"max": 2.0}}
    widths = interval_record(records)
    assert widths["jobs"] == 0
    assert widths["avg_jct_s"] == pytest.approx(12.7062)
    assert "policy" not in widths


def test_a_number_that_one_run_lacks_is_unknown_for_all() -> None:
    records = [{"fragmentation": 0.5}, {"fragmentation": None}]
    assert mean_record(records) == {"fragmentation": None}
    assert interval_record(records) == {"fragmentation": None}
