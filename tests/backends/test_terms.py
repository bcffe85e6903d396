"""A service that another has replaced starts and stops nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from horae.backends import BackendOptions, open_backend
from horae.backends.local import runner
from horae.backends.local.attempt_folders import AttemptFolders
from horae.backends.local.backend import LocalBackend
from horae.backends.terms import Overtaken, Term, known_term
from tests.backends.real import NODES, end_all, start, until


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_all(tmp_path)


def local(state: Path, term: int, journal: str = "j") -> LocalBackend:
    backend = open_backend("local", BackendOptions(state, NODES, journal=journal, term=term))
    assert isinstance(backend, LocalBackend)
    return backend


def test_the_highest_term_counts_and_another_journal_begins_anew(tmp_path: Path) -> None:
    first, second = Term(tmp_path, "j", 1), Term(tmp_path, "j", 2)
    first.claim()
    assert first.is_held
    second.claim()
    assert second.is_held
    assert not first.is_held
    with pytest.raises(Overtaken, match=r"term 2, this one had term 1"):
        first.claim()
    assert (known_term(tmp_path, "j"), known_term(tmp_path, "other")) == (2, 0)
    Term(tmp_path, "other", 1).claim()
    assert not second.is_held


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE, errno.ESTALE])
def test_a_term_that_cannot_be_read_now_is_nobodys_leave_to_act(tmp_path: Path, error: int) -> None:
    old, new = Term(tmp_path, "j", 1), Term(tmp_path, "j", 2)
    new.claim()
    with mock.patch.object(runner, "open_plain", side_effect=OSError(error, os.strerror(error))):
        for act in (old.check, old.claim, new.check):
            with pytest.raises(OSError, match=os.strerror(error)):
                act()
        assert not old.is_held
    assert known_term(tmp_path, "j") == 2, "the older service has not claimed the folder"


def test_where_nobody_can_take_over_nothing_is_claimed(tmp_path: Path) -> None:
    term = Term(tmp_path, "", 0)
    term.claim()
    assert term.is_held
    assert not list(tmp_path.iterdir())


def test_a_replaced_service_starts_and_stops_no_job_and_says_why(state: Path) -> None:
    old = local(state, 1)
    old.start(start())
    new = local(state, 2)
    try:
        until(lambda: (AttemptFolders(state).of(("a-1", 1)).path / "runner.json").exists(), "for the runner")
        old.start(start(job="b-1"))
        old.stop("a-1", 1)
        until(lambda: [old.watch(1.0)] and "taken over (term 2, this one had term 1)" in old.trouble, "for the trouble")
        assert not (state / "jobs" / "b-1").exists()
        assert not AttemptFolders(state).of(("a-1", 1)).stop_requested
        old.watch(1.0)
        assert old.trouble
        assert old.discard(["a-1"], ()) == []
        new.start(start(job="b-1"))
        until((state / "jobs" / "b-1" / "1" / "order.json").exists, "for the order")
        new.watch(1.0)
        assert not new.trouble
    finally:
        old.close()
        new.close()
