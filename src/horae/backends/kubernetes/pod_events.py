"""Tells users things about their pods where `kubectl describe pod` shows them: Events of Kubernetes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event

from horae.backends.kubernetes.api import ApiRefusal, KubernetesApi

#: Seconds after which the same is told again: Kubernetes forgets Events after an hour.
_AGAIN_S = 1800.0
#: Events in one round, so that stops and launches are not kept waiting.
_IN_A_ROUND = 40
#: The longest message that Kubernetes takes is 1,024 characters.
_LONGEST = 1000


class PodEvents:
    """Writes Events, each once while nothing changes."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        #: What was last told of a pod, by uid, and when; monotonic.
        self._last: dict[str, tuple[str, float]] = {}
        self._left = _IN_A_ROUND

    def begin_round(self, uids: Iterable[str]) -> None:
        """Forget pods other than these."""
        kept, self._left = {*uids}, _IN_A_ROUND
        self._last = {uid: last for uid, last in self._last.items() if uid in kept}

    def tell(self, namespace: str, name: str, uid: str, reason: str, text: str) -> None:
        """Tell something about a pod, unless that was the last thing told. If it is refused, that is no harm."""
        last, last_s = self._last.get(uid, ("", 0.0))
        now_s = time.monotonic()
        if not self._left or (last == text and now_s - last_s < _AGAIN_S):
            return
        self._last[uid] = (text, now_s)
        self._left -= 1
        with suppress(ApiRefusal):
            self._api.call("post", Event, content=event_of(namespace, name, uid, reason, text), namespace=namespace)


def event_of(namespace: str, name: str, uid: str, reason: str, text: str) -> Event:
    """An Event about a pod."""
    now = datetime.now(UTC).replace(microsecond=0)
    return Event(
        metadata=ObjectMeta(name=f"{name[:200]}.{secrets.token_hex(8)}", namespace=namespace),
        involvedObject=ObjectReference(apiVersion="v1", kind="Pod", namespace=namespace, name=name, uid=uid),
        reason=reason,
        message=text[:_LONGEST],
        type="Normal",
        count=1,
        firstTimestamp=now,
        lastTimestamp=now,
        source=EventSource(component="horae"),
    )
