"""The example of an agent, against a real service with real trials."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from json import loads
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.halving_agent import Agent, Service, Trial, bundles
from tests.service.live import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[httpx.Client, dict[str, str]]]:
    """A real service with two GPUs that auctions them every second."""
    words = ["serve", "--gpus", "v100:2", "--port", "0", "--state", str(tmp_path / "state"), "-o", "json"]
    words += ["--policy", "themis", "--set", "lease=1", "--set", "f=0", "--set", "answer=2"]
    with subprocess.Popen(
        [sys.executable, "-m", "horae", *words], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as server:
        assert server.stdout is not None
        assert select.select([server.stdout], [], [], 180)[0], "the service did not start"
        said = loads(server.stdout.readline())
        env = {"HORAE_URL": said["url"], "HORAE_TOKEN": Path(said["token_file"]).read_text().strip()}
        headers = {"Authorization": f"Bearer {env['HORAE_TOKEN']}"}
        with httpx.Client(base_url=said["url"], headers=headers, timeout=30, trust_env=False, verify=False) as client:
            yield client, env
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0


@pytest.mark.long
def test_an_app_bids_for_itself_while_its_trials_are_halved(service: Any) -> None:
    client, env = service
    trials = [
        {
            "name": f"trial-{k}",
            "app": "search",
            "app_scheduler": "halving:eta=2,rungs=2",
            "estimate": {"steps": 80},
            "envs": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            "run": [sys.executable, str(EXAMPLES / "train_numpy.py"), "--steps", "80", "--step-ms", "40", "--lr", lr],
        }
        for k, lr in enumerate(("0.05", "0.03", "0.01", "0.0001"))
    ]
    ids = client.post("/v1/jobs", json=trials).json()["ids"]
    with subprocess.Popen(
        [sys.executable, "-I", str(EXAMPLES / "halving_agent.py"), "search", "--eta", "2", "--rungs", "2"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as agent:  # fmt: skip
        out, err = agent.communicate(timeout=120)
    assert agent.returncode == 0, err
    states = {job: client.get(f"/v1/jobs/{job}").json() for job in ids}
    ended = [states[job]["state"] for job in ids]
    given_up = [job for job in ids if states[job]["why"]["reason"] == "GivenUp"]
    assert (ended.count("finished"), len(given_up)) == (1, 3), ended
    assert ids[3] in given_up, "it hardly learns"
    records = journal(client)
    bids = [one["answer"] for one in records if one["kind"] == "BidReceived"]
    good = [one for one in bids if not one["problem"]]
    assert len(good) >= 2, (bids, err)
    assert len(out.splitlines()) == len(good)
    decisions = [one for one in records if one["kind"] == "Decided"]
    asked = {ask["auction"] for one in decisions for ask in one["asks"]}
    unanswered = [app for one in decisions for app in one["unanswered"]]
    assert len(asked) > len(unanswered), "auctions were held with its bids"
    assert len(asked) <= len(bids) + len(unanswered)
    changes = [one["present"] for one in records if one["kind"] == "AgentChanged"]
    assert changes == [True], "the app has ended, and its agent with it"


def journal(client: httpx.Client) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = client.get("/v1/journal", params={"after": after, "limit": 1000}).json()
        records += page["records"]
        after = page["next"] if page["records"] else None
    return records


OFFER: dict[str, Any] = {
    "auction": 4,
    "gang": 2,
    "gangs": 3,
    "holds": 0,
    "rho": 9.0,
    "elapsed_s": 100.0,
    "alone_s": 400.0,
    "machines": {"a": {"gpus": 3, "type": "v100"}, "b": {"gpus": 2, "type": "v100"}, "c": {"gpus": 1, "type": "k80"}},
}


def test_bundles_are_whole_gangs_of_one_type() -> None:
    assert list(bundles(OFFER["machines"], 2, 3)) == [{"a": 2}, {"a": 3, "b": 1}]


def test_the_worse_half_counts_only_up_to_its_next_rung() -> None:
    agent = Agent(Service("", ""), "search", eta=2, rungs=3)
    good, poor = Trial(0.25, 100.0, 1.0), Trial(0.25, 100.0, 2.0)
    assert agent.expected(OFFER, [poor, good]) == (300.0 + 100.0, 300.0)
    assert [agent.next_rung(done) for done in (0.0, 0.125, 0.3, 0.7)] == [0.125, 0.25, 0.5, 1.0]
    bid = agent.bid(OFFER, [poor, good])
    assert bid["rho"] == 9.0
    # 400 GPU-seconds on 2 and on 4 GPUs; the longest trial takes 150 s on its gang.
    assert [row["rho"] for row in bid["table"]] == [(100 + 200) / 400, (100 + 150) / 400]


def test_a_trial_of_which_nothing_is_known_is_like_the_others() -> None:
    agent = Agent(Service("", ""), "search", eta=2, rungs=1)
    assert agent.expected(OFFER, [Trial(0.5, 50.0, 1.0), Trial(0.0, 0.0, None)]) == (50.0 + 50.0, 50.0)
    assert agent.expected(OFFER, [Trial(0.0, 0.0, None)])[0] == 800.0


@pytest.fixture(params=["is not there", "goes away before its answer", "goes away in its answer"])
def absent(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a service that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        if request.param == "is not there":
            server.close()
            yield url
            return
        part = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{" if "in its" in request.param else b""
        threading.Thread(target=_hang_up, args=(server, part), daemon=True).start()
        yield url


def _hang_up(server: socket.socket, part: bytes) -> None:
    with suppress(OSError):
        while True:
            caller, _ = server.accept()
            caller.recv(1 << 16)
            caller.sendall(part)
            caller.close()


def test_a_service_that_does_not_answer_is_asked_again(absent: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", str(EXAMPLES / "halving_agent.py"), "search", "--url", absent],
        env={"HORAE_TOKEN": "x"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for _ in range(2):
        assert eventually(process.stderr.readline).startswith(f"{absent} does not answer")
    process.kill()
    process.communicate()
