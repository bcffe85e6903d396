"""The term of a service in its state folder: a service that another has replaced does nothing to jobs any more.

A service may be frozen for minutes between its last look at the journal and what it does next, and another may have
taken over meanwhile. What it was about to do is in the journal, the other does it, too, and attempts have numbers, so
that a late start or stop does no harm. What it concludes by itself from an old view may: it does not know the attempts
of the other, and would kill them. So it asks here before it acts. Stored: change by addition.
"""

from __future__ import annotations

from pathlib import Path

from horae.backends.local import runner
from horae.backends.local.attempt_folders import read_json
from horae.core.errors import UserError

TERM_FILE = "term.json"


class Overtaken(UserError):
    """Another service has taken over."""


class Term:
    """The term of one service. Each service that takes over a journal has a higher one."""

    def __init__(self, state: Path, journal: str, number: int) -> None:
        """`journal` is the journal's id. Number 0 means that nothing is claimed and nothing checked."""
        self._folder, self._own_journal, self._number = state, journal, number
        self._own = {"journal": journal, "term": number}

    def claim(self) -> None:
        """Make the term known to services before this one. Raises if a later one is known, or nobody can tell now."""
        if not self._number:
            return
        highest = known_term(self._folder, self._own_journal)
        if highest > self._number:
            raise Overtaken(_sentence(highest, self._number))
        if highest != self._number:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            runner.write_atomically(str(self._folder), TERM_FILE, self._own)

    def check(self) -> None:
        """Raise `Overtaken` if another service has claimed the folder since, and OSError if nobody can tell now."""
        if not self._number:
            return
        found = read_json(self._folder / TERM_FILE, sure=True)
        if found is not None and found != self._own:
            raise Overtaken(_sentence(found.get("term"), self._number))

    @property
    def is_held(self) -> bool:
        """Whether no other service has claimed the folder since; False if nobody can tell now."""
        try:
            self.check()
        except (Overtaken, OSError):
            return False
        return True


def known_term(state: Path, journal: str) -> int:
    """The highest term that a service with this journal has claimed; 0 if none has. OSError if nobody can tell."""
    found = read_json(state / TERM_FILE, sure=True) or {}
    return int(found.get("term", 0)) if found.get("journal") == journal else 0


def _sentence(found: object, own: int) -> str:
    return f"Another service has taken over (term {found}, this one had term {own}): this one starts and stops nothing."
