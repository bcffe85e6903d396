"""An adopting backend over a cluster in memory, and the service's part in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from horae.backends.adopting_backend import AdoptingBackend
from horae.backends.found_jobs import TakenJob
from horae.backends.protocol import Place, Start
from horae.core.events import Event, JobStarted
from horae.core.states import State
from tests.backends.real import task, until


class AdoptionStage:
    """A backend and what it has told. One job of users, with a key and an id, comes and goes."""

    key: str
    job: str
    #: Where the job is put, unless a test says otherwise.
    place: Place
    backend: AdoptingBackend[Any]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.open()

    def open(self) -> None:
        raise NotImplementedError

    def add(self) -> None:
        """The user's job comes."""
        raise NotImplementedError

    def reopen(self) -> None:
        self.backend.close()
        self.events.clear()
        self.open()

    def follow(self, state: State | None = None, why: str = "") -> None:
        self.backend.follow({} if state is None else {self.key: TakenJob(self.job, state, why)})

    def start(self, attempt: int = 1, *places: Place) -> None:
        what = task(job=self.job, found_as=self.key, grace_s=1.0, work=100.0)
        self.backend.start(Start(self.job, attempt, what, "v100", places or (self.place,)))

    def until_told(self, kind: type[Event]) -> Any:
        def look() -> Event | None:
            self.events += self.backend.watch(5.0)
            return next((event for event in self.events if isinstance(event, kind)), None)

        try:
            return until(look, f"for {kind.__name__}")
        except AssertionError as why:
            raise AssertionError(f"{why}; told {self.events}; {self.backend.trouble}") from None

    def turns(self, count: int) -> None:
        """Wait until the backend's thread has looked so many times, from one beginning to the end."""
        turn, ended = self.backend._turn, list[None]()

        def counted() -> None:
            try:
                turn()
            finally:
                ended.append(None)

        self.backend._turn = counted  # type: ignore[method-assign]
        until(lambda: len(ended) >= count, f"for {count} turns")
        self.backend._turn = turn  # type: ignore[method-assign]

    def run(self) -> None:
        """The job comes, is taken in and runs."""
        self.add()
        self.follow()
        until(self.backend.found, "for the job")
        self.follow(State.LAUNCHING)
        self.start()
        self.until_told(JobStarted)
        self.follow(State.RUNNING)
