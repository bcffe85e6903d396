"""Calls to an API server that answers what a script says."""

from __future__ import annotations

from pathlib import Path

import httpx2 as httpx
import pytest
from lightkube.resources.core_v1 import Node, Pod

from horae.backends.driver import OutOfSight
from horae.backends.kubernetes.api import EVERYWHERE, ApiRefusal, BadKubeConfig, load_config
from tests.backends.kubernetes.fake_server import api, change, lines, listed, status


@pytest.mark.parametrize("code", [403, 404, 409, 422])
def test_a_refusal_has_its_code_and_words(code: int) -> None:
    with pytest.raises(ApiRefusal, match="exceeded quota") as caught:
        api(lambda _: status(code, "exceeded quota")).call("get", Pod, "p")
    assert caught.value.code == code


@pytest.mark.parametrize("code", [401, 429, 500, 503, 504])
def test_what_says_nothing_of_the_request_is_out_of_sight(code: int) -> None:
    with pytest.raises(OutOfSight):
        api(lambda _: status(code)).call("get", Pod, "p")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("silent"),
        httpx.RemoteProtocolError("cut"),
        httpx.Response(200, content=b'{"kind": "Po'),
        httpx.Response(200, content=b"[]"),
    ],
    ids=["refused", "silent", "cut", "half an answer", "no object"],
)
def test_no_answer_is_out_of_sight(answer: httpx.Response | Exception) -> None:
    with pytest.raises(OutOfSight):
        api(lambda _: answer).call("get", Pod, "p")


def test_calls_go_to_the_namespace_of_the_context_or_everywhere() -> None:
    paths: list[str] = []

    def note(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        return listed(1)

    server = api(note)
    server.call("list", Pod)
    server.call("list", Pod, namespace=EVERYWHERE)
    server.call("list", Node)
    assert paths == ["/api/v1/namespaces/train/pods", "/api/v1/pods", "/api/v1/nodes"]


def test_the_time_of_the_server_comes_with_its_answer() -> None:
    answer = httpx.Response(200, json={}, headers={"Date": "Fri, 15 Jan 2027 08:00:00 GMT"})
    assert api(lambda _: answer).call("get", Pod, "p")["answered_s"] == 1_800_000_000.0


def test_a_watch_gives_changes_until_the_server_ends_it() -> None:
    changes = [change("ADDED", {"a": 1}), change("BOOKMARK", {})]
    assert list(api(lambda _: lines(*changes)).watch(Pod, None, {})) == changes


def test_an_error_inside_a_watch_is_a_refusal() -> None:
    gone = change("ERROR", {"code": 410, "message": "too old resource version"})
    with pytest.raises(ApiRefusal, match="too old") as caught:
        list(api(lambda _: lines(gone)).watch(Pod, None, {}))
    assert caught.value.code == 410


def test_a_watch_that_is_refused_or_cut_says_so() -> None:
    with pytest.raises(ApiRefusal):
        list(api(lambda _: status(403)).watch(Pod, None, {}))
    with pytest.raises(OutOfSight):
        list(api(lambda _: httpx.ReadTimeout("silent")).watch(Pod, None, {}))
    with pytest.raises(OutOfSight):
        list(api(lambda _: httpx.Response(200, content=b'{"type": "ADD')).watch(Pod, None, {}))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "cannot be read"),
        ("clusters: []\ncontexts: []\n", "Set KUBECONFIG, or name a --context"),
        ("{", "cannot be read"),
    ],
    ids=["empty", "no context", "no YAML"],
)
def test_a_kubeconfig_that_cannot_be_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(BadKubeConfig, match=sentence):
        load_config()


def test_a_context_and_a_file_that_are_not_there_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(BadKubeConfig, match="not found"):
        load_config()
    (tmp_path / "none").write_text("{clusters: [], contexts: []}")
    with pytest.raises(BadKubeConfig, match="'big' not found"):
        load_config("big")
