"""An API server in memory: what it answers is scripted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
from lightkube.config.kubeconfig import KubeConfig, SingleConfig

from horae.backends.kubernetes.api import KubernetesApi

Answer = httpx.Response | Exception


def config() -> SingleConfig:
    found = KubeConfig.from_dict(
        {
            "clusters": [{"name": "c", "cluster": {"server": "http://api"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "train"}}],
            "current-context": "x",
        }
    ).get()
    assert found
    return found


def api(handle: Callable[[httpx.Request], Answer]) -> KubernetesApi:
    """An API whose every request is answered by a function, or fails with what it returns."""

    def answer(request: httpx.Request) -> httpx.Response:
        found = handle(request)
        if isinstance(found, Exception):
            raise found
        return found

    return KubernetesApi(config(), transport=httpx.MockTransport(answer))


def status(code: int, message: str = "no") -> httpx.Response:
    return httpx.Response(code, json={"kind": "Status", "code": code, "message": message})


def listed(version: int, *items: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, json={"metadata": {"resourceVersion": str(version)}, "items": list(items)})


def lines(*changes: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, content="".join(json.dumps(change) + "\n" for change in changes).encode())


def change(change_type: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"type": change_type, "object": content}
