"""Encodes checkpoints in a thread of its own: with ten thousand jobs that takes as long as several cycles."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from horae.core import checkpoint
from horae.core.engine import Engine


class CheckpointEncoder:
    """One checkpoint at a time. All calls come from the daemon's thread; only the engine's copy leaves it."""

    def __init__(self) -> None:
        self._begun: tuple[int, Future[bytes]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was begun and not taken yet."""
        return self._begun is not None

    def begin(self, engine: Engine, seq: int) -> None:
        """Copy the engine as it is after record `seq`, and encode the copy in another thread."""
        state, body = checkpoint.copied(engine), Future[bytes]()

        def encode() -> None:
            try:
                body.set_result(checkpoint.encode(state))
            except BaseException as error:
                # Raised by `take`.
                body.set_exception(error)

        self._begun = (seq, body)
        threading.Thread(target=encode, name="horae-checkpoint", daemon=True).start()

    def take(self) -> tuple[int, bytes] | None:
        """The record number and body of the checkpoint that was begun; None while it is not encoded."""
        if self._begun is None or not self._begun[1].done():
            return None
        seq, body = self._begun
        self._begun = None
        return seq, body.result()

    def drop(self) -> None:
        """Forget the checkpoint that was begun, for a newer one."""
        self._begun = None
