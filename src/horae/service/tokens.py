"""Who may ask: tokens of people, stored as hashes, and tokens of running jobs, which need not be stored at all.

A person's token is random and shown once; the store has its SHA-256, its role and its end. A job's token is a
signature of the attempt it belongs to, made with a secret of this service, and good for as long as that attempt lives.
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
from dataclasses import replace
from pathlib import Path

from horae.core.errors import UserError
from horae.service.clock import Clock
from horae.service.roles import Caller, NotFound, Role
from horae.service.store.store import Store
from horae.service.store.stored_records import TokenRecord

PREFIX, JOB_PREFIX = "hor_", "horj_"
#: Bytes of chance in a token and in the secret that signs those of jobs.
_BYTES = 32
#: What every token of a person or a job looks like.
TOKEN = re.compile(rf"(?:{PREFIX}|{JOB_PREFIX})[A-Za-z0-9_-]{{43}}")
_USER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,62})")


class BadToken(UserError):
    """A token that cannot be made or used as asked."""


class Tokens:
    """The tokens of one service. The store is read once: while it is open, nobody else writes to it."""

    def __init__(self, store: Store, secret: bytes, clock: Clock) -> None:
        self._store, self._secret, self._clock = store, secret, clock
        self._known = {record.digest: record for record in store.tokens()}
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ people

    def person(self, token: str) -> Caller | None:
        """Whose token this is; None for one that is unknown, expired or revoked."""
        digest = digest_of(token)
        record = self._known.get(digest)
        if record is None or not hmac.compare_digest(record.digest, digest) or not record.usable(self._clock()):
            return None
        return Caller(record.user, Role(record.role))

    def draft(self, user: str, role: Role, lasts_s: float | None) -> tuple[str, TokenRecord]:
        """A new token and its record, good for nothing until it is `add`ed."""
        if not _USER.fullmatch(user):
            raise BadToken(f"{user!r} is no user's name: use up to 63 letters, digits, dots, dashes, _ and @.")
        if lasts_s is not None and lasts_s <= 0:
            raise BadToken("A token that expires at once is of no use; write a time such as 30d.")
        token, now_s = PREFIX + secrets.token_urlsafe(_BYTES), self._clock()
        ends_s = None if lasts_s is None else now_s + lasts_s
        return token, TokenRecord(secrets.token_hex(4), digest_of(token), user, role.value, now_s, ends_s)

    def add(self, record: TokenRecord) -> None:
        """Let a token be good from now on."""
        with self._lock:
            self._store.add_token(record)
            self._known[record.digest] = record

    def find(self, number: str) -> TokenRecord:
        """The token of an id."""
        for record in list(self._known.values()):
            if record.id == number:
                return record
        raise NotFound(f"There is no token {number!r}; `horae token list` shows them.")

    def revoke(self, record: TokenRecord) -> None:
        """Let a token be good for nothing from now on."""
        with self._lock:
            self._store.revoke(record.id)
            self._known[record.digest] = replace(record, revoked=True)

    def all(self) -> list[TokenRecord]:
        """Every token there ever was, the oldest first."""
        return sorted(self._known.values(), key=lambda record: (record.created_s, record.id))

    # -------------------------------------------------------------------- jobs

    def of_job(self, job: str, attempt: int) -> str:
        """The token that an attempt is given."""
        signed = hmac.digest(self._secret, f"{job}\n{attempt}".encode(), "sha256")
        return JOB_PREFIX + base64.urlsafe_b64encode(signed).rstrip(b"=").decode()

    def is_of_job(self, token: str, job: str, attempt: int) -> bool:
        """Whether a token was made for this attempt."""
        wanted, given = self.of_job(job, attempt), token.encode("utf-8", "replace")
        return hmac.compare_digest(wanted.encode(), given)


def digest_of(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


# ------------------------------------------------------------------ on the disk


def load_secret(path: Path) -> bytes:
    """The secret that signs jobs' tokens; made on the first day."""
    if not path.exists():
        write_private(path, secrets.token_bytes(_BYTES))
    secret = read_private(path)
    if len(secret) < _BYTES:
        raise BadToken(f"{path} is cut short; delete it to have a new one made, which ends the tokens of running jobs.")
    return secret


def make_admin(tokens: Tokens, path: Path) -> bool:
    """See to it that the file holds an admin's token that is good; says whether it is a new one."""
    if path.exists():
        person = tokens.person(read_private(path).decode("utf-8", "replace").strip())
        if person and person.role is Role.ADMIN:
            return False
        path.unlink()
    token, record = tokens.draft(operator(), Role.ADMIN, None)
    tokens.add(record)
    write_private(path, f"{token}\n".encode())
    return True


def operator() -> str:
    """Who runs this program, as a user's name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return "admin"
    return name if _USER.fullmatch(name) else "admin"


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read, whole or not at all."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_private(path: Path) -> bytes:
    """Read a file that only its owner may read; one that others can read is refused."""
    if path.stat().st_mode & 0o077:
        raise BadToken(f"Others can read {path}: run `chmod 600 {path}`, and make new tokens if somebody may have.")
    return path.read_bytes()
