"""A whole `horae serve` in this process on a small real engine, and jobs that take turns there."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from horae.service.server import ServeOptions, Server
from tests.backends.real import until
from tests.service.live import eventually, submit

#: Counts to 80 in steps of 0.1 s, and goes on from its checkpoint if it is preempted.
_COUNTS = """\
cd $HORAE_CHECKPOINT_DIR
step=$(cat count 2>/dev/null || echo 0)
save() { echo $step > count; echo '{"step": '$step', "total": 80}' > saved.json; }
trap 'save; exit 75' USR1
while [ $step -lt 80 ]; do sleep 0.1; step=$((step + 1)); done
save; echo counted to $step at $HORAE_URL
"""


@contextmanager
def served(asked: ServeOptions, nodes: int = 1) -> Iterator[httpx.Client]:
    """Serve for a while: what its operator asks it with, as soon as so many nodes are up."""
    server = Server(asked)
    try:
        headers = {"Authorization": f"Bearer {server.token_file.read_text().strip()}"}
        trusted = ssl.create_default_context(cafile=server.ca)
        with httpx.Client(base_url=server.url, headers=headers, timeout=20, trust_env=False, verify=trusted) as client:
            eventually(lambda: [node["state"] for node in client.get("/v1/nodes").json()["nodes"]] == ["up"] * nodes)
            yield client
    finally:
        server.close()


def records(client: httpx.Client, jobs: list[str]) -> list[dict[str, Any]]:
    """What the service says of jobs."""
    return [client.get(f"/v1/jobs/{job}").json() for job in jobs]


def logs(client: httpx.Client, jobs: list[str]) -> list[str]:
    """What jobs printed."""
    return [client.get(f"/v1/jobs/{job}/logs").text for job in jobs]


def all_become(state: str, client: httpx.Client, jobs: list[str], patience_s: float = 120.0) -> None:
    """Wait until all jobs are in a state."""
    until(lambda: {job["state"] for job in records(client, jobs)} == {state}, f"for jobs to be {state}", patience_s)


def three_jobs_take_turns(client: httpx.Client) -> None:
    """Three jobs that need all four GPUs of the only node; the service is called http://head:8642."""
    job = {"run": _COUNTS, "resources": {"gpus": 4}, "checkpoint": {"grace": 10}}
    jobs = submit(client, *({**job, "name": f"job{number}"} for number in range(3)))
    all_become("finished", client, jobs)
    assert max(record["attempt"] for record in records(client, jobs)) > 1, "somebody was preempted"
    assert logs(client, jobs) == ["counted to 80 at http://head:8642\n"] * 3
