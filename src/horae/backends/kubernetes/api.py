"""Calls to a Kubernetes API server. The only module that knows the library lightkube, apart from the objects it has.

Every call has a time limit. An answer that says nothing about the request (time-outs, 401, 429, 5xx, a broken
connection) is `OutOfSight`; a refusal (403, 404, 409, 422) is `ApiRefusal`. lightkube does authentication, TLS and
the encoding of objects. Its own calls decode each answer, which fails for some (a binding is answered with a Status);
here answers are plain JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from horae.backends.driver import OutOfSight
from horae.core.errors import UserError

try:
    import httpx2 as httpx
    from lightkube.config.client_adapter import ConnectionParams
    from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, KubeConfig, SingleConfig
    from lightkube.core.exceptions import ConfigError
    from lightkube.core.generic_client import ALL_NS, GenericSyncClient
except ModuleNotFoundError as missing:
    raise UserError(
        f"The backend kubernetes needs the library lightkube ({missing.name} was not found): "
        "pip install 'horae[kubernetes]'."
    ) from None

#: Means "in all namespaces".
EVERYWHERE: str = ALL_NS
#: Seconds for a call; for a watch, seconds until the server ends it, and without a line from a server that hangs.
CALL_S, WATCH_S, SILENT_WATCH_S = 8.0, 8, 10.0
#: Answers that are about the request. After all others nothing is certain.
REFUSALS = (400, 403, 404, 405, 409, 410, 413, 415, 422)
GONE, CONFLICT, NOT_FOUND, FORBIDDEN = 410, 409, 404, 403
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class ApiRefusal(Exception):
    """The API server says no: an HTTP code, and why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class BadKubeConfig(UserError):
    """The file or account that tells how to reach the API server cannot be used."""


def load_config(context: str = "") -> SingleConfig:
    """How to reach the API server: the pod's own account inside a cluster, else the kubeconfig file."""
    try:
        if context:
            config = KubeConfig.from_file(os.environ.get("KUBECONFIG", DEFAULT_KUBECONFIG)).get(context)
        else:
            config = KubeConfig.from_env().get()
    except ConfigError as why:
        raise BadKubeConfig(f"Kubernetes cannot be reached: {why}. Set KUBECONFIG, or name a --context.") from None
    except Exception as why:  # YAML that is none, keys that are missing
        raise BadKubeConfig(f"The kubeconfig file cannot be read: {type(why).__name__}: {why}.") from None
    if config is None or config.user is None:
        raise BadKubeConfig("The kubeconfig file names no user in this context: `kubectl config view` shows it.")
    return config


class KubernetesApi:
    """An API server, as one user sees it. Safe for several threads."""

    def __init__(self, config: SingleConfig, namespace: str = "", transport: httpx.BaseTransport | None = None) -> None:
        params = ConnectionParams(timeout=httpx.Timeout(CALL_S, connect=3.0), transport=transport)
        try:
            self._client = GenericSyncClient(params, config, namespace or None)
        except (OSError, ValueError) as why:
            raise BadKubeConfig(f"The kubeconfig file cannot be used: {why}.") from None
        #: The namespace of this service.
        self.namespace: str = self._client.namespace

    def call(
        self,
        method: str,
        resource: type,
        name: str | None = None,
        content: Any = None,
        namespace: str | None = None,
        params: Mapping[str, Any] | None = None,
        content_type: str | None = None,
    ) -> dict[str, Any]:
        """One call: `get`, `list`, `post`, `patch` or `delete`."""
        headers = {"Content-Type": content_type} if content_type else None
        # The library gives deletions no content, such as the uid of what is to be deleted.
        data = content if method == "delete" else None
        request = self._client.prepare_request(
            method, resource, content, name, namespace, params=dict(params or {}), headers=headers
        )
        request.data = data or request.data
        try:
            answer = self._client.send(self._client.build_adapter_request(request))
        except httpx.HTTPError as why:
            raise OutOfSight(f"The API server does not answer: {type(why).__name__}.") from None
        _check(answer.status_code, answer.content)
        found = _json(answer.content)
        if "date" in answer.headers:
            found["answered_s"] = _seconds(answer.headers["date"])
        return found

    def watch(self, resource: type, namespace: str | None, params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Changes, each with `type` and `object`, until the server ends the watch. A silent server is OutOfSight."""
        request = self._client.prepare_request(
            "list", resource, namespace=namespace, watch=True, params={**params, "timeoutSeconds": WATCH_S}
        )
        request.timeout = httpx.Timeout(CALL_S, connect=3.0, read=SILENT_WATCH_S)
        try:
            answer = self._client.send(self._client.build_adapter_request(request), stream=True)
            try:
                if answer.status_code >= 300:
                    _check(answer.status_code, answer.read())
                for line in answer.iter_lines():
                    if line.strip():
                        yield _change(line)
            finally:
                answer.close()
        except (httpx.HTTPError, httpx.StreamError) as why:
            raise OutOfSight(f"The watch was cut: {type(why).__name__}.") from None


def _change(line: str) -> dict[str, Any]:
    """A line of a watch. An error stands inside an answer that began well."""
    change = _json(line.encode())
    if change.get("type") == "ERROR":
        status = change.get("object") or {}
        raise ApiRefusal(int(status.get("code") or 0), str(status.get("message") or "no reason given"))
    return change


def _check(code: int, content: bytes) -> None:
    if code < 300:
        return
    try:
        why = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        why = content[:200].decode(errors="replace") or f"HTTP {code}"
    if code in REFUSALS:
        raise ApiRefusal(code, why)
    if code == 401:
        raise OutOfSight(f"The API server does not accept the service's credentials: {why}.")
    raise OutOfSight(f"The API server answers {code}: {why}.")


def _json(content: bytes) -> dict[str, Any]:
    """An answer. Half of one, or something else, is no answer."""
    try:
        found = json.loads(content)
    except ValueError:
        raise OutOfSight("The API server's answer was cut.") from None
    if not isinstance(found, dict):
        raise OutOfSight("The API server's answer is no object.")
    return found


def _seconds(date: str) -> float | None:
    """The server's time, in seconds since 1970."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
