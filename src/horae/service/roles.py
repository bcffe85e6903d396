"""Who asks, and what they may."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from horae.core.errors import UserError


class Role(StrEnum):
    """What a token lets its bearer do."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"


class Forbidden(UserError):
    """Somebody asked for what is not theirs."""


class NotFound(UserError):
    """Somebody asked for what is not there."""


@dataclass(frozen=True)
class Caller:
    """Who asks. Admins may do everything, users what concerns their own jobs, viewers look at everything."""

    user: str
    role: Role

    @property
    def sees_all(self) -> bool:
        """Whether other people's jobs are shown."""
        return self.role is not Role.USER

    def must_be_admin(self, to: str) -> None:
        """Refuse what only operators do."""
        if self.role is not Role.ADMIN:
            raise Forbidden(f"Only an admin may {to}: ask one, or use an admin's token.")

    def must_not_only_look(self, to: str) -> None:
        """Refuse changes by those who may only look."""
        if self.role is Role.VIEWER:
            raise Forbidden(f"A viewer may not {to}: use a token of role user or admin.")
