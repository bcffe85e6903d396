"""Tokens of users, stored as hashes, and tokens of running attempts, which are not stored.

A user's token is random and shown once; the store keeps its SHA-256, role and expiry. A job's token is a signature of
its attempt, made with a secret of this service, and valid as long as the attempt lives. Stored: change by addition.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from horae.core.errors import UserError
from horae.service.clock import Clock
from horae.service.roles import Caller, NotFound, Role, Scope
from horae.service.store.store import Store
from horae.service.store.stored_records import TokenRecord

PREFIX, JOB_PREFIX = "hor_", "horj_"
#: Characters of a user token's digest that name the token in a proof.
PROOF_KEY = 16
#: Random bytes in a user's token, and in the secret that signs jobs' tokens.
_BYTES = 32
#: Pattern of all tokens, of users and of jobs.
TOKEN = re.compile(rf"(?:{PREFIX}|{JOB_PREFIX})[A-Za-z0-9_-]{{43}}")
_ATTEMPT = re.compile("[0-9]{1,10}")
_USER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,62})")


class BadToken(UserError):
    """A token that cannot be made or used."""


class Tokens:
    """The tokens of one service. Reads the store once, since only this process writes tokens."""

    def __init__(
        self,
        store: Store,
        secret: bytes,
        clock: Clock,
        day_clock: Callable[[], float] = time.time,
        alone: str = "",
    ) -> None:
        """`alone`: why only one user may submit jobs; empty if several may."""
        self._store, self._secret, self._clock, self._alone = store, secret, clock, alone
        #: Unix time: a token ends by the day's clock. The service's own clock does not follow when that is set.
        self._day_clock = day_clock
        self._records = {record.digest: record for record in store.tokens()}
        self._lock = threading.Lock()

    def reload(self) -> None:
        """Read the tokens again: for a standby, whose active service makes and revokes them."""
        self._records = {record.digest: record for record in self._store.tokens()}

    # ------------------------------------------------------------------- users

    def caller(self, token: str) -> Caller | None:
        """The caller who has this token; None if the token is unknown, expired or revoked."""
        digest = digest_of(token)
        record = self._records.get(digest)
        if record is None or not hmac.compare_digest(record.digest, digest) or not record.usable(self._today_s()):
            return None
        return Caller(record.user, Role(record.role), Scope.read(record.scope))

    def _today_s(self) -> float:
        """Seconds since the store's epoch by the day's clock."""
        return self._day_clock() - self._store.epoch

    def draft(self, user: str, role: Role, lasts_s: float | None, scope: Scope = Scope()) -> tuple[str, TokenRecord]:  # noqa: B008, frozen
        """A new token and its record. The token is invalid until `add`."""
        if not _USER.fullmatch(user):
            raise BadToken(f"{user!r} cannot be a user name: use up to 63 letters, digits, dots, dashes, _ and @.")
        if self._alone and role.may_write and user not in {operator(), *self.submitters()}:
            raise BadToken(self._alone)
        if lasts_s is not None and lasts_s <= 0:
            raise BadToken("The token would expire at once: give a time such as 30d.")
        token, now_s = PREFIX + secrets.token_urlsafe(_BYTES), self._clock()
        ends_s = None if lasts_s is None else self._today_s() + lasts_s
        return token, TokenRecord(
            secrets.token_hex(4), digest_of(token), user, role.value, now_s, ends_s, scope=str(scope)
        )

    def submitters(self) -> set[str]:
        """Users who can submit jobs with a token that is valid now."""
        records, today_s = list(self._records.values()), self._today_s()
        return {record.user for record in records if Role(record.role).may_write and record.usable(today_s)}

    def add(self, record: TokenRecord) -> None:
        """Store a token and make it valid."""
        with self._lock:
            self._store.add_token(record)
            self._records[record.digest] = record

    def find(self, token_id: str) -> TokenRecord:
        """The record of the token with this id."""
        for record in list(self._records.values()):
            if record.id == token_id:
                return record
        raise NotFound(f"There is no token {token_id!r}; `horae token list` shows them.")

    def revoke(self, record: TokenRecord) -> None:
        """Make a token invalid."""
        with self._lock:
            self._store.revoke(record.id)
            self._records[record.digest] = replace(record, revoked=True)

    def all(self) -> list[TokenRecord]:
        """All tokens ever made, oldest first."""
        return sorted(self._records.values(), key=lambda record: (record.created_s, record.id))

    # -------------------------------------------------------------------- jobs

    def of_job(self, job: str, attempt: int) -> str:
        """The token of an attempt."""
        signed = hmac.digest(self._secret, f"{job}\n{attempt}".encode(), "sha256")
        return JOB_PREFIX + base64.urlsafe_b64encode(signed).rstrip(b"=").decode()

    def is_of_job(self, token: str, job: str, attempt: int) -> bool:
        """Whether this is the token of the attempt."""
        wanted, given = self.of_job(job, attempt), token.encode("utf-8", "replace")
        return hmac.compare_digest(wanted.encode(), given)

    # ------------------------------------------------------------------- proof

    def proof(self, key: str, nonce: str) -> str | None:
        """Proof that this service knows a token, made from a client's nonce; None if it does not know it.

        `key` names the token without telling it: the first `PROOF_KEY` characters of a user token's digest, or
        JOB/ATTEMPT. Clients ask for it before they send a token to whatever listens at the service's address.
        """
        job, slash, attempt = key.rpartition("/")
        if slash:
            digest = digest_of(self.of_job(job, int(attempt))) if _ATTEMPT.fullmatch(attempt) else None
        else:
            digest = next((digest for digest in list(self._records) if digest[:PROOF_KEY] == key), None)
        return hmac.digest(digest.encode(), f"horae proof\n{nonce}".encode(), "sha256").hex() if digest else None


def digest_of(token: str) -> str:
    """SHA-256 of a token in hex, as stored."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


# ------------------------------------------------------------------ on the disk


def load_secret(path: Path) -> bytes:
    """The secret that signs jobs' tokens; created at the first start."""
    if not path.exists():
        write_private(path, secrets.token_bytes(_BYTES))
    secret = read_private(path)
    if len(secret) < _BYTES:
        raise BadToken(f"{path} is damaged: delete it to create a new one. Tokens of running jobs then become invalid.")
    return secret


def make_admin(tokens: Tokens, path: Path) -> bool:
    """Make sure that the file holds a valid admin token; returns whether a new token was made."""
    if path.exists():
        caller = tokens.caller(read_private(path).decode("utf-8", "replace").strip())
        if caller and caller.is_admin:
            return False
        path.unlink()
    token, record = tokens.draft(operator(), Role.ADMIN, None)
    tokens.add(record)
    write_private(path, f"{token}\n".encode())
    return True


def operator() -> str:
    """The name of the user who runs this program; `admin` if it cannot be used."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return "admin"
    return name if is_user_name(name) else "admin"


def is_user_name(name: str) -> bool:
    """Whether a user can be called so."""
    return _USER.fullmatch(name) is not None


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, completely or not at all."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_private(path: Path) -> bytes:
    """Read a file; refuse it if other users can read it."""
    if path.stat().st_mode & 0o077:
        raise BadToken(f"Other users can read {path}: run `chmod 600 {path}`, and replace the tokens if someone did.")
    return path.read_bytes()
