"""A store with a few records, tasks and a token, opened as a service opens it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from horae.backends.task import Task
from horae.core.commands import Decided
from horae.core.events import JobSubmitted
from horae.service.store.opening import open_store
from horae.service.store.store import Store
from horae.service.store.stored_records import TokenRecord
from horae.service.tokens import digest_of
from tests.builders import job


@contextmanager
def opened(url: str, state: Path) -> Iterator[Store]:
    state.mkdir(exist_ok=True)
    with closing(open_store(url, state).store) as store:
        yield store


def task(name: str) -> Task:
    return Task(name, "ada", name, ("python", "train.py"), 100.0)


def fill(store: Store) -> None:
    for number in range(1, 6):
        store.append([JobSubmitted(float(number), job(f"a-{number}"))], [task(f"a-{number}")])
    store.append([decided(6.0)])
    store.add_token(TokenRecord("t", digest_of("secret"), "ada", "viewer", 1.0))


def decided(at_s: float, value: float = 0.1) -> Decided:
    writes = (("served", np.array([0, 3]), np.array([[value, np.inf]] * 2)), ("knob", None, np.nan))
    return Decided(at_s, True, memory=writes)
