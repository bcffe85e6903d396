"""A collection of the API server, kept current by one list and a watch, in a thread of its own.

lightkube's own watch has no read time-out, ends when the server restarts, and after a gap (410) never tells what was
deleted meanwhile. Here anything unusual leads to a new list. A mirror is in sync from a list on, until its watch
breaks; out of sync it shows nothing.

What this service has written itself is in the mirror at once (`put`), and an older list or event never undoes it:
otherwise a look could miss a pod that was made a moment ago.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from horae.backends.driver import OutOfSight
from horae.backends.kubernetes.api import GONE, ApiRefusal, KubernetesApi

#: Seconds that a look waits for a mirror that is out of sync, between two tries, and after which nobody looks any more.
SYNC_S, RETRY_S, IDLE_S = 5.0, 0.2, 60.0


class Versioned(Protocol):
    """What is mirrored: it has a key, and a version that grows with each change."""

    @property
    def key(self) -> str:
        """Unique at any time."""
        ...

    @property
    def version(self) -> int:
        """The resourceVersion."""
        ...


Seen = TypeVar("Seen", bound=Versioned)


class Mirror(Generic[Seen]):
    """A collection. `read` turns the API's object into what is kept, or into None if it does not matter."""

    def __init__(
        self,
        api: KubernetesApi,
        resource: type,
        read: Callable[[Mapping[str, Any]], Seen | None],
        namespace: str | None = None,
        params: Mapping[str, str] | None = None,
    ) -> None:
        self._api, self._resource, self._read = api, resource, read
        self._namespace, self._params = namespace, dict(params or {})
        self._lock = threading.Lock()
        self._found: dict[str, Seen] = {}
        self._version = ""
        self._in_sync = threading.Event()
        self._why = "The cluster was not listed yet."
        self._thread: threading.Thread | None = None
        self._looked_s = 0.0

    @property
    def is_awake(self) -> bool:
        """Whether the mirror follows the server."""
        return self._thread is not None and self._thread.is_alive()

    def snapshot(self, wait_s: float = SYNC_S) -> dict[str, Seen]:
        """All objects by key, as they are now; raises `OutOfSight` if that is not certain, after `wait_s`."""
        self._sync(wait_s)
        with self._lock:
            return dict(self._found)

    def get(self, key: str) -> Seen | None:
        """One object, as it is now; None if it is gone."""
        self._sync(SYNC_S)
        with self._lock:
            return self._found.get(key)

    def _sync(self, wait_s: float) -> None:
        self._looked_s = time.monotonic()
        if not self.is_awake:
            self._thread = threading.Thread(target=self._follow, name="horae-kubernetes-watch", daemon=True)
            self._thread.start()
        if not self._in_sync.wait(wait_s):
            raise OutOfSight(self._why)

    def put(self, seen: Seen) -> None:
        """Note an object that this service has just written or read."""
        with self._lock:
            before = self._found.get(seen.key)
            if not before or before.version <= seen.version:
                self._found[seen.key] = seen

    # --- the thread

    def _follow(self) -> None:
        """List and watch until nobody has looked for a while."""
        try:
            while time.monotonic() - self._looked_s < IDLE_S:
                try:
                    if not self._in_sync.is_set():
                        self._list()
                    self._watch()
                except (OutOfSight, ApiRefusal) as why:
                    self._in_sync.clear()
                    self._why = str(why)
                    if not (isinstance(why, ApiRefusal) and why.code == GONE):
                        time.sleep(RETRY_S)
                except Exception as why:  # an object that cannot be read: whatever it was, nothing is certain
                    self._in_sync.clear()
                    self._why = f"An answer of the API server cannot be read: {type(why).__name__}."
                    time.sleep(RETRY_S)
        finally:
            self._in_sync.clear()

    def _list(self) -> None:
        answer = self._api.call("list", self._resource, namespace=self._namespace, params=self._params)
        listed = {seen.key: seen for seen in map(self._read, answer["items"]) if seen}
        version = int(answer["metadata"]["resourceVersion"])
        with self._lock:
            newer = {key: seen for key, seen in self._found.items() if seen.version > version}
            self._found = {**listed, **newer}
            self._version = str(version)
        self._in_sync.set()

    def _watch(self) -> None:
        """Follow changes until the server ends the watch, as it does every few seconds; the next watch goes on."""
        params = {**self._params, "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        for change in self._api.watch(self._resource, self._namespace, params):
            with self._lock:
                self._apply(change["type"], change["object"])
                self._version = change["object"]["metadata"]["resourceVersion"]

    def _apply(self, change_type: str, content: Mapping[str, Any]) -> None:
        if change_type == "BOOKMARK":
            return
        key, version = key_of(content), int(content["metadata"]["resourceVersion"])
        before = self._found.get(key)
        if before and before.version > version:
            return
        seen = None if change_type == "DELETED" else self._read(content)
        if seen:
            self._found[key] = seen
        else:
            self._found.pop(key, None)


def key_of(content: Mapping[str, Any]) -> str:
    """The key of an object: its namespace, if it has any, and its name."""
    meta = content["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"
