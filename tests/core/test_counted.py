"""Counts in words."""

from __future__ import annotations

import pytest

from horae.core.counted import CountingFormatter, counted, counted_or_no


@pytest.mark.parametrize(("count", "text"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs"), (12_000, "12,000 GPUs")])
def test_one_is_not_many(count: int, text: str) -> None:
    assert counted(count, "GPU") == text


def test_nouns_may_have_a_plural_of_their_own() -> None:
    assert (counted(1, "entry", "entries"), counted(3, "entry", "entries")) == ("1 entry", "3 entries")


@pytest.mark.parametrize(("count", "text"), [(0, "no job has"), (1, "1 job has"), (2, "2 jobs have")])
def test_verbs_follow_the_count(count: int, text: str) -> None:
    assert counted_or_no(count, "job", "has", "have") == text


def test_a_field_with_a_noun_is_counted_and_others_are_formatted() -> None:
    text = CountingFormatter().format(
        "{gpus:GPU} in {s:.1f} s for {who}, {count:d} {word:s}", gpus=1, s=2.25, who="a", count=3, word="b"
    )
    assert text == "1 GPU in 2.2 s for a, 3 b"
