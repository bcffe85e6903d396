"""What all tests of training scripts share."""

import signal
from collections.abc import Iterator

import pytest

from tests.train.service import stop_all


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    stop_all()


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    """A run in this process leaves no trace of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in before.items():
        signal.signal(number, handler)
