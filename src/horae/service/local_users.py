"""Callers that the system vouches for: accounts of this machine at the other end of the service's Unix socket."""

from __future__ import annotations

import asyncio
import os
import pwd
import time

from horae.service.roles import Caller, Role
from horae.service.tokens import is_user_name, operator

#: Seconds for which the name of an account is remembered.
_REMEMBERED_S = 60.0


class LocalUsers:
    """Accounts of this machine as callers. The operator and root are admins; `role` is that of all others, if any."""

    def __init__(self, role: Role | None = None) -> None:
        self._role = role
        self._names: dict[int, tuple[str, float]] = {}

    async def caller(self, uid: int) -> Caller | None:
        """The caller with this user id; None if they need a token."""
        if uid == os.getuid():
            return Caller(operator(), Role.ADMIN)
        if uid == 0:
            return Caller("root", Role.ADMIN)
        name = await self._name(uid) if self._role else ""
        return Caller(name, self._role) if name and self._role else None

    async def _name(self, uid: int) -> str:
        """The name of an account, as a user; empty if it has none, or none that a user can have."""
        name, since_s = self._names.get(uid, ("", -_REMEMBERED_S))
        if time.monotonic() - since_s >= _REMEMBERED_S:
            # Accounts may be on a directory server, which may be slow.
            name = await asyncio.to_thread(_account_name, uid)
            self._names[uid] = (name, time.monotonic())
        return name


def _account_name(uid: int) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""
    return name if is_user_name(name) else ""
