"""A mirror of a server whose lists and watches are scripted."""

from __future__ import annotations

import threading
from typing import Any

import httpx2 as httpx
import pytest
from lightkube.resources.core_v1 import Pod

from horae.backends.driver import OutOfSight
from horae.backends.kubernetes import mirror
from horae.backends.kubernetes.mirror import Mirror
from horae.backends.kubernetes.objects import KubePod, read_pod
from tests.backends.kubernetes.fake_server import Answer, api, change, lines, listed, status
from tests.backends.kubernetes.made_objects import pod
from tests.backends.real import until


def named(name: str, version: int, phase: str = "Running") -> dict[str, Any]:
    return pod(phase, version, meta={"name": name})


class Server:
    """Answers lists and watches from a script each; a watch beyond the script waits, then ends without news."""

    def __init__(self, lists: list[Answer], watches: list[Answer]) -> None:
        self.lists, self.watches = lists, watches
        self.since: list[str] = []
        self.go_on, self.waits = threading.Event(), threading.Event()
        self.mirror = Mirror(api(self._answer), Pod, read_pod)

    def _answer(self, request: httpx.Request) -> Answer:
        if "watch" not in request.url.params:
            return self.lists.pop(0) if self.lists else status(503)
        self.since.append(request.url.params["resourceVersion"])
        if self.watches:
            return self.watches.pop(0)
        self.waits.set()
        self.go_on.wait(0.05)
        return lines()

    def seen(self) -> dict[str, str]:
        """Phases by name, once the script is over."""
        self.mirror.snapshot()
        until(self.waits.is_set, "for the watch")
        return {key.partition("/")[2]: seen.phase for key, seen in self.mirror.snapshot().items()}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "RETRY_S", 0.01)
    monkeypatch.setattr(mirror, "IDLE_S", 1.0)


def test_changes_after_the_list_are_in_the_mirror() -> None:
    watch = lines(
        change("ADDED", named("b", 6)),
        change("MODIFIED", named("a", 7, "Failed")),
        change("DELETED", named("b", 8)),
        change("ADDED", named("c", 9, "Pending")),
    )
    server = Server([listed(5, named("a", 3))], [watch])
    assert server.seen() == {"a": "Failed", "c": "Pending"}
    assert (found := server.mirror.get("train/a"))
    assert (found.phase, server.mirror.get("train/b")) == ("Failed", None)
    assert server.since[:2] == ["5", "9"]


def test_a_bookmark_moves_the_version_and_nothing_else() -> None:
    bookmark = change("BOOKMARK", {"metadata": {"resourceVersion": "40"}})
    server = Server([listed(5, named("a", 3))], [lines(bookmark)])
    assert server.seen() == {"a": "Running"}
    assert server.since[1] == "40"


@pytest.mark.parametrize(
    "trouble",
    [
        lines(change("ERROR", {"code": 410, "message": "too old resource version"})),
        status(410),
        httpx.ReadTimeout("silent"),
        httpx.RemoteProtocolError("cut"),
        status(503),
        httpx.Response(200, content=b'{"type": "ADDED", "obj'),
        lines({"type": "ADDED", "object": {}}),
    ],
    ids=["410 inside", "410", "silent", "cut", "503", "half a line", "no object"],
)
def test_after_any_trouble_it_lists_again_and_misses_no_deletion(trouble: Answer) -> None:
    server = Server([listed(5, named("a", 3), named("b", 4)), listed(9, named("b", 4))], [trouble])
    until(lambda: len(server.since) > 1 or server.mirror.snapshot(), "for the second watch")
    assert server.seen() == {"b": "Running"}
    assert server.since[1] == "9"


def test_out_of_sync_it_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "SYNC_S", 0.2)
    server = Server([status(403, "pods is forbidden")], [])
    with pytest.raises(OutOfSight, match=r"forbidden|503"):
        server.mirror.snapshot()


def seen(version: int, phase: str = "Running") -> KubePod:
    return read_pod(named("new", version, phase))


def test_what_was_written_here_survives_an_older_list_and_older_events() -> None:
    older = lines(change("MODIFIED", named("new", 6, "Pending")))
    server = Server([listed(5, named("a", 3))], [older])
    server.mirror.put(seen(8))
    server.mirror.put(seen(7, "Pending"))
    assert server.seen() == {"a": "Running", "new": "Running"}


def test_what_was_written_here_goes_when_the_server_says_so() -> None:
    server = Server([listed(9)], [])
    server.mirror.put(seen(8))
    assert server.seen() == {}


def test_a_mirror_that_nobody_looks_at_rests_and_wakes_up_again() -> None:
    server = Server([listed(5, named("a", 3)), listed(6)], [])
    assert server.seen() == {"a": "Running"}
    until(lambda: not server.mirror.is_awake, "for the thread to end")
    server.waits.clear()
    assert server.seen() == {}
