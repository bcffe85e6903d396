"""Tokens: what is kept of them, whom they let in, and the files they lie in."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.service.roles import BadScope, Caller, Role, Scope
from horae.service.store.store import Store
from horae.service.tokens import BadToken, Tokens, digest_of, load_secret, make_admin


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = self.day_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path}/journal.db", own=True)
    yield store
    store.close()


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def tokens(store: Store, clock: Hand) -> Tokens:
    return Tokens(store, b"k" * 32, clock, lambda: store.epoch + clock.day_s)


def test_a_token_lets_its_bearer_in_until_it_expires(tokens: Tokens, clock: Hand) -> None:
    token, record = tokens.draft("alice", Role.USER, 10.0)
    assert tokens.caller(token) is None, "a draft is good for nothing"
    tokens.add(record)
    assert tokens.caller(token) == Caller("alice", Role.USER)
    assert tokens.caller(token[:-1]) is None
    assert tokens.caller("") is None
    clock.now_s = 10.0
    assert tokens.caller(token), "the service's own clock may run ahead, and does not end it"
    clock.day_s = 10.0
    assert tokens.caller(token) is None


def test_a_token_ends_by_the_days_clock_even_if_the_services_clock_stands_still(tokens: Tokens, clock: Hand) -> None:
    clock.now_s = 5000.0
    token, record = tokens.draft("alice", Role.USER, 60.0)
    tokens.add(record)
    clock.day_s = 61.0
    assert tokens.caller(token) is None


def test_a_scope_narrows_a_token_and_outlives_the_process(tokens: Tokens, store: Store, clock: Hand) -> None:
    token, record = tokens.draft("alice", Role.ADMIN, None, Scope.read("queue=org/a, submit-only"))
    tokens.add(record)
    again = Tokens(store, b"k" * 32, clock).caller(token)
    assert again == Caller("alice", Role.ADMIN, Scope(queue="org/a", submit_only=True))
    assert not again.is_admin, "a token with a scope is no admin's"


@pytest.mark.parametrize(
    "text", ["queue", "queue=", "queue=a//b", "everything", "app=x,app=y", "submit-only=yes", "app"]
)
def test_a_scope_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadScope, match="is not a scope"):
        Scope.read(text)


def test_only_the_hash_is_kept_and_it_outlives_the_process(tokens: Tokens, store: Store, clock: Hand) -> None:
    token, record = tokens.draft("alice", Role.VIEWER, None)
    tokens.add(record)
    assert record.digest == digest_of(token)
    assert token not in repr(store.tokens())
    assert Tokens(store, b"k" * 32, clock).caller(token) == Caller("alice", Role.VIEWER)
    tokens.revoke(record)
    assert tokens.caller(token) is None
    assert Tokens(store, b"k" * 32, clock).caller(token) is None


def test_tokens_are_long_and_never_the_same(tokens: Tokens) -> None:
    made = {tokens.draft("alice", Role.USER, None)[0] for _ in range(100)}
    assert len(made) == 100
    assert all(token.startswith("hor_") and len(token) >= 47 for token in made)


@pytest.mark.parametrize("user", ["", "..", "a b", "a/b", "a\n", "-a", "x" * 64])
def test_a_user_has_a_plain_name(tokens: Tokens, user: str) -> None:
    with pytest.raises(BadToken, match="cannot be a user name"):
        tokens.draft(user, Role.USER, None)


def test_a_jobs_token_is_of_one_attempt_and_one_service(tokens: Tokens, store: Store, clock: Hand) -> None:
    token = tokens.of_job("train-1", 2)
    assert tokens.is_of_job(token, "train-1", 2)
    assert not tokens.is_of_job(token, "train-1", 1)
    assert not tokens.is_of_job(token, "train-12", 2)
    assert not tokens.is_of_job(token, "train-1\n2", 2)
    assert not tokens.is_of_job("", "train-1", 2)
    assert not tokens.is_of_job("hor_ü", "train-1", 2)
    assert not Tokens(store, b"other" * 8, clock).is_of_job(token, "train-1", 2)
    assert tokens.caller(token) is None


def test_the_admins_token_is_made_once_for_its_owner_alone(tokens: Tokens, tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert make_admin(tokens, path)
    token = path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    person = tokens.caller(token)
    assert person is not None
    assert person.role is Role.ADMIN
    assert not make_admin(tokens, path)
    assert path.read_text().strip() == token


def test_an_admins_token_that_is_good_no_more_is_replaced(tokens: Tokens, tmp_path: Path) -> None:
    path = tmp_path / "token"
    make_admin(tokens, path)
    old = path.read_text().strip()
    (record,) = tokens.all()
    tokens.revoke(record)
    assert make_admin(tokens, path)
    assert path.read_text().strip() != old


def test_files_that_others_can_read_are_refused(tokens: Tokens, tmp_path: Path) -> None:
    secret, token = tmp_path / "secret", tmp_path / "token"
    assert load_secret(secret) == load_secret(secret)
    make_admin(tokens, token)
    for path in (secret, token):
        path.chmod(0o644)
    with pytest.raises(BadToken, match="chmod 600"):
        load_secret(secret)
    with pytest.raises(BadToken, match="chmod 600"):
        make_admin(tokens, token)


def test_a_secret_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    with pytest.raises(BadToken, match="is damaged"):
        load_secret(path)
