"""Durations as users write them."""

import pytest

from horae.core.durations import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("4h", 14400), ("1h30m", 5400), ("2d", 172800)]
)
def test_a_duration_has_units(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "4 h", "-1", "1e3", "4w", "1h-30m", "inf"])
def test_what_is_no_duration_is_refused_with_how_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 90, 30m, 4h or 1h30m"):
        seconds_of(text)
