"""The driver: moves virtual time from event to event and performs what the engine commands in a simulated world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.events import PRECEDENCE, Event, JobSubmitted
from horae.core.history import History, Recorder
from horae.core.run_history import history_of
from horae.core.straight_lines import along
from horae.simulator.world import World

Progress = Callable[[int, int], None]
#: Called after every event applied and every decision made, with the engine as it then is.
Watch = Callable[[Engine, Event | Decided], None]

_REPORT_EVERY = 500
#: So many reports without any gain, and a run is given up.
_LOOKS_WITHOUT_GAIN = 100


class NoProgress(UserError):
    """A world in which work is lost as fast as it is done."""


class _Patience:
    """Notices a run in which nothing is ever gained, such as one that loses nodes faster than jobs save their work."""

    def __init__(self) -> None:
        self._most_gained, self._looks = -inf, 0

    def look(self, engine: Engine) -> None:
        """Raise `NoProgress` if for a long time no work was gained that was not had before."""
        table, rows = engine.jobs, engine.jobs.active
        left = float(along(engine.now_s, rows, table.work_left, table.rate, table.since_s, -1.0).sum())
        gained = float(table.work[: len(table)].sum()) - left
        if gained > self._most_gained:
            self._most_gained, self._looks = gained, 0
            return
        self._looks += 1
        if self._looks > _LOOKS_WITHOUT_GAIN:
            raise NoProgress(
                f"After {engine.now_s:g} s no job gains anything any more ({len(rows)} have not ended): "
                "make faults rarer, checkpoints more frequent, or restarts cheaper."
            )


class Driver:
    """Moves virtual time from event to event. The service has one like it, with a real clock."""

    def __init__(
        self,
        engine: Engine,
        world: World,
        script: Sequence[Event],
        watch: Watch | None = None,
        until: int | None = None,
        expect: Callable[[Engine, float], None] | None = None,
    ) -> None:
        self.engine, self._world, self._watch, self._until = engine, world, watch, until
        self._expect = expect
        #: What users and operators do: submissions, and whatever else a test wants to happen.
        self._script = sorted(script, key=lambda event: (event.at_s, PRECEDENCE[type(event)]))
        self._next = 0
        self._recorder = Recorder(engine.gpus.cluster.nodes)
        self._submissions = sum(isinstance(event, JobSubmitted) for event in script)

    def run(self, progress: Progress | None = None) -> None:
        """Go on until every job has ended, or nothing more can happen."""
        instants, patience = 0, _Patience()
        while not self._seen_enough() and (now_s := self._next_instant()) < inf:
            for event in self._events(now_s):
                self._apply(event)
            while self.engine.due(now_s):
                self._decide(now_s)
                for event in self._world.pop(now_s):
                    self._apply(event)
            instants += 1
            if instants % _REPORT_EVERY == 0:
                patience.look(self.engine)
                if progress:
                    progress(*self._done())
        if progress:
            progress(*self._done())

    def _seen_enough(self) -> bool:
        """Whether all jobs that a run is to see to their end have ended."""
        jobs, until = self.engine.jobs, self._until
        if until is None or len(jobs) < until:
            return False
        return len(jobs.active) == 0 or int(jobs.active[0]) >= until

    def _next_instant(self) -> float:
        """The next moment at which something happens; never, once all jobs are done or nobody can ever run."""
        scripted_s = self._script[self._next].at_s if self._next < len(self._script) else inf
        engine = self.engine
        if scripted_s == inf and not engine.gpus.occupied:
            # On an idle cluster everybody who can run does, so those who wait for nothing but time wait for ever.
            nothing_comes = self._world.next_s == inf and not engine.retries
            if nothing_comes or len(engine.jobs.active) == 0:
                return inf
        return min(scripted_s, self._world.next_s, max(engine.wake_s, engine.now_s))

    def _events(self, now_s: float) -> Sequence[Event]:
        """All events of this instant: completions, then node changes, then arrivals."""
        events = self._world.pop(now_s)
        first = self._next
        while self._next < len(self._script) and self._script[self._next].at_s <= now_s:
            self._world.take_note_of(self._script[self._next])
            self._next += 1
        if events and self._next > first:
            return sorted((*events, *self._script[first : self._next]), key=lambda event: PRECEDENCE[type(event)])
        return events or self._script[first : self._next]

    def _apply(self, event: Event) -> None:
        self.engine.apply(event)
        self._recorder.see(event, self.engine.jobs.rows)
        if self._watch:
            self._watch(self.engine, event)

    def _decide(self, now_s: float) -> None:
        if self._expect:
            self._expect(self.engine, now_s)
        record = self.engine.decide(now_s)
        self._recorder.see(record, self.engine.jobs.rows)
        if self._watch:
            # An onlooker sees the record as a journal would store it.
            self._watch(self.engine, self.engine.with_evidence(record))
        # The next wake-up is read off the engine.
        for stop in record.stops:
            self._world.stop(stop, now_s)
        for launch in record.launches:
            self._world.launch(self.engine.jobs.rows[launch.job], launch, now_s)

    def _done(self) -> tuple[int, int]:
        return len(self.engine.jobs) - len(self.engine.jobs.active), self._submissions

    def history(self, settings: Mapping[str, str]) -> History:
        """What happened, for reports."""
        return history_of(self.engine, self._recorder, self._world.rates(), settings)
