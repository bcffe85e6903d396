"""What all tests of training scripts share."""

from collections.abc import Iterator

import pytest
from tests.train.service import stop_all


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    stop_all()
