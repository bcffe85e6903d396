"""What is wrong with the service, and when its operator is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horae.service.standby import Follower

if TYPE_CHECKING:
    from horae.service.daemon import Daemon

#: Age of the loop's last cycle in seconds from which it counts as stuck.
OLDEST_LOOP_S = 10.0
#: Seconds for which something is wrong, or right again, before the operator is told: a hiccup is no news.
STEADY_S = 3.0
OVER = "All is well again."


def what_is_wrong(daemon: Daemon | Follower) -> str:
    """What is wrong with the service, in a sentence; empty if it works."""
    if daemon.crashed is not None or daemon.closing:
        return "The service is not running any more."
    age_s = daemon.clock() - daemon.counters.cycle_s
    if age_s > OLDEST_LOOP_S:
        return f"The daemon's loop has been stuck for {age_s:.0f} s."
    if daemon.counters.trouble:
        return f"The journal cannot be {'read' if isinstance(daemon, Follower) else 'written'}."
    if daemon.reserve and daemon.reserve.is_short:
        return "The disk is nearly full: no job can be submitted, though jobs can be cancelled. Free some space."
    if daemon.store.damage:
        return f"{daemon.store.damage} The service goes on; `horae doctor` tells more."
    if count := len(daemon.orphans.attempts):
        return (
            f"Attempts run that the journal does not know ({count}), and their nodes take no other jobs: "
            "`horae doctor` lists them, and can end them."
        )
    if getattr(daemon.engine.policy, "trouble", ""):
        return "The policy fails: running jobs go on, and no other job starts."
    return daemon.backend.trouble


class HealthNotes:
    """Decides when the operator hears of what is wrong: once when it lasts, and once when it is over."""

    def __init__(self) -> None:
        self._last_note = self._last_wrong = ""
        self._since_s = self._wrong_since_s = 0.0

    def note(self, wrong: str, now_s: float) -> str:
        """What to tell now, given what is wrong; mostly nothing. Sentences that change all the time are told once."""
        if bool(wrong) != bool(self._last_wrong):
            self._wrong_since_s = now_s
        if wrong != self._last_wrong:
            self._last_wrong, self._since_s = wrong, now_s
        since_s = self._since_s if self._last_note and wrong else self._wrong_since_s
        if wrong == self._last_note or now_s - since_s < STEADY_S:
            return ""
        self._last_note = wrong
        return wrong or OVER
