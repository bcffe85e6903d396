"""Events for all listeners: each record is told once, and every stream passes on what its caller may see.

A listener has a position, no queue, so that a slow one costs no memory. One that falls behind what the hub keeps, or
begins in the past, reads pages of the journal until it has caught up.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.concurrency import run_in_threadpool

from horae.core.commands import Decided
from horae.core.events import Event
from horae.service.api.auth import Service
from horae.service.roles import Caller
from horae.service.store.connection import StoreTrouble
from horae.service.views.event_sentences import EventSentence

#: Seconds between two looks for new records.
POLL_S = 0.2
#: Longest wait for an event, in seconds; then a listener may look whether it is still welcome.
WAIT_S = 1.0
#: Records read at a time, and events kept for listeners.
_PAGE, _KEPT = 500, 10_000
#: Listeners that read pages of the past at the same time.
_READERS = 2


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event as it is sent."""

    seq: int
    at_s: float
    #: When it happened, as text.
    at: str | None
    sentence: EventSentence
    #: The whole event, for callers who may see all jobs that it names.
    text: str


class EventHub:
    """Tells new records to all listeners. Used by the thread of the HTTP server only."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._listeners = 0
        self._teller: asyncio.Task[None] | None = None
        #: Events of the records after `_first`, up to `_last`.
        self._events: deque[SentEvent] = deque()
        self._first = self._last = 0
        self._news = asyncio.Event()
        self._reading = asyncio.Semaphore(_READERS)

    async def listen(self, caller: Caller, after: int) -> AsyncGenerator[str, None]:
        """Server-sent events after record `after` that the caller may see; empty texts while there are none."""
        self._begin()
        try:
            while not self._service.closing:
                news = self._news
                if after < self._first:
                    async with self._reading:
                        events, after = await self._read(after, self._first)
                else:
                    events, after = self._kept_after(after), max(after, self._last)
                text = "".join(self._visible(caller, events))
                yield text
                if not text and after >= self._last:
                    await _wait(news)
        finally:
            self._listeners -= 1

    def _begin(self) -> None:
        """Count a listener, and begin to tell if it is the first."""
        self._listeners += 1
        if self._teller is None or self._teller.done():
            self._events.clear()
            self._first = self._last = self._service.daemon.published_seq
            self._teller = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        while self._listeners and not self._service.closing:
            upto = min(self._service.daemon.published_seq, self._last + _PAGE)
            if upto <= self._last:
                await asyncio.sleep(POLL_S)
                continue
            events, self._last = await self._read(self._last, upto)
            self._events.extend(events)
            while len(self._events) > _KEPT:
                # All events of a record stay, or none.
                self._first = self._events[0].seq
                while self._events and self._events[0].seq == self._first:
                    self._events.popleft()
            self._news.set()
            self._news = asyncio.Event()

    def _kept_after(self, after: int) -> list[SentEvent]:
        new: list[SentEvent] = []
        for event in reversed(self._events):
            if event.seq <= after:
                break
            new.append(event)
        return new[::-1]

    def _visible(self, caller: Caller, events: Iterable[SentEvent]) -> Iterable[str]:
        service, views = self._service, self._service.views()
        for event in events:
            if service.may_see_event(caller, event.sentence, event.at_s):
                what = views.plain(caller, event.sentence.what)
                yield event.text if what == event.sentence.what else _text(event.seq, event.at, event.sentence, what)

    async def _read(self, after: int, upto: int) -> tuple[list[SentEvent], int]:
        """A page of events. While the journal cannot be read, there are none."""
        try:
            return await run_in_threadpool(self._page, after, upto)
        except StoreTrouble:
            await asyncio.sleep(POLL_S)
            return [], after

    def _page(self, after: int, upto: int) -> tuple[list[SentEvent], int]:
        """Events of at most a page of records after `after`, and the number of the last record."""
        daemon = self._service.daemon
        upto = min(upto, after + _PAGE)
        records = daemon.recent.after(after, upto)
        if records is None:
            records = list(islice(daemon.store.tail(after, upto), _PAGE))
        return [events for seq, record in records for events in self._events_of(seq, record)], upto

    def _events_of(self, seq: int, record: Event | Decided) -> Iterable[SentEvent]:
        at = self._service.views().timestamp(record.at_s)
        for sentence in self._service.event_sentences().sentences_of(record):
            yield SentEvent(seq, record.at_s, at, sentence, _text(seq, at, sentence, sentence.what))


def _text(seq: int, at: str | None, sentence: EventSentence, what: str) -> str:
    return sse({"seq": seq, "at": at, "kind": sentence.kind, "job": sentence.job, "what": what}, number=seq)


async def _wait(news: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(news.wait(), WAIT_S)
    except TimeoutError:
        return


def sse(data: dict[str, Any], event_type: str = "", number: int | None = None) -> str:
    """One server-sent event. Its JSON has no line breaks."""
    head = (f"id: {number}\n" if number is not None else "") + (f"event: {event_type}\n" if event_type else "")
    return f"{head}data: {json.dumps(data)}\n\n"
