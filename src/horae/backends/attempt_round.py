"""One attempt in one round of the reconciler: what is missing, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from horae.backends.driver import (
    ClusterDriver,
    EndCause,
    Look,
    PieceEnded,
    PieceId,
    PiecesRefused,
    PieceState,
    PieceWaiting,
)
from horae.backends.local import runner
from horae.backends.piece_files import CANNOT_RUN, LastWord, PieceFiles
from horae.backends.protocol import KILLED, RUN_AGAIN, Attempt
from horae.backends.shared_folder import OrderedAttempt, SharedFolder
from horae.core.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, LaunchFailed

#: A silent piece counts as alive for so many times as long as its runner waits before it kills its job: clocks, file
#: servers and kills take their time.
FENCE_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class ReconcilerSettings:
    """How patient a reconciler is, in seconds."""

    #: From one look to the next, unless something was asked for.
    look_every_s: float = 1.0
    #: After which a job that never reports counts as started.
    ready_s: float = 5.0
    #: How long the shared folder may be away: without a beat for so long, the runner kills its job.
    beat_limit_s: float = 60.0
    #: Without a new beat, by this service's clock: a piece that the cluster manager denies is gone.
    fence_s: float = 90.0
    #: After its grace period, a piece is killed by the cluster manager. An ended piece has as long to free its GPUs.
    overdue_s: float = 15.0
    #: Without a beat, an operator or a fence is believed who is sure that a node is gone.
    doubt_s: float = 5.0
    #: Without an answer of the driver, the cluster is out of sight.
    silence_s: float = 30.0
    #: Accepted and not started by the cluster manager for so long, in sight: the launch has failed.
    launch_limit_s: float = ClusterDriver.launch_limit_s

    def __post_init__(self) -> None:
        assert self.beat_limit_s < self.fence_s, "a job must be dead before others believe it"


#: Exit code of an attempt whose order cannot be understood.
_BROKEN = 1
#: In place of a round's number: no round has seen to the attempt, or the next one must do so first.
NEVER_SEEN, SEE_TO_FIRST = 0, -1


@dataclass(slots=True)
class FollowedAttempt:
    """An attempt that is not forgotten."""

    ordered: OrderedAttempt
    stopping: bool
    announced: bool = False
    ended: bool = False
    #: Whether the shared folder was away in its time: then its runner may have been unable to say its last word.
    folder_was_away: bool = False
    #: Number of the last round that saw to the attempt, from 1 on.
    seen_to: int = NEVER_SEEN
    #: When this reconciler first told the pieces to end, or first saw all last words; monotonic.
    told_s: float | None = None
    over_s: float | None = None
    #: Until then nothing needs to be done if the cluster manager says that the attempt runs; monotonic.
    read_again_s: float = 0.0
    #: For how long the cluster manager was seen not to start a piece, and when that was last seen; monotonic.
    waited_s: float = 0.0
    seen_waiting_s: float | None = None
    #: The last sign of life of each piece by the file server's clock, and when this reconciler first saw it; monotonic.
    signs: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def id(self) -> Attempt:
        """Job and number of the attempt."""
        return self.ordered.id

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the attempt's pieces."""
        return self.ordered.nodes


class RoundActions(Protocol):
    """What the round of an attempt may ask for."""

    def tell(self, *events: Event) -> None:
        """Put events into the queue."""

    def conclude(self, followed: FollowedAttempt, end: Event) -> None:
        """Tell the end of an attempt."""

    def submit(self, ordered: OrderedAttempt, nodes: Sequence[str]) -> None:
        """Submit the pieces on these nodes; may raise `PiecesRefused`."""

    def last_line(self, ordered: OrderedAttempt, node: str) -> str:
        """The last line that was printed for the piece on a node, whose runner never began; empty if there is none."""

    def kill(self, piece: PieceId) -> None:
        """Kill a piece."""

    def fence_off(self, node: str) -> None:
        """Let the site's fence make sure that nothing runs on a node."""

    def look_again(self) -> None:
        """Look again at once."""

    def is_hopeless(self, attempt: Attempt, done: float) -> bool:
        """Note that an attempt ended without a word; whether so did those before it, without progress."""


