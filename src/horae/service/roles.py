"""Callers of the API and their roles."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from horae.core.errors import UserError


class Role(StrEnum):
    """What the bearer of a token may do. Stored: the values stay."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"


class Forbidden(UserError):
    """The caller may not do this."""


class NotFound(UserError):
    """The thing does not exist, or the caller may not see it."""


@dataclass(frozen=True)
class Caller:
    """The user behind a request. Admins may do everything, users act on their own jobs, viewers read everything."""

    user: str
    role: Role

    @property
    def sees_all(self) -> bool:
        """Whether the caller may see the jobs of other users."""
        return self.role is not Role.USER

    def require_admin(self, action: str) -> None:
        """Refuse an action that is for admins only."""
        if self.role is not Role.ADMIN:
            raise Forbidden(f"Only an admin may {action}: ask an admin, or use an admin's token.")

    def require_write(self, action: str) -> None:
        """Refuse a change by a viewer."""
        if self.role is Role.VIEWER:
            raise Forbidden(f"A viewer may not {action}: use a token with the role user or admin.")
