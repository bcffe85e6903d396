"""Names by which the jobs of a service are found again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.backends.attempt_names import attempt_name, read_attempt_name


@given(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True), st.integers(1, 10**6))
def test_job_and_attempt_are_read_from_the_name(job: str, attempt: int) -> None:
    assert read_attempt_name("s1", attempt_name("s1", job, attempt)) == (job, attempt)
    assert read_attempt_name("s2", attempt_name("s1", job, attempt)) is None


@pytest.mark.parametrize("name", ["train", "horae-s1-", "horae-s1-a", "horae-s1-a-0", "horae-s12-a-1", "xhorae-s1-a-1"])
def test_other_names_are_of_others(name: str) -> None:
    assert read_attempt_name("s1", name) is None


def test_a_job_id_that_would_not_be_found_again_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        attempt_name("s1", "a,b", 1)
