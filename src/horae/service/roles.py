"""Callers of the API: user, role, and the scope of their token. What they may do is in `rights.py`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from horae.core.errors import UserError

SUBMIT_ONLY = "submit-only"


class Role(StrEnum):
    """What the bearer of a token may do. Stored: the values stay."""

    #: Everything.
    ADMIN = "admin"
    #: Submit, act on their own jobs, and see the jobs of all, without command lines and logs of others.
    MEMBER = "member"
    #: Submit, act on their own jobs, and see no others.
    USER = "user"
    #: See everything, and change nothing.
    VIEWER = "viewer"

    @property
    def may_write(self) -> bool:
        """Whether it may submit jobs, and change its own."""
        return self is not Role.VIEWER


class Forbidden(UserError):
    """The caller may not do this."""


class NotFound(UserError):
    """The thing does not exist, or the caller may not see it."""


class BadScope(UserError):
    """A scope that cannot be read."""


@dataclass(frozen=True)
class Scope:
    """What a token is narrowed to: one queue with the queues below it, one app, or submitting. Empty: to nothing."""

    queue: str = ""
    app: str = ""
    submit_only: bool = False

    @classmethod
    def read(cls, text: str) -> Scope:
        """The scope of a text such as `queue=org/a,submit-only`."""
        values: dict[str, str] = {}
        for word in filter(None, (part.strip() for part in text.split(","))):
            key, is_pair, value = word.partition("=")
            is_scope = (key in ("queue", "app") and value) or (word == SUBMIT_ONLY)
            if not is_scope or key in values or (is_pair and not all(value.split("/"))):
                raise BadScope(f"{word!r} is not a scope: use queue=PATH, app=NAME or {SUBMIT_ONLY}, each once.")
            values[key] = value
        return cls(values.get("queue", ""), values.get("app", ""), SUBMIT_ONLY in values)

    def __str__(self) -> str:
        named = [f"{name}={value}" for name, value in (("queue", self.queue), ("app", self.app)) if value]
        return ",".join([*named, *([SUBMIT_ONLY] if self.submit_only else [])])

    def __bool__(self) -> bool:
        return self != _EVERYTHING

    def covers(self, queue: str, app: str) -> bool:
        """Whether a job of a queue and an app lies within the scope."""
        in_queue = not self.queue or f"{queue}/".startswith(f"{self.queue}/")
        return in_queue and (not self.app or app == self.app)


_EVERYTHING = Scope()


@dataclass(frozen=True)
class Caller:
    """The user behind a request, by their token."""

    user: str
    role: Role
    scope: Scope = _EVERYTHING

    @property
    def is_admin(self) -> bool:
        """Whether the caller may do everything. A token with a scope may not, whatever its role."""
        return self.role is Role.ADMIN and not self.scope

    @property
    def reads_all(self) -> bool:
        """Whether the caller may read everything about all jobs."""
        return self.role in (Role.ADMIN, Role.VIEWER) and not self.scope

    @property
    def lists_all(self) -> bool:
        """Whether the caller may see that the jobs of other users are there, by name, state and GPUs."""
        return self.role is not Role.USER and not self.scope

    def require_admin(self, action: str) -> None:
        """Refuse an action that is for admins only."""
        if not self.is_admin:
            raise Forbidden(f"Only an admin may {action}: ask an admin, or use an admin's token.")

    def require_write(self, action: str) -> None:
        """Refuse a change by a viewer."""
        if not self.role.may_write:
            raise Forbidden(f"A viewer may not {action}: use a token with the role user, member or admin.")