class AttemptRound:
    """One attempt in one round: what is missing, and what became of it."""

    def __init__(
        self,
        followed: FollowedAttempt,
        folder: SharedFolder,
        look: Look,
        settings: ReconcilerSettings,
        hands: RoundActions,
        now_s: float,
    ) -> None:
        """`now_s`: by the reconciler's clock, which is monotonic."""
        self._followed, self._ordered = followed, followed.ordered
        self._folder, self._look, self._settings, self._hands = folder, look, settings, hands
        self._now_s = now_s

    def see_to(self) -> None:
        """Do for the attempt what is missing, and tell what became of it."""
        if self._ordered.is_broken:
            self._end_broken()
            return
        if not self._ordered.order:
            self._end_without_order()
            return
        words = {node: self._last_word(node) for node in self._ordered.nodes}
        last_words = {node: word for node, word in words.items() if word}
        if len(last_words) == len(words):
            self._finish(last_words)
            return
        failed = self._first_failure(last_words)
        if self._followed.stopping or failed:
            self._tell_to_end(failed, [node for node, word in words.items() if not word])
        else:
            self._submit_missing()
            self._give_up_waiting()
        self._announce()

    def _state(self, node: str) -> PieceState | None:
        return self._look.pieces.get(self._ordered.piece_id(node))

    def _last_word(self, node: str) -> LastWord | None:
        """How a piece ended; None while it has not, or nobody can be sure."""
        files, state = self._ordered.piece(node), self._state(node)
        if word := files.last_word():
            return word
        # Before anybody denies it: the seconds of silence are counted from here.
        last_sign_s = files.last_sign_s()
        silent_s = self._silent_s(node, last_sign_s) if last_sign_s else 0.0
        denied = state is None or isinstance(state, PieceEnded)
        if isinstance(state, PieceEnded) and self._cancel_unbegun(node, state):
            return files.last_word()
        gone_s = self._folder.gone_s(node)
        if not (denied or gone_s) or not last_sign_s:
            return None
        is_gone = gone_s > last_sign_s and silent_s > self._settings.doubt_s
        if is_gone or (denied and silent_s > self._fence_s(files)):
            is_silent = not is_gone and not self._is_out_of_reach(node) and _has_run_out(state)
            files.end_as_killed(faulty=_broke_limit(state) and not self._followed.stopping, silent=is_silent)
            return files.last_word()
        if denied and silent_s > self._settings.doubt_s and self._is_out_of_reach(node):
            self._hands.fence_off(node)
        return None

    def _silent_s(self, node: str, last_sign_s: float) -> float:
        """For how long this reconciler has seen no new sign of life.

        The file server's clock may be set at any time, which would make a living piece look dead, or a dead one alive.
        So its times only tell one sign from the next; seconds are counted by the clock of this process.
        """
        seen_s, since_s = self._followed.signs.get(node, (0.0, 0.0))
        if seen_s != last_sign_s:
            since_s = self._now_s
            self._followed.signs[node] = (last_sign_s, since_s)
        return self._now_s - since_s

    def _is_out_of_reach(self, node: str) -> bool:
        """Whether the cluster manager cannot tell what runs on a node. Nobody cuts the power of one that answers."""
        seen = self._look.nodes.get(node)
        return seen is None or seen.is_lost

    def _fence_s(self, files: PieceFiles) -> float:
        """How long a piece must be silent until it is gone: its runner may be more patient than we are now."""
        return max(self._settings.fence_s, FENCE_MARGIN * files.beat_limit_s())

    def _cancel_unbegun(self, node: str, state: PieceEnded) -> bool:
        """End a piece that the cluster manager has ended before its runner began. False if the runner did begin."""
        files = self._ordered.piece(node)
        if state.cause in (EndCause.STOPPED, EndCause.CANCELLED):
            return files.cancel()
        line = "" if files.begun else self._hands.last_line(self._ordered, node)
        why = state.why or "its runner ended before the job began"
        return files.cancel(CANNOT_RUN, f"{why}: {line}" if line else why)

    def _first_failure(self, words: Mapping[str, LastWord]) -> LastWord | None:
        """The last word of the piece that ended first with another code than 0; of one that never began, if there is.

        A piece that cannot begin may end the others before anybody has seen why.
        """
        failed = [node for node, word in words.items() if word.code != 0]
        failed = [node for node in failed if words[node].why and not self._followed.stopping] or failed
        if not failed:
            return None
        return words[min(failed, key=lambda node: self._ordered.piece(node).ended_s())]

    # --- starting and stopping

    def _submit_missing(self) -> None:
        """Submit the pieces that were neither begun nor are known to the cluster manager."""
        ordered = self._ordered
        missing = [node for node in ordered.nodes if not self._state(node) and not ordered.piece(node).begun]
        if not missing or any(node not in self._look.nodes for node in ordered.nodes):
            return
        self._folder.write_piece_orders(ordered, self._look.nodes, self._settings.beat_limit_s)
        try:
            self._hands.submit(ordered, missing)
        except PiecesRefused as why:
            for node in missing:
                ordered.piece(node).cancel(CANNOT_RUN, str(why) or "the cluster manager refused it")
            self._hands.look_again()

    def _give_up_waiting(self) -> None:
        """Cancel the pieces that the cluster manager has accepted, and does not start. From then on they never begin.

        The launch has failed once the cluster manager holds nothing for them any more. Time out of sight does not
        count.
        """
        followed, now_s = self._followed, self._now_s
        waiting = {node: state for node in followed.nodes if isinstance(state := self._state(node), PieceWaiting)}
        waiting = {node: state for node, state in waiting.items() if not self._ordered.piece(node).begun}
        since_s, followed.seen_waiting_s = followed.seen_waiting_s, now_s if waiting else None
        followed.waited_s += min(now_s - since_s, self._settings.silence_s) if waiting and since_s is not None else 0.0
        if followed.waited_s < self._settings.launch_limit_s:
            return
        for node, state in waiting.items():
            limit = f"{self._settings.launch_limit_s:.0f} s"
            why = f"the cluster did not start it within {limit} (launch-limit): {state.why or 'it does not say why'}"
            self._ordered.piece(node).cancel(CANNOT_RUN, why)
        self._hands.look_again()

    def _tell_to_end(self, failed: LastWord | None, nodes: list[str]) -> None:
        """Tell pieces to end: by their stop signal, or because another piece has ended. Kill those that do not."""
        if failed and failed.code != RUN_AGAIN:
            how = runner.STOP_NOW
        else:
            how = runner.STOP_NOTICE if self._followed.stopping else runner.STOP_GRACE
        for node in nodes:
            files = self._ordered.piece(node)
            if not files.cancel():
                files.ask_to_stop(how)
        assert self._ordered.task
        if self._followed.told_s is None:
            self._followed.told_s = self._now_s
            self._hands.look_again()
        elif self._now_s - self._followed.told_s > self._ordered.task.grace_s + self._settings.overdue_s:
            self._kill(nodes)

    def _kill(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._hands.kill(self._ordered.piece_id(node))

    # --- telling

    def _announce(self) -> None:
        """Tell that an attempt has started once all its pieces have been up for `ready_s`."""
        if self._followed.announced:
            return
        ups_s = [self._ordered.piece(node).up_since_s() for node in self._ordered.nodes]
        if not all(ups_s):
            return
        up_s = max(self._folder.clock_s() - max(ups_s), 0.0)
        if up_s >= self._settings.ready_s:
            self._tell_started(up_s)

    def _tell_started(self, up_s: float) -> None:
        self._followed.announced = True
        self._hands.tell(JobStarted(0.0, *self._ordered.id, up_s=up_s))

    def _end_without_order(self) -> None:
        """Tell the end of an attempt that could not be ordered, or was stopped before it was started."""
        if why := self._ordered.why_not_ordered():
            self._conclude(LaunchFailed(0.0, *self._ordered.id, why))
        else:
            self._folder.give_up(self._ordered)
            self._conclude(JobStopped(0.0, *self._ordered.id, self._folder.work_done(self._ordered)))

    def _end_broken(self) -> None:
        """End the pieces of an attempt whose order cannot be understood, and tell its end when all are gone."""
        left = [node for node in self._ordered.nodes if not self._last_word(node)]
        for node in left:
            self._ordered.piece(node).ask_to_stop(runner.STOP_NOW)
        pieces = self._look.pieces.items()
        held = [each for each, state in pieces if (each.job, each.attempt) == self._ordered.id and is_held(state)]
        if not left and not held:
            self._conclude(JobFailed(0.0, *self._ordered.id, _BROKEN, self._folder.work_done(self._ordered)))
        elif self._followed.told_s is None:
            self._followed.told_s = self._now_s
        elif self._now_s - self._followed.told_s > self._settings.overdue_s:
            for piece in held:
                self._hands.kill(piece)

    def _conclude(self, end: Event) -> None:
        self._hands.conclude(self._followed, end)

    def _finish(self, words: Mapping[str, LastWord]) -> None:
        """Tell the end of an attempt whose pieces have all ended, once the cluster manager holds its GPUs no more."""
        if held := [node for node in self._ordered.nodes if is_held(self._state(node)) and not self._is_gone(node)]:
            self._free(held)
            return
        end = self._end_of(words)
        ups_s = [word.up_s for word in words.values() if word.up_s is not None]
        if ups_s and not self._followed.announced and not isinstance(end, LaunchFailed):
            self._tell_started(max(ups_s))
        self._conclude(end)

    def _free(self, nodes: list[str]) -> None:
        """Wait until the cluster manager frees the GPUs of ended pieces; kill what waits, or does not end."""
        self._followed.over_s = self._followed.over_s or self._now_s
        overdue = self._now_s - self._followed.over_s > self._settings.overdue_s
        if late := [node for node in nodes if overdue or isinstance(self._state(node), PieceWaiting)]:
            self._kill(late)

    def _is_gone(self, node: str) -> bool:
        """Whether it is sure that the node was gone when its piece ended."""
        return self._folder.gone_s(node) > self._ordered.piece(node).last_sign_s()

    def _end_of(self, words: Mapping[str, LastWord]) -> Event:
        failed = self._first_failure(words)
        if not failed:
            return JobFinished(0.0, *self._ordered.id)
        assert self._ordered.order
        done = self._folder.work_done(self._ordered)
        if failed.why and not self._followed.stopping:
            return LaunchFailed(0.0, *self._ordered.id, failed.why)
        saved_more = failed.code == RUN_AGAIN and done > float(self._ordered.order["saved"])
        excused = self._followed.stopping or self._followed.folder_was_away
        if failed.silent and not excused and self._hands.is_hopeless(self._ordered.id, done):
            return JobFailed(0.0, *self._ordered.id, failed.code, done)
        if failed.stopped or saved_more or (self._followed.stopping and failed.code == RUN_AGAIN):
            return JobStopped(0.0, *self._ordered.id, done)
        return JobFailed(0.0, *self._ordered.id, failed.code, done)


def _has_run_out(state: PieceState | None) -> bool:
    """Whether the piece has ended by itself, says the cluster manager, and not by anybody's wish or a lost node."""
    return isinstance(state, PieceEnded) and state.cause in (EndCause.EXITED, EndCause.FAILED)


def _broke_limit(state: PieceState | None) -> bool:
    """Whether the cluster manager says that the piece was killed by its own fault: it used too much memory."""
    return isinstance(state, PieceEnded) and (state.cause, state.code) == (EndCause.FAILED, KILLED)


def is_held(state: PieceState | None) -> bool:
    """Whether the cluster manager holds GPUs for a piece, or may start it."""
    return state is not None and not isinstance(state, PieceEnded)
