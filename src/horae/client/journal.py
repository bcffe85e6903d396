"""The journal of a service, read over the API, as a history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horae.client.service_client import ServiceClient, Strange, records_of
from horae.core.errors import UserError

if TYPE_CHECKING:
    from horae.core.commands import Decided
    from horae.core.events import Event, NodeChange
    from horae.core.history import History
    from horae.core.queues import Queue
    from horae.service.initial_settings import InitialSettings

_PAGE = 5000


class NothingYet(UserError):
    """The journal has no jobs, or none in the chosen time."""


@dataclass(frozen=True)
class JournalReader:
    """The history of a service up to now."""

    history: History
    beginning: InitialSettings
    #: Unix time of second 0, and the service's time of the request in seconds.
    epoch: float
    now_s: float
    queues: tuple[Queue, ...]
    node_changes: tuple[NodeChange, ...]

    def first_since(self, seconds: float | None) -> int:
        """Row of the first job submitted within the last `seconds`; 0 if None."""
        if seconds is None:
            return 0
        early = [job.submit_s < self.now_s - seconds for job in self.history.jobs]
        if all(early):
            raise NothingYet("No job was submitted within that time: use a longer --since, or leave it out.")
        return early.index(False)


def read_past(at: ServiceClient) -> JournalReader:
    """Read the whole journal of a service."""
    from horae.core.events import NodeChange, SettingsChanged
    from horae.service.history.journal_history import read_history
    from horae.service.initial_settings import InitialSettings

    settings = at.get("/v1/beginning")
    # By the service's clock; the client's clock may differ.
    epoch, now_s = float(settings.pop("epoch")), float(settings.pop("now_s"))
    beginning = InitialSettings.from_dict(settings)
    queues = {queue.path: queue for queue in beginning.queues}
    changes: list[NodeChange] = []

    def noticed() -> Iterator[Event | Decided]:
        for record in _records(at):
            if isinstance(record, SettingsChanged):
                queues.update((queue.path, queue) for queue in record.queues)
            elif isinstance(record, NodeChange):
                changes.append(record)
            yield record

    # A journal whose oldest records were dropped does not begin with number 1.
    first = records_of(at.get("/v1/journal", {"after": 0, "limit": 1}), "records")
    whole = not first or first[0]["seq"] == 1
    history = read_history(beginning, noticed(), now_s, whole)
    if not history.jobs and not whole:
        raise NothingYet("Old records were removed from the journal, and no job was submitted since: submit one first.")
    if not history.jobs:
        raise NothingYet("The journal has no jobs yet: `horae submit` submits one.")
    if not history.cluster.nodes:
        raise NothingYet("No node has joined the cluster yet: `horae nodes` says when one has.")
    return JournalReader(history, beginning, epoch, now_s, tuple(queues.values()), tuple(changes))


def _records(at: ServiceClient) -> Iterator[Event | Decided]:
    from horae.core.codec import UnreadableRecord, decode

    after = 0
    while True:
        page = at.get("/v1/journal", {"after": after, "limit": _PAGE})
        records: list[dict[str, Any]] = records_of(page, "records")
        if not records:
            return
        for record in records:
            after = record.pop("seq")
            try:
                yield decode(record)
            except UnreadableRecord as error:
                raise Strange(str(error)) from None
